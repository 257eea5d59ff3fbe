// Ops that go row by row: lookups, norms, conversions and what is done to each element.
#include "ir/chains.h"
#include "ir/verifier.h"
#include "passes/lowering.h"

namespace xjit {

absl::Status Lowering::LowerEmbed(const Op& op) {
  const Weight& w = *op.weight(1);
  XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, w));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("embed"));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  Access access;
  AddSpan(op.result(), &access.writes);
  EmbedArgs args{view_,     packed, w.type.encoding(), w.type.cols(), reinterpret_cast<float*>(arena_ + out.offset),
                 out.stride};
  AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
  return absl::OkStatus();
}

absl::Status Lowering::LowerRopeTable(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const float* freq, context_.weights->Vector(layer_, *op.weight(1)));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("rope_table"));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  Access access;
  AddSpan(op.result(), &access.writes);
  RopeTableArgs args{view_, freq, op.weight(1)->type.cols(), static_cast<float>(op.Float("scale")),
                     reinterpret_cast<float*>(arena_ + out.offset)};
  AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
  return absl::OkStatus();
}

absl::Status Lowering::LowerSelectRows(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("gather_rows"));
  XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  AddSpan(op.result(), &access.writes);
  GatherRowsArgs args{view_, reinterpret_cast<const float*>(arena_ + x.offset),
                      reinterpret_cast<float*>(arena_ + out.offset), out.stride};
  AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
  return absl::OkStatus();
}

absl::Status Lowering::AddPrepare(const Op& op, const PrepareDesc& desc, const Weight* gain_weight) {
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
  const int32_t* order = nullptr;
  if (desc.gather) {
    const Weight* sorted = function_->FindWeight(op.Str("order_of"));
    if (sorted == nullptr || sorted->type.cols() != desc.cols)
      return InvalidArgument("prepare: there is no weight @{} of {} columns", op.Str("order_of"), desc.cols);
    XJIT_ASSIGN_OR_RETURN(order, context_.weights->Order(layer_, *sorted));
  }
  const float* gain = nullptr;
  if (gain_weight != nullptr) {
    XJIT_ASSIGN_OR_RETURN(gain, context_.weights->Vector(layer_, *gain_weight));
  }
  XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  AddSpan(op.result(), &access.writes);
  AddStage(RowStage(Label(op), kernel, op.result(), out.own), access, [this, x, out, gain, order](int t) {
    return PrepareArgs{reinterpret_cast<const float*>(At(x, t)), gain, At(out, t), order};
  });
  return absl::OkStatus();
}

absl::Status Lowering::LowerPrepare(const Op& op) {
  const Type& in = op.operand(0)->type;
  const Type& out = op.result()->type;
  PrepareDesc desc{in.cols(),
                   false,
                   0,
                   out.elem,
                   RowStrideBytes(in.elem, ViewRoot(op.operand(0))->type.cols()),
                   RowStrideBytes(out.elem, out.cols())};
  desc.strips = op.Bool("strips");
  desc.gather = op.Has("order_of");
  const Weight* gain = nullptr;
  if (const ChainItem* norm = op.Item("prologue", "rms_norm")) {
    desc.norm = true;
    desc.eps = static_cast<float>(std::get<double>(norm->args[1]));
    gain = op.operands[static_cast<size_t>(std::get<int>(norm->args[0]))].weight;
  }
  return AddPrepare(op, desc, gain);
}

absl::Status Lowering::LowerRmsNorm(const Op& op) {
  const int64_t cols = op.result()->type.cols();
  return AddPrepare(
      op,
      {cols, true, static_cast<float>(op.Float("eps")), DType::kF32,
       RowStrideBytes(DType::kF32, ViewRoot(op.operand(0))->type.cols()), RowStrideBytes(DType::kF32, cols)},
      op.weight(1));
}

absl::Status Lowering::LowerEltwise(const Op& op, EltwiseOp kind) {
  XJIT_ASSIGN_OR_RETURN(const Place a, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place y, PlaceOf(op.result()));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  Place b;
  const float* row = nullptr;
  if (kind == EltwiseOp::kAddRow) {
    XJIT_ASSIGN_OR_RETURN(row, context_.weights->Vector(layer_, *op.weight(1)));
  } else if (op.operands.size() > 1) {
    XJIT_ASSIGN_OR_RETURN(b, PlaceOf(op.operand(1)));
    AddSpan(op.operand(1), &access.reads);
  }
  AddSpan(op.result(), &access.writes);
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(EltwiseDesc{kind, op.result()->type.cols(),
                                                                                a.stride, b.stride, y.stride}));
  AddStage(RowStage(Label(op), kernel, op.result(), false), access, [this, a, b, y, row](int t) {
    return EltwiseArgs{reinterpret_cast<const float*>(At(a, t)),
                       row != nullptr ? row : reinterpret_cast<const float*>(At(b, t)),
                       reinterpret_cast<float*>(At(y, t))};
  });
  return absl::OkStatus();
}

}  // namespace xjit
