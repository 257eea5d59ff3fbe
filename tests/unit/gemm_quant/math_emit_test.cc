// Emitted exp2, exp and SiLU against libm in double, over every exponent.
#include "codegen/math_emit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace xjit {
namespace {

enum class Function { kExp2, kExp, kSilu };

// Applies the function to n floats (a multiple of 16) at `args`: 16 or 8 at a time.
template <typename V>
absl::StatusOr<Kernel> Emit(Function f, CodeArena& arena) {
  Emitter e;
  VecMath math(e);
  const V x(3), t0(0), t1(7), t2(12);
  const int step = x.isZMM() ? 64 : 32;
  Xbyak::Label loop;
  e.Prologue();
  e.mov(e.rax, e.arg_n1);  // floats
  e.L(loop);
  e.vmovups(x, e.ptr[e.arg_args]);
  if (f == Function::kExp2) math.Exp2(x, t0, t1);
  if (f == Function::kExp) math.Exp(x, t0, t1);
  if (f == Function::kSilu) math.Silu(x, t0, t1, t2);
  e.vmovups(e.ptr[e.arg_args], x);
  e.add(e.arg_args, step);
  e.sub(e.rax, step / 4);
  e.jg(loop);
  e.Epilogue();
  return e.Finish("math", arena);
}

struct Case {
  Function function;
  bool zmm;
};

class MathEmit : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    __builtin_cpu_init();
    const bool can = GetParam().zmm ? __builtin_cpu_supports("avx512dq")
                                    : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!can) GTEST_SKIP() << "this machine lacks the instructions";
    auto kernel =
        GetParam().zmm ? Emit<Xbyak::Zmm>(GetParam().function, arena_) : Emit<Xbyak::Ymm>(GetParam().function, arena_);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    ASSERT_TRUE(arena_.Seal().ok());
    kernel_ = *kernel;
  }
  std::vector<float> Run(std::vector<float> x) {
    const size_t n = x.size();
    x.resize((n + 15) / 16 * 16);
    kernel_.fn(x.data(), 0, static_cast<int64_t>(x.size()), 0, 0);
    x.resize(n);
    return x;
  }
  double Exact(double x) const {
    switch (GetParam().function) {
      case Function::kExp2:
        return std::exp2(x);
      case Function::kExp:
        return std::exp(x);
      case Function::kSilu:
        return x / (1 + std::exp(-x));
    }
    return 0;
  }

  CodeArena arena_;
  Kernel kernel_;
};

// Bounds as math_emit.h states them.
TEST_P(MathEmit, RelativeError) {
  const Function f = GetParam().function;
  const double low = f == Function::kExp2 ? -126 : -87, high = f == Function::kExp2 ? 128 : 88.7;
  std::vector<float> x;
  for (uint32_t bits = 0x2f000000; bits < 0x43010000; bits += 997) {  // 1e-10 .. 129 of either sign
    const auto v = std::bit_cast<float>(bits);
    if (v < high) x.push_back(v);
    if (-v > low) x.push_back(-v);
  }
  const auto y = Run(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = Exact(x[i]);
    worst = std::max(worst, std::fabs(static_cast<double>(y[i]) / want - 1));
  }
  EXPECT_LT(worst, f == Function::kSilu ? 6e-7 : 3e-7);
  EXPECT_GT(x.size(), 100000u);
}

TEST_P(MathEmit, Extremes) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto y = Run({0.0f, -inf, inf, nan, -127.0f, -1e30f, 1e30f, -3e38f, -126.3f, -0.0f, 128.0f});
  EXPECT_TRUE(std::isnan(y[3]));
  switch (GetParam().function) {
    case Function::kExp2:
      EXPECT_EQ(y[0], 1.0f);
      EXPECT_EQ(y[9], 1.0f);
      for (int i : {1, 4, 5, 7}) EXPECT_EQ(y[static_cast<size_t>(i)], 0.0f) << i;
      for (int i : {2, 6, 10}) EXPECT_EQ(y[static_cast<size_t>(i)], inf) << i;
      EXPECT_LT(y[8], 0x1p-126f);
      EXPECT_GE(y[8], 0.0f);
      break;
    case Function::kExp:
      EXPECT_EQ(y[0], 1.0f);
      for (int i : {1, 4, 5, 7, 8}) EXPECT_LT(std::fabs(y[static_cast<size_t>(i)]), 0x1p-126f) << i;
      for (int i : {2, 6, 10}) EXPECT_GT(y[static_cast<size_t>(i)], 3.402e38f) << i;
      for (int i : {2, 6, 10}) EXPECT_LT(y[static_cast<size_t>(i)], inf) << i;
      break;
    case Function::kSilu:
      EXPECT_EQ(y[0], 0.0f);
      EXPECT_EQ(y[9], 0.0f);
      EXPECT_EQ(y[2], inf);
      EXPECT_EQ(y[6], 1e30f);
      for (int i : {1, 4, 5, 7, 8}) {
        EXPECT_LE(y[static_cast<size_t>(i)], 0.0f) << i;
        EXPECT_GT(y[static_cast<size_t>(i)], -0x1p-118f) << i;
      }
      break;
  }
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  const char* names[] = {"exp2", "exp", "silu"};
  return std::string(names[static_cast<int>(info.param.function)]) + (info.param.zmm ? "_zmm" : "_ymm");
}
INSTANTIATE_TEST_SUITE_P(All, MathEmit,
                         ::testing::Values(Case{Function::kExp2, true}, Case{Function::kExp, true},
                                           Case{Function::kSilu, true}, Case{Function::kExp2, false},
                                           Case{Function::kExp, false}, Case{Function::kSilu, false}),
                         CaseName);

}  // namespace
}  // namespace xjit
