#include "codegen/rows/rows_kernels.h"

#include <cstddef>
#include <cstring>

#include "codegen/rows/rows_desc.h"
#include "ir/support/ref/rope.h"

namespace xjit {

void RopeTableKernel(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const RopeTableArgs*>(args);
  if (m1 <= m0) return;
  ref::RopeTable(a.step->position + m0, m1 - m0, a.inv_freq, a.half, a.scale, a.out + m0 * 2 * a.half);
}

void GatherRowsKernel(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const GatherRowsArgs*>(args);
  const auto* x = reinterpret_cast<const std::byte*>(a.x);
  auto* out = reinterpret_cast<std::byte*>(a.out);
  for (int64_t m = m0; m < m1; ++m) {
    std::memcpy(out + m * a.ld_bytes, x + a.step->logit_row[m] * a.ld_bytes, static_cast<size_t>(a.ld_bytes));
  }
}

}  // namespace xjit
