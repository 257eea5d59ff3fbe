#include "codegen/gemm/gemm_bf16.h"
#include "codegen/gemm/gemm_fma_kernel.h"

namespace xjit {

absl::Status EmitGemmBf16Dot(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return EmitFloat(desc, plan, {.wide = true, .dot = true}, e);
}

}  // namespace xjit
