#include "codegen/gemm/gemm_fma.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "ir/support/align.h"

namespace xjit {

absl::Status EmitFloat(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e) {
  return plan.scratch_bytes == 0 ? EmitFloatStream(desc, plan, ops, e) : EmitFloatPanels(desc, plan, ops, e);
}

void EmitPrefetch(const GemmPlan& plan, const Xbyak::Reg64& w, int offset, int bytes, Emitter& e) {
  if (plan.prefetch == PrefetchHint::kNone) return;
  const int every = plan.prefetch_every;
  for (int at = AlignUp(offset, every); at < offset + bytes; at += every) {
    EmitPrefetchAt(plan.prefetch, e.ptr[w + at + plan.prefetch_distance], e);
  }
}

absl::Status EmitGemmFma512(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return EmitFloat(desc, plan, {.wide = true}, e);
}

absl::Status EmitGemmFma2(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return EmitFloat(desc, plan, {.wide = false}, e);
}

}  // namespace xjit
