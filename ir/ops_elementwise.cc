// Elementwise ops and the norm.
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

absl::Status InferSame(const Op& op, const Module*, std::vector<Type>* types) {
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status InferBinary(const Op& op, const Module*, std::vector<Type>* types) {
  if (op.operand(0)->type != op.operand(1)->type) {
    return InvalidArgument("{}: operands differ: {} and {}", Name(op.code), ToString(op.operand(0)->type),
                           ToString(op.operand(1)->type));
  }
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status InferVector(const Op& op, const Module*, std::vector<Type>* types) {
  if (op.operand(0)->type.cols() != op.weight(1)->type.cols()) {
    return InvalidArgument("{}: x has {} columns but @{} has {}", Name(op.code), op.operand(0)->type.cols(),
                           op.weight(1)->name, op.weight(1)->type.cols());
  }
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status EvalRmsNorm(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  std::vector<float> gain;
  XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &gain));
  TensorData& y = eval.Out(x.rows);
  for (int64_t m = 0; m < x.rows; ++m) {
    ref::RmsNorm(x.row(m), gain.data(), x.cols, static_cast<float>(op.Float("eps")), y.row(m));
  }
  return absl::OkStatus();
}

absl::Status EvalAddBias(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  std::vector<float> bias;
  XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &bias));
  TensorData& y = eval.Out(x.rows);
  for (int64_t m = 0; m < x.rows; ++m) ref::Add(x.row(m), bias.data(), x.cols, y.row(m));
  return absl::OkStatus();
}

absl::Status EvalAdd(const Op&, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  ref::Add(eval.In(0).f.data(), eval.In(1).f.data(), static_cast<int64_t>(y.f.size()), y.f.data());
  return absl::OkStatus();
}

absl::Status EvalMul(const Op&, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  ref::Mul(eval.In(0).f.data(), eval.In(1).f.data(), static_cast<int64_t>(y.f.size()), y.f.data());
  return absl::OkStatus();
}

absl::Status EvalSilu(const Op&, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  ref::Silu(eval.In(0).f.data(), static_cast<int64_t>(y.f.size()), y.f.data());
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineRmsNorm() {
  return {.operands = {{"x", OperandKind::kFloat}, {"gain", OperandKind::kVector}},
          .attrs = {FloatAttr("eps", 1e-5)},
          .results = {"n"},
          .infer = InferVector,
          .reference = EvalRmsNorm,
          .doc = "n = x * gain / sqrt(mean(x^2) + eps)  [Zhang & Sennrich 2019, arXiv:1910.07467]"};
}
OpInfo DefineAddBias() {
  return {.operands = {{"x", OperandKind::kFloat}, {"bias", OperandKind::kVector}},
          .results = {"y"},
          .infer = InferVector,
          .reference = EvalAddBias,
          .doc = "y[m, n] = x[m, n] + bias[n]"};
}
OpInfo DefineAdd() {
  return {.operands = {{"a", OperandKind::kFloat}, {"b", OperandKind::kFloat}},
          .results = {"y"},
          .infer = InferBinary,
          .reference = EvalAdd,
          .doc = "y = a + b"};
}
OpInfo DefineMul() {
  return {.operands = {{"a", OperandKind::kFloat}, {"b", OperandKind::kFloat}},
          .results = {"y"},
          .infer = InferBinary,
          .reference = EvalMul,
          .doc = "y = a * b, element by element"};
}
OpInfo DefineSilu() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .results = {"y"},
          .infer = InferSame,
          .reference = EvalSilu,
          .doc = "y = x / (1 + exp(-x))  [Elfwing et al. 2017, arXiv:1702.03118]"};
}

}  // namespace xjit
