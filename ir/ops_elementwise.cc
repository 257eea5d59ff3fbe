// Elementwise ops and the norm.
#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/support/ref/eltwise.h"

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

absl::Status InferRmsNorm(const Op& op, const Module*, std::vector<Type>* types) {
  const int64_t cols = op.operand(0)->type.cols(), group = op.weight(1)->type.cols();
  if (cols % group != 0) {
    return InvalidArgument("rms_norm: x has {} columns, which are not groups of @{}'s {}", cols, op.weight(1)->name,
                           group);
  }
  types->push_back(op.operand(0)->type);
  return absl::OkStatus();
}

absl::Status EvalRmsNorm(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  std::vector<float> gain;
  XJIT_RETURN_IF_ERROR(eval.Vector(op.weight(1), &gain));
  TensorData& y = eval.Out(x.rows);
  y.f = x.f;
  NormGroups(gain, static_cast<float>(op.Float("eps")), &y);
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

// Elementwise of x with at most one number.
template <void (*F)(const float*, int64_t, float, float*)>
absl::Status EvalWith(const Op& op, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  const std::string_view number = op.code == OpCode::kScale ? "by" : "cap";
  F(eval.In(0).f.data(), static_cast<int64_t>(y.f.size()), static_cast<float>(op.Float(number)), y.f.data());
  return absl::OkStatus();
}

absl::Status VerifySoftCap(const Op& op, const Module*) {
  if (op.Float("cap") > 0) return absl::OkStatus();
  return InvalidArgument("soft_cap: cap is {}, not above 0", op.Float("cap"));
}

absl::Status EvalGelu(const Op&, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  ref::Gelu(eval.In(0).f.data(), static_cast<int64_t>(y.f.size()), y.f.data());
  return absl::OkStatus();
}

absl::Status EvalClampedSwiglu(const Op& op, EvalContext& eval) {
  TensorData& y = eval.Out(eval.In(0).rows);
  ref::ClampedSwiglu(eval.In(0).f.data(), eval.In(1).f.data(), static_cast<int64_t>(y.f.size()),
                     static_cast<float>(op.Float("limit")), static_cast<float>(op.Float("alpha")), y.f.data());
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
          .infer = InferRmsNorm,
          .reference = EvalRmsNorm,
          .doc =
              "n = x * gain / sqrt(mean(x^2) + eps), of each group of as many columns as gain has  [Zhang & Sennrich "
              "2019, arXiv:1910.07467]"};
}
OpInfo DefineAddBias() {
  return {.operands = {{"x", OperandKind::kFloat}, {"bias", OperandKind::kVector}},
          .results = {"y"},
          .elementwise = true,
          .infer = InferVector,
          .reference = EvalAddBias,
          .doc = "y[m, n] = x[m, n] + bias[n]"};
}
OpInfo DefineAdd() {
  return {.operands = {{"a", OperandKind::kFloat}, {"b", OperandKind::kFloat}},
          .results = {"y"},
          .elementwise = true,
          .infer = InferBinary,
          .reference = EvalAdd,
          .doc = "y = a + b"};
}
OpInfo DefineMul() {
  return {.operands = {{"a", OperandKind::kFloat}, {"b", OperandKind::kFloat}},
          .results = {"y"},
          .elementwise = true,
          .infer = InferBinary,
          .reference = EvalMul,
          .doc = "y = a * b, element by element"};
}
OpInfo DefineSilu() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .results = {"y"},
          .elementwise = true,
          .infer = InferSame,
          .reference = EvalSilu,
          .doc = "y = x / (1 + exp(-x))  [Elfwing et al. 2017, arXiv:1702.03118]"};
}

OpInfo DefineScale() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .attrs = {FloatAttr("by")},
          .results = {"y"},
          .elementwise = true,
          .infer = InferSame,
          .reference = EvalWith<ref::Scale>,
          .doc = "y = x * by"};
}
OpInfo DefineSoftCap() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .attrs = {FloatAttr("cap")},
          .results = {"y"},
          .elementwise = true,
          .infer = InferSame,
          .verify = VerifySoftCap,
          .reference = EvalWith<ref::SoftCap>,
          .doc = "y = cap * tanh(x / cap)  [Gemma 2, arXiv:2408.00118]"};
}
OpInfo DefineGelu() {
  return {.operands = {{"x", OperandKind::kFloat}},
          .results = {"y"},
          .elementwise = true,
          .infer = InferSame,
          .reference = EvalGelu,
          .doc = "y = 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))  [Hendrycks & Gimpel 2016, arXiv:1606.08415]"};
}
OpInfo DefineClampedSwiglu() {
  return {.operands = {{"gate", OperandKind::kFloat}, {"up", OperandKind::kFloat}},
          .attrs = {FloatAttr("limit"), FloatAttr("alpha")},
          .results = {"y"},
          .elementwise = true,
          .infer = InferBinary,
          .reference = EvalClampedSwiglu,
          .doc =
              "y = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g), g = min(gate, limit)  [gpt-oss, "
              "arXiv:2508.10925]"};
}

}  // namespace xjit
