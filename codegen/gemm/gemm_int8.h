// int8 activations with a scale a row (I8Layout), int8 weights with a scale a column: sums are int32 over the whole
// depth, then one conversion, times the row's scale, times the column's. Sums are exact, so every row gives the same
// bits whatever the number of rows, the plan and the split of a call (SiLU's exp apart).
//
// Weights are unsigned (u8 = q + 128, pack.h); starting from 128 times the negative sum of the row cancels the offset.
#pragma once

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// Refuses, with the reason, other activations and weights, and sizes that are no whole panel. The first two use zmm:
// vpdpbusd, or without VNNI exact products of int16 pairs (vpmaddubsw would saturate: 2 * 255 * 127 is no int16). The
// third uses ymm: likewise by TargetInfo::avx_vnni.
absl::StatusOr<GemmPlan> PlanGemmInt8Vnni(const GemmDesc& desc, const TargetInfo& target);
absl::StatusOr<GemmPlan> PlanGemmInt8Avx512(const GemmDesc& desc, const TargetInfo& target);
absl::StatusOr<GemmPlan> PlanGemmInt8Avx2(const GemmDesc& desc, const TargetInfo& target);

absl::Status EmitGemmInt8Vnni(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);
absl::Status EmitGemmInt8Avx512(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);
absl::Status EmitGemmInt8Avx2(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
