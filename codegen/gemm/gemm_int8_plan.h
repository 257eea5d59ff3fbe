// What the plan and the emitter of the int8 gemm agree on.
#pragma once

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"

namespace xjit {

// Bytes of scratch in front of the sums: A as int16 pairs (few rows: all of it, else a k block of a strip).
int64_t Int8PairsScratch(const GemmDesc& desc, const GemmPlan& plan, bool pairs);

}  // namespace xjit
