// Rotary embedding, the KV cache and attention.
#include <algorithm>
#include <numbers>

#include "ir/attention_eval.h"
#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/attention.h"
#include "ir/support/ref/rope.h"

namespace xjit {
namespace {

// v's heads may have another, even odd, size.
absl::Status CheckValues(const Op& op, size_t operand, int64_t kv_heads) {
  const int64_t cols = op.operand(operand)->type.cols();
  if (kv_heads > 0 && cols % kv_heads == 0) return absl::OkStatus();
  return InvalidArgument("{}: {} columns are not {} heads", Name(op.code), cols, kv_heads);
}

absl::Status InferRopeTable(const Op& op, const Module*, std::vector<Type>* types) {
  types->push_back(Type::Rows(Dim::Symbol('T'), 2 * op.weight(1)->type.cols()));
  return absl::OkStatus();
}

absl::Status EvalRopeTable(const Op& op, EvalContext& eval) {
  std::vector<float> freq;
  XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &freq));
  const auto& positions = eval.step->positions;
  const int64_t rows = static_cast<int64_t>(positions.size());
  ref::RopeTable(positions.data(), rows, freq.data(), static_cast<int64_t>(freq.size()),
                 static_cast<float>(op.Float("scale")), eval.Out(rows).f.data());
  return absl::OkStatus();
}

// The table turns `cols` values of a head of `head_dim`, from `offset` on.
absl::Status CheckTable(const Op& op, size_t table, int64_t head_dim, int64_t offset) {
  if (op.operand(table)->type.dims[0] != op.operand(0)->type.dims[0]) {
    return InvalidArgument("{}: the table is {}, which has other rows than {}", Name(op.code),
                           ToString(op.operand(table)->type), ToString(op.operand(0)->type));
  }
  const int64_t cols = op.operand(table)->type.cols();
  if (offset >= 0 && cols % 2 == 0 && cols <= head_dim && offset <= head_dim - cols) return absl::OkStatus();
  return InvalidArgument("{}: the table has {} columns, a head {}{}", Name(op.code), cols, head_dim,
                         offset == 0 ? "" : fmt::format(" and is turned from {} on", offset));
}

absl::Status InferRope(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, op.Int("heads")));
  XJIT_RETURN_IF_ERROR(CheckTable(op, 1, op.operand(0)->type.cols() / op.Int("heads"), op.Int("offset")));
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status EvalRope(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  const TensorData& table = eval.In(1);
  TensorData& y = eval.Out(x.rows);
  for (int64_t m = 0; m < x.rows; ++m) {
    RotateHeads(x.row(m), table.row(m), op.Int("heads"), x.cols, op.Int("offset"), table.cols, y.row(m));
  }
  return absl::OkStatus();
}

absl::Status VerifyKvStore(const Op& op, const Module*) {
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, op.Int("kv_heads")));
  XJIT_RETURN_IF_ERROR(CheckValues(op, 1, op.Int("kv_heads")));
  if (op.operand(0)->type.dims[0] == op.operand(1)->type.dims[0]) return absl::OkStatus();
  return InvalidArgument("kv_store: k and v differ in rows");
}

absl::Status EvalKvStore(const Op&, EvalContext& eval) {
  const TensorData& k = eval.In(0);
  const TensorData& v = eval.In(1);
  const auto tokens = eval.Tokens(0);
  for (int64_t m = 0; m < k.rows; ++m) {
    StoreKv(eval, tokens[static_cast<size_t>(m)], {k.row(m), static_cast<size_t>(k.cols)},
            {v.row(m), static_cast<size_t>(v.cols)});
  }
  return absl::OkStatus();
}

// Query heads of each KV head, from the attribute or even.
absl::StatusOr<std::vector<int64_t>> Groups(const Op& op) {
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads");
  const auto it = op.attrs.find("groups");
  if (kv_heads <= 0 || heads <= 0) return InvalidArgument("{}: has {} heads of {}", Name(op.code), kv_heads, heads);
  if (it == op.attrs.end()) {
    if (heads % kv_heads == 0) return std::vector<int64_t>(static_cast<size_t>(kv_heads), heads / kv_heads);
    return InvalidArgument("{}: {} query heads do not share {} KV heads evenly (groups says how they do)",
                           Name(op.code), heads, kv_heads);
  }
  const auto& groups = std::get<std::vector<int64_t>>(it->second);
  int64_t sum = 0;
  for (const int64_t g : groups) {
    if (g <= 0 || g > heads - sum) return InvalidArgument("{}: groups do not add up to {} heads", Name(op.code), heads);
    sum += g;
  }
  if (sum != heads || static_cast<int64_t>(groups.size()) != kv_heads) {
    return InvalidArgument("{}: groups are {} of {} heads, not {} of {}", Name(op.code), groups.size(), sum, kv_heads,
                           heads);
  }
  return groups;
}

absl::Status InferAttention(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t heads = op.Int("heads");
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, heads));
  XJIT_RETURN_IF_ERROR(Groups(op).status());
  if (op.Int("window") < 0) return InvalidArgument("{}: window is negative", Name(op.code));
  if (op.Float("soft_cap") < 0) return InvalidArgument("{}: soft_cap is negative", Name(op.code));
  const int64_t head_dim = op.operand(0)->type.cols() / heads, v_dim = op.Int("v_dim");
  if (v_dim < 0 || v_dim > int64_t{1} << 20) return InvalidArgument("{}: v_dim is out of range", Name(op.code));
  if (op.Bool("latent") && (op.Int("kv_heads") != 1 || v_dim > head_dim)) {
    return InvalidArgument("{}: a latent cache has one head, whose first v_dim values are V", Name(op.code));
  }
  if (op.operands.size() > 2 && op.weight(2)->type.cols() != heads) {
    return InvalidArgument("{}: there are {} sinks for {} heads", Name(op.code), op.weight(2)->type.cols(), heads);
  }
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], heads * (v_dim > 0 ? v_dim : head_dim)));
  return absl::OkStatus();
}

absl::Status Attend(const Op& op, EvalContext& eval, double scale) {
  const TensorData& q = eval.In(0);
  TensorData& y = eval.Out(q.rows);
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> groups, Groups(op));
  std::vector<float> sinks;
  if (op.operands.size() > 2) XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(2), &sinks));
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads"), window = op.Int("window");
  const auto tokens = eval.Tokens(0);
  ref::AttendArgs args;
  args.head_dim = q.cols / heads;
  args.v_dim = y.cols / heads;
  args.scale = scale;
  args.soft_cap = op.Float("soft_cap");
  args.k_stride = kv_heads * args.head_dim;
  args.v_stride = op.Bool("latent") ? args.k_stride : kv_heads * args.v_dim;
  for (int64_t m = 0; m < q.rows; ++m) {
    const size_t token = static_cast<size_t>(tokens[static_cast<size_t>(m)]);
    InterpKv& kv = *eval.step->kv[token];
    const auto& k = kv.k[eval.layer];
    const auto& v = op.Bool("latent") ? k : kv.v[eval.layer];
    args.end = eval.step->positions[token] + 1;
    args.begin = window > 0 ? std::max<int64_t>(0, args.end - window) : 0;
    if (static_cast<int64_t>(k.size()) < args.end * args.k_stride ||
        static_cast<int64_t>(v.size()) < args.end * args.v_stride) {
      return InvalidArgument("{}: the KV cache ends before position {} (is kv_store missing?)", Name(op.code),
                             args.end - 1);
    }
    int64_t h = 0;
    for (size_t g = 0; g < groups.size(); ++g) {
      for (int64_t i = 0; i < groups[g]; ++i, ++h) {
        args.q = q.row(m) + h * args.head_dim;
        args.k = k.data() + static_cast<int64_t>(g) * args.head_dim;
        args.v = v.data() + static_cast<int64_t>(g) * args.v_dim;
        args.sink = sinks.empty() ? nullptr : &sinks[static_cast<size_t>(h)];
        ref::AttendOne(args, y.row(m) + h * args.v_dim);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status EvalAttention(const Op& op, EvalContext& eval) { return Attend(op, eval, op.Float("scale")); }
absl::Status EvalFlashAttention(const Op& op, EvalContext& eval) { return Attend(op, eval, std::numbers::ln2); }

absl::Status VerifyFlash(const Op& op, const Module* module) {
  const std::string form = op.Str("form");
  if (form != "" && form != "extend" && form != "decode") {
    return InvalidArgument("flash_attention: form is extend or decode, not '{}'", form);
  }
  return VerifyKvType(op, module);
}

absl::Status InferRopeStore(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads");
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 0, heads));
  XJIT_RETURN_IF_ERROR(CheckHeads(op, 1, kv_heads));
  XJIT_RETURN_IF_ERROR(CheckValues(op, 2, kv_heads));
  const int64_t head_dim = op.operand(0)->type.cols() / heads;
  if (op.operand(1)->type.cols() / kv_heads != head_dim || op.operand(1)->type.dims[0] != op.operand(0)->type.dims[0] ||
      op.operand(2)->type.dims[0] != op.operand(0)->type.dims[0]) {
    return InvalidArgument("rope_store: k and v are not {} heads of {} for each row of q", kv_heads, head_dim);
  }
  XJIT_RETURN_IF_ERROR(CheckTable(op, 3, head_dim, 0));
  for (size_t gain = 5; gain < op.operands.size(); ++gain) {
    if (op.weight(gain)->type.cols() != head_dim) {
      return InvalidArgument("rope_store: @{} is not the gain of a head of {}", op.weight(gain)->name, head_dim);
    }
  }
  if (op.operands.size() == 6) return InvalidArgument("rope_store: q and k are normed both or neither");
  XJIT_ASSIGN_OR_RETURN(const DType q, QueryType(op));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], op.operand(0)->type.cols(), q));
  return absl::OkStatus();
}

absl::Status EvalRopeStore(const Op& op, EvalContext& eval) {
  TensorData q = eval.In(0), k = eval.In(1);
  const TensorData& v = eval.In(2);
  const TensorData& table = eval.In(3);
  TensorData& y = eval.Out(q.rows);
  for (size_t gain = 5; gain < op.operands.size(); ++gain) {
    std::vector<float> values;
    XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(gain), &values));
    NormGroups(values, static_cast<float>(op.Float("eps")), gain == 5 ? &q : &k);
  }
  const float q_scale = static_cast<float>(op.Float("scale") * std::numbers::log2e);
  const auto tokens = eval.Tokens(0);
  std::vector<float> rotated(static_cast<size_t>(k.cols));
  for (int64_t m = 0; m < q.rows; ++m) {
    RotateHeads(q.row(m), table.row(m), op.Int("heads"), q.cols, 0, table.cols, y.row(m));
    for (int64_t i = 0; i < q.cols; ++i) y.row(m)[i] *= q_scale;
    RotateHeads(k.row(m), table.row(m), op.Int("kv_heads"), k.cols, 0, table.cols, rotated.data());
    StoreKv(eval, tokens[static_cast<size_t>(m)], rotated, {v.row(m), static_cast<size_t>(v.cols)});
  }
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineRopeTable() {
  return {.operands = {{"step", OperandKind::kStep}, {"inv_freq", OperandKind::kVector}},
          .attrs = {FloatAttr("scale", 1.0)},
          .results = {"rope"},
          .infer = InferRopeTable,
          .reference = EvalRopeTable,
          .doc = "row m: cosines, then sines, of position(m) * inv_freq, times scale (yarn's attention factor)"};
}
OpInfo DefineRope() {
  return {.operands = {{"x", OperandKind::kFloat}, {"rope", OperandKind::kFloat}},
          .attrs = {IntAttr("heads"), IntAttr("offset", 0)},
          .results = {"r"},
          .infer = InferRope,
          .reference = EvalRope,
          .doc =
              "rotates pairs (i, i + d/2) of the d values of each head from offset on that the table has columns for  "
              "[Su et al. 2021, arXiv:2104.09864]"};
}
OpInfo DefineKvStore() {
  return {.operands = {{"k", OperandKind::kFloat}, {"v", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .attrs = {IntAttr("kv_heads")},
          .effects = Effects::kWritesKv,
          .verify = VerifyKvStore,
          .reference = EvalKvStore,
          .doc = "stores k and v of this step's tokens at their positions in this layer's cache"};
}
OpInfo DefineAttention() {
  return {.operands = {{"q", OperandKind::kFloat}, {"step", OperandKind::kStep}, {"sinks", OperandKind::kVector}},
          .optional = 1,
          .attrs = {IntAttr("heads"), IntAttr("kv_heads"), FloatAttr("scale"), IntAttr("window", 0),
                    FloatAttr("soft_cap", 0.0), IntAttr("v_dim", 0), ListAttr("groups"), BoolAttr("latent")},
          .results = {"a"},
          .effects = Effects::kReadsKv,
          .infer = InferAttention,
          .reference = EvalAttention,
          .doc =
              "causal attention over this layer's cache; window > 0: over the last window tokens only; v_dim: columns "
              "of a head of V (0: as q's); groups: query heads of each KV head; sinks: a logit a head that joins the "
              "softmax; latent: V is the first v_dim values of K's rows"};
}
OpInfo DefineRopeStore() {
  return {.operands = {{"q", OperandKind::kFloat},
                       {"k", OperandKind::kFloat},
                       {"v", OperandKind::kFloat},
                       {"rope", OperandKind::kFloat},
                       {"step", OperandKind::kStep},
                       {"q_gain", OperandKind::kVector},
                       {"k_gain", OperandKind::kVector}},
          .optional = 2,
          .attrs = {IntAttr("heads"), IntAttr("kv_heads"), FloatAttr("scale"), FloatAttr("eps", 0.0),
                    StrAttr("q", "f32"), StrAttr("kv", "f32")},
          .results = {"q"},
          .effects = Effects::kWritesKv,
          .infer = InferRopeStore,
          .verify = VerifyKvType,
          .reference = EvalRopeStore,
          .doc =
              "norm of each head of q and k where gains are given, rope of q and k, kv_store of k and v (as kv says), "
              "q scaled by scale * log2(e) for a softmax in base 2"};
}
OpInfo DefineFlashAttention() {
  return {
      .operands = {{"q", OperandKind::kAct}, {"step", OperandKind::kStep}, {"sinks", OperandKind::kVector}},
      .optional = 1,
      .attrs = {IntAttr("heads"), IntAttr("kv_heads"), IntAttr("window", 0), FloatAttr("soft_cap", 0.0),
                IntAttr("v_dim", 0), ListAttr("groups"), BoolAttr("latent"), StrAttr("form", ""), StrAttr("kv", "f32")},
      .results = {"a"},
      .effects = Effects::kReadsKv,
      .infer = InferAttention,
      .verify = VerifyFlash,
      .reference = EvalFlashAttention,
      .doc =
          "attention with online softmax in base 2 on a scaled q, two products with the softmax momentum (running "
          "maximum and sum, rescaling, conversion of the probabilities) between them. form \"extend\": block by "
          "block over the prefix's rectangle and the new tokens' triangle; \"decode\": the KV of a row split over "
          "threads and merged; none: by the step's rows  [Dao 2023, arXiv:2307.08691]"};
}

}  // namespace xjit
