// Random packed weights, for benchmarks, tests and `--verify-kernels`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "ir/support/encoding.h"

namespace xjit {

// Packs panels [0, columns / 32) of random weights of depth k into `dst`, the same for the same seed: every bit random
// but the numbers among them (floats, scales), which make weights of at most about 1. Columns from `used` on are zero.
// Rows repeat after a prime above a panel's columns: no two columns of a panel and no two neighbouring panels are
// alike. `share(count, f)` runs f(begin, end) over parts of [0, count), on several threads if it likes.
void RandomPanels(const Encoding& encoding, int64_t columns, int64_t used, int64_t k, uint64_t seed, std::byte* dst,
                  const std::function<void(int64_t, const std::function<void(int64_t, int64_t)>&)>& share);
void RandomPanels(const Encoding& encoding, int64_t columns, int64_t k, uint64_t seed, std::byte* dst);

}  // namespace xjit
