// AMX products: right at, below and above every tile edge, for every encoding and epilogue; bits depend on nothing but
// the operands.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tests/unit/amx_gemm/amx_harness.h"

namespace xjit::testing {
namespace {

constexpr Epilogue kEpilogues[] = {{},
                                   {.bias = true, .silu_mul = false, .residual = true},
                                   {.bias = false, .silu_mul = true, .residual = false},
                                   {.bias = true, .silu_mul = true, .residual = true}};

// A kind of product: weights and the activations that go with them.
struct Product {
  Encoding w;
  DType a;
};
std::vector<Product> Products() {
  std::vector<Product> list;
  for (const Encoding& w : AmxBf16Weights()) list.push_back({w, DType::kBF16});
  list.push_back({DType::kF16, DType::kF16});
  list.push_back({Encoding::Int8(), DType::kI8Act});
  list.push_back({Encoding(DType::kI8, {.kind = Scales::Kind::kTensor}), DType::kI8Act});
  return list;
}

// Depths that the encoding has, from `k` up.
int64_t DepthFrom(const Encoding& w, int64_t k) {
  const int64_t unit = w.type == DType::kI4 ? 32 : IsQuantized(w.type) ? Info(w.type).block_elems : 1;
  return (k + unit - 1) / unit * unit;
}

std::string What(const AmxProblem& p, const Product& product, const GemmPlan& plan) {
  return fmt::format("{} rows, {} columns, k {}, {}, {}: {}", p.size().m, p.size().n, p.size().k, Name(product.a),
                     ToString(product.w), ToString(plan));
}

class AmxGemm : public ::testing::Test {
 protected:
  void SetUp() override { XJIT_NEED_TILES_HERE(); }
};

void Check(const Product& product, const AmxProblem::Size& size, const Epilogue& epilogue, const Caches& caches,
           int rows = 0) {
  AmxProblem p(product.w, product.a, size, epilogue, static_cast<uint32_t>(size.m * 7 + size.k));
  AmxBuilt built;
  ASSERT_EQ(Message(BuildAmx(p.Desc(rows), caches, &built)), "") << ToString(product.w) << " k " << size.k;
  p.CallAll(built);
  EXPECT_EQ(p.Stray(0, size.n / kPanelColumns, 0, size.m), 0) << What(p, product, built.plan);
  p.ExpectRight(What(p, product, built.plan));
}

TEST_F(AmxGemm, RowsAtTileEdges) {
  for (const Product& product : {Product{DType::kBF16, DType::kBF16}, Product{Encoding::Int8(), DType::kI8Act}}) {
    for (const int64_t m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65}) {
      for (const Caches& caches : {kRealCaches, kTinyCaches}) {
        Check(product, {.m = m, .n = 32 * (1 + m % 4), .k = 200}, kEpilogues[m % 4], caches);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(AmxGemm, Depths) {
  for (const Product& product : {Product{DType::kBF16, DType::kBF16}, Product{DType::kF16, DType::kF16},
                                 Product{Encoding::Int8(), DType::kI8Act}}) {
    for (const int64_t k : {1, 2, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 576, 7168}) {
      for (const Caches& caches : {kRealCaches, kTinyCaches}) {
        Check(product, {.m = 37, .n = 64, .k = k}, kEpilogues[k % 4], caches);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(AmxGemm, EncodingsAndEpilogues) {
  for (const Product& product : Products()) {
    for (const Epilogue& epilogue : kEpilogues) {
      for (const Caches& caches : {kRealCaches, kTinyCaches}) {
        for (const int64_t m : {16, 33}) {
          Check(product, {.m = m, .n = 96, .k = DepthFrom(product.w, 512 + (m == 16 ? 0 : 72))}, epilogue, caches);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(AmxGemm, EncodingsAndDepths) {
  for (const Product& product : Products()) {
    for (const int64_t from : {1, 17, 31, 33, 129, 161, 327}) {
      const int64_t k = DepthFrom(product.w, from);
      if (k > 2 * from + 31) continue;
      Check(product, {.m = 18, .n = 64, .k = k}, kEpilogues[0], from % 2 == 1 ? kTinyCaches : kRealCaches);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST_F(AmxGemm, FewRows) {
  for (const Product& product : Products()) {
    for (int rows = 5; rows <= kMaxFewRows; ++rows) {
      for (const int64_t from : {33, 512, 700}) {
        const Caches& caches = rows % 2 == 0 ? kRealCaches : kTinyCaches;
        Check(product, {.m = rows, .n = 32 * (rows - 3), .k = DepthFrom(product.w, from)}, kEpilogues[rows % 4], caches,
              rows);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Both ways of turning codes into bf16.
TEST_F(AmxGemm, WithoutVbmi) {
  for (const Product& product : Products()) {
    AmxProblem p(product.w, product.a, {.m = 20, .n = 64, .k = DepthFrom(product.w, 320)}, {}, 5);
    AmxBuilt with, without;
    ASSERT_TRUE(BuildAmx(p.Desc(), kRealCaches, &with, true).ok());
    ASSERT_TRUE(BuildAmx(p.Desc(), kRealCaches, &without, false).ok());
    p.CallAll(with);
    const std::vector<float> c = p.C();
    p.Poison();
    p.CallAll(without);
    ASSERT_EQ(FirstBitDifference(p.C(), c, p.columns()), "") << ToString(product.w);
  }
}

TEST_F(AmxGemm, BitsDependOnNothingButTheOperands) {
  for (const Product& product : Products()) {
    const int64_t k = DepthFrom(product.w, 800);
    AmxProblem p(product.w, product.a, {.m = 70, .n = 160, .k = k}, kEpilogues[1], 11);
    AmxBuilt real, tiny;
    ASSERT_TRUE(BuildAmx(p.Desc(), kRealCaches, &real).ok());
    ASSERT_TRUE(BuildAmx(p.Desc(), kTinyCaches, &tiny).ok());
    p.CallAll(real);
    const std::vector<float> whole = p.C();
    p.Poison();
    p.CallAll(tiny);
    ASSERT_EQ(FirstBitDifference(p.C(), whole, p.columns()), "") << What(p, product, tiny.plan);
    // Parts: each writes its own rows and columns only.
    for (const AmxBuilt* built : {&real, &tiny}) {
      p.Poison();
      const std::vector<std::pair<int64_t, int64_t>> columns = {{0, 1}, {1, 3}, {3, 5}}, rows = {{0, 48}, {48, 70}};
      for (const auto& [n0, n1] : columns) {
        for (const auto& [m0, m1] : rows) {
          AmxProblem part(product.w, product.a, {.m = 70, .n = 160, .k = k}, kEpilogues[1], 11);
          part.Call(*built, n0, n1, m0, m1);
          ASSERT_EQ(part.Stray(n0, n1, m0, m1), 0);
          p.Call(*built, n0, n1, m0, m1);
        }
      }
      ASSERT_EQ(FirstBitDifference(p.C(), whole, p.columns()), "") << What(p, product, built->plan);
    }
    // Few rows.
    AmxBuilt few;
    ASSERT_TRUE(BuildAmx(p.Desc(7), kTinyCaches, &few).ok());
    p.Poison();
    for (int64_t m = 0; m < 70; m += 7) p.Call(few, 0, 5, m, m + 7);
    ASSERT_EQ(FirstBitDifference(p.C(), whole, p.columns()), "") << What(p, product, few.plan);
  }
}

TEST_F(AmxGemm, RowsThatAreNoNumbersStayAlone) {
  const float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (const Product& product : Products()) {
    for (const int rows : {0, 8}) {
      const int64_t m = rows > 0 ? rows : 35, k = DepthFrom(product.w, 160);
      AmxProblem p(product.w, product.a, {.m = m, .n = 64, .k = k}, {}, 3);
      AmxBuilt built;
      ASSERT_TRUE(BuildAmx(p.Desc(rows), kTinyCaches, &built).ok());
      p.CallAll(built);
      const std::vector<float> before = p.C();
      p.SetA(1, 5, kNan);
      p.SetA(3, k - 1, kInf);
      p.SetRowOfA(6, 0);
      p.CallAll(built);
      const std::vector<float> after = p.C();
      for (size_t i = 0; i < after.size(); ++i) {
        const size_t row = i / 64;
        if (row == 1) {
          ASSERT_TRUE(std::isnan(after[i])) << ToString(product.w);
        } else if (row == 3) {
          ASSERT_FALSE(std::isfinite(after[i])) << ToString(product.w) << " " << after[i];
        } else if (row == 6) {
          ASSERT_EQ(after[i], 0) << ToString(product.w);
        } else {
          ASSERT_EQ(after[i], before[i]) << ToString(product.w) << " row " << row;
        }
      }
    }
  }
}

TEST_F(AmxGemm, NothingToDo) {
  AmxProblem p(DType::kBF16, DType::kBF16, {.m = 20, .n = 64, .k = 64}, {}, 3);
  AmxBuilt built;
  ASSERT_TRUE(BuildAmx(p.Desc(), kRealCaches, &built).ok());
  p.Call(built, 1, 1, 0, 20);
  p.Call(built, 0, 2, 16, 16);
  EXPECT_EQ(p.Stray(0, 0, 0, 0), 0);
}

}  // namespace
}  // namespace xjit::testing
