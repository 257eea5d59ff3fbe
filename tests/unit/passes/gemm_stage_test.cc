// Products cut over depth in a program: what threads compute together, step after step.
#include "passes/gemm_stage.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "passes/lower.h"
#include "passes/pass.h"
#include "runtime/executor.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;

// Products in two parts each, of which @b need not wait for @a: what both read is read again later. `{}`: what %s is.
constexpr std::string_view kModel = R"(module @m {{
  func @step(%ids: tensor<T x i32>, %step: !step) -> tensor<L x 64 x f32> {{
    %x = embed %ids, @embed<96 x 1024 x f32>
    %last = select_rows %x, %step
    %s = {}
    %a = linear %s, @a<64 x 1024 x bf16>
    %b = linear %last, @b<64 x 1024 x bf16>
    %m = mul %last, %s
    %c = linear %m, @c<64 x 1024 x bf16>
    %ab = mul %a, %b
    %y = add %ab, %c
    return %y
  }}
}})";

enum class Numbers : uint8_t { kAny, kSmallWhole };

// Small ones: -2 to 2.
class RandomWeights : public PackedWeights {
 public:
  explicit RandomWeights(Numbers numbers) : numbers_(numbers) {}
  absl::StatusOr<const std::byte*> Matrix(int64_t, const Weight& w) const override {
    std::vector<std::byte>& bytes = matrices_[w.name];
    if (bytes.empty()) {
      const int64_t n = PackedColumns(w), k = w.type.cols();
      bytes.resize(static_cast<size_t>(n / kPanelColumns * PanelBytes(w.type.encoding(), k)) + 64);
      const uint64_t seed = std::hash<std::string>()(w.name);
      if (numbers_ == Numbers::kAny) {
        RandomPanels(w.type.encoding(), n, k, seed, Aligned(bytes));
      } else {
        PackWhole(w.type.elem, n, k, seed, Aligned(bytes));
      }
    }
    return Aligned(bytes);
  }
  absl::StatusOr<const float*> Vector(int64_t, const Weight&) const override { return Internal("no vectors here"); }
  absl::StatusOr<const int32_t*> Order(int64_t, const Weight&) const override { return Internal("no orders here"); }

 private:
  static void PackWhole(DType type, int64_t n, int64_t k, uint64_t seed, std::byte* out) {
    std::mt19937_64 random(seed);
    const auto size = static_cast<size_t>(RowBytes(type, 1));
    std::vector<std::byte> rows(static_cast<size_t>(n * k) * size);
    for (size_t i = 0; i < static_cast<size_t>(n * k); ++i) {
      // A bf16 is the upper half of the f32, which has no more bits here.
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(random() % 5) - 2) >> (8 * (4 - size));
      std::memcpy(&rows[i * size], &bits, size);
    }
    std::vector<const std::byte*> columns;
    for (int64_t i = 0; i < n; ++i) columns.push_back(&rows[static_cast<size_t>(i * k) * size]);
    PackPanels(type, k, columns, 0, n / kPanelColumns, out);
  }
  static std::byte* Aligned(std::vector<std::byte>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }
  const Numbers numbers_;
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
void RunModel(int threads, bool split, Outcome* outcome, Numbers numbers = Numbers::kAny) {
  const auto module = Parse(fmt::format(kModel, numbers == Numbers::kAny ? "silu %last" : "mul %last, %last"));
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
  const RandomWeights weights(numbers);
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
  Outcome one;
  RunModel(1, true, &one);
  if (HasFatalFailure()) return;
  EXPECT_THAT(one.parts, ::testing::ElementsAre(2, 2, 2));
  for (const float v : one.steps[0]) ASSERT_TRUE(std::isfinite(v));
  for (int threads = 1; threads <= 4; ++threads) {
    Outcome got;
    RunModel(threads, true, &got);
    for (const std::vector<float>& step : got.steps) EXPECT_EQ(step, one.steps[0]) << threads << " threads";
  }
}

// Sums of whole numbers are exact in every order: of 1024 products of at most 2 * 8, below 2^24, from rows (at most 8)
// that bf16 holds. What follows rounds the same numbers.
TEST(GemmStage, PartsAddUpToTheWhole) {
  Outcome split, whole;
  RunModel(2, true, &split, Numbers::kSmallWhole);
  RunModel(2, false, &whole, Numbers::kSmallWhole);
  if (HasFatalFailure()) return;
  EXPECT_THAT(split.parts, ::testing::ElementsAre(2, 2, 2));
  EXPECT_THAT(whole.parts, ::testing::ElementsAre(1, 1, 1));
  EXPECT_EQ(split.steps[0], whole.steps[0]);
  EXPECT_THAT(split.steps[0], ::testing::Contains(::testing::Ne(0)));
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
  const size_t whole_a = find(whole, "a"), whole_b = find(whole, "b");
  ASSERT_LT(std::max(whole_a, whole_b), whole.stages.size());
  barrier = false;
  for (size_t i = std::min(whole_a, whole_b); i < std::max(whole_a, whole_b); ++i) {
    barrier |= whole.stages[i].barrier_after;
  }
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
