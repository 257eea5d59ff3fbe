// What ranks of a sharded model exchange. Each rank runs its own module; a collective is where they meet.
#include <algorithm>
#include <numeric>

#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/eltwise.h"

namespace xjit {
namespace {

absl::StatusOr<std::vector<std::vector<float>>> Gather(const EvalContext& eval, const std::vector<float>& mine) {
  if (eval.step->ranks != nullptr) return eval.step->ranks->Gather(mine);
  return std::vector<std::vector<float>>{mine};
}

absl::Status InferAllReduce(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckChain(op, "epilogue", "bias scale residual rms_norm"));
  const Type& type = op.operand(0)->type;
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "scale") continue;
    const Operand& o = ItemOperand(op, item);
    const bool fits = item.name == "residual"
                          ? o.value != nullptr && o.value->type == type
                          : o.weight != nullptr && o.weight->type.dims.size() == 1 &&
                                o.weight->type.elem == DType::kF32 && o.weight->type.cols() == type.cols();
    if (!fits) return InvalidArgument("all_reduce: {}'s operand does not fit {}", item.name, ToString(type));
  }
  types->push_back(type);
  if (op.Item("epilogue", "rms_norm") != nullptr) types->push_back(type);
  return absl::OkStatus();
}

absl::Status EvalAllReduce(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const auto parts, Gather(eval, eval.In(0).f));
  const int64_t rows = eval.In(0).rows;
  TensorData sum;
  sum.rows = rows;
  sum.cols = eval.In(0).cols;
  sum.f.assign(eval.In(0).f.size(), 0.0f);
  for (const auto& part : parts) {
    if (part.size() != sum.f.size()) return InvalidArgument("all_reduce: ranks give values of different sizes");
    ref::Add(sum.f.data(), part.data(), static_cast<int64_t>(part.size()), sum.f.data());
  }
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    if (item.name == "rms_norm") {
      std::vector<float> gain;
      XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &gain));
      TensorData normed = sum;
      NormGroups(gain, static_cast<float>(ItemNumber(item, 1)), &normed);
      eval.Out(rows, 1).f = std::move(normed.f);
    } else if (item.name == "scale") {
      ref::Scale(sum.f.data(), static_cast<int64_t>(sum.f.size()), static_cast<float>(ItemNumber(item, 0)),
                 sum.f.data());
    } else if (item.name == "bias") {
      std::vector<float> bias;
      XJIT_RETURN_IF_ERROR(eval.Vector(ItemOperand(op, item).weight, &bias));
      for (int64_t m = 0; m < rows; ++m) ref::Add(sum.row(m), bias.data(), sum.cols, sum.row(m));
    } else {
      const TensorData& residual = (*eval.values)[ItemOperand(op, item).value];
      ref::Add(sum.f.data(), residual.f.data(), static_cast<int64_t>(sum.f.size()), sum.f.data());
    }
  }
  eval.Out(rows).f = std::move(sum.f);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> SizesOf(const Op& op) {
  const auto& sizes = std::get<std::vector<int64_t>>(op.attrs.at("sizes"));
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    if (size < 1 || size > (int64_t{1} << 40) - sum) return InvalidArgument("all_gather: a size is out of range");
    sum += size;
  }
  if (std::find(sizes.begin(), sizes.end(), op.operand(0)->type.cols()) == sizes.end()) {
    return InvalidArgument("all_gather: no rank has x's {} columns", op.operand(0)->type.cols());
  }
  return sizes;
}

absl::Status InferAllGather(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_ASSIGN_OR_RETURN(const auto sizes, SizesOf(op));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], std::accumulate(sizes.begin(), sizes.end(), int64_t{0})));
  return absl::OkStatus();
}

absl::Status EvalAllGather(const Op& op, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const auto sizes, SizesOf(op));
  XJIT_ASSIGN_OR_RETURN(const auto parts, Gather(eval, eval.In(0).f));
  if (parts.size() != sizes.size()) {
    return InvalidArgument("all_gather: has sizes of {} ranks, there are {}", sizes.size(), parts.size());
  }
  TensorData& y = eval.Out(eval.In(0).rows);
  int64_t at = 0;
  for (size_t r = 0; r < parts.size(); ++r) {
    if (static_cast<int64_t>(parts[r].size()) != sizes[r] * y.rows) {
      return InvalidArgument("all_gather: rank {} does not give {} columns", r, sizes[r]);
    }
    for (int64_t m = 0; m < y.rows; ++m) std::copy_n(parts[r].data() + m * sizes[r], sizes[r], y.row(m) + at);
    at += sizes[r];
  }
  return absl::OkStatus();
}

absl::Status InferOwnRows(const Op& op, const Module*, std::vector<Type>* types) {
  if (op.operand(0)->type.dims[0].symbol != 'T') return InvalidArgument("own_rows: x has no row for each token");
  types->push_back(Type::Rows(Dim::Symbol('R'), op.operand(0)->type.cols()));
  return absl::OkStatus();
}

int RankOf(const EvalContext& eval) { return eval.step->ranks != nullptr ? eval.step->ranks->rank() : 0; }
int RanksOf(const EvalContext& eval) { return eval.step->ranks != nullptr ? eval.step->ranks->size() : 1; }

absl::Status EvalOwnRows(const Op&, EvalContext& eval) {
  const auto rows = eval.step->OwnRows(RankOf(eval), RanksOf(eval));
  const TensorData& x = eval.In(0);
  TensorData& y = eval.Out(static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(x.row(rows[i]), x.cols, y.row(static_cast<int64_t>(i)));
  return absl::OkStatus();
}

absl::Status InferGatherRows(const Op& op, const Module*, std::vector<Type>* types) {
  if (op.operand(0)->type.dims[0].symbol != 'R') return InvalidArgument("gather_rows: x is not a rank's own rows");
  types->push_back(Type::Rows(Dim::Symbol('T'), op.operand(0)->type.cols()));
  return absl::OkStatus();
}

absl::Status EvalGatherRows(const Op&, EvalContext& eval) {
  XJIT_ASSIGN_OR_RETURN(const auto parts, Gather(eval, eval.In(0).f));
  TensorData& y = eval.Out(static_cast<int64_t>(eval.step->ids.size()));
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto rows = eval.step->OwnRows(static_cast<int>(r), RanksOf(eval));
    if (static_cast<int64_t>(parts[r].size()) != static_cast<int64_t>(rows.size()) * y.cols) {
      return InvalidArgument("gather_rows: rank {} does not give {} rows", r, rows.size());
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(parts[r].data() + static_cast<int64_t>(i) * y.cols, y.cols, y.row(rows[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineAllReduce() {
  return {
      .operands = {{"x", OperandKind::kFloat}},
      .attrs = {ChainAttr("epilogue")},
      .results = {"h", "n"},
      .infer = InferAllReduce,
      .reference = EvalAllReduce,
      .doc =
          "the sum of all ranks' x, in the order of ranks; epilogue, in this order: bias(@b), scale(by), residual(%h), "
          "rms_norm(@gain, eps), which gives a second result beside the sum"};
}
OpInfo DefineAllGather() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .attrs = {{"sizes", std::nullopt, Attr(std::vector<int64_t>{})}},
          .results = {"y"},
          .infer = InferAllGather,
          .reference = EvalAllGather,
          .doc = "the columns of all ranks side by side; sizes: how many each has"};
}
OpInfo DefineOwnRows() {
  return {.operands = {{"x", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .results = {"r"},
          .infer = InferOwnRows,
          .reference = EvalOwnRows,
          .doc = "the rows of this rank's sequences: sequence i is rank i mod tp's"};
}
OpInfo DefineGatherRows() {
  return {.operands = {{"r", OperandKind::kFloat}, {"step", OperandKind::kStep}},
          .results = {"x"},
          .infer = InferGatherRows,
          .reference = EvalGatherRows,
          .doc = "the rows of all ranks, in the order of the step's tokens"};
}

}  // namespace xjit
