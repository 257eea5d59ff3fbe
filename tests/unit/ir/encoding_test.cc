// Encodings as text, and sizes rounded up.
#include "ir/support/encoding.h"

#include <gtest/gtest.h>

#include <set>

#include "ir/support/align.h"

namespace xjit {
namespace {

TEST(Encoding, TextReadsBack) {
  std::set<Encoding> seen;
  for (const char* text :
       {"bf16", "q4_k", "i8", "i8<tensor>", "i8<channel>", "i8<channel, weight_only>", "i8<tensor, weight_only>",
        "i8<group 32, weight_only>", "i8<128x64, weight_only>", "f8e4m3<128x128>", "f8e4m3<tensor>", "i4<group 128>",
        "i4<group 128, zeros>", "i4<group 128, act_order>", "i4<group 128, zeros, act_order>"}) {
    const auto encoding = ParseEncoding(text);
    ASSERT_TRUE(encoding.has_value()) << text;
    EXPECT_EQ(ToString(*encoding), text);
    EXPECT_TRUE(seen.insert(*encoding).second) << text << " equals another";
  }
}

TEST(Encoding, WhatIsNone) {
  for (const char* text :
       {"", "i7", "i8<>", "i8<channel", "i8<row>", "i8<channel, zeros>", "i8<channel, weight_only, weight_only>",
        "i8<weight_only>", "f8e4m3<channel, weight_only>", "i4<group 128, weight_only>", "i4<group 0>", "i4<group>",
        "i4<group 128, zeros, zeros>", "f8e4m3<128x>", "f8e4m3<128x128, zeros>", "i8<tensor, act_order>"}) {
    EXPECT_FALSE(ParseEncoding(text).has_value()) << text;
  }
}

TEST(Align, RoundsUp) {
  EXPECT_EQ(CeilDiv(0, 8), 0);
  EXPECT_EQ(CeilDiv(1, 8), 1);
  EXPECT_EQ(CeilDiv(8, 8), 1);
  EXPECT_EQ(CeilDiv(9, 8), 2);
  EXPECT_EQ(CeilDiv(int64_t{1} << 40, 3), 366503875926);
  EXPECT_EQ(AlignUp(0, 64), 0);
  EXPECT_EQ(AlignUp(1, 64), 64);
  EXPECT_EQ(AlignUp(64, 64), 64);
  EXPECT_EQ(AlignUp(65u, size_t{64}), 128u);
  // Narrow types widen instead of wrapping.
  EXPECT_EQ(CeilDiv(uint8_t{255}, uint8_t{2}), 128);
}

}  // namespace
}  // namespace xjit
