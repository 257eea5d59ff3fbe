// What a mixture of experts computes, in plain loops over the packed layout.
#pragma once

#include <cstdint>

#include "codegen/moe/moe_plan.h"

namespace xjit {

// Row t * slots + s of `c` (f32, `ldc_bytes` apart) = silu(gate . x) * (up . x) of token t and its expert s. Rows of x
// lie as MoeRowLayoutOf has them, not in strips. Slots of other experts than 0 .. desc.experts - 1 are left out.
void GroupedUpRef(const MoeDesc& desc, const void* x, const std::byte* w, const int32_t* experts, int64_t rows,
                  float* c, int64_t ldc_bytes);
// The same slot's product of `mid`, whose rows lie in order of slots, f32[hidden] padded to whole panels.
void GroupedDownRef(const MoeDesc& desc, const void* mid, const std::byte* w, const int32_t* experts, int64_t rows,
                    float* c, int64_t ldc_bytes);

}  // namespace xjit
