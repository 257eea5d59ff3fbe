// Weights as the file stores them to f32: the definition of every encoding, in plain loops.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "ir/support/dtype.h"

namespace xjit {

// IEEE binary16 to binary32, exact, subnormals and NaN included.
inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = h >> 10 & 31, fraction = h & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) {  // fraction * 2^-24 is exact
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}
inline float BF16ToF32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// Dequantises `row` (k elements of `type` in file layout, RowBytes(type, k) bytes, any alignment) into out[k].
// k is a multiple of the block of `type`; type is any weight encoding (not kI32, not kQ8Act).
// Source: ggml, ggml-common.h (block_*) and ggml-quants.c (dequantize_row_*).
void DequantizeRow(DType type, const std::byte* row, int64_t k, float* out);

}  // namespace xjit
