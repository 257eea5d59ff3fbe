#include "codegen/gemm/gemm_bf16.h"
#include "codegen/gemm/gemm_fma_kernel.h"

namespace xjit {

absl::StatusOr<GemmPlan> PlanGemmBf16Dot(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(CheckFloatDesc(desc, DType::kBF16));
  if (desc.w.type != DType::kBF16 && !HasScalesOutside(desc.w.type)) {
    return Unimplemented("weights are {}, this kernel takes bf16, i8, f8e4m3 and i4", ToString(desc.w));
  }
  return PlanFloat(desc, target, {.wide = true, .dot = true});
}

}  // namespace xjit
