#include "codegen/gemm/gemm_fma.h"
#include "codegen/gemm/gemm_fma_kernel.h"

namespace xjit {

absl::Status EmitFloat(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e) {
  return plan.scratch_bytes == 0 ? EmitFloatStream(desc, plan, ops, e) : EmitFloatPanels(desc, plan, ops, e);
}

absl::Status EmitGemmFma512(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return EmitFloat(desc, plan, {.wide = true}, e);
}

absl::Status EmitGemmFma2(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return EmitFloat(desc, plan, {.wide = false}, e);
}

}  // namespace xjit
