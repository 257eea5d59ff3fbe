// The row kernels that are C++: rope_table, gather_rows, embed; and the scalar references that others lean on.
#include "codegen/rows/rows_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "codegen/gemm/embed.h"
#include "codegen/gemm/pack.h"
#include "codegen/rows/rows_desc.h"
#include "ir/support/ref/norm.h"
#include "ir/support/ref/rope.h"
#include "tests/unit/rows/rows_testing.h"

namespace xjit {
namespace {

TEST(RopeTable, AnglesAreF32Products) {
  const int32_t position[3] = {0, 1, 100003};
  const float inv_freq[2] = {1.0f, 0.1f};
  StepView step;
  step.rows = 3;
  step.position = position;
  std::vector<float> out(12, -1);
  const RopeTableArgs args{.step = &step, .inv_freq = inv_freq, .half = 2, .scale = 1.5f, .out = out.data()};
  RopeTableKernel(&args, 0, 1, 1, 3);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], -1) << "row 0 is outside the part";
  RopeTableKernel(&args, 0, 1, 0, 1);
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 4), (std::vector<float>{1.5f, 1.5f, 0, 0}));
  const float angle = 100003.0f * 0.1f;  // rounded to f32, 2^-10 apart there, before cosine and sine
  EXPECT_EQ(out[9], static_cast<float>(std::cos(static_cast<double>(angle))) * 1.5f);
  EXPECT_EQ(out[11], static_cast<float>(std::sin(static_cast<double>(angle))) * 1.5f);
  EXPECT_EQ(out[4], static_cast<float>(std::cos(1.0)) * 1.5f);
}

TEST(RopeTable, RotationKeepsLengthsAndTheTail) {
  const int32_t position = 7;
  const float inv_freq[2] = {1.0f, 0.25f};
  float table[4];
  ref::RopeTable(&position, 1, inv_freq, 2, 1, table);
  const float x[6] = {1, 2, 3, 4, 5, 6};
  float y[6];
  ref::Rotate(x, table, 6, 4, y);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(y[i] * y[i] + y[i + 2] * y[i + 2], x[i] * x[i] + x[i + 2] * x[i + 2], 1e-5);
    const double angle = 7 * inv_freq[i];
    EXPECT_NEAR(y[i], x[i] * std::cos(angle) - x[i + 2] * std::sin(angle), 1e-5);
  }
  EXPECT_EQ(y[4], 5);
  EXPECT_EQ(y[5], 6);
}

TEST(GatherRows, CopiesRowsInOrder) {
  const int32_t rows[2] = {3, 1};
  StepView step;
  step.logit_rows = 2;
  step.logit_row = rows;
  const std::vector<float> x = {0, 0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f};
  std::vector<float> out(4, -1);
  const GatherRowsArgs args{.step = &step, .x = x.data(), .out = out.data(), .ld_bytes = 8};
  GatherRowsKernel(&args, 0, 1, 0, 1);
  EXPECT_EQ(out, (std::vector<float>{3, 3.5f, -1, -1}));
  GatherRowsKernel(&args, 0, 1, 1, 2);
  EXPECT_EQ(out, (std::vector<float>{3, 3.5f, 1, 1.5f}));
}

TEST(Embed, IsTheColumnOfItsId) {
  constexpr int64_t kVocab = 64, kHidden = 48;
  const std::vector<float> table = testing::RandomFloats(kVocab * kHidden, 3);
  std::vector<const std::byte*> rows;
  for (int64_t n = 0; n < kVocab; ++n) rows.push_back(reinterpret_cast<const std::byte*>(&table[n * kHidden]));
  std::vector<std::byte> packed(static_cast<size_t>(2 * PanelBytes(DType::kF32, kHidden)));
  PackPanels(DType::kF32, kHidden, rows, 0, 2, packed.data());
  const int32_t ids[3] = {63, 0, 33};
  StepView step;
  step.rows = 3;
  step.ids = ids;
  std::vector<float> out(3 * 50, -1);
  const EmbedArgs args{.step = &step,
                       .packed = packed.data(),
                       .encoding = DType::kF32,
                       .k = kHidden,
                       .out = out.data(),
                       .ldo_bytes = 200};
  EmbedKernel(&args, 0, 1, 0, 2);
  EmbedKernel(&args, 0, 1, 2, 3);
  for (int m = 0; m < 3; ++m) {
    for (int i = 0; i < kHidden; ++i) ASSERT_EQ(out[m * 50 + i], table[ids[m] * kHidden + i]) << m << " " << i;
    EXPECT_EQ(out[m * 50 + 48], -1);
  }
}

TEST(RmsNormRef, UnitGainGivesUnitMeanSquare) {
  const std::vector<float> x = testing::RandomFloats(576, 4), gain(576, 1.0f);
  std::vector<float> y(576);
  ref::RmsNorm(x.data(), gain.data(), 576, 0, y.data());
  double sum = 0;
  for (float v : y) sum += static_cast<double>(v) * v;
  EXPECT_NEAR(sum / 576, 1, 1e-6);
}

}  // namespace
}  // namespace xjit
