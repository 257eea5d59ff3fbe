// Weights whose scales lie outside (f8e4m3, i8, i4), every kind of scales: the f32 kernels give a chain of std::fma
// over the unpacked weights bit for bit, bf16 rows the reference within the bound of its roundings; both ways to
// look bytes up.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/gemm/pack.h"
#include "tests/unit/gemm_float/float_harness.h"

namespace xjit::testing {
namespace {

constexpr Epilogue kEpilogues[] = {{},
                                   {.bias = true, .silu_mul = false, .residual = true},
                                   {.bias = false, .silu_mul = true, .residual = false},
                                   {.bias = true, .silu_mul = true, .residual = true}};

// At, below and above units (16, 32), blocks (64, 128) and the padding of i8 (64).
std::vector<int64_t> Depths(const Encoding& w) {
  if (w.type == DType::kI4) return {32, 64, 96, 128, 160, 576};
  return {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 130, 192, 257, 576};
}

struct Way {
  const FloatRow* row;
  bool vbmi;
};

class GemmScaled : public ::testing::TestWithParam<std::tuple<Way, Encoding>> {
 protected:
  void SetUp() override {
    if (!HostHas(row())) GTEST_SKIP() << "the host has no " << row().name;
    if (vbmi() && !HostHasVbmi()) GTEST_SKIP() << "the host has no VBMI";
  }
  static const FloatRow& row() { return *std::get<0>(GetParam()).row; }
  static bool vbmi() { return std::get<0>(GetParam()).vbmi; }
  static bool dot() { return row().a == DType::kBF16; }
  static Encoding w() { return std::get<1>(GetParam()); }

  static void Expect(Problem& p, int rows, Epilogue epilogue, int64_t l2_bytes = 0) {
    Built built;
    const absl::Status status = Build(row(), p.Desc(rows), &built, l2_bytes, vbmi());
    ASSERT_TRUE(status.ok()) << Message(status);
    const std::string what =
        fmt::format("rows {} of {}, n {} k {}: {}", rows, p.m(), p.Desc(0).n, p.Desc(0).k, ToString(built.plan));
    EXPECT_EQ(built.plan.vbmi, vbmi() && row().isa != Isa::kAvx2);
    p.Poison();
    const int64_t panels = p.Desc(rows).panels();
    EXPECT_EQ(p.Call(built, 0, panels, 0, p.m()), "") << what;
    EXPECT_EQ(p.Stray(0, panels, 0, p.m()), 0) << what;
    if (!dot() && !epilogue.silu_mul) {
      ASSERT_EQ(FirstDifference(p.CopyC(), p.FmaChain(), p.c_columns()), "") << what;
      return;
    }
    const std::vector<float> got = p.CopyC(), want = p.Reference(), bound = p.Tolerance();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - want[i]), bound[i]) << what << ", at " << i << ": " << got[i] << " for " << want[i];
    }
  }
};

std::string ParamName(const ::testing::TestParamInfo<std::tuple<Way, Encoding>>& info) {
  const auto& [way, w] = info.param;
  return std::string(way.row->name) + (way.vbmi ? "_vbmi_" : "_") + TestName(w);
}

INSTANTIATE_TEST_SUITE_P(All, GemmScaled,
                         ::testing::Combine(::testing::Values(Way{&kFma512, true}, Way{&kFma512, false},
                                                              Way{&kFma2, false}, Way{&kBf16Dot, true},
                                                              Way{&kBf16Dot, false}),
                                            ::testing::ValuesIn(ScaledEncodings())),
                         ParamName);

TEST_P(GemmScaled, FewRows) {
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    int turn = 0;
    for (const int64_t k : Depths(w())) {
      const Epilogue epilogue = kEpilogues[(rows + turn++) % 4];
      Problem p(row().a, w(), rows, 32 * (1 + (rows + k) % 3), k, epilogue, 31 * rows + static_cast<uint32_t>(k));
      Expect(p, rows, epilogue);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(GemmScaled, ManyRows) {
  int turn = 0;
  for (const int64_t k : Depths(w())) {
    for (const int64_t m : {1, 7, 8, 13, 17, 40}) {
      const Epilogue epilogue = kEpilogues[turn++ % 4];
      Problem p(row().a, w(), m, 32 * (1 + (m + k) % 3), k, epilogue, static_cast<uint32_t>(m + k));
      Expect(p, 0, epilogue);
      if (HasFatalFailure()) return;
    }
  }
  // Several blocks of unpacked k, which cut scale blocks' walk.
  Problem p(row().a, w(), 14, 64, 1056, {}, 5);
  Expect(p, 0, {}, 32 << 10);
}

TEST_P(GemmScaled, RowsDoNotDependOnTheirNumber) {
  Problem p(row().a, w(), kMaxFewRows, 64, 576, kEpilogues[1], 9);
  Built one;
  ASSERT_TRUE(Build(row(), p.Desc(1), &one, 0, vbmi()).ok());
  for (int64_t m = 0; m < kMaxFewRows; ++m) EXPECT_EQ(p.Call(one, 0, 2, m, m + 1), "");
  const std::vector<float> want = p.CopyC();
  for (int rows = 2; rows <= kMaxFewRows; ++rows) {
    Built few;
    ASSERT_TRUE(Build(row(), p.Desc(rows), &few, 0, vbmi()).ok());
    p.Poison();
    for (int64_t m = 0; m < kMaxFewRows; m += rows) {
      const int64_t from = std::min<int64_t>(m, kMaxFewRows - rows);
      for (int64_t panel = 0; panel < 2; ++panel) EXPECT_EQ(p.Call(few, panel, panel + 1, from, from + rows), "");
    }
    EXPECT_EQ(FirstDifference(p.CopyC(), want, p.c_columns()), "") << rows << " rows";
  }
  for (const int64_t l2 : {int64_t{0}, int64_t{32} << 10}) {
    Built many;
    ASSERT_TRUE(Build(row(), p.Desc(0), &many, l2, vbmi()).ok());
    p.Poison();
    EXPECT_EQ(p.Call(many, 0, 2, 0, kMaxFewRows), "");
    EXPECT_EQ(FirstDifference(p.CopyC(), want, p.c_columns()), "") << "many rows: " << ToString(many.plan);
  }
}

TEST_P(GemmScaled, ScalesOfZeroGiveZeros) {
  for (const int rows : {1, 5, 0}) {
    Problem p(row().a, w(), rows == 0 ? 13 : rows, 32, 192, {}, 4);
    const ScaledBlocks blocks = ScaledBlocksOf(w(), 192);
    for (int64_t b = 0; b < blocks.count(192); ++b) {
      std::memset(p.w() + blocks.offset(b), 0, static_cast<size_t>(blocks.scale_bytes));
    }
    Built built;
    ASSERT_TRUE(Build(row(), p.Desc(rows), &built, 0, vbmi()).ok());
    EXPECT_EQ(p.Call(built, 0, 1, 0, p.m()), "");
    for (const float c : p.CopyC()) ASSERT_EQ(c, 0.0f);
  }
}

TEST_P(GemmScaled, NanCodesReachTheirColumnAlone) {
  if (w().type != DType::kF8E4M3) GTEST_SKIP() << "only E4M3 has NaN";
  constexpr int64_t kDepth = 192;
  for (const uint8_t code : {0x7F, 0xFF}) {
    for (const int rows : {1, 4, 0}) {
      Problem p(row().a, w(), rows == 0 ? 13 : rows, 64, kDepth, {}, 4);
      // One code of column 7 of each panel (byte 2 (7 % 4) of 16-byte lane 1 of a unit's group 0).
      for (int64_t panel = 0; panel < 2; ++panel) {
        const ScaledBlocks blocks = ScaledBlocksOf(w(), kDepth);
        std::byte* unit = p.w() + panel * PanelBytes(w(), kDepth) + blocks.header_bytes() + 3 * blocks.unit_bytes;
        unit[16 + 6] = std::byte{code};
      }
      Built built;
      ASSERT_TRUE(Build(row(), p.Desc(rows), &built, 0, vbmi()).ok());
      EXPECT_EQ(p.Call(built, 0, 2, 0, p.m()), "");
      for (int64_t m = 0; m < p.m(); ++m) {
        for (int64_t j = 0; j < 64; ++j)
          ASSERT_EQ(std::isnan(p.C(m, j)), j % 32 == 7) << "row " << m << " column " << j;
      }
    }
  }
}

TEST(GemmScaledPlan, BlocksOfDepthAreWholeScaleBlocks) {
  for (const Encoding& w : ScaledEncodings()) {
    for (const int64_t l2 : {int64_t{16} << 10, int64_t{1} << 20}) {
      Problem p(DType::kBF16, w, 9, 64, 4160, {}, 1);
      TargetInfo target;
      target.l2_bytes = l2;
      const auto plan = kBf16Dot.plan(p.Desc(0), target);
      ASSERT_TRUE(plan.ok());
      const int64_t depth = ScaledBlocksOf(w, 4160).depth;
      EXPECT_EQ(plan->k_block % (depth == 4160 ? 32 : depth), 0) << TestName(w) << " " << ToString(*plan);
    }
  }
}

}  // namespace
}  // namespace xjit::testing
