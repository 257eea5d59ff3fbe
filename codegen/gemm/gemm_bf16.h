// bf16 activations and weights (or weights that become bf16 exactly, unscaled), f32 sums: vdpbf16ps (AVX512-BF16),
// which adds the two products of a pair of k's to a sum, flushing denormals (Intel SDM vol. 2, VDPBF16PS). Pairs go in
// ascending k in every shape.
#pragma once

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// Refuses, with the reason, everything but a = bf16, whole panels, and w = bf16 or, for few rows, i8, f8e4m3 and i4.
absl::StatusOr<GemmPlan> PlanGemmBf16Dot(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmBf16Dot(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
