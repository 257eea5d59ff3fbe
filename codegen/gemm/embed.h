// The embedding lookup: a kernel in C++ over a packed weight. Lives with the packing that it undoes.
#pragma once

#include <cstdint>

namespace xjit {

// args: EmbedArgs (rows_desc.h); rows [m0, m1) of the step: out row m = column ids[m], dequantised.
void EmbedKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
