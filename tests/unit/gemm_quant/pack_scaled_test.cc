// Packing of weights whose scales lie outside loses nothing: codes, scales and zero points come back, and a column's
// values are those that a stored matrix of the same bytes has (ref/stored_matrix.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "ir/support/ref/stored_matrix.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit {
namespace {

using testing::GuardedBuffer;
using Kind = Scales::Kind;

std::vector<Encoding> Encodings() {
  std::vector<Encoding> list;
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    for (const Scales& s :
         {Scales{.kind = Kind::kTensor}, Scales{.kind = Kind::kChannel},
          Scales{.kind = Kind::kBlock, .rows = 128, .cols = 128}, Scales{.kind = Kind::kGroup, .cols = 64}}) {
      list.emplace_back(type, s);
    }
  }
  for (const int32_t group : {32, 64, 128}) {
    list.push_back(Encoding::Int4(group, false));
    list.push_back(Encoding::Int4(group, true));
  }
  return list;
}

// [n, k] in the layout of a checkpoint: codes a byte each, scales and zero points by blocks of k.
struct Matrix {
  Matrix(const Encoding& w, int64_t n, int64_t k, uint32_t seed)
      : w(w),
        n(n),
        k(k),
        blocks(ScaledBlocksOf(w, k).count(k)),
        codes(static_cast<size_t>(n * k)),
        scales(static_cast<size_t>(n * blocks)),
        zeros(scales.size()) {
    std::mt19937 random(seed);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() & (w.type == DType::kI4 ? 15 : 255));
    for (float& scale : scales) scale = static_cast<float>(static_cast<int>(random() % 2047) - 1023) * 0x1p-12f;
    for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(random() % 17);
    scales[0] = 0;
  }
  ScaledColumn Column(int64_t row) const {
    return {&codes[static_cast<size_t>(row * k)], &scales[static_cast<size_t>(row * blocks)],
            &zeros[static_cast<size_t>(row * blocks)]};
  }
  Encoding w;
  int64_t n, k, blocks;
  std::vector<uint8_t> codes;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;
};

class PackScaled : public ::testing::TestWithParam<Encoding> {
 protected:
  static std::vector<int64_t> Depths() {
    if (GetParam().type == DType::kI4) return {32, 96, 128, 160, 576};
    return {1, 3, 4, 63, 64, 65, 127, 128, 130, 255, 576};
  }
};

TEST_P(PackScaled, CodesScalesAndZerosComeBack) {
  for (const int64_t k : Depths()) {
    const Matrix m(GetParam(), 64, k, static_cast<uint32_t>(k));
    GuardedBuffer packed(static_cast<size_t>(2 * PanelBytes(m.w, k)), 0xA5);
    // Rows in another order; two columns are none's.
    std::array<int64_t, 64> row;
    for (int64_t i = 0; i < 64; ++i) row[static_cast<size_t>(i)] = i * 37 % 64;
    row[5] = row[40] = -1;
    for (int64_t p = 0; p < 2; ++p) {
      std::vector<ScaledColumn> columns;
      for (size_t c = 0; c < kPanelColumns; ++c) {
        const int64_t r = row[static_cast<size_t>(p) * kPanelColumns + c];
        columns.push_back(r < 0 ? ScaledColumn{} : m.Column(r));
      }
      ASSERT_TRUE(PackScaledPanel(m.w, k, columns, packed.as<std::byte>() + p * PanelBytes(m.w, k)).ok());
    }
    std::vector<uint8_t> codes(static_cast<size_t>(k)), zeros(static_cast<size_t>(m.blocks));
    std::vector<float> scales(zeros.size()), values(codes.size());
    for (int64_t c = 0; c < 64; ++c) {
      const int64_t r = row[static_cast<size_t>(c)];
      UnpackCodes(m.w, k, packed.as<std::byte>(), c, codes.data(), scales.data(), zeros.data());
      UnpackColumn(m.w, k, packed.as<std::byte>(), c, values.data());
      for (size_t b = 0; b < zeros.size(); ++b) {
        const size_t at = static_cast<size_t>(std::max<int64_t>(r, 0) * m.blocks) + b;
        ASSERT_EQ(scales[b], r < 0 ? 0 : m.scales[at]) << "k " << k << " column " << c << " block " << b;
        const int middle = m.w.type == DType::kI4 ? 8 : 0;
        ASSERT_EQ(zeros[b], !m.w.scales.zeros ? middle : r < 0 ? 0 : m.zeros[at]) << "k " << k << " column " << c;
      }
      for (size_t i = 0; i < codes.size(); ++i) {
        if (r < 0) {
          ASSERT_EQ(values[i], 0.0f) << "k " << k << " column " << c << " element " << i;
          continue;
        }
        ASSERT_EQ(codes[i], m.codes[static_cast<size_t>(r * k) + i])
            << "k " << k << " column " << c << " element " << i;
      }
    }
  }
}

// The same matrix as StoredMatrix defines it.
TEST_P(PackScaled, ValuesAreTheStoredMatrixs) {
  for (const int64_t k : {64, 128, 192, 576}) {
    const Encoding& w = GetParam();
    if (w.type == DType::kI4 && k % w.scales.cols != 0) continue;  // whole groups, as checkpoints have them
    const Matrix m(w, 32, k, static_cast<uint32_t>(k) + 1);
    StoredMatrix stored{.type = w.type, .n = 32, .k = k};
    const int64_t depth = ScaledBlocksOf(w, k).depth;
    stored.scale_cols = depth;
    std::vector<uint32_t> words, zero_words;
    std::vector<float> by_group;
    if (w.type == DType::kI4) {
      stored.layout = StoredMatrix::Layout::kGptq;
      for (int64_t i = 0; i < k; i += 8) {
        for (int64_t r = 0; r < 32; ++r) {
          uint32_t word = 0;
          for (int64_t j = 0; j < 8; ++j) word |= uint32_t{m.codes[static_cast<size_t>(r * k + i + j)]} << 4 * j;
          words.push_back(word);
        }
      }
      for (int64_t b = 0; b < m.blocks; ++b) {
        for (int64_t r = 0; r < 32; ++r) by_group.push_back(m.scales[static_cast<size_t>(r * m.blocks + b)]);
      }
      // Four bits hold a zero point less one.
      for (int64_t b = 0; b < m.blocks; ++b) {
        for (int64_t r = 0; r < 32; r += 8) {
          uint32_t word = 0;
          for (int64_t j = 0; j < 8; ++j) {
            const int zero = std::max<int>(1, m.zeros[static_cast<size_t>((r + j) * m.blocks + b)]);
            word |= static_cast<uint32_t>(zero - 1) << 4 * j;
          }
          zero_words.push_back(word);
        }
      }
      stored.values = reinterpret_cast<const std::byte*>(words.data());
      stored.scales = reinterpret_cast<const std::byte*>(by_group.data());
      if (w.scales.zeros) {
        stored.zeros = reinterpret_cast<const std::byte*>(zero_words.data());
        stored.zero_offset = 1;
      }
    } else {
      stored.values = reinterpret_cast<const std::byte*>(m.codes.data());
      stored.scales = reinterpret_cast<const std::byte*>(m.scales.data());
    }
    Matrix packed_from = m;
    for (uint8_t& zero : packed_from.zeros) zero = std::max<uint8_t>(zero, 1);
    std::vector<ScaledColumn> columns;
    for (int64_t r = 0; r < 32; ++r) columns.push_back(packed_from.Column(r));
    GuardedBuffer packed(static_cast<size_t>(PanelBytes(w, k)));
    ASSERT_TRUE(PackScaledPanel(w, k, columns, packed.as<std::byte>()).ok());
    std::vector<float> got(static_cast<size_t>(k)), want(got.size());
    for (int64_t r = 0; r < 32; ++r) {
      UnpackColumn(w, k, packed.as<std::byte>(), r, got.data());
      DequantizeRow(stored, r, 0, k, want.data());
      for (size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i])) {
          ASSERT_TRUE(std::isnan(got[i]));
          continue;
        }
        ASSERT_EQ(got[i], want[i]) << "k " << k << " row " << r << " element " << i;
      }
    }
  }
}

TEST(PackScaledErrors, ScalesThatF16CannotHold) {
  const Encoding w = Encoding::Int4(32, false);
  const std::vector<uint8_t> codes(32, 1);
  for (const float scale : {1.0f + 0x1p-11f, 0x1p16f, 0x1p-25f}) {
    std::vector<ScaledColumn> columns(kPanelColumns);
    columns[3] = {codes.data(), &scale, nullptr};
    std::vector<std::byte> packed(static_cast<size_t>(PanelBytes(w, 32)));
    EXPECT_FALSE(PackScaledPanel(w, 32, columns, packed.data()).ok()) << scale;
  }
}

std::string TypeName(const ::testing::TestParamInfo<Encoding>& info) { return EncodingName(info.param); }
INSTANTIATE_TEST_SUITE_P(All, PackScaled, ::testing::ValuesIn(Encodings()), TypeName);

}  // namespace
}  // namespace xjit
