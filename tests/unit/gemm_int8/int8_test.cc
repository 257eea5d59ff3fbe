// The int8 gemm's rows against the reference: bit for bit where no SiLU is involved.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/unit/gemm_int8/int8_product.h"
#include "tests/unit/watched_call.h"

namespace xjit {
namespace {

using testing::GuardedBuffer;
using testing::Int8Product;
using testing::Int8Row;
using testing::WatchedCall;

constexpr Epilogue kEpilogues[] = {{},
                                   {.bias = true},
                                   {.residual = true},
                                   {.bias = true, .residual = true},
                                   {.silu_mul = true},
                                   {.bias = true, .silu_mul = true},
                                   {.silu_mul = true, .residual = true},
                                   {.bias = true, .silu_mul = true, .residual = true}};
constexpr Epilogue kFull{.bias = true, .silu_mul = true, .residual = true};

// Equal bits, of the bytes between rows too; not a number equals not a number. SiLU's relative error (math_emit.h:
// 6e-7) carries over to the product; the residual's sum, of at most 8, adds half an ulp on each side.
void ExpectSame(const Int8Product& product, GuardedBuffer& want, GuardedBuffer& got, const std::string& what,
                bool exact = false) {
  ASSERT_EQ(want.size(), got.size());
  const auto stride = static_cast<size_t>(product.desc().ldc_bytes / 4);
  const auto columns = static_cast<size_t>(product.desc().n / (product.desc().epilogue.silu_mul ? 2 : 1));
  const bool near = product.desc().epilogue.silu_mul && !exact;
  for (size_t i = 0; i < want.size() / 4; ++i) {
    const float x = want.as<float>()[i], y = got.as<float>()[i];
    if (near && i % stride < columns) {
      const float residual = product.desc().epilogue.residual ? 8.0f : 0.0f;
      ASSERT_LE(std::fabs(x - y), 8e-7f * (std::fabs(x) + residual) + 0x1p-110f) << what << ": float " << i;
    } else if (!std::isnan(x) || !std::isnan(y)) {
      ASSERT_EQ(std::memcmp(&x, &y, 4), 0) << what << ": float " << i << ": " << x << " and " << y;
    }
  }
}

class Int8 : public ::testing::TestWithParam<Int8Row> {
 protected:
  void SetUp() override {
    if (!GetParam().HostHas()) GTEST_SKIP() << "this machine cannot run " << GetParam().name;
  }
  void Check(int rows, int64_t m, int64_t n, int64_t k, Epilogue epilogue, std::vector<float> x = {}) {
    Int8Product product(GetParam(), rows, m, n, k, epilogue, std::move(x));
    ASSERT_NO_FATAL_FAILURE(product.Compile());
    const auto want = product.Reference(), got = product.Run();
    ExpectSame(product, *want, *got, fmt::format("{}, m {}", product.kernel().name, m));
  }
};

TEST_P(Int8, FewRows) {
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    for (const int64_t k : {1, 17, 63, 64, 65, 576, 3072}) {
      for (const int64_t n : {32, 96}) ASSERT_NO_FATAL_FAILURE(Check(rows, rows, n, k, {}));
    }
  }
}

TEST_P(Int8, ManyRows) {
  for (const int64_t m : {1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33}) {
    for (const int64_t k : {1, 17, 63, 64, 65, 576}) ASSERT_NO_FATAL_FAILURE(Check(0, m, 64, k, {}));
  }
  ASSERT_NO_FATAL_FAILURE(Check(0, 19, 96, 3072, {}));
}

TEST_P(Int8, Epilogues) {
  for (const Epilogue& epilogue : kEpilogues) {
    for (const int rows : {0, 1, 2, 3, 4, 5, 8}) {
      ASSERT_NO_FATAL_FAILURE(Check(rows, rows == 0 ? 21 : rows, 64, 100, epilogue));
    }
  }
}

// Pairs of products of 255 and 127 are beyond int16: nothing saturates, and depth adds up.
TEST_P(Int8, ExtremesDoNotSaturate) {
  for (const int8_t code : {int8_t{127}, int8_t{-128}, int8_t{-1}, int8_t{0}}) {
    for (const float sign : {1.0f, -1.0f}) {
      for (const int rows : {0, 1, 3, 8}) {
        const int64_t m = rows == 0 ? 18 : rows, k = 4096;
        Int8Product product(GetParam(), rows, m, 32, k, {}, std::vector<float>(static_cast<size_t>(m * k), sign * 127));
        ASSERT_NO_FATAL_FAILURE(product.SetWeights(code, 0.5f));
        ASSERT_NO_FATAL_FAILURE(product.Compile());
        const auto want = product.Reference(), got = product.Run();
        ExpectSame(product, *want, *got, product.kernel().name);
        EXPECT_EQ(got->as<float>()[0], sign * static_cast<float>(127 * code * k) * 0.5f);
      }
    }
  }
}

// The largest depth: sums just below 2^31.
TEST_P(Int8, LargestDepth) {
  for (const int rows : {0, 1}) {
    Int8Product product(GetParam(), rows, 1, 32, 131072, {}, std::vector<float>(131072, -127.0f));
    ASSERT_NO_FATAL_FAILURE(product.SetWeights(-128, 1));
    ASSERT_NO_FATAL_FAILURE(product.Compile());
    EXPECT_EQ(product.Run()->as<float>()[31], 127.0f * 128 * 131072);
  }
}

TEST_P(Int8, NansInfinitiesAndZeros) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t k = 100;
  for (const int rows : {0, 4, 8}) {
    const int64_t m = rows == 0 ? 19 : rows;
    std::vector<float> x(static_cast<size_t>(m * k));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 37 % 101) - 50;
    x[static_cast<size_t>(k + 99)] = nan;
    x[static_cast<size_t>(2 * k)] = -inf;
    for (int64_t i = 0; i < k; ++i) x[static_cast<size_t>(3 * k + i)] = 0;
    Int8Product product(GetParam(), rows, m, 64, k, {}, x);
    ASSERT_NO_FATAL_FAILURE(product.Compile());
    const auto want = product.Reference(), got = product.Run();
    ExpectSame(product, *want, *got, product.kernel().name);
    const auto at = [&](int64_t row) { return got->as<float>()[row * product.desc().ldc_bytes / 4 + 5]; };
    EXPECT_TRUE(std::isfinite(at(0)));
    EXPECT_TRUE(std::isnan(at(1)));
    EXPECT_FALSE(std::isfinite(at(2)));
    EXPECT_EQ(at(3), 0);
    // Columns of zeros: 0 times what is no number is none.
    ASSERT_NO_FATAL_FAILURE(product.SetWeights(3, 0));
    const auto zeros = product.Run();
    EXPECT_EQ(zeros->as<float>()[0], 0);
    EXPECT_TRUE(std::isnan(zeros->as<float>()[product.desc().ldc_bytes / 4]));
  }
}

// The same row gives the same bits alone, among eight and among many.
TEST_P(Int8, RowCountChangesNoBit) {
  std::vector<float> x(8 * 576);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1009) - 500;
  Int8Product many(GetParam(), 0, 8, 64, 576, kFull, x);
  ASSERT_NO_FATAL_FAILURE(many.Compile());
  const auto want = many.Run();
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    Int8Product few(GetParam(), rows, 8, 64, 576, kFull, x);
    ASSERT_NO_FATAL_FAILURE(few.Compile());
    // Residuals are random with the same seed.
    const auto got = few.Run();
    for (int row = 0; row < rows; ++row) {
      const int64_t at = row * few.desc().ldc_bytes;
      ASSERT_EQ(std::memcmp(want->data() + at, got->data() + at, 32 * 4), 0) << rows << " rows, row " << row;
    }
  }
}

TEST_P(Int8, PartitionChangesNoBit) {
  const int64_t panels = 4, m = 45;
  Int8Product product(GetParam(), 0, m, panels * kPanelColumns, 100, kFull);
  ASSERT_NO_FATAL_FAILURE(product.Compile());
  const auto want = product.Run();
  for (int64_t n_cut = 0; n_cut <= panels; ++n_cut) {
    for (const int64_t m_cut : {0, 16, 32}) {
      auto c = product.NewC();
      product.Call(*c, n_cut, panels, 0, m_cut);
      product.Call(*c, 0, n_cut, m_cut, m);
      product.Call(*c, n_cut, panels, m_cut, m);
      product.Call(*c, 0, n_cut, 0, m_cut);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(product, *want, *c, fmt::format("cut at {}, {}", n_cut, m_cut), true));
    }
  }
  Int8Product few(GetParam(), 3, 3, panels * kPanelColumns, 100, kFull);
  ASSERT_NO_FATAL_FAILURE(few.Compile());
  const auto want_few = few.Run();
  for (int64_t n_cut = 0; n_cut <= panels; ++n_cut) {
    auto c = few.NewC();
    few.Call(*c, n_cut, panels, 0, 3);
    few.Call(*c, 0, n_cut, 0, 3);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(few, *want_few, *c, fmt::format("cut at panel {}", n_cut), true));
  }
}

// Caches change the plan (blocks of k and of rows, prefetch), never the result.
TEST_P(Int8, PlanChangesNoBit) {
  for (const int64_t m : {1, 17, 127, 128, 129, 300}) {
    Int8Product plain(GetParam(), 0, m, 64, 450, kFull);
    ASSERT_NO_FATAL_FAILURE(plain.Compile());
    ASSERT_GE(plain.plan().k_block, 450);
    const auto want = plain.Run();
    for (const int64_t l2 : {4096, 12288, 20000}) {  // one, three and four chunks: a last k block that is shorter
      Int8Product blocked(GetParam(), 0, m, 64, 450, kFull);
      TargetInfo target = GetParam().Target();
      target.l2_bytes = l2;
      ASSERT_NO_FATAL_FAILURE(blocked.Compile(target));
      ASSERT_LT(blocked.plan().k_block, 450);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(blocked, *want, *blocked.Run(), ToString(blocked.plan()), true));
    }
  }
  for (const int rows : {1, 2, 5, 8}) {
    Int8Product plain(GetParam(), rows, rows, 64, 1000, kFull);
    ASSERT_NO_FATAL_FAILURE(plain.Compile());
    for (const int64_t l1 : {4096, 48 << 10}) {
      Int8Product other(GetParam(), rows, rows, 64, 1000, kFull);
      TargetInfo target = GetParam().Target();
      target.l1d_bytes = l1;
      ASSERT_NO_FATAL_FAILURE(other.Compile(target));
      ASSERT_NO_FATAL_FAILURE(ExpectSame(other, *plain.Run(), *other.Run(), ToString(other.plan()), true));
    }
  }
}

// C may be the residual.
TEST_P(Int8, ResidualInPlace) {
  for (const int rows : {0, 2}) {
    Int8Product product(GetParam(), rows, rows == 0 ? 9 : rows, 64, 130, {.residual = true});
    ASSERT_NO_FATAL_FAILURE(product.Compile());
    const auto want = product.Run();
    auto c = product.NewC();
    GemmArgs args = product.Args(*c);
    std::memcpy(c->data(), args.residual, c->size());
    args.residual = args.c;
    product.kernel().fn(&args, 0, 2, 0, product.m());
    for (int64_t row = 0; row < product.m(); ++row) {
      const int64_t at = row * product.desc().ldc_bytes;
      ASSERT_EQ(std::memcmp(want->data() + at, c->data() + at, 64 * 4), 0);
    }
  }
}

// Callee-saved registers hold their values over a call (System V AMD64 ABI, 3.2.1).
TEST_P(Int8, CalleeSavedRegisters) {
  for (const int rows : {0, 2, 8}) {
    Int8Product product(GetParam(), rows, rows == 0 ? 7 : rows, 64, 256, kFull);
    ASSERT_NO_FATAL_FAILURE(product.Compile());
    auto c = product.NewC();
    const GemmArgs args = product.Args(*c);
    EXPECT_EQ(WatchedCall(product.kernel().fn, &args, 0, 2, 0, product.m()), "");
    ExpectSame(product, *product.Run(), *c, "the call itself", true);
  }
}

// Empty parts touch nothing.
TEST_P(Int8, EmptyParts) {
  Int8Product product(GetParam(), 0, 20, 64, 70, {});
  ASSERT_NO_FATAL_FAILURE(product.Compile());
  auto c = product.NewC();
  const auto untouched = product.NewC();
  product.Call(*c, 1, 1, 0, 20);
  product.Call(*c, 0, 2, 16, 16);
  ExpectSame(product, *untouched, *c, "empty", true);
}

INSTANTIATE_TEST_SUITE_P(Rows, Int8, ::testing::ValuesIn(testing::kInt8Rows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Int8Plan, RefusesWithReason) {
  TargetInfo target;
  target.isa = Isa::kAvx512Vnni;
  const GemmDesc desc{.n = 64, .k = 100, .a = DType::kI8Act, .w = Encoding::Int8(), .rows = 1};
  ASSERT_TRUE(PlanGemmInt8Vnni(desc, target).ok());
  const auto why = [&](GemmDesc d, TargetInfo t) {
    const auto plan = PlanGemmInt8Vnni(d, t);
    return plan.ok() ? "accepted" : std::string(Message(plan.status()));
  };
  TargetInfo avx512 = target;
  avx512.isa = Isa::kAvx512;
  EXPECT_EQ(why(desc, avx512), "gemm int8_vnni: the target has avx512 only");
  EXPECT_TRUE(PlanGemmInt8Avx512(desc, avx512).ok());
  GemmDesc d = desc;
  d.a = DType::kQ8Act;
  EXPECT_EQ(why(d, target), "gemm int8_vnni: activations are q8act, not i8act");
  d = desc;
  d.w = {DType::kI8, {.kind = Scales::Kind::kGroup, .cols = 128}};
  EXPECT_EQ(why(d, target), "gemm int8_vnni: weights are i8<group 128>, not i8 with a scale a column");
  d = desc;
  d.n = 48;
  EXPECT_EQ(why(d, target), "gemm: n = 48 is not a positive multiple of 32");
  d = desc;
  d.k = 131073;
  EXPECT_EQ(why(d, target), "gemm int8_vnni: k = 131073 is more than 131072");
  d = desc;
  d.rows = 9;
  EXPECT_EQ(why(d, target), "gemm: rows = 9 is not in 0..8");
  d = desc;
  d.rows = 0;
  EXPECT_EQ(why(d, target), "gemm int8_vnni: many rows of i8act come in strips, few do not");
  d = desc;
  d.rows = 2;
  EXPECT_EQ(why(d, target), "gemm: rows of 0 and 0 bytes overlap: a row of a takes 192, of c 256");
}

// Without dot products nothing multiplies bytes in pairs, and AVX2 has no EVEX.
TEST(Int8Plan, InstructionsOfTheTarget) {
  const auto disassembly = [](const Int8Row& row, int rows) {
    Int8Product product(row, rows, 1, 32, 64, {});
    product.Compile();
    return Disassemble({product.kernel().code, product.kernel().text_bytes});
  };
  for (const Int8Row& row : testing::kInt8Rows) {
    for (const int rows : {0, 1}) {
      const std::string text = disassembly(row, rows);
      const bool dot = text.find("vpdpbusd") != std::string::npos;
      EXPECT_EQ(dot, row.isa >= Isa::kAvx512Vnni || row.avx_vnni) << row.name;
      EXPECT_EQ(text.find("vpmaddubsw"), std::string::npos) << row.name;
      EXPECT_EQ(text.find("zmm") == std::string::npos, row.isa == Isa::kAvx2) << row.name;
    }
  }
}

}  // namespace
}  // namespace xjit
