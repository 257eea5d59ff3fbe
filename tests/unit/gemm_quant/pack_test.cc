// Packing loses nothing: unpacked columns are the dequantised rows they came from.
#include "codegen/gemm/pack.h"

#include <gtest/gtest.h>

#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "ir/support/ref/dequant.h"
#include "quant_data.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit {
namespace {

using testing::GuardedBuffer;

class Pack : public ::testing::TestWithParam<DType> {
 protected:
  // Depths at and around the chunk of 256, odd ones where the encoding allows.
  std::vector<int64_t> Depths() const {
    const int64_t block = Info(GetParam()).block_elems;
    if (block == 256) return {256, 512, 768};
    if (block == 32) return {32, 64, 256, 288, 544, 576};
    return {1, 2, 7, 64, 255, 256, 257, 577};
  }
};

TEST_P(Pack, RoundTrip) {
  const DType type = GetParam();
  for (const int64_t k : Depths()) {
    const int64_t n = 96, row_bytes = RowBytes(type, k);
    const auto weights = testing::RandomWeights(type, n, k, static_cast<uint32_t>(k));
    // Each source row ends at a guard page in turn; a permutation of rows, two of them columns of zeros.
    GuardedBuffer source(weights.size());
    std::memcpy(source.data(), weights.data(), weights.size());
    std::vector<const std::byte*> rows(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) rows[static_cast<size_t>(i)] = source.as<std::byte>() + (i * 37 % n) * row_bytes;
    rows[5] = rows[70] = nullptr;
    GuardedBuffer packed(static_cast<size_t>(n / kPanelColumns * PanelBytes(type, k)), 0xa5);
    PackPanels(type, k, rows, 0, n / kPanelColumns, packed.as<std::byte>());

    std::vector<float> want(static_cast<size_t>(k)), got(static_cast<size_t>(k));
    for (int64_t i = 0; i < n; ++i) {
      std::fill(want.begin(), want.end(), 0.0f);
      const std::byte* row = rows[static_cast<size_t>(i)];
      if (row != nullptr) DequantizeRow(type, row, k, want.data());
      UnpackColumn(type, k, packed.as<std::byte>(), i, got.data());
      for (size_t e = 0; e < got.size(); ++e)
        ASSERT_EQ(got[e], want[e]) << "k " << k << " column " << i << " element " << e;
    }

    // In parts, each to its own place.
    GuardedBuffer parts(packed.size(), 0x5a);
    PackPanels(type, k, rows, 2, 3, parts.as<std::byte>());
    PackPanels(type, k, rows, 0, 2, parts.as<std::byte>());
    ASSERT_EQ(std::memcmp(parts.data(), packed.data(), packed.size()), 0) << "k " << k;
  }
}

TEST_P(Pack, SameBytesAsTheFile) {
  const int64_t k = 512;
  EXPECT_EQ(PanelBytes(GetParam(), k), kPanelColumns * RowBytes(GetParam(), k));
  // Of mxfp4 a group's exponents are in front of both groups.
  EXPECT_EQ(PackedGroupBytes(GetParam()) * (GetParam() == DType::kMxfp4 ? 2 : 1) % 32, 0);
}

// Any bytes: scales of zero, subnormal, infinite, not a number.
TEST_P(Pack, AnyBytes) {
  const DType type = GetParam();
  const int64_t k = 512, row_bytes = RowBytes(type, k);
  std::mt19937 rng(11);
  std::vector<std::byte> weights(static_cast<size_t>(kPanelColumns * row_bytes));
  for (auto& b : weights) b = static_cast<std::byte>(rng());
  std::memset(weights.data(), 0, static_cast<size_t>(row_bytes));
  std::memset(weights.data() + row_bytes, 0xff, static_cast<size_t>(row_bytes));
  std::vector<const std::byte*> rows;
  for (int64_t i = 0; i < kPanelColumns; ++i) rows.push_back(&weights[static_cast<size_t>(i * row_bytes)]);
  std::vector<std::byte> packed(static_cast<size_t>(PanelBytes(type, k)));
  PackPanels(type, k, rows, 0, 1, packed.data());
  std::vector<float> want(static_cast<size_t>(k)), got(static_cast<size_t>(k));
  for (int64_t i = 0; i < kPanelColumns; ++i) {
    DequantizeRow(type, rows[static_cast<size_t>(i)], k, want.data());
    UnpackColumn(type, k, packed.data(), i, got.data());
    for (size_t e = 0; e < got.size(); ++e) {
      if (std::isnan(want[e])) {
        ASSERT_TRUE(std::isnan(got[e])) << "column " << i << " element " << e;
      } else {
        ASSERT_EQ(std::memcmp(&got[e], &want[e], 4), 0) << "column " << i << " element " << e;
      }
    }
  }
}

class PackBlocks : public ::testing::TestWithParam<DType> {};

TEST_P(PackBlocks, ColumnBlocksAreTheValues) {
  const DType type = GetParam();
  const int64_t k = 512, n = 64, row_bytes = RowBytes(type, k);
  const auto weights = testing::RandomWeights(type, n, k, 3);
  std::vector<const std::byte*> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(&weights[static_cast<size_t>(i * row_bytes)]);
  std::vector<std::byte> packed(static_cast<size_t>(2 * PanelBytes(type, k)));
  PackPanels(type, k, rows, 0, 2, packed.data());
  std::vector<float> want(static_cast<size_t>(k));
  for (int64_t i = 0; i < n; ++i) {
    DequantizeRow(type, rows[static_cast<size_t>(i)], k, want.data());
    for (int64_t b = 0; b < k / 32; ++b) {
      ColumnBlock block;
      UnpackColumnBlock(type, k, packed.data(), i, b, &block);
      for (int e = 0; e < 32; ++e) {
        ASSERT_EQ(block.scale[e / 16] * static_cast<float>(block.q[e]) + block.add[e / 16],
                  want[static_cast<size_t>(32 * b + e)]);
      }
    }
  }
}

std::string TypeName(const ::testing::TestParamInfo<DType>& info) { return std::string(Name(info.param)); }
INSTANTIATE_TEST_SUITE_P(Floats, Pack, ::testing::ValuesIn(testing::kFloatTypes), TypeName);
INSTANTIATE_TEST_SUITE_P(Types, Pack, ::testing::ValuesIn(testing::kQuantTypes), TypeName);
INSTANTIATE_TEST_SUITE_P(Types, PackBlocks, ::testing::ValuesIn(testing::kQuantTypes), TypeName);

}  // namespace
}  // namespace xjit
