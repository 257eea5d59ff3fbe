// What every pass must do to every module: keep it well formed, keep its text readable, keep what the interpreter
// computes, and have nothing left to do when it runs again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "passes/check.h"
#include "passes/pass.h"
#include "tests/unit/ir/ir_testing.h"
#include "tests/unit/ir/random_ops.h"

namespace xjit {
namespace {

using testing::RandomGraph;
using testing::RandomOps;

struct Machine {
  Isa isa;
  int64_t rows;
  DType kv;
};

PassContext Context(const Machine& m) {
  PassContext context;
  context.target.isa = m.isa;
  context.target.threads = 2;
  context.rows = m.rows;
  context.kv_dtype = m.kv;
  return context;
}

// Compares after each pass with before it.
void ExpectMeaningKept(uint64_t seed, const Machine& machine, double planned_bound) {
  // A router turns a rounding into another expert.
  const bool exact = planned_bound <= CheckBound(PassStage::kFused);
  SCOPED_TRACE(fmt::format("seed {} {} rows {}", seed, Name(machine.isa), machine.rows));
  const auto module = RandomGraph(seed, /*max_attentions=*/2, /*experts=*/exact).Build();
  auto before = Observe(*module, seed);
  ASSERT_TRUE(before.ok()) << before.status();
  PassContext context = Context(machine);
  PassRunOptions options;
  options.after = [&](std::string_view pass, int, const Module& now) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(auto after, Observe(now, seed));
    const PassStage stage = (*FindPass(pass))->stage;
    const double bound = stage == PassStage::kPlanned ? planned_bound : CheckBound(stage);
    XJIT_RETURN_IF_ERROR(Prefix(CompareObserved(*before, after, bound), pass));
    before = std::move(after);
    const auto copy = now.Clone();
    if (copy == nullptr) return Internal("{}: the module does not read back", pass);
    return Prefix(VerifyModule(*copy), pass);
  };
  const absl::Status status = RunPipeline(*module, PassStage::kGraph, PassStage::kPlanned, context, options);
  EXPECT_TRUE(status.ok()) << status << "\n" << PrintModule(*module);
}

// AVX2 with an f32 cache rounds nothing, so that planning must be as exact as fusing.
TEST(Passes, KeepWhatIsComputed) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    ExpectMeaningKept(seed, {Isa::kAvx2, 1 + static_cast<int64_t>(seed % 3) * 100, DType::kF32},
                      CheckBound(PassStage::kFused));
  }
}

TEST(Passes, KeepWhatIsComputedUpToTheRoundingOfActivations) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    ExpectMeaningKept(seed, {seed % 2 == 0 ? Isa::kAvx512Vnni : Isa::kAvx512Bf16, 8, DType::kBF16},
                      CheckBound(PassStage::kPlanned));
  }
}

// The pipeline's order is for speed alone: in any other, and run again, fusing passes keep the meaning as well.
TEST(Passes, KeepWhatIsComputedInAnyOrder) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto module = RandomGraph(seed, /*max_attentions=*/2).Build();
    testing::Random random(seed);
    std::vector<const PassInfo*> fused;
    for (const PassInfo& info : Passes()) {
      if (info.stage == PassStage::kFused) fused.push_back(&info);
    }
    std::vector<const PassInfo*> order;
    std::string names;
    for (size_t i = 0; i < 2 * fused.size(); ++i) {
      order.push_back(random.Pick(fused));
      names += fmt::format(" {}", order.back()->name);
    }
    SCOPED_TRACE(fmt::format("seed {}:{}", seed, names));
    const auto before = Observe(*module, seed);
    ASSERT_TRUE(before.ok()) << before.status();
    const std::string text = PrintModule(*module);
    PassContext context = Context({Isa::kAvx2, 8, DType::kF32});
    const absl::Status status = RunPasses(*module, order, context);
    ASSERT_TRUE(status.ok()) << status << "\n" << text;
    const auto after = Observe(*module, seed);
    ASSERT_TRUE(after.ok()) << after.status() << "\n" << PrintModule(*module);
    const absl::Status same = CompareObserved(*before, *after, CheckBound(PassStage::kFused));
    EXPECT_TRUE(same.ok()) << same << "\n" << text << PrintModule(*module);
  }
}

// Modules that no model would build: a pass may refuse one, but what it leaves is well formed and reads back.
TEST(Passes, StandAnyModule) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const auto module = RandomOps(seed).Build();
    // Offsets of a plan hold for the module that was planned.
    for (const auto& f : module->functions) {
      for (const auto& op : f->ops)
        std::erase_if(op->attrs, [](const auto& attr) { return attr.first.starts_with("at"); });
    }
    PassContext context = Context(
        {seed % 2 == 0 ? Isa::kAvx512Vnni : Isa::kAvx512Bf16, 1 + static_cast<int64_t>(seed % 3) * 30, DType::kBF16});
    for (const PassInfo& info : Passes()) {
      const std::string before = PrintModule(*module);
      const PassInfo* list[] = {&info};
      const absl::Status status = RunPasses(*module, list, context);
      ASSERT_FALSE(absl::IsInternal(status)) << info.name << ": " << status << "\n" << before;
      if (!status.ok()) break;
      ASSERT_NE(module->Clone(), nullptr) << info.name << "\n" << before << PrintModule(*module);
    }
  }
}

TEST(Passes, HaveNothingLeftToDo) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto module = RandomGraph(seed, 2).Build();
    PassContext context = Context({Isa::kAvx512Vnni, 8, DType::kBF16});
    for (const PassInfo& info : Passes()) {
      SCOPED_TRACE(fmt::format("seed {} {}", seed, info.name));
      const PassInfo* list[] = {&info};
      ASSERT_TRUE(RunPasses(*module, list, context).ok());
      if (info.name == "plan_prologues") continue;  // makes ops that it does not take back
      if (info.name == "plan_memory") continue;     // refuses a module that has been planned
      const std::string text = PrintModule(*module);
      int again = -1;
      PassRunOptions options;
      options.after = [&again](std::string_view, int changes, const Module&) {
        again = changes;
        return absl::OkStatus();
      };
      ASSERT_TRUE(RunPasses(*module, list, context, options).ok());
      EXPECT_EQ(PrintModule(*module), text);
      // Plans report every function they planned.
      if (info.stage == PassStage::kFused) {
        EXPECT_EQ(again, 0);
      }
    }
  }
}

// Random modules are worth their time only if every pass finds work in them.
TEST(Passes, AllFireOnRandomModules) {
  std::map<std::string, int, std::less<>> changes;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto module = RandomGraph(seed, 2).Build();
    PassContext context = Context({Isa::kAvx512Vnni, 8, DType::kBF16});
    PassRunOptions options;
    options.after = [&changes](std::string_view pass, int n, const Module&) {
      changes[std::string(pass)] += n;
      return absl::OkStatus();
    };
    ASSERT_TRUE(RunPipeline(*module, PassStage::kGraph, PassStage::kPlanned, context, options).ok());
  }
  for (const PassInfo& info : Passes()) {
    if (info.stage == PassStage::kSharded) continue;  // one rank has nothing to share out: shard_test.cc
    EXPECT_GT(changes[std::string(info.name)], 0)
        << info.name << ": RandomGraph (tests/unit/ir/ir_testing.h) makes nothing that it rewrites";
  }
}

// The judge must judge.
TEST(Check, SeesDifferences) {
  const auto module = RandomGraph(3).Build();
  const auto want = Observe(*module, 7);
  ASSERT_TRUE(want.ok()) << want.status();
  EXPECT_TRUE(CompareObserved(*want, *want, 0).ok());
  auto got = *want;
  const auto largest = [](const std::vector<float>& v) { return *std::max_element(v.begin(), v.end()); };
  got["layer"][0].f[5] += 0.01f * largest(got["layer"][0].f);  // at least a hundredth of the root mean square
  EXPECT_FALSE(CompareObserved(*want, got, CheckBound(PassStage::kFused)).ok());
  got = *want;
  got["layer"][0].f[5] = std::nanf("");
  EXPECT_FALSE(CompareObserved(*want, got, CheckBound(PassStage::kPlanned)).ok());
  got = *want;
  got["step"][0].f.pop_back();
  EXPECT_FALSE(CompareObserved(*want, got, 1).ok());
  got.erase("step");
  EXPECT_FALSE(CompareObserved(*want, got, 1).ok());
  const auto other = Observe(*module, 8);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(CompareObserved(*want, *other, CheckBound(PassStage::kPlanned)).ok());
}

TEST(Check, JoinedWeightsHaveTheValuesOfTheirParts) {
  RandomWeights weights(5);
  const Type matrix = Type::Tensor({{3, 0}, {8, 0}}, DType::kF32), vector = Type::Tensor({{3, 0}}, DType::kF32);
  const Weight up{"up", matrix, {}}, up_bias{"up", vector, {}};
  const Weight joined{"gate|up", Type::Tensor({{5, 0}, {8, 0}}, DType::kF32), {2, 3}};
  const Weight joined_bias{"gate+up", Type::Tensor({{5, 0}}, DType::kF32), {2, 3}};
  for (int64_t row = 0; row < 3; ++row) {
    std::vector<float> a(8), b(8);
    ASSERT_TRUE(weights.Row(2, up, row, a).ok() && weights.Row(2, joined, row + 2, b).ok());
    EXPECT_EQ(a, b);
  }
  std::vector<float> a(3), b(5);
  ASSERT_TRUE(weights.Row(2, up_bias, 0, a).ok() && weights.Row(2, joined_bias, 0, b).ok());
  EXPECT_EQ(a, std::vector<float>(b.begin() + 2, b.end()));
}

}  // namespace
}  // namespace xjit
