// The f32 kernels against a chain of std::fma over the unpacked weights: the same bits, at every width, row count,
// shape and partition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/gemm/pack.h"
#include "tests/unit/gemm_float/float_harness.h"

namespace xjit::testing {
namespace {

constexpr Epilogue kSums = {};
constexpr Epilogue kBiasResidual = {.bias = true, .silu_mul = false, .residual = true};
constexpr Epilogue kSilu = {.bias = false, .silu_mul = true, .residual = false};
constexpr Epilogue kAll = {.bias = true, .silu_mul = true, .residual = true};

std::vector<int64_t> Depths(DType w) {
  switch (PackedBlockElems(w)) {
    case 256:
      return {256, 512};
    case 32:
      return {32, 96, 256, 576};
    default:
      return {1, 2, 7, 16, 17, 33, 80, 96, 256, 577};
  }
}

class GemmFma : public ::testing::TestWithParam<std::tuple<const FloatRow*, DType>> {
 protected:
  void SetUp() override {
    if (!HostHas(row())) GTEST_SKIP() << "the host has no " << row().name;
  }
  static const FloatRow& row() { return *std::get<0>(GetParam()); }
  static DType w() { return std::get<1>(GetParam()); }

  // Computes all of `p` in one call and compares.
  static void ExpectChain(Problem& p, int rows, const Built& built, const std::string& what) {
    p.Poison();
    const int64_t panels = p.Desc(rows).panels();
    EXPECT_EQ(p.Call(built, 0, panels, 0, p.m()), "") << what;
    EXPECT_EQ(p.Stray(0, panels, 0, p.m()), 0) << what;
    EXPECT_EQ(FirstDifference(p.CopyC(), p.FmaChain(), p.c_columns()), "") << what;
  }
};

std::string ParamName(const ::testing::TestParamInfo<std::tuple<const FloatRow*, DType>>& info) {
  return std::string(std::get<0>(info.param)->name) + "_" + std::string(Name(std::get<1>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(All, GemmFma,
                         ::testing::Combine(::testing::Values(&kFma512, &kFma2),
                                            ::testing::ValuesIn(WeightEncodings())),
                         ParamName);

TEST_P(GemmFma, FewRowsGiveTheChainsBits) {
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    for (const int64_t k : Depths(w())) {
      const int64_t n = 32 * (1 + (rows + k) % 3);
      Problem p(DType::kF32, w(), rows, n, k, rows % 2 == 0 ? kBiasResidual : kSums, 17 * rows + static_cast<int>(k));
      Built built;
      ASSERT_TRUE(Build(row(), p.Desc(rows), &built).ok());
      ExpectChain(p, rows, built, fmt::format("{} x {} x {}: {}", rows, n, k, ToString(built.plan)));
    }
  }
}

TEST_P(GemmFma, ManyRowsGiveTheChainsBits) {
  for (const int64_t k : Depths(w())) {
    for (const int64_t m : {1, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 25}) {
      Problem p(DType::kF32, w(), m, 32 * (1 + m % 3), k, m % 2 == 0 ? kBiasResidual : kSums,
                static_cast<uint32_t>(m + k));
      Built built;
      ASSERT_TRUE(Build(row(), p.Desc(0), &built).ok());
      ExpectChain(p, 0, built, fmt::format("{} rows, depth {}: {}", m, k, ToString(built.plan)));
    }
  }
}

TEST_P(GemmFma, BlockedDepthAndRowsKeepTheBits) {
  const int64_t k = PackedBlockElems(w()) == 256 ? 1280 : PackedBlockElems(w()) == 32 ? 608 : 601;
  Problem p(DType::kF32, w(), 31, 64, k, kBiasResidual, 5);
  Built built;
  ASSERT_TRUE(Build(row(), p.Desc(0), &built, 64 << 10).ok());
  EXPECT_EQ(built.plan.k_block, std::max(64, PackedBlockElems(w())));
  ExpectChain(p, 0, built, "small L2");
  GemmPlan plan = built.plan;
  plan.m_block = 14;
  plan.scratch_bytes = plan.n_block * (plan.m_block + plan.k_block) * 128;
  Built small;
  ASSERT_TRUE(BuildWith(row(), p.Desc(0), plan, &small).ok());
  ExpectChain(p, 0, small, "small m_block");
}

TEST_P(GemmFma, PartsAreComputedAlikeAndTouchNothingElse) {
  const int64_t k = PackedBlockElems(w()) == 256 ? 256 : 96;
  Problem p(DType::kF32, w(), 29, 96, k, kBiasResidual, 6);
  Built built;
  ASSERT_TRUE(Build(row(), p.Desc(0), &built).ok());
  const std::vector<float> want = p.FmaChain();
  for (const auto& [n0, n1, m0, m1] : std::vector<std::tuple<int, int, int, int>>{
           {0, 1, 0, 29}, {1, 3, 0, 1}, {2, 3, 28, 29}, {0, 3, 3, 20}, {1, 1, 0, 29}, {0, 3, 7, 7}}) {
    p.Poison();
    EXPECT_EQ(p.Call(built, n0, n1, m0, m1), "");
    EXPECT_EQ(p.Stray(n0, n1, m0, m1), 0);
    for (int64_t i = m0; i < m1; ++i) {
      for (int64_t j = n0 * 32; j < n1 * 32; ++j) {
        ASSERT_EQ(p.C(i, j), want[static_cast<size_t>(i * 96 + j)]) << "row " << i << " column " << j;
      }
    }
  }
  Built few;
  ASSERT_TRUE(Build(row(), p.Desc(3), &few).ok());
  p.Poison();
  EXPECT_EQ(p.Call(few, 1, 2, 4, 7), "");
  EXPECT_EQ(p.Stray(1, 2, 4, 7), 0);
  for (int64_t i = 4; i < 7; ++i) {
    for (int64_t j = 32; j < 64; ++j) ASSERT_EQ(p.C(i, j), want[static_cast<size_t>(i * 96 + j)]);
  }
}

TEST_P(GemmFma, SiluIsWithinItsBound) {
  const int64_t k = PackedBlockElems(w()) == 256 ? 256 : 96;
  for (const Epilogue epilogue : {kSilu, kAll}) {
    for (const int rows : {1, 2, 5, 8, 0}) {
      Problem p(DType::kF32, w(), rows == 0 ? 15 : rows, 96, k, epilogue, 7);
      Built built;
      ASSERT_TRUE(Build(row(), p.Desc(rows), &built).ok());
      p.Poison();
      EXPECT_EQ(p.Call(built, 0, 3, 0, p.m()), "");
      EXPECT_EQ(p.Stray(0, 3, 0, p.m()), 0);
      const std::vector<float> got = p.CopyC(), want = p.Reference(), bound = p.Tolerance();
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_LE(std::abs(got[i] - want[i]), bound[i]) << rows << " rows, at " << i << " want " << want[i];
      }
    }
  }
}

TEST_P(GemmFma, AgreesWithTheReference) {
  const int64_t k = PackedBlockElems(w()) == 256 ? 512 : 576;
  for (const int rows : {1, 4, 0}) {
    Problem p(DType::kF32, w(), rows == 0 ? 13 : rows, 64, k, kBiasResidual, 8);
    Built built;
    ASSERT_TRUE(Build(row(), p.Desc(rows), &built).ok());
    EXPECT_EQ(p.Call(built, 0, 2, 0, p.m()), "");
    const std::vector<float> got = p.CopyC(), want = p.Reference(), bound = p.Tolerance();
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_LE(std::abs(got[i] - want[i]), bound[i]) << rows << " rows, at " << i;
  }
}

// Rows of A that are unit vectors read the weights out: of every exponent whose values are finite, subnormal ones too.
TEST(GemmFmaMxfp4, EveryExponent) {
  constexpr int64_t kPanels = 8, kDepth = 32;
  const int64_t bytes = PanelBytes(DType::kMxfp4, kDepth);
  GuardedBuffer w(static_cast<size_t>(kPanels * bytes)), a(kDepth * kDepth * 4, 0), c(kDepth * kPanels * 32 * 4);
  for (int64_t i = 0; i < kPanels * bytes; ++i) w.data()[i] = static_cast<uint8_t>(i * 37 % 256);
  for (int64_t n = 0; n < kPanels * 32; ++n) {
    w.data()[n / 32 * bytes + n % 32] = static_cast<uint8_t>(std::min<int64_t>(n, 252));
  }
  for (int64_t i = 0; i < kDepth; ++i) a.as<float>()[i * kDepth + i] = 1;
  for (const FloatRow* row : {&kFma512, &kFma2}) {
    if (!HostHas(*row)) continue;
    for (const int rows : {0, 1}) {
      const GemmDesc desc{.n = kPanels * 32,
                          .k = kDepth,
                          .a = DType::kF32,
                          .w = DType::kMxfp4,
                          .rows = rows,
                          .lda_bytes = kDepth * 4,
                          .ldc_bytes = kPanels * 32 * 4,
                          .epilogue = {}};
      Built built;
      ASSERT_TRUE(Build(*row, desc, &built).ok());
      GuardedBuffer scratch(static_cast<size_t>((built.plan.scratch_bytes + 63) / 64 * 64));
      for (int64_t m = 0; m < (rows == 0 ? 1 : kDepth); ++m) {
        const GemmArgs args{.a = a.as<float>() + m * kDepth,
                            .w = w.data(),
                            .c = c.as<float>() + m * kPanels * 32,
                            .scratch = scratch.data()};
        built.kernel.fn(&args, 0, kPanels, 0, rows == 0 ? kDepth : 1);
      }
      std::vector<float> want(kDepth);
      for (int64_t n = 0; n < kPanels * 32; ++n) {
        UnpackColumn(DType::kMxfp4, kDepth, w.as<std::byte>(), n, want.data());
        for (int64_t k = 0; k < kDepth; ++k) {
          ASSERT_EQ(c.as<float>()[k * kPanels * 32 + n], want[static_cast<size_t>(k)])
              << row->name << " column " << n << " k " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace xjit::testing
