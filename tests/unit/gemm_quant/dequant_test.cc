// DequantizeRow against the blocks and values that ggml's own code gave.
#include "ir/support/ref/dequant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "quant_data.h"

namespace xjit {
namespace {

struct Tensor {
  std::vector<int64_t> shape;
  const char* data = nullptr;
};

class Dequant : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::string path = std::string(XJIT_SHARED_DIR) + "/goldens/gguf_blocks/kquants.safetensors";
    std::ifstream file(path, std::ios::binary);
    if (!file) GTEST_SKIP() << "no " << path;
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t header_bytes;
    ASSERT_GE(bytes_.size(), 8u);
    std::memcpy(&header_bytes, bytes_.data(), 8);
    header_ = nlohmann::json::parse(bytes_.substr(8, header_bytes));
    data_ = bytes_.data() + 8 + header_bytes;
  }
  Tensor Get(const std::string& name) const {
    const auto& t = header_.at(name);
    return {t.at("shape").get<std::vector<int64_t>>(), data_ + t.at("data_offsets").at(0).get<size_t>()};
  }

  std::string bytes_;
  nlohmann::json header_;
  const char* data_ = nullptr;
};

TEST_P(Dequant, MatchesGgml) {
  std::string name(Name(GetParam()));
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  const Tensor blocks = Get(name + ".blocks"), expected = Get(name + ".expected");
  ASSERT_EQ(blocks.shape[1], RowBytes(GetParam(), expected.shape[1]));
  const int64_t k = expected.shape[1];
  std::vector<float> got(static_cast<size_t>(k)), want(static_cast<size_t>(k));
  for (int64_t row = 0; row < expected.shape[0]; ++row) {
    DequantizeRow(GetParam(), reinterpret_cast<const std::byte*>(blocks.data + row * blocks.shape[1]), k, got.data());
    std::memcpy(want.data(), expected.data + row * k * 4, static_cast<size_t>(k) * 4);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::fabs(got[i] - want[i]), 1e-6f * std::fabs(want[i])) << "row " << row << " element " << i;
    }
  }
}

// Panels of those blocks, unpacked as the kernels' reference does: ggml's values, none lost or moved by packing. Column
// c is made of blocks c, c + 1, c + 2 and c + 3.
TEST_P(Dequant, MatchesGgmlThroughPackedPanels) {
  std::string name(Name(GetParam()));
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  const Tensor blocks = Get(name + ".blocks"), expected = Get(name + ".expected");
  const int64_t count = blocks.shape[0], elems = expected.shape[1], k = 4 * elems;
  const auto block_bytes = static_cast<size_t>(blocks.shape[1]);
  ASSERT_EQ(count, kPanelColumns);
  std::vector<std::string> columns;
  std::vector<const std::byte*> rows;
  for (int64_t c = 0; c < count; ++c) {
    std::string& column = columns.emplace_back();
    for (int64_t b = 0; b < 4; ++b) column.append(blocks.data + (c + b) % count * blocks.shape[1], block_bytes);
  }
  for (const std::string& column : columns) rows.push_back(reinterpret_cast<const std::byte*>(column.data()));
  std::vector<std::byte> panel(static_cast<size_t>(PanelBytes(GetParam(), k)));
  PackPanels(GetParam(), k, rows, 0, 1, panel.data());
  std::vector<float> got(static_cast<size_t>(k)), want(got.size());
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t b = 0; b < 4; ++b) {
      std::memcpy(&want[static_cast<size_t>(b * elems)], expected.data + (c + b) % count * elems * 4,
                  static_cast<size_t>(elems) * 4);
    }
    UnpackColumn(GetParam(), k, panel.data(), c, got.data());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], want[i]) << "column " << c << " element " << i;
  }
}

std::string TypeName(const ::testing::TestParamInfo<DType>& info) { return std::string(Name(info.param)); }
INSTANTIATE_TEST_SUITE_P(Types, Dequant,
                         ::testing::Values(DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                           DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ2_K,
                                           DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMxfp4),
                         TypeName);

// A half that is no number shows in a block's values exactly where it is a scale or a minimum.
TEST(BlockWithBadScale, FindsWhatMakesValuesNoNumbers) {
  int scales = 0;
  for (const DType type : testing::kQuantTypes) {
    const DTypeInfo& info = Info(type);
    const int64_t k = 3 * info.block_elems;
    const auto row = [&](int offset, uint16_t half) {
      std::vector<std::byte> bytes(static_cast<size_t>(3 * info.block_bytes));
      std::memcpy(&bytes[static_cast<size_t>(info.block_bytes + offset)], &half, 2);
      return bytes;
    };
    for (int offset = 0; offset + 2 <= info.block_bytes; offset += 2) {
      for (const uint16_t half : {0x7c00, 0xfc00, 0x7e00, 0xffff, 0x7bff, 0xfbff}) {
        const auto bytes = row(offset, half);
        std::vector<float> values(static_cast<size_t>(k));
        DequantizeRow(type, bytes.data(), k, values.data());
        // mxfp4 has an exponent alone, of which one is no number, and the largest make large codes overflow.
        const bool finite = type == DType::kMxfp4
                                ? offset > 0 || (half & 0xff) != 0xff
                                : std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
        EXPECT_EQ(BlockWithBadScale(type, bytes.data(), k), finite ? -1 : 1)
            << info.name << " offset " << offset << " half " << half;
        scales += finite ? 0 : 1;
      }
    }
  }
  EXPECT_GT(scales, 0);
  const std::vector<float> nans(64, NAN);
  EXPECT_EQ(BlockWithBadScale(DType::kF32, reinterpret_cast<const std::byte*>(nans.data()), 64), -1);
}

TEST(Half, EveryCode) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = F16ToF32(static_cast<uint16_t>(h));
    const int exponent = h >> 10 & 31, fraction = h & 0x3ff;
    const double sign = h >> 15 ? -1 : 1;
    if (exponent == 31) {
      ASSERT_TRUE(fraction == 0 ? std::isinf(f) : std::isnan(f)) << h;
    } else {
      const double want = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      ASSERT_EQ(static_cast<double>(f), sign * want) << h;
    }
    ASSERT_EQ(std::signbit(f), h >> 15 != 0) << h;
  }
}

TEST(Fp8, EveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float f = E4M3ToF32(static_cast<uint8_t>(code));
    const int exponent = code >> 3 & 15, fraction = code & 7;
    ASSERT_EQ(std::signbit(f), code >> 7 != 0) << code;
    if (exponent == 15 && fraction == 7) {
      ASSERT_TRUE(std::isnan(f)) << code;
      continue;
    }
    const double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    ASSERT_EQ(static_cast<double>(f), code >> 7 != 0 ? -size : size) << code;
  }
  EXPECT_EQ(E4M3ToF32(0x7e), 448.0f);
  EXPECT_EQ(E4M3ToF32(0x01), 0x1p-9f);
}

TEST(Fp4, CodesAndScales) {
  constexpr float kWant[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int code = 0; code < 8; ++code) {
    EXPECT_EQ(Fp4ToF32(static_cast<uint8_t>(code)), kWant[code]);
    EXPECT_EQ(Fp4ToF32(static_cast<uint8_t>(code + 8)), -kWant[code]);
  }
  for (int e = 0; e < 256; ++e) EXPECT_EQ(E8M0(static_cast<uint8_t>(e)), std::ldexp(1.0, e - 127)) << e;
  // The smallest and the largest a block of MXFP4 holds.
  std::byte block[17] = {std::byte{0}, std::byte{0x71}};
  float out[32];
  DequantizeRow(DType::kMxfp4, block, 32, out);
  EXPECT_EQ(out[0], 0x1p-128f);
  EXPECT_EQ(out[16], 6 * 0x1p-127f);
  block[0] = std::byte{252};
  DequantizeRow(DType::kMxfp4, block, 32, out);
  EXPECT_EQ(out[16], 6 * 0x1p125f);
}

}  // namespace
}  // namespace xjit
