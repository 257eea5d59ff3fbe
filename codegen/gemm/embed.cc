#include "codegen/gemm/embed.h"

#include <cstddef>

#include "codegen/gemm/pack.h"
#include "codegen/rows/rows_desc.h"

namespace xjit {

void EmbedKernel(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const EmbedArgs*>(args);
  for (int64_t m = m0; m < m1; ++m) {
    auto* out = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(a.out) + m * a.ldo_bytes);
    UnpackColumn(a.encoding, a.k, a.packed, a.step->ids[m], out);
  }
}

}  // namespace xjit
