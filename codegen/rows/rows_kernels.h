// Row kernels in C++: no inner loop worth emitting. Signature and grids as KernelFn and rows_desc.h say.
#pragma once

#include <cstdint>

namespace xjit {

// args: RopeTableArgs; rows [m0, m1) of the step.
void RopeTableKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);
// args: GatherRowsArgs; logit rows [m0, m1). Copies ld_bytes a row.
void GatherRowsKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
