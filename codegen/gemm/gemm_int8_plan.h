// What the plan and the emitter of the int8 gemm agree on.
#pragma once

#include <cstdint>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"

namespace xjit {

// Sums of k products of two int8, one of which is at most 127, stay within int32: 128 * 127 * 131072 < 2^31. What has
// more depth is refused.
inline constexpr int64_t kMaxInt8Depth = 131072;

// Bytes of scratch in front of the sums: A as int16 pairs (few rows: all of it, else a k block of a strip).
int64_t Int8PairsScratch(const GemmDesc& desc, const GemmPlan& plan, bool pairs);

}  // namespace xjit
