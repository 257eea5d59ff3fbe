// Matrix products: linear as models write it, gemm with its prologue and epilogue as passes make it, and prepare, the
// prologue on its own once a plan has decided who computes it.
#include "ir/chains.h"
#include "ir/interpreter.h"
#include "ir/ops.h"

namespace xjit {
namespace {

absl::Status CheckDepth(const Op& op) {
  const int64_t k = op.operand(0)->type.cols(), wk = op.weight(1)->type.cols();
  if (k == wk) return absl::OkStatus();
  return InvalidArgument(
      "{}: x has k = {} but @{} has k = {} (a weight is [n, k] row-major; is it transposed in the checkpoint?)",
      Name(op.code), k, op.weight(1)->name, wk);
}

absl::Status InferLinear(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckDepth(op));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], op.weight(1)->type.dims[0].size));
  return absl::OkStatus();
}

absl::Status EvalLinear(const Op& op, EvalContext& eval) {
  const TensorData& x = eval.In(0);
  return MatMul(eval, x, *op.weight(1), &eval.Out(x.rows));
}

absl::Status CheckResidual(const Op& op, const Type& result) {
  const ChainItem* residual = op.Item("epilogue", "residual");
  if (residual == nullptr) return absl::OkStatus();
  const Operand& o = ItemOperand(op, *residual);
  if (o.value != nullptr && o.value->type == result) return absl::OkStatus();
  return InvalidArgument("{}: residual must be {}", Name(op.code), ToString(result));
}

absl::Status InferGemm(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckDepth(op));
  XJIT_RETURN_IF_ERROR(CheckPrologue(op));
  XJIT_RETURN_IF_ERROR(CheckChain(op, "epilogue", "bias silu_mul gelu_mul clamped_swiglu soft_cap scale residual"));
  XJIT_RETURN_IF_ERROR(InferEpilogue(op, *op.weight(1), op.operand(0)->type.dims[0], types));
  return CheckResidual(op, types->back());
}

absl::Status EvalGemm(const Op& op, EvalContext& eval) {
  TensorData x, product;
  XJIT_RETURN_IF_ERROR(ApplyPrologue(op, eval, eval.In(0), &x));
  product.rows = x.rows;
  product.cols = op.weight(1)->type.dims[0].size;
  product.f.resize(static_cast<size_t>(product.rows * product.cols));
  XJIT_RETURN_IF_ERROR(MatMul(eval, x, *op.weight(1), &product));
  XJIT_RETURN_IF_ERROR(ApplyEpilogue(op, eval, &product));
  eval.Out(x.rows).f = std::move(product.f);
  return absl::OkStatus();
}

absl::Status InferPrepare(const Op& op, const Module*, std::vector<Type>* types) {
  XJIT_RETURN_IF_ERROR(CheckPrologue(op));
  const int64_t cols = op.operand(0)->type.cols(), slots = op.Int("slots");
  if (slots < 1 || cols % slots != 0) return InvalidArgument("prepare: {} columns are not {} slots", cols, slots);
  XJIT_ASSIGN_OR_RETURN(const DType out, ActivationType(op, cols / slots));
  types->push_back(Type::Rows(op.operand(0)->type.dims[0], cols, out));
  return absl::OkStatus();
}

absl::Status EvalPrepare(const Op& op, EvalContext& eval) {
  TensorData y;
  XJIT_RETURN_IF_ERROR(ApplyPrologue(op, eval, eval.In(0), &y));
  RoundActivations(op.result()->type.elem, y.cols / op.Int("slots"), &y.f);
  eval.Out(y.rows).f = std::move(y.f);
  return absl::OkStatus();
}

}  // namespace

OpInfo DefineLinear() {
  return {.operands = {{"x", OperandKind::kFloat}, {"w", OperandKind::kMatrix}},
          .results = {"y"},
          .infer = InferLinear,
          .reference = EvalLinear,
          .doc = "y[m, n] = sum over k of x[m, k] w[n, k]"};
}
OpInfo DefineGemm() {
  return {
      .operands = {{"x", OperandKind::kAct}, {"w", OperandKind::kMatrix}},
      .attrs = {ChainAttr("prologue"), ChainAttr("epilogue")},
      .results = {"y"},
      .infer = InferGemm,
      .reference = EvalGemm,
      .doc =
          "y = epilogue(prologue(x) w^T); prologue: rms_norm(@gain, eps); epilogue, in this order: bias(@b), one of "
          "silu_mul, gelu_mul and clamped_swiglu(limit, alpha), soft_cap(cap), scale(by), residual(%x)"};
}
OpInfo DefinePrepare() {
  return {
      .operands = {{"x", OperandKind::kFloat}},
      .attrs = {ChainAttr("prologue"), StrAttr("out"), IntAttr("slots", 1)},
      .results = {"p"},
      .infer = InferPrepare,
      .reference = EvalPrepare,
      .doc =
          "a gemm's prologue on its own, its result converted to what the kernel reads: f32, bf16, "
          "q8act (int8 in blocks of 32) or i8act (int8 with one scale a row, of each slot where a row has several)"};
}

}  // namespace xjit
