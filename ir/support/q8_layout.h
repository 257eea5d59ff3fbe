// How a row of activations lies in memory once rounded to int8 in blocks of 32 (DType::kQ8Act).
//
// A row of k values (k a multiple of 32) is one record of five arrays, padded to 64 bytes:
//   int8_t  q[k]             round-half-even(x / scale), scale = max|x| / 127 of the block (0 for a block of zeros)
//   float   scale[k / 32]
//   float   scaled_sum[k / 32]    scale * sum(q) of the block: what a minimum (Q4_1, Q4_K, ...) is multiplied by
//   int32_t neg_sum[k / 32]       -sum(q) of the block: shifted left it cancels the offset of unsigned weights, as
//                                 the start value of the int32 accumulator (sum((q_w + 2^s) * q) - 2^s * sum(q))
//   int32_t neg_half_sum[k / 16]  the same of each half block, for encodings that scale 16 values (Q6_K)
// A record is one memory stream; a scale or sum of a block is broadcast from it as a dword.
#pragma once

#include <cstdint>

#include "ir/support/align.h"

namespace xjit {

inline constexpr int kQ8Block = 32;

struct Q8Layout {
  int64_t k;
  constexpr int64_t blocks() const { return k / kQ8Block; }
  constexpr int64_t scale_offset() const { return k; }
  constexpr int64_t scaled_sum_offset() const { return k + 4 * blocks(); }
  constexpr int64_t neg_sum_offset() const { return k + 8 * blocks(); }
  constexpr int64_t neg_half_sum_offset() const { return k + 12 * blocks(); }
  constexpr int64_t row_bytes() const { return AlignUp(k + 20 * blocks(), 64); }
};

}  // namespace xjit
