#include "codegen/gemm/random_panels.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"

namespace xjit {
namespace {

constexpr int64_t kDistinctRows = 61;

// An f16 of either sign with the given exponent.
void PutHalf(std::byte* at, int exponent, std::mt19937_64& random) {
  const auto bits = static_cast<uint16_t>((random() & 0x83ff) | static_cast<uint64_t>(exponent + 15) << 10);
  std::memcpy(at, &bits, 2);
}

void RandomRow(DType type, int64_t k, std::mt19937_64& random, std::byte* row) {
  const DTypeInfo& info = Info(type);
  const int64_t bytes = RowBytes(type, k);
  for (int64_t i = 0; i < bytes; ++i) row[i] = static_cast<std::byte>(random());
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (std::byte* b = row; b < row + bytes; b += info.block_bytes) {
    switch (type) {
      case DType::kF32:
      case DType::kBF16: {
        const auto bits = std::bit_cast<uint32_t>(uniform(random));
        const uint32_t value = type == DType::kF32 ? bits : bits >> 16;
        std::memcpy(b, &value, static_cast<size_t>(info.block_bytes));
        break;
      }
      case DType::kF16:
        PutHalf(b, -1 - static_cast<int>(random() % 6), random);
        break;
      case DType::kQ8_0:
        PutHalf(b, -8, random);
        break;
      case DType::kQ6_K:
        PutHalf(b + 208, -13, random);
        break;
      case DType::kQ4_K:
      case DType::kQ5_K:
        PutHalf(b, -12, random);
        PutHalf(b + 2, -12, random);
        break;
      case DType::kQ2_K:  // scales of 15 times 3, minima of 15
        PutHalf(b + 80, -6, random);
        PutHalf(b + 82, -5, random);
        break;
      case DType::kQ3_K:  // -32 times -4
        PutHalf(b + 108, -8, random);
        break;
      case DType::kIQ4_NL:
        PutHalf(b, -8, random);
        break;
      case DType::kIQ4_XS:  // -32 times -127
        PutHalf(b, -13, random);
        break;
      case DType::kMxfp4:  // 12
        *b = static_cast<std::byte>(123 + random() % 3);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
        PutHalf(b, -5, random);
        PutHalf(b + 2, -3, random);
        break;
      default:
        PutHalf(b, -5, random);
    }
  }
}

// Rows of an encoding with scales outside.
struct ScaledRows {
  ScaledRows(const Encoding& encoding, int64_t k, std::mt19937_64& random)
      : blocks(ScaledBlocksOf(encoding, k).count(k)),
        codes(static_cast<size_t>(kDistinctRows * k)),
        scales(static_cast<size_t>(kDistinctRows * blocks)),
        zeros(scales.size()) {
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(random());
      if (encoding.type == DType::kI4) code &= 15;
      if (encoding.type == DType::kF8E4M3 && (code & 0x7f) == 0x7f) code ^= 1;  // no NaN
    }
    // Codes reach 128, 448 and 15. A number that f16 holds.
    const float size = encoding.type == DType::kI8 ? 0x1p-7f : encoding.type == DType::kF8E4M3 ? 0x1p-9f : 0x1p-4f;
    for (float& scale : scales) scale = size * static_cast<float>(512 + random() % 512) * 0x1p-10f;
    for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random() % 17);
  }
  int64_t blocks;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
};

}  // namespace

void RandomPanels(const Encoding& encoding, int64_t columns, int64_t used, int64_t k, uint64_t seed, std::byte* dst,
                  const std::function<void(int64_t, const std::function<void(int64_t, int64_t)>&)>& share) {
  std::mt19937_64 random(seed);
  const int64_t panel_bytes = PanelBytes(encoding, k);
  if (HasScalesOutside(encoding.type)) {
    const ScaledRows rows(encoding, k, random);
    share(columns / kPanelColumns, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        std::vector<ScaledColumn> panel(kPanelColumns);
        for (int64_t n = p * kPanelColumns; n < std::min(used, (p + 1) * kPanelColumns); ++n) {
          const int64_t r = n % kDistinctRows;
          panel[static_cast<size_t>(n % kPanelColumns)] = {
              rows.codes.data() + r * k, rows.scales.data() + r * rows.blocks, rows.zeros.data() + r * rows.blocks};
        }
        // Cannot fail: f16 holds the scales.
        PackScaledPanel(encoding, k, panel, dst + p * panel_bytes).IgnoreError();
      }
    });
    return;
  }
  const int64_t row_bytes = RowBytes(encoding.type, k);
  std::vector<std::byte> rows(static_cast<size_t>(kDistinctRows * row_bytes));
  for (int64_t i = 0; i < kDistinctRows; ++i) RandomRow(encoding.type, k, random, rows.data() + i * row_bytes);
  std::vector<const std::byte*> sources(static_cast<size_t>(columns), nullptr);
  for (int64_t n = 0; n < used; ++n) sources[static_cast<size_t>(n)] = rows.data() + n % kDistinctRows * row_bytes;
  share(columns / kPanelColumns,
        [&](int64_t begin, int64_t end) { PackPanels(encoding.type, k, sources, begin, end, dst); });
}

void RandomPanels(const Encoding& encoding, int64_t columns, int64_t k, uint64_t seed, std::byte* dst) {
  RandomPanels(encoding, columns, columns, k, seed, dst,
               [](int64_t count, const std::function<void(int64_t, int64_t)>& f) { f(0, count); });
}

}  // namespace xjit
