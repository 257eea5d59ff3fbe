// Random encoded weights and quantised activations for the gemm tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "ir/support/dtype.h"
#include "ir/support/q8_layout.h"

namespace xjit::testing {

inline constexpr DType kQuantTypes[] = {DType::kQ8_0,   DType::kQ4_0,   DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                                        DType::kQ4_K,   DType::kQ5_K,   DType::kQ6_K, DType::kQ2_K, DType::kQ3_K,
                                        DType::kIQ4_NL, DType::kIQ4_XS, DType::kMxfp4};
inline constexpr DType kFloatTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// A positive f16 in [2^-12, 2^-11): the size of real scales, so that sums neither overflow nor vanish.
inline uint16_t RandomHalf(std::mt19937& rng) { return static_cast<uint16_t>((15 - 12) << 10 | (rng() & 0x3ff)); }

// `rows` rows of k elements, every bit random except that scales are of a sensible size.
inline std::vector<std::byte> RandomWeights(DType type, int64_t rows, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  const auto& info = Info(type);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * RowBytes(type, k)));
  for (auto& b : bytes) b = static_cast<std::byte>(rng());
  const auto half = [&](std::byte* p, bool negative) {
    const auto h = static_cast<uint16_t>(RandomHalf(rng) | (negative ? 0x8000 : 0));
    std::memcpy(p, &h, 2);
  };
  for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(info.block_bytes)) {
    std::byte* b = &bytes[i];
    switch (type) {
      case DType::kF32: {
        const float v = static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-31f;
        std::memcpy(b, &v, 4);
        break;
      }
      case DType::kF16:
        half(b, rng() & 1);
        break;
      case DType::kBF16: {
        const auto h = static_cast<uint16_t>((rng() & 0x807f) | (117 + rng() % 10) << 7);
        std::memcpy(b, &h, 2);
        break;
      }
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        half(b, rng() & 1);
        half(b + 2, rng() & 1);
        break;
      case DType::kQ6_K:
        half(b + 208, rng() & 1);
        break;
      case DType::kQ2_K:
        half(b + 80, rng() & 1);
        half(b + 82, rng() & 1);
        break;
      case DType::kQ3_K:
        half(b + 108, rng() & 1);
        break;
      case DType::kMxfp4:
        *b = static_cast<std::byte>(115 + rng() % 4);
        break;
      default:
        half(b, rng() & 1);
    }
  }
  return bytes;
}

// A Q8Layout{k} record from x, as ir/support/q8_layout.h defines it.
inline void QuantizeRow(const float* x, int64_t k, std::byte* out) {
  const Q8Layout layout{k};
  std::memset(out, 0, static_cast<size_t>(layout.row_bytes()));
  const auto put = [&](int64_t at, auto v) { std::memcpy(out + at, &v, sizeof(v)); };
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    float top = 0;
    for (int i = 0; i < kQ8Block; ++i) top = std::max(top, std::fabs(x[b * kQ8Block + i]));
    const float scale = top / 127;
    int32_t half[2] = {0, 0};
    for (int i = 0; i < kQ8Block; ++i) {
      const int q = scale == 0 ? 0 : static_cast<int>(std::nearbyint(x[b * kQ8Block + i] / scale));
      put(b * kQ8Block + i, static_cast<int8_t>(q));
      half[i / 16] += q;
    }
    put(layout.scale_offset() + 4 * b, scale);
    put(layout.scaled_sum_offset() + 4 * b, scale * static_cast<float>(half[0] + half[1]));
    put(layout.neg_sum_offset() + 4 * b, -(half[0] + half[1]));
    put(layout.neg_half_sum_offset() + 8 * b, -half[0]);
    put(layout.neg_half_sum_offset() + 8 * b + 4, -half[1]);
  }
}

// `rows` quantised rows, `lda` bytes apart; a few blocks are all zero.
inline std::vector<std::byte> RandomActivations(int64_t rows, int64_t k, int64_t lda, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(rows * lda));
  std::vector<float> x(static_cast<size_t>(k));
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < k; ++i)
      x[static_cast<size_t>(i)] = static_cast<float>(static_cast<int32_t>(rng())) * 0x1p-30f;
    if (m % 3 == 2)
      std::fill_n(x.begin() + static_cast<ptrdiff_t>(rng() % static_cast<uint32_t>(k / 32)) * 32, 32, 0.0f);
    QuantizeRow(x.data(), k, &bytes[static_cast<size_t>(m * lda)]);
  }
  return bytes;
}

}  // namespace xjit::testing
