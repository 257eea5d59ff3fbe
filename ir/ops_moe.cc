// Mixtures of experts: choosing them, their products as models write them, and the grouped form.
#include <algorithm>
#include <numeric>

#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/route.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/moe.h"

namespace xjit {

absl::StatusOr<ref::RouteParams> RouteParamsOf(const Op& op) {
  ref::RouteParams p;
  p.experts = op.operand(0)->type.cols();
  p.top_k = op.Int("top_k");
  p.normalize = op.Bool("normalize");
  p.scale = op.Float("scale");
  p.groups = op.Int("groups");
  p.top_groups = op.Int("top_groups");
  p.group_top = op.Int("group_top");
  const std::string score = op.Str("score");
  if (score == "softmax") {
    p.score = ref::RouterScore::kSoftmax;
  } else if (score == "sigmoid") {
    p.score = ref::RouterScore::kSigmoid;
  } else if (score == "softmax_chosen") {
    p.score = ref::RouterScore::kSoftmaxChosen;
  } else {
    return InvalidArgument("route: score is softmax, sigmoid or softmax_chosen, not '{}'", score);
  }
  if (p.groups < 1 || p.experts % p.groups != 0 || p.top_groups < 1 || p.top_groups > p.groups || p.group_top < 1 ||
      p.group_top > p.experts / p.groups) {
    return InvalidArgument("route: {} experts are not {} groups of which the best {} are judged by their best {}",
                           p.experts, p.groups, p.top_groups, p.group_top);
  }
  if (p.top_k < 1 || p.top_k > p.experts / p.groups * p.top_groups) {
    return InvalidArgument("route: top_k = {} of {} experts to choose from", p.top_k,
                           p.experts / p.groups * p.top_groups);
  }
  return p;
}

namespace {

constexpr int64_t kMostExperts = int64_t{1} << 20;

absl::Status InferRoute(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const ref::RouteParams p, RouteParamsOf(op));
  const int64_t constant = op.Int("constant");
  if (constant < 0 || constant > kMostExperts) return InvalidArgument("route: constant is out of range");
  if (op.operands.size() > 1 && op.weight(1)->type.cols() != p.experts) {
    return InvalidArgument("route: @{} is not of {} experts", op.weight(1)->name, p.experts);
  }
  const Dim rows = op.operand(0)->type.dims[0];
  types->push_back(Type::Rows(rows, p.top_k + constant, DType::kI32));
  types->push_back(Type::Rows(rows, p.top_k + constant));
  return absl::OkStatus();
}

absl::Status EvalRoute(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const ref::RouteParams p, RouteParamsOf(op));
  const TensorData& logits = eval.In(0);
  std::vector<float> bias;
  if (op.operands.size() > 1) XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &bias));
  TensorData& experts = eval.Out(logits.rows, 0);
  TensorData& weights = eval.Out(logits.rows, 1);
  for (int64_t m = 0; m < logits.rows; ++m) {
    int32_t* chosen = experts.ids.data() + m * experts.cols;
    ref::Route(p, logits.row(m), bias.empty() ? nullptr : bias.data(), chosen, weights.row(m));
    for (int64_t i = p.top_k; i < experts.cols; ++i) {
      chosen[i] = static_cast<int32_t>(p.experts + i - p.top_k);
      weights.row(m)[i] = 1;
    }
  }
  return absl::OkStatus();
}

// x is one row for all slots of a token, or one for each slot.
absl::Status CheckSlots(const Op& op, int64_t slots, const Weight& w) {
  if (op.operand(0)->type.dims[0] != op.operand(1)->type.dims[0]) {
    return InvalidArgument("{}: x and experts differ in rows", Name(op.code));
  }
  const int64_t cols = op.operand(0)->type.cols(), k = w.type.cols();
  if (cols == k || (cols % slots == 0 && cols / slots == k)) return absl::OkStatus();
  return InvalidArgument("{}: x has k = {} but @{} has k = {}, once or for each of {} slots", Name(op.code), cols,
                         w.name, k, slots);
}

// Columns of `slots` products of n, as far as any machine could hold them.
absl::StatusOr<int64_t> SlotColumns(const Op& op, int64_t slots, int64_t n) {
  constexpr int64_t kMostColumns = int64_t{1} << 40;
  if (n <= kMostColumns / slots) return slots * n;
  return InvalidArgument("{}: {} slots of {} columns are out of range", Name(op.code), slots, n);
}

absl::Status InferExpertLinear(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t slots = op.operand(1)->type.cols();
  XJIT_RETURN_IF_ERROR(CheckSlots(op, slots, *op.weight(2)));
  XJIT_ASSIGN_OR_RETURN(const int64_t cols, SlotColumns(op, slots, op.weight(2)->type.rows()));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], cols));
  return absl::OkStatus();
}

// The expert of each slot within the weight: the chosen number minus attribute `first`; one that lies outside of the
// weight is another rank's, where a weight holds a share. Without `first` that is an error.
absl::StatusOr<std::vector<int64_t>> LocalExperts(const Op& op, const TensorData& experts, const Weight& w) {
  const int64_t count = w.type.dims[0].size, first = op.Int("first");
  const bool share = op.Has("first");
  std::vector<int64_t> local;
  for (const int32_t id : experts.ids) {
    const int64_t e = id - first;
    const bool here = e >= 0 && e < count;
    if (!here && !share) return InvalidArgument("{}: expert {} of @{}'s {}", Name(op.code), id, w.name, count);
    local.push_back(here ? e : -1);
  }
  return local;
}

// y[slot] = w[experts[slot]] x for the slots in `order`, each expert's rows read once.
absl::Status Products(EvalContext& eval, const TensorData& x, const std::vector<int64_t>& experts,
                      const std::vector<int64_t>& order, int64_t slots, const Weight& w, TensorData* y) {
  const int64_t n = w.type.rows(), k = w.type.cols();
  std::map<int64_t, std::vector<int64_t>> by_expert;
  for (const int64_t slot : order) {
    if (experts[static_cast<size_t>(slot)] >= 0) by_expert[experts[static_cast<size_t>(slot)]].push_back(slot);
  }
  std::vector<float> row(static_cast<size_t>(k));
  for (const auto& [expert, members] : by_expert) {
    for (int64_t j = 0; j < n; ++j) {
      XJIT_RETURN_IF_ERROR(eval.weights->Row(eval.layer, w, expert * n + j, row));
      for (const int64_t slot : members) {
        const int64_t token = slot / slots;
        const float* from = x.row(token) + (x.cols == k ? 0 : slot % slots * k);
        y->row(token)[slot % slots * n + j] = Dot(from, row.data(), k);
      }
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> AllSlots(size_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  return order;
}

absl::Status EvalExpertLinear(const Op& op, EvalContext& eval) {
  const TensorData& experts = eval.In(1);
  XJIT_ASSIGN_OR_RETURN(const auto local, LocalExperts(op, experts, *op.weight(2)));
  return Products(eval, eval.In(0), local, AllSlots(local.size()), experts.cols, *op.weight(2),
                  &eval.Out(experts.rows));
}

absl::Status InferExpertBias(const Op& op, const Module*, std::vector<Type>* types) {
  const Type& bias = op.weight(2)->type;
  if (bias.cols() != 1 || op.operand(0)->type.cols() % op.operand(1)->type.cols() != 0 ||
      op.operand(0)->type.cols() / op.operand(1)->type.cols() != bias.rows()) {
    return InvalidArgument("expert_bias: @{} is not [experts, {}, 1]", op.weight(2)->name,
                           op.operand(0)->type.cols() / op.operand(1)->type.cols());
  }
  if (op.operand(0)->type.dims[0] != op.operand(1)->type.dims[0]) {
    return InvalidArgument("expert_bias: y and experts differ in rows");
  }
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

// y[slot] += bias[expert of the slot].
absl::Status AddExpertBias(EvalContext& eval, const std::vector<int64_t>& experts, const Weight& bias, TensorData* y) {
  const int64_t n = bias.type.rows(), slots = y->cols / n;
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    if (experts[slot] < 0) continue;
    float* to = y->row(static_cast<int64_t>(slot) / slots) + static_cast<int64_t>(slot) % slots * n;
    for (int64_t j = 0; j < n; ++j) {
      float value = 0;
      XJIT_RETURN_IF_ERROR(eval.weights->Row(eval.layer, bias, experts[slot] * n + j, {&value, 1}));
      to[j] += value;
    }
  }
  return absl::OkStatus();
}

absl::Status EvalExpertBias(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const auto local, LocalExperts(op, eval.In(1), *op.weight(2)));
  TensorData& y = eval.Out(eval.In(0).rows);
  y.f = eval.In(0).f;
  return AddExpertBias(eval, local, *op.weight(2), &y);
}

absl::Status InferCombine(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t cols = op.operand(0)->type.cols(), slots = op.operand(1)->type.cols();
  if (cols % slots != 0 || op.operand(0)->type.dims[0] != op.operand(1)->type.dims[0]) {
    return InvalidArgument("combine: {} is not {} slots a row", ToString(op.operand(0)->type), slots);
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], cols / slots));
  return absl::OkStatus();
}

TensorData Combine(const TensorData& y, const TensorData& weights) {
  TensorData sum;
  sum.rows = y.rows;
  sum.cols = y.cols / weights.cols;
  sum.f.assign(static_cast<size_t>(sum.rows * sum.cols), 0.0f);
  for (int64_t m = 0; m < y.rows; ++m) {
    for (int64_t s = 0; s < weights.cols; ++s) {
      for (int64_t j = 0; j < sum.cols; ++j) sum.row(m)[j] += weights.row(m)[s] * y.row(m)[s * sum.cols + j];
    }
  }
  return sum;
}

absl::Status EvalCombine(const Op&, EvalContext& eval) {
  TensorData sum = Combine(eval.In(0), eval.In(1));
  eval.Out(sum.rows).f = std::move(sum.f);
  return absl::OkStatus();
}

absl::Status InferMoeSort(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t experts = op.Int("experts");
  if (experts < 1 || experts > kMostExperts) return InvalidArgument("moe_sort: {} experts", experts);
  types->push_back(op.operand(0)->type);
  types->push_back(Type::Tensor({{1, 0}, {experts + 1, 0}}, DType::kI32));
  return absl::OkStatus();
}

absl::Status EvalMoeSort(const Op& op, EvalContext& eval) {
  const TensorData& experts = eval.In(0);
  TensorData& order = eval.Out(experts.rows, 0);
  TensorData& offsets = eval.Out(1, 1);
  const int64_t first = op.Int("first"), count = op.Int("experts");
  std::vector<int64_t> slots;
  for (const int64_t slot : AllSlots(experts.ids.size())) {
    const int64_t e = experts.ids[static_cast<size_t>(slot)] - first;
    if (e >= 0 && e < count) slots.push_back(slot);
  }
  std::stable_sort(slots.begin(), slots.end(), [&](int64_t a, int64_t b) {
    return experts.ids[static_cast<size_t>(a)] < experts.ids[static_cast<size_t>(b)];
  });
  // Slots of other ranks' experts are -1, behind all.
  std::fill(order.ids.begin(), order.ids.end(), -1);
  for (size_t i = 0; i < slots.size(); ++i) {
    order.ids[i] = static_cast<int32_t>(slots[i]);
    ++offsets.ids[static_cast<size_t>(experts.ids[static_cast<size_t>(slots[i])] - first + 1)];
  }
  std::partial_sum(offsets.ids.begin(), offsets.ids.end(), offsets.ids.begin());
  return absl::OkStatus();
}

constexpr std::string_view kGroupedEpilogue = "bias silu_mul gelu_mul clamped_swiglu combine residual";

// Operands 3 and 4, order and offsets, come together.
bool Sorted(const Op& op) { return op.operands.size() - ChainOperands(op) == 5; }

absl::Status InferGroupedGemm(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t slots = op.operand(1)->type.cols();
  const Weight& w = *op.weight(2);
  XJIT_RETURN_IF_ERROR(CheckSlots(op, slots, w));
  XJIT_RETURN_IF_ERROR(CheckPrologue(op));
  XJIT_RETURN_IF_ERROR(CheckChain(op, "epilogue", kGroupedEpilogue));
  const Dim rows = op.operand(0)->type.dims[0];
  XJIT_RETURN_IF_ERROR(InferEpilogue(op, w, rows, types));
  if (op.operands.size() - ChainOperands(op) == 4) return InvalidArgument("grouped_gemm: order without offsets");
  if (Sorted(op)) {
    if (op.operand(3)->type != op.operand(1)->type || op.operand(4)->type.cols() != w.type.dims[0].size + 1) {
      return InvalidArgument("grouped_gemm: order and offsets are not those of {} slots and {} experts", slots,
                             w.type.dims[0].size);
    }
  }
  const ChainItem* combine = op.Item("epilogue", "combine");
  if (combine == nullptr) {
    XJIT_ASSIGN_OR_RETURN(types->back().dims[1].size, SlotColumns(op, slots, types->back().cols()));
  } else if (const Operand& o = ItemOperand(op, *combine);
             o.value == nullptr || o.value->type != Type::Rows(rows, slots)) {
    return InvalidArgument("grouped_gemm: combine needs the weights of {} slots", slots);
  }
  XJIT_ASSIGN_OR_RETURN(const DType out, ActivationType(op, types->back().cols() / slots));
  if (out != DType::kF32 && combine != nullptr) {
    return InvalidArgument("grouped_gemm: rows that are combined leave as f32, not {}", Name(out));
  }
  types->back().elem = out;
  if (const ChainItem* residual = op.Item("epilogue", "residual")) {
    const Operand& o = ItemOperand(op, *residual);
    if (combine == nullptr || o.value == nullptr || o.value->type != types->back()) {
      return InvalidArgument("grouped_gemm: residual must be {} and follow combine", ToString(types->back()));
    }
  }
  return absl::OkStatus();
}

absl::Status EvalGroupedGemm(const Op& op, EvalContext& eval) {
  const TensorData& experts = eval.In(1);
  const Weight& w = *op.weight(2);
  const int64_t slots = experts.cols;
  XJIT_ASSIGN_OR_RETURN(const auto local, LocalExperts(op, experts, w));
  std::vector<int64_t> order = AllSlots(local.size());
  if (Sorted(op)) {
    order.clear();
    for (const int32_t slot : eval.In(3).ids) {
      if (slot >= 0 && static_cast<size_t>(slot) < local.size()) order.push_back(slot);
    }
  }
  TensorData x, y;
  XJIT_RETURN_IF_ERROR(ApplyPrologue(op, eval, eval.In(0), &x));
  y.rows = x.rows;
  y.cols = slots * w.type.rows();
  y.f.assign(static_cast<size_t>(y.rows * y.cols), 0.0f);
  XJIT_RETURN_IF_ERROR(Products(eval, x, local, order, slots, w, &y));
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "bias") {
      XJIT_RETURN_IF_ERROR(AddExpertBias(eval, local, *ItemOperand(op, item).weight, &y));
    } else if (item.name == "combine") {
      y = Combine(y, (*eval.values)[ItemOperand(op, item).value]);
    } else if (item.name == "residual") {
      const TensorData& residual = (*eval.values)[ItemOperand(op, item).value];
      ref::Add(y.f.data(), residual.f.data(), static_cast<int64_t>(y.f.size()), y.f.data());
    } else {
      const int64_t n = w.type.rows() / 2;
      TensorData half;
      half.rows = y.rows;
      half.cols = slots * n;
      half.f.resize(static_cast<size_t>(half.rows * half.cols));
      for (int64_t m = 0; m < y.rows; ++m) {
        for (int64_t s = 0; s < slots; ++s) {
          const float* pair = y.row(m) + s * 2 * n;
          ApplyGlu(item, pair, pair + n, n, half.row(m) + s * n);
        }
      }
      y = std::move(half);
    }
  }
  RoundActivations(op.result()->type.elem, y.cols / slots, &y.f);
  eval.Out(x.rows).f = std::move(y.f);
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineRoute() {
  return {.operands = {{"logits", OperandKind::kFloat}, {"bias", OperandKind::kVector}},
          .optional = 1,
          .attrs = {IntAttr("top_k"), StrAttr("score", "softmax"), BoolAttr("normalize"), FloatAttr("scale", 1.0),
                    IntAttr("groups", 1), IntAttr("top_groups", 1), IntAttr("group_top", 1), IntAttr("constant", 0)},
          .results = {"experts", "weights"},
          .infer = InferRoute,
          .reference = EvalRoute,
          .doc =
              "chooses top_k experts a row and weighs them: score softmax, sigmoid or softmax_chosen; bias joins in "
              "choosing only; of `groups` groups the top_groups are looked into whose best group_top experts score "
              "highest; weights are divided by their sum (normalize) and multiplied by scale; `constant` experts more "
              "are always chosen, with weight 1  [DeepSeek-V3, arXiv:2412.19437]"};
}
OpInfo DefineExpertLinear() {
  return {.operands = {{"x", OperandKind::kFloat}, {"experts", OperandKind::kRoutes}, {"w", OperandKind::kExperts}},
          .attrs = {IntAttr("first", 0)},
          .results = {"y"},
          .infer = InferExpertLinear,
          .reference = EvalExpertLinear,
          .doc =
              "slot s of row m: w[experts[m, s]] . x[m], or . slot s of x[m] where x has as many. Given `first`, the "
              "weight holds experts from that number on, and others' slots are zero"};
}
OpInfo DefineExpertBias() {
  return {.operands = {{"y", OperandKind::kFloat}, {"experts", OperandKind::kRoutes}, {"bias", OperandKind::kExperts}},
          .attrs = {IntAttr("first", 0)},
          .results = {"y"},
          .infer = InferExpertBias,
          .reference = EvalExpertBias,
          .doc = "slot s of row m: y + bias[experts[m, s]]; the bias is [experts, n, 1]"};
}
OpInfo DefineCombine() {
  return {.operands = {{"y", OperandKind::kFloat}, {"weights", OperandKind::kFloat}},
          .results = {"c"},
          .infer = InferCombine,
          .reference = EvalCombine,
          .doc = "the slots of each row, weighed and added"};
}
OpInfo DefineMoeSort() {
  return {
      .operands = {{"experts", OperandKind::kRoutes}},
      .attrs = {IntAttr("experts"), IntAttr("first", 0)},
      .results = {"order", "offsets"},
      .infer = InferMoeSort,
      .reference = EvalMoeSort,
      .doc =
          "order: the slots row * columns + column sorted by expert, earlier rows first, -1 behind them for experts "
          "outside of first.. ; offsets: where each expert's run begins, and the end"};
}
OpInfo DefineGroupedGemm() {
  return {.operands = {{"x", OperandKind::kAct},
                       {"experts", OperandKind::kRoutes},
                       {"w", OperandKind::kExperts},
                       {"order", OperandKind::kRoutes},
                       {"offsets", OperandKind::kRoutes}},
          .optional = 2,
          .attrs = {ChainAttr("prologue"), ChainAttr("epilogue"), IntAttr("first", 0), StrAttr("out", "f32")},
          .results = {"y"},
          .infer = InferGroupedGemm,
          .reference = EvalGroupedGemm,
          .doc =
              "expert_linear with prologue and epilogue, the experts' runs in the order of moe_sort side by side; "
              "prologue: rms_norm(@gain, eps); epilogue, in this order: bias(@b), one of silu_mul, gelu_mul and "
              "clamped_swiglu(limit, alpha), combine(%weights), residual(%x); out: the type in which the next "
              "grouped_gemm reads the result, rounded slot by slot"};
}

}  // namespace xjit
