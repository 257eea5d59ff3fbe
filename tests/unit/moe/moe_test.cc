// Mixtures of experts against their references: run lengths, shapes, encodings, threads.
#include <cmath>
#include <limits>

#include "codegen/cpu.h"
#include "tests/unit/moe/moe_testing.h"

namespace xjit::testing {
namespace {

struct Weights {
  const char* name;
  Encoding gate_up, down;
  int64_t hidden, intermediate;
};

const Weights kWeights[] = {
    {"f32", DType::kF32, DType::kF32, 72, 40},
    {"f16", DType::kF16, DType::kF16, 72, 40},
    {"bf16", DType::kBF16, DType::kBF16, 72, 40},
    {"q8_0", DType::kQ8_0, DType::kQ8_0, 96, 64},
    {"q4_0", DType::kQ4_0, DType::kQ4_0, 96, 64},
    {"q4_k", DType::kQ4_K, DType::kQ4_K, 256, 256},
    {"q4_k_q6_k", DType::kQ4_K, DType::kQ6_K, 256, 256},
    {"int8", Encoding::Int8(), Encoding::Int8(), 72, 40},
    {"fp8", Encoding::Fp8Blocks(), Encoding::Fp8Blocks(), 160, 144},
    {"int4", Encoding::Int4(32, true), Encoding::Int4(32, false), 96, 64},
};

MoeTestShape ShapeOf(const Weights& w, int64_t experts, int64_t slots) {
  return {.experts = experts,
          .slots = slots,
          .hidden = w.hidden,
          .intermediate = w.intermediate,
          .gate_up = w.gate_up,
          .down = w.down};
}

class MoeWeights : public ::testing::TestWithParam<std::tuple<Weights, Isa>> {};

// Every length that has a kernel of its own, at and around them and the strips of many rows.
TEST_P(MoeWeights, RunLengths) {
  const auto& [weights, isa] = GetParam();
  const std::vector<int64_t> lengths = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 0};
  const MoeTestShape shape = ShapeOf(weights, static_cast<int64_t>(lengths.size()), 1);
  const MoeStep step = StepOfRuns(shape, lengths, 1);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    MoeHarness moe(shape, isa, step.rows, threads);
    if (!moe.has_isa()) GTEST_SKIP() << moe.why();
    ASSERT_TRUE(moe.ok()) << moe.why();
    const std::vector<float> out = moe.Run(step);
    if (threads == 1) {
      moe.Check(step, out);
      first = out;
    }
    EXPECT_EQ(out, first) << threads << " threads";
  }
}

// Steps of few rows have kernels of their own.
TEST_P(MoeWeights, FewTokens) {
  const auto& [weights, isa] = GetParam();
  const MoeTestShape shape = ShapeOf(weights, 5, 3);
  for (const int64_t rows : {1, 2, 5, 8}) {
    MoeHarness moe(shape, isa, rows, 2);
    if (!moe.has_isa()) GTEST_SKIP() << moe.why();
    ASSERT_TRUE(moe.ok()) << moe.why();
    const MoeStep step = RandomStep(shape, rows, static_cast<uint64_t>(rows));
    moe.Check(step, moe.Run(step));
  }
}

INSTANTIATE_TEST_SUITE_P(Moe, MoeWeights,
                         ::testing::Combine(::testing::ValuesIn(kWeights), ::testing::ValuesIn(kMoeIsas)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param).name, Name(std::get<1>(info.param)));
                         });

TEST(Moe, ExpertsAndSlots) {
  for (const int64_t experts : {1, 4, 128, 256}) {
    for (const int64_t slots : {1, 2, 3, 4, 5, 6, 7, 8}) {
      if (slots > experts) continue;
      const MoeTestShape shape{.experts = experts, .slots = slots, .hidden = 40, .intermediate = 24};
      MoeHarness moe(shape, HostIsa(), 12, 2);
      ASSERT_TRUE(moe.ok()) << moe.why();
      for (const int64_t rows : {1, 12}) {
        const MoeStep step = RandomStep(shape, rows, static_cast<uint64_t>(experts + slots));
        moe.Check(step, moe.Run(step));
      }
    }
  }
}

TEST(Moe, AllTokensOnOneExpert) {
  const MoeTestShape shape{.experts = 4, .hidden = 64, .intermediate = 32};
  const MoeStep step = StepOfRuns(shape, {0, 0, 70, 0}, 3);
  // Caches so small that units have 16 rows, and usual ones.
  for (const int64_t l2 : {int64_t{4096}, int64_t{1} << 20}) {
    MoeHarness moe(shape, HostIsa(), step.rows, 3, l2);
    ASSERT_TRUE(moe.ok()) << moe.why();
    moe.Check(step, moe.Run(step));
    EXPECT_EQ(moe.runs().units, l2 == 4096 ? 5 : 1);
  }
}

// A memory's steps do not see each other: other experts, rows and tokens each time.
TEST(Moe, StepAfterStep) {
  const MoeTestShape shape{.experts = 6, .slots = 2, .hidden = 64, .intermediate = 32};
  MoeHarness moe(shape, HostIsa(), 40, 2);
  ASSERT_TRUE(moe.ok()) << moe.why();
  for (const int64_t rows : {40, 3, 1, 0, 17, 40, 39}) {
    const MoeStep step = RandomStep(shape, rows, static_cast<uint64_t>(rows));
    moe.Check(step, moe.Run(step));
  }
}

// A share of the experts: the others' slots add nothing.
TEST(Moe, ShareOfTheExperts) {
  MoeTestShape all{.experts = 12, .slots = 4, .hidden = 64, .intermediate = 32};
  const MoeStep step = RandomStep(all, 20, 5);
  MoeTestShape share = all;
  share.experts = 4;
  MoeHarness moe(share, HostIsa(), 20, 2);
  ASSERT_TRUE(moe.ok()) << moe.why();
  for (const int64_t first : {0, 4, 8}) moe.Check(step, moe.Run(step, first), first);
}

// A token that is no number spoils its own row and no other: the others keep their bits.
TEST(Moe, NanStaysInItsRow) {
  for (const Weights& weights : kWeights) {
    const MoeTestShape shape = ShapeOf(weights, 3, 2);
    for (const int64_t rows : {4, 40}) {
      MoeHarness moe(shape, HostIsa(), rows, 2);
      ASSERT_TRUE(moe.ok()) << moe.why();
      MoeStep step = RandomStep(shape, rows, 6);
      const std::vector<float> clean = moe.Run(step);
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        step.x[static_cast<size_t>(shape.hidden + 5)] = bad;
        const std::vector<float> out = moe.Run(step);
        for (int64_t i = 0; i < rows * shape.hidden; ++i) {
          const size_t at = static_cast<size_t>(i);
          if (i / shape.hidden == 1) {
            EXPECT_FALSE(std::isfinite(out[at])) << weights.name << " " << i;
          } else {
            ASSERT_EQ(out[at], clean[at]) << weights.name << " " << i;
          }
        }
      }
    }
  }
}

TEST(Moe, SizesThatAreNone) {
  KernelLibrary library(HostCpu());
  EXPECT_FALSE(PlanMoe({}, library, 1).ok());
  MoeDesc desc{.experts = 4, .rows = 1, .slots = 2, .hidden = 64, .intermediate = 32, .gate_up = DType::kQ4_K};
  desc.down = DType::kF32;
  EXPECT_FALSE(PlanMoe(desc, library, 1).ok());  // k is no multiple of q4_k's block
}

}  // namespace
}  // namespace xjit::testing
