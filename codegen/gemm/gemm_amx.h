// Matrix products on AMX tiles. The calling thread's tiles are configured as 16 rows of 64 bytes each.
//
// amx_bf16: bf16 activations in strips, any weights but f32 and f16. bf16 panels are multiplied from where they are;
// others are first unpacked to bf16 in scratch, each block once for all rows of a walk: exactly and without their
// scales, which then multiply f32 sums, where scales lie outside (i8, f8e4m3, i4); with their scales, rounded to
// nearest even, for GGUF's encodings.
//
// amx_fp16: f16 activations in strips by f16 weights, whose rows are first paired in scratch. Needs AMX-FP16.
//
// amx_int8: kI8Act by i8 of a scale a column or one in all, exact int32 sums; C is GemmRef's bit for bit up to SiLU.
//
// All also take 5 to 8 rows (desc.rows), which they copy into a strip in scratch first. A sum takes its products in
// ascending k whatever the plan, the shape and the split of calls are, so that none of them changes a bit of C.
#pragma once

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

absl::StatusOr<GemmPlan> PlanGemmAmxBf16(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmAmxBf16(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);
absl::StatusOr<GemmPlan> PlanGemmAmxFp16(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmAmxFp16(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);
absl::StatusOr<GemmPlan> PlanGemmAmxInt8(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmAmxInt8(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
