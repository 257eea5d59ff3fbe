// Products with a matrix, in one task a piece of the result or cut over depth.
#include <algorithm>

#include "ir/chains.h"
#include "ir/verifier.h"
#include "passes/gemm_stage.h"
#include "passes/lowering.h"

namespace xjit {

absl::Status Lowering::LowerGemm(const Op& op) {
  const Weight& w = *op.weight(1);
  const bool logits = op.result()->type.dims[0].symbol == 'L';
  const int64_t rows = logits ? logit_rows_ : rows_;
  XJIT_ASSIGN_OR_RETURN(const Place a, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place c, PlaceOf(op.result()));
  GemmDesc desc;
  desc.n = PackedColumns(w);
  desc.k = w.type.cols();
  desc.a = op.operand(0)->type.elem;
  desc.w = w.type.encoding();
  desc.rows = rows <= kMaxFewRows ? static_cast<int>(rows) : 0;
  desc.strips = InStrips(*ViewRoot(op.operand(0)));
  if (desc.strips && ViewRoot(op.operand(0)) != op.operand(0))
    return Internal("lower: '%{}' shows columns of strips", op.operand(0)->name);
  desc.lda_bytes = a.stride;
  desc.ldc_bytes = c.stride;
  Access access;
  AddSpan(op.operand(0), &access.reads);
  AddSpan(op.result(), &access.writes);
  const float* bias = nullptr;
  Place residual;
  for (const ChainItem& item : op.ChainAttr("epilogue")) {
    const Operand* operand =
        item.args.empty() ? nullptr : &op.operands[static_cast<size_t>(std::get<int>(item.args[0]))];
    if (item.name == "bias") {
      desc.epilogue.bias = true;
      XJIT_ASSIGN_OR_RETURN(bias, context_.weights->Vector(layer_, *operand->weight));
    } else if (item.name == "silu_mul") {
      desc.epilogue.silu_mul = true;
    } else {
      desc.epilogue.residual = true;
      XJIT_ASSIGN_OR_RETURN(residual, PlaceOf(operand->value));
      AddSpan(operand->value, &access.reads);
      if (residual.stride != c.stride) return Internal("lower: the residual's rows have another stride");
    }
  }
  XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, w));
  // The kernel that the text names, or none: a plan says what runs.
  const std::string row = op.Has("kernel") ? op.Str("kernel") : "";
  const int64_t parts = op.Has("parts") ? op.Int("parts") : 1;
  XJIT_ASSIGN_OR_RETURN(GemmStage product, MakeGemmStage(desc, parts, row, rows, context_.threads, *context_.kernels));
  product.stage.label = Label(op);
  product.stage.m_kind = logits ? GridM::kLogitRows : GridM::kRows;
  const auto args_of = [this, a, c, residual, bias, packed](int t) {
    return GemmArgs{At(a, t),
                    packed,
                    reinterpret_cast<float*>(At(c, t)),
                    reinterpret_cast<const float*>(At(residual, t)),
                    bias,
                    scratch_[static_cast<size_t>(t)]};
  };
  if (parts == 1) {
    AddStage(std::move(product.stage), access, args_of);
    return absl::OkStatus();
  }
  access.writes.push_back({Span::Space::kGemmParts, 0, 1});
  sum_bytes_ = std::max(sum_bytes_, product.sum_bytes());
  ended_bytes_ = std::max(ended_bytes_, product.ended_bytes());
  AddStage(
      product.stage, access, [this, product, args_of](int t) { return product.Split(args_of(t), sums_, ended_); },
      product.kernel->scratch_bytes);
  return absl::OkStatus();
}

}  // namespace xjit
