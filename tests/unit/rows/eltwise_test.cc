// rows.eltwise against its reference: sums and products bit for bit, SiLU within the bound that math_emit.h states.
#include "ir/support/ref/eltwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codegen/rows/rows_ref.h"
#include "tests/unit/rows/rows_testing.h"

namespace xjit {
namespace {

using testing::EmittedKernel;
using testing::FillRows;
using testing::GuardedBuffer;
using testing::RandomFloats;
using testing::TargetOf;

constexpr EltwiseOp kOps[] = {EltwiseOp::kAdd, EltwiseOp::kMul, EltwiseOp::kSilu, EltwiseOp::kSiluMul,
                              EltwiseOp::kAddRow};
constexpr int64_t kRows = 3;
// silu of VecMath: 6e-7; the product adds one rounding.
constexpr double kSiluBound = 6e-7 + 0x1p-24;

EmittedKernel EmitFor(const EltwiseDesc& desc, Isa isa) {
  const TargetInfo target = TargetOf(isa);
  return isa == Isa::kAvx2 ? EmittedKernel(desc, PlanEltwise2(desc, target), &EmitEltwise2)
                           : EmittedKernel(desc, PlanEltwise512(desc, target), &EmitEltwise512);
}

EltwiseDesc Describe(EltwiseOp op, int64_t cols) {
  return {.op = op, .cols = cols, .lda_bytes = cols * 4 + 4, .ldb_bytes = cols * 4 + 8, .ldy_bytes = cols * 4 + 12};
}

class Eltwise : public ::testing::TestWithParam<std::tuple<Isa, int64_t>> {
 protected:
  void SetUp() override {
    if (isa() > HostIsa()) GTEST_SKIP() << "this machine has no " << Name(isa());
  }
  Isa isa() const { return std::get<0>(GetParam()); }
  int64_t cols() const { return std::get<1>(GetParam()); }
};

void ExpectMatches(const EltwiseDesc& desc, const EltwiseArgs& args, const std::vector<float>& a,
                   const std::vector<float>& b) {
  const int64_t cols = desc.cols;
  std::vector<float> expected(static_cast<size_t>(kRows * cols));
  EltwiseDesc dense = desc;
  dense.lda_bytes = dense.ldb_bytes = dense.ldy_bytes = cols * 4;
  EltwiseRef(dense, {.a = a.data(), .b = b.data(), .y = expected.data()}, 0, kRows);
  const bool silu = desc.op == EltwiseOp::kSilu || desc.op == EltwiseOp::kSiluMul;
  for (int64_t m = 0; m < kRows; ++m) {
    const auto* y = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(args.y) + m * desc.ldy_bytes);
    for (int64_t i = 0; i < cols; ++i) {
      const float want = expected[static_cast<size_t>(m * cols + i)];
      if (silu) {
        ASSERT_LE(std::fabs(y[i] - want), kSiluBound * std::fabs(want)) << "row " << m << " column " << i;
      } else {
        ASSERT_EQ(y[i], want) << "row " << m << " column " << i;
      }
    }
  }
}

TEST_P(Eltwise, MatchesReference) {
  for (EltwiseOp op : kOps) {
    for (GuardedBuffer::Edge edge : {GuardedBuffer::Edge::kEnd, GuardedBuffer::Edge::kBegin}) {
      SCOPED_TRACE(EltwiseName(Describe(op, cols()), "row"));
      const EltwiseDesc desc = Describe(op, cols());
      const EmittedKernel kernel = EmitFor(desc, isa());
      ASSERT_TRUE(kernel.ok());
      const auto a = RandomFloats(kRows * cols(), 1), b = RandomFloats(kRows * cols(), 2);
      const auto bytes = [&](int64_t ld) { return static_cast<size_t>((kRows - 1) * ld + cols() * 4); };
      const bool row = op == EltwiseOp::kAddRow;
      GuardedBuffer ga(bytes(desc.lda_bytes), 0xff, edge), gy(bytes(desc.ldy_bytes), 0xa5, edge);
      GuardedBuffer gb(row ? static_cast<size_t>(cols() * 4) : bytes(desc.ldb_bytes), 0xff, edge);
      FillRows(ga, a, kRows, cols(), desc.lda_bytes);
      FillRows(gb, b, row ? 1 : kRows, cols(), desc.ldb_bytes);
      const EltwiseArgs args{
          .a = ga.as<float>(), .b = op == EltwiseOp::kSilu ? nullptr : gb.as<float>(), .y = gy.as<float>()};
      kernel.Run(&args, 1, 1);
      kernel.Run(&args, 0, 2);
      kernel.Run(&args, 2, kRows);
      ExpectMatches(desc, args, a, b);
      for (int64_t m = 0; m + 1 < kRows; ++m) {
        for (int64_t i = cols() * 4; i < desc.ldy_bytes; ++i) {
          EXPECT_EQ(gy.data()[m * desc.ldy_bytes + i], 0xa5) << "byte " << i << " behind row " << m;
        }
      }
    }
  }
}

TEST_P(Eltwise, MayWriteOverItsOperand) {
  EltwiseDesc desc{.op = EltwiseOp::kSiluMul, .cols = cols()};
  desc.lda_bytes = desc.ldb_bytes = desc.ldy_bytes = cols() * 4;
  const EmittedKernel kernel = EmitFor(desc, isa());
  const auto a = RandomFloats(kRows * cols(), 1), b = RandomFloats(kRows * cols(), 2);
  auto y = a;
  const EltwiseArgs args{.a = y.data(), .b = b.data(), .y = y.data()};
  kernel.Run(&args, 0, kRows);
  ExpectMatches(desc, args, a, b);
}

TEST_P(Eltwise, Avx2RowHasNoAvx512) {
  if (isa() != Isa::kAvx2) return;
  for (EltwiseOp op : kOps) EXPECT_EQ(EmitFor(Describe(op, cols()), Isa::kAvx2).EvexInstructions(), 0);
}

TEST_P(Eltwise, SiluOfExtremes) {
  if (cols() != 17) return;
  EltwiseDesc desc{.op = EltwiseOp::kSilu, .cols = 8, .lda_bytes = 32, .ldb_bytes = 32, .ldy_bytes = 32};
  const EmittedKernel kernel = EmitFor(desc, isa());
  const float inf = std::numeric_limits<float>::infinity();
  const float x[8] = {0, 1e-30f, 88, 1e38f, inf, -88, -200, std::numeric_limits<float>::quiet_NaN()};
  float y[8];
  const EltwiseArgs args{.a = x, .y = y};
  kernel.Run(&args, 0, 1);
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 0.5e-30f, 1e-36f);
  for (int i : {2, 3, 4}) EXPECT_EQ(y[i], x[i]);
  for (int i : {5, 6}) {
    EXPECT_LE(y[i], 0);
    EXPECT_GE(y[i], -0x1p-118f);
  }
  EXPECT_TRUE(std::isnan(y[7]));
}

INSTANTIATE_TEST_SUITE_P(Rows, Eltwise,
                         ::testing::Combine(::testing::Values(Isa::kAvx2, Isa::kAvx512),
                                            ::testing::ValuesIn(testing::kSizes)),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(EltwisePlan, RefusesWithAReason) {
  const EltwiseDesc desc{.op = EltwiseOp::kAdd, .cols = 8, .lda_bytes = 32, .ldb_bytes = 30, .ldy_bytes = 32};
  EXPECT_EQ(Message(PlanEltwise2(desc, TargetOf(Isa::kAvx2)).status()),
            "ldb_bytes = 30 is not a multiple of 4 from 32 to 1073741824");
}

}  // namespace
}  // namespace xjit
