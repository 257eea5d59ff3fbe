// How rows of activations lie in memory for a matrix product: as plain rows, or, for many rows of bf16 or int8, as
// strips.
//
// A strip is 16 rows whose bytes are interleaved in chunks of 64: chunk c of row r is at c * 1024 + r * 64 of the
// strip. Each 1 KiB is a tile as AMX loads it best (compact), and for vectors 16 neighbouring lines; neither depends on
// a row's length, which as a stride could map all rows to the same cache sets. Rows of the last strip beyond the
// matrix may hold anything: they meet only their own sums.
#pragma once

#include <cstdint>

#include "ir/support/align.h"
#include "ir/support/dtype.h"

namespace xjit {

inline constexpr int kStripRows = 16;
inline constexpr int kStripChunk = 64;  // bytes of a row side by side

// Strips of rows of `row_bytes`, and behind each strip `tail_bytes` more (scales).
struct StripLayout {
  int64_t row_bytes = 0;
  int64_t tail_bytes = 0;
  constexpr int64_t chunks() const { return CeilDiv(row_bytes, kStripChunk); }
  constexpr int64_t tail_offset() const { return chunks() * kStripRows * kStripChunk; }
  constexpr int64_t strip_bytes() const { return tail_offset() + tail_bytes; }
  constexpr int64_t bytes(int64_t rows) const { return CeilDiv(rows, kStripRows) * strip_bytes(); }
  // Of byte `b` of row `m`.
  constexpr int64_t offset(int64_t m, int64_t b) const {
    return m / kStripRows * strip_bytes() + b / kStripChunk * (kStripRows * kStripChunk) +
           m % kStripRows * kStripChunk + b % kStripChunk;
  }
};

// A row of k values rounded to int8 with one scale (DType::kI8Act), as a record padded to 64 bytes:
//   int8_t  q[k]     round-half-even(x / scale), scale = max|x| / 127 (0 for a row of zeros, then q = 0), and zeros up
//                    to a multiple of 64
//   float   scale    not a number, or infinite, where a value of the row is: it reaches all of the row's products
//   int32_t neg_sum  -sum(q): times 128 it cancels the offset of unsigned weights
// In strips the records' q are interleaved, and behind each strip are float scale[16], int32_t neg_sum[16].
struct I8Layout {
  int64_t k = 0;
  constexpr int64_t scale_offset() const { return AlignUp(k, 64); }
  constexpr int64_t neg_sum_offset() const { return scale_offset() + 4; }
  constexpr int64_t row_bytes() const { return scale_offset() + 64; }
  constexpr StripLayout strips() const { return {AlignUp(k, 64), 2 * 4 * kStripRows}; }
};

// bf16[k] or f16[k] in strips; zeros up to a whole chunk.
constexpr StripLayout HalfStrips(int64_t k) { return {2 * k, 0}; }

// Of rows of kBF16, kF16 or kI8Act.
constexpr StripLayout StripsOf(DType type, int64_t k) {
  return type == DType::kI8Act ? I8Layout{k}.strips() : HalfStrips(k);
}

}  // namespace xjit
