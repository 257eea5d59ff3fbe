// Frequencies against numbers computed beforehand from the formulas of Hugging Face's modeling_rope_utils.py, in
// Python's doubles: each is to be within half an ulp of f32, and a few roundings of double.
#include "models/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace xjit {
namespace {

using Points = std::vector<std::pair<size_t, double>>;

void Expect(const RopeSpec& rope, int64_t head_dim, const Points& points) {
  const std::vector<float> freq = RopeInvFreq(rope, head_dim);
  ASSERT_EQ(freq.size(), static_cast<size_t>(head_dim / 2));
  // The numbers below have nine digits.
  for (const auto& [i, want] : points) EXPECT_NEAR(static_cast<double>(freq[i]), want, want * (0x1p-24 + 1e-9)) << i;
  for (size_t i = 1; i < freq.size(); ++i) EXPECT_LT(freq[i], freq[i - 1]);
}

TEST(RopeInvFreq, Plain) {
  Expect({.theta = 10000}, 64, {{0, 1}, {1, 0.749894209}, {7, 0.133352143}, {16, 0.01}, {31, 0.000133352143}});
  Expect({.theta = 1e6}, 128, {{0, 1}, {1, 0.805842188}, {32, 0.001}, {63, 1.24093776e-06}});
}

TEST(RopeInvFreq, Linear) {
  Expect({.theta = 10000, .scaling = RopeSpec::Scaling::kLinear, .factor = 4}, 64,
         {{0, 0.25}, {1, 0.187473552}, {16, 0.0025}, {31, 3.33380358e-05}});
}

// Llama 3.1 (head_dim 128) and 3.2 1B (64): factor 8, kept up to a wavelength of 2048, divided beyond 8192.
TEST(RopeInvFreq, Llama3) {
  const RopeSpec rope = {.theta = 500000,
                         .scaling = RopeSpec::Scaling::kLlama3,
                         .factor = 8,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .original_max_positions = 8192};
  Expect(rope, 64,
         {{0, 1},
          {8, 0.0376060309},
          {13, 0.00483942135},
          {14, 0.00321144599},
          {15, 0.00137189357},
          {16, 0.000524846161},
          {17, 0.000178507813},
          {18, 7.78465527e-05},
          {20, 3.4281022e-05},
          {31, 3.76732269e-07}});
  Expect(rope, 128,
         {{0, 1},
          {28, 0.00321144599},
          {29, 0.00216657076},
          {30, 0.00137189357},
          {32, 0.000524846161},
          {34, 0.000178507813},
          {36, 7.78465527e-05},
          {37, 6.34151435e-05},
          {40, 3.4281022e-05},
          {63, 3.06892599e-07}});
}

// Qwen2.5's long context: the ramp goes from dimension 23 to 40.
TEST(RopeInvFreq, Yarn) {
  const RopeSpec rope = {
      .theta = 1e6, .scaling = RopeSpec::Scaling::kYarn, .factor = 4, .original_max_positions = 32768};
  Expect(rope, 128,
         {{0, 1},
          {20, 0.0133352143},
          {23, 0.00697830585},
          {24, 0.00537532149},
          {30, 0.00106436098},
          {35, 0.000246258407},
          {39, 6.49039432e-05},
          {40, 4.44569853e-05},
          {41, 3.58253143e-05},
          {63, 3.1023444e-07}});
}

// DeepSeek's numbers without rounding the ramp's ends: from 10.47 to 22.51.
TEST(RopeInvFreq, YarnWithoutTruncation) {
  const RopeSpec rope = {.theta = 1e4,
                         .scaling = RopeSpec::Scaling::kYarn,
                         .factor = 40,
                         .original_max_positions = 4096,
                         .truncate = false};
  Expect(rope, 64,
         {{0, 1},
          {8, 0.1},
          {10, 0.0562341325},
          {11, 0.0403675845},
          {14, 0.0127031442},
          {18, 0.00219573089},
          {22, 0.000118387732},
          {23, 3.33380358e-05},
          {24, 2.5e-05},
          {31, 3.33380358e-06}});
}

TEST(RopeInvFreq, FactorsOfTheCheckpointDivide) {
  const auto plain = RopeInvFreq({.theta = 10000}, 8);
  const auto divided = RopeInvFreq({.theta = 10000, .freq_factors = {1, 2, 4, 8}}, 8);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(divided[i], std::ldexp(plain[i], -static_cast<int>(i)));
}

TEST(RopeScale, OnlyYarnScales) {
  EXPECT_EQ(RopeScale({}), 1);
  EXPECT_EQ(RopeScale({.scaling = RopeSpec::Scaling::kLinear, .factor = 4}), 1);
  EXPECT_EQ(RopeScale({.scaling = RopeSpec::Scaling::kLlama3, .factor = 8, .original_max_positions = 8192}), 1);
  RopeSpec yarn = {.scaling = RopeSpec::Scaling::kYarn, .factor = 4};
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 1.138629436111989);  // 0.1 ln 4 + 1
  yarn.factor = 1;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 1);
  yarn.factor = 40;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 1.3688879454113936);
  yarn.mscale = 0.707;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 1.3688879454113936);  // needs both
  yarn.mscale_all_dim = 1;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 0.9210423553163399);
  yarn.mscale_all_dim = 0.707;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 1);
  yarn.attention_factor = 0.5;
  EXPECT_DOUBLE_EQ(RopeScale(yarn), 0.5);
}

}  // namespace
}  // namespace xjit
