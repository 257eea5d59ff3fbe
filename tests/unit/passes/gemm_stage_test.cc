// Products cut over depth in a program: what threads compute together, step after step.
#include "passes/gemm_stage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/random_panels.h"
#include "passes/lower.h"
#include "passes/pass.h"
#include "runtime/executor.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;

// Products in two parts each, of which @b need not wait for @a: what both read is read again later.
constexpr std::string_view kModel = R"(module @m {
  func @step(%ids: tensor<T x i32>, %step: !step) -> tensor<L x 64 x f32> {
    %x = embed %ids, @embed<96 x 1024 x f32>
    %last = select_rows %x, %step
    %s = silu %last
    %a = linear %s, @a<64 x 1024 x bf16>
    %b = linear %last, @b<64 x 1024 x bf16>
    %m = mul %last, %s
    %c = linear %m, @c<64 x 1024 x bf16>
    %ab = mul %a, %b
    %y = add %ab, %c
    return %y
  }
})";

class RandomWeights : public PackedWeights {
 public:
  absl::StatusOr<const std::byte*> Matrix(int64_t, const Weight& w) const override {
    std::vector<std::byte>& bytes = matrices_[w.name];
    if (bytes.empty()) {
      const int64_t n = PackedColumns(w), k = w.type.cols();
      bytes.resize(static_cast<size_t>(n / kPanelColumns * PanelBytes(w.type.encoding(), k)) + 64);
      RandomPanels(w.type.encoding(), n, k, std::hash<std::string>()(w.name), Aligned(bytes));
    }
    return Aligned(bytes);
  }
  absl::StatusOr<const float*> Vector(int64_t, const Weight&) const override { return Internal("no vectors here"); }
  absl::StatusOr<const int32_t*> Order(int64_t, const Weight&) const override { return Internal("no orders here"); }

 private:
  static std::byte* Aligned(std::vector<std::byte>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }
  mutable std::map<std::string, std::vector<std::byte>> matrices_;
};

class Heap : public WorkMemory {
 public:
  absl::StatusOr<std::byte*> Get(Use, int, int64_t bytes) override {
    std::vector<std::byte>& block = blocks_.emplace_back(static_cast<size_t>(bytes) + 64, std::byte{0xff});
    return block.data() + (64 - reinterpret_cast<uintptr_t>(block.data()) % 64) % 64;
  }

 private:
  std::deque<std::vector<std::byte>> blocks_;
};

// The logits of steps of two rows, the program's stages, and how many parts products are in.
struct Outcome {
  std::vector<std::vector<float>> steps;
  std::vector<Stage> stages;         // without their kernels
  std::vector<std::string> kernels;  // names
  std::vector<int64_t> parts;
};
void RunModel(int threads, bool split, Outcome* outcome) {
  const auto module = Parse(kModel);
  ASSERT_NE(module, nullptr);
  PassContext passes;
  passes.target = HostCpu(HostIsa());
  passes.target.threads = threads;
  passes.rows = passes.logit_rows = 2;
  const absl::Status planned = RunPipeline(*module, PassStage::kGraph, PassStage::kPlanned, passes);
  ASSERT_TRUE(planned.ok()) << planned;
  for (const auto& op : module->functions[0]->ops) {
    if (op->code != OpCode::kGemm) continue;
    if (!split) op->attrs.erase("parts");
    outcome->parts.push_back(op->Has("parts") ? op->Int("parts") : 1);
  }
  const int32_t ids[] = {5, 77}, logit_row[] = {0, 1};
  StepView view;
  view.rows = view.logit_rows = 2;
  view.ids = ids;
  view.logit_row = logit_row;
  const RandomWeights weights;
  Heap memory;
  KernelLibrary kernels(passes.target);
  LoweringContext context;
  context.weights = &weights;
  context.memory = &memory;
  context.kernels = &kernels;
  context.step = [&view](int) { return &view; };
  context.threads = threads;
  auto program = Lower(*module, context);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_TRUE(kernels.Seal().ok());
  outcome->stages = (*program)->stages();
  for (Stage& stage : outcome->stages) outcome->kernels.push_back(std::exchange(stage.kernel, nullptr)->name);
  auto pool = WorkerPool::Create({.cpus = std::vector<int>(static_cast<size_t>(threads), -1)});
  ASSERT_TRUE(pool.ok()) << pool.status();
  for (int step = 0; step < 30; ++step) {
    Execute(**program, **pool);
    const LogitsView& logits = (*program)->logits();
    for (int64_t i = 0; i < 2; ++i) {
      std::vector<float> row(logits.row(i), logits.row(i) + 64);
      if (i == 0) {
        outcome->steps.push_back(row);
      } else {
        outcome->steps.back().insert(outcome->steps.back().end(), row.begin(), row.end());
      }
    }
  }
}

TEST(GemmStage, ThreadsAndStepsChangeNoBit) {
  Outcome one, whole;
  RunModel(1, true, &one);
  RunModel(1, false, &whole);
  if (HasFatalFailure()) return;
  EXPECT_THAT(one.parts, ::testing::ElementsAre(2, 2, 2));
  EXPECT_THAT(whole.parts, ::testing::ElementsAre(1, 1, 1));
  for (size_t i = 0; i < one.steps[0].size(); ++i) {
    ASSERT_TRUE(std::isfinite(one.steps[0][i]));
    EXPECT_NEAR(one.steps[0][i], whole.steps[0][i], 1e-4 * std::fabs(whole.steps[0][i]) + 1e-3);
  }
  for (int threads = 1; threads <= 4; ++threads) {
    Outcome got;
    RunModel(threads, true, &got);
    for (const std::vector<float>& step : got.steps) EXPECT_EQ(step, one.steps[0]) << threads << " threads";
  }
}

// Both use the memory of parts' sums: the second begins when the first has ended.
TEST(GemmStage, ABarrierLiesBetweenTwo) {
  Outcome split, whole;
  RunModel(2, true, &split);
  RunModel(2, false, &whole);
  if (HasFatalFailure()) return;
  const auto find = [](const Outcome& o, std::string_view label) {
    for (size_t i = 0; i < o.stages.size(); ++i) {
      if (o.stages[i].label == label) return i;
    }
    return o.stages.size();
  };
  const size_t a = find(split, "a"), b = find(split, "b");
  ASSERT_LT(std::max(a, b), split.stages.size());
  EXPECT_EQ(split.stages[a].n_count, 4);
  EXPECT_THAT(split.kernels[a], ::testing::StartsWith("gemm_split.gemm."));
  bool barrier = false;
  for (size_t i = std::min(a, b); i < std::max(a, b); ++i) barrier |= split.stages[i].barrier_after;
  EXPECT_TRUE(barrier);
  // Nothing else asks for it.
  barrier = false;
  for (size_t i = find(whole, "a"); i < find(whole, "b"); ++i) barrier |= whole.stages[i].barrier_after;
  EXPECT_FALSE(barrier);
}

TEST(GemmStage, RefusesInOneLine) {
  KernelLibrary library(HostCpu(Isa::kAvx2));
  GemmDesc desc{.n = 64, .k = 1024, .a = DType::kF32, .w = DType::kBF16, .rows = 1};
  desc.lda_bytes = 4096;
  desc.ldc_bytes = 256;
  const auto status = [&](int64_t parts, std::string_view row) {
    return MakeGemmStage(desc, parts, row, 1, 2, library).status().ToString();
  };
  EXPECT_EQ(status(2, "avx2"), "OK");
  EXPECT_EQ(status(3, ""), "INVALID_ARGUMENT: gemm: a depth of 1024 cannot be cut into 3 parts");
  EXPECT_THAT(status(2, "avx3"), ::testing::HasSubstr("no kernel avx3"));
}

}  // namespace
}  // namespace xjit
