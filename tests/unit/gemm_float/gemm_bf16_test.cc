// vdpbf16ps kernels: within the bound of k roundings of the reference, and the same bits in every shape and partition.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/unit/gemm_float/float_harness.h"

namespace xjit::testing {
namespace {

constexpr Epilogue kEpilogues[] = {{},
                                   {.bias = true, .silu_mul = false, .residual = true},
                                   {.bias = false, .silu_mul = true, .residual = false},
                                   {.bias = true, .silu_mul = true, .residual = true}};

class GemmBf16 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HostHas(kBf16Dot)) GTEST_SKIP() << "the host has no " << kBf16Dot.name;
  }
  static void ExpectNearReference(const Problem& p, const std::string& what) {
    const std::vector<float> got = p.CopyC(), want = p.Reference(), bound = p.Tolerance();
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_LE(std::abs(got[i] - want[i]), bound[i]) << what << ", at " << i << ": " << got[i] << " for " << want[i];
    }
  }
};

TEST_F(GemmBf16, FewRows) {
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    for (const int64_t k : {1, 2, 3, 16, 17, 32, 80, 96, 255, 256, 576}) {
      const int64_t n = 32 * (1 + (rows + k) % 3);
      Problem p(DType::kBF16, DType::kBF16, rows, n, k, kEpilogues[(rows + k) % 4], 31 * rows + static_cast<int>(k));
      Built built;
      ASSERT_TRUE(Build(kBf16Dot, p.Desc(rows), &built).ok());
      EXPECT_EQ(p.Call(built, 0, n / 32, 0, rows), "");
      EXPECT_EQ(p.Stray(0, n / 32, 0, rows), 0);
      ExpectNearReference(p, fmt::format("{} x {} x {}", rows, n, k));
    }
  }
}

TEST_F(GemmBf16, ManyRows) {
  for (const int64_t k : {1, 2, 7, 17, 31, 32, 33, 80, 255, 576}) {
    for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47}) {
      const int64_t panels = 1 + (m + k) % 3;
      Problem p(DType::kBF16, DType::kBF16, m, 32 * panels, k, kEpilogues[(m + k) % 4], static_cast<uint32_t>(m + k));
      Built built;
      ASSERT_TRUE(Build(kBf16Dot, p.Desc(0), &built).ok());
      EXPECT_EQ(p.Call(built, 0, panels, 0, m), "");
      EXPECT_EQ(p.Stray(0, panels, 0, m), 0);
      ExpectNearReference(p, fmt::format("{} x {} x {}", m, 32 * panels, k));
    }
  }
}

TEST_F(GemmBf16, BitsDependOnNothingButTheOperands) {
  for (const Epilogue& epilogue : kEpilogues) {
    Problem p(DType::kBF16, DType::kBF16, 27, 96, 1201, epilogue, 3);
    Built many;
    ASSERT_TRUE(Build(kBf16Dot, p.Desc(0), &many).ok());
    EXPECT_EQ(p.Call(many, 0, 3, 0, 27), "");
    const std::vector<float> want = p.CopyC();
    ExpectNearReference(p, "many rows");

    Built blocked;
    ASSERT_TRUE(Build(kBf16Dot, p.Desc(0), &blocked, 64 << 10).ok());
    EXPECT_EQ(blocked.plan.k_block, 128);
    p.Poison();
    EXPECT_EQ(p.Call(blocked, 0, 3, 0, 27), "");
    EXPECT_EQ(FirstDifference(p.CopyC(), want, p.c_columns()), "") << "blocked k";

    p.Poison();
    for (const auto& [n0, n1, m0, m1] :
         std::vector<std::tuple<int, int, int, int>>{{0, 1, 0, 27}, {1, 3, 0, 16}, {1, 2, 16, 27}, {2, 3, 16, 27}}) {
      EXPECT_EQ(p.Call(many, n0, n1, m0, m1), "");
    }
    EXPECT_EQ(FirstDifference(p.CopyC(), want, p.c_columns()), "") << "in parts";

    for (int rows = 1; rows <= kMaxFewRows; ++rows) {
      Built few;
      ASSERT_TRUE(Build(kBf16Dot, p.Desc(rows), &few).ok());
      p.Poison();
      for (int64_t m0 = 0; m0 < 27; m0 += rows) {
        const int64_t from = std::min<int64_t>(m0, 27 - rows);
        EXPECT_EQ(p.Call(few, 0, 1, from, from + rows), "");
        EXPECT_EQ(p.Call(few, 1, 3, from, from + rows), "");
      }
      EXPECT_EQ(FirstDifference(p.CopyC(), want, p.c_columns()), "") << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace xjit::testing
