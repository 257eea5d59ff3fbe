// f32 activations with weights of any encoding: vfmadd231ps on zmm (AVX-512 F/BW/DQ/VL) or ymm (AVX2, FMA, F16C).
// Weights are unpacked to f32, exactly; sums are f32, one product at a time in ascending k, so that for the same
// operands both give the same bits in every shape (SiLU's exp apart).
#pragma once

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// Refuses, with the reason, what the kernel does not do: other activations, sizes that are no whole panel or block.
absl::StatusOr<GemmPlan> PlanGemmFma512(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmFma512(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

absl::StatusOr<GemmPlan> PlanGemmFma2(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmFma2(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
