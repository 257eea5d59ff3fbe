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
// Half to even, subnormals too; what is too large becomes infinite; a NaN stays one.
inline uint16_t F32ToF16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
  const float magnitude = std::bit_cast<float>(u & 0x7fffffff);
  if (magnitude != magnitude) return static_cast<uint16_t>(sign | 0x7e00 | (u >> 13 & 0x3ff));
  if (magnitude >= 65536) return sign | 0x7c00;
  // The last bit of this sum has the weight of a subnormal's.
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(magnitude + 0.5f) & 0x7ff));
  return static_cast<uint16_t>(sign | ((((u & 0x7fffffff) + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10)));
}

inline float BF16ToF32(uint16_t h) { return std::bit_cast<float>(static_cast<uint32_t>(h) << 16); }

// FP8 E4M3 (Micikevicius et al. 2022, arXiv:2209.05433): no infinities, NaN where all bits but the sign are set.
inline float E4M3ToF32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t exponent = code >> 3 & 15, fraction = code & 7u;
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-9f));
  return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
}
// 2^(code - 127), the scale of OCP Microscaling formats; 0 gives 2^-127, a subnormal. 255 would be NaN and is, as ggml
// reads it, 2^128, which the half that blocks take of it brings back into range.
inline double E8M0(uint8_t code) { return std::bit_cast<double>(static_cast<uint64_t>(code + (1023 - 127)) << 52); }
// Values of the codes of IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// FP4 E2M1, doubled: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and, from code 8 on, their negatives.
inline constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline float Fp4ToF32(uint8_t code) { return 0.5f * static_cast<float>(kFp4Doubled[code & 15]); }

// Dequantises `row` (k elements of `type` in file layout, RowBytes(type, k) bytes, any alignment) into out[k].
// k is a multiple of the block of `type`; type is any weight encoding (not kI32, kI4, kI8Act, kQ8Act). Elements whose
// scales lie outside, int8 and FP8, are given as they are: ref/stored_matrix.h scales them.
// Source: ggml, ggml-common.h (block_*) and ggml-quants.c (dequantize_row_*).
void DequantizeRow(DType type, const std::byte* row, int64_t k, float* out);

// The first block of such a row with an f16 scale or minimum that is infinite or no number, or an E8M0 scale that is no
// number; -1: none.
int64_t BlockWithBadScale(DType type, const std::byte* row, int64_t k);

}  // namespace xjit
