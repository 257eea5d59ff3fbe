// What the tests of mixtures of experts share: one with random weights, run as a program runs it, held against the
// reference stage by stage.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/kernels.h"
#include "codegen/moe/moe_plan.h"
#include "runtime/executor.h"

namespace xjit::testing {

inline constexpr Isa kMoeIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

// Sizes that hold blocks of any encoding, or odd ones where it has none.
struct MoeTestShape {
  int64_t experts = 4;
  int64_t slots = 1;
  int64_t hidden = 96;
  int64_t intermediate = 48;
  Encoding gate_up = DType::kBF16, down = DType::kBF16;
};

// Activations of one step: f32 x [rows][hidden], experts and weights [rows][slots].
struct MoeStep {
  int64_t rows = 0;
  std::vector<float> x;
  std::vector<int32_t> experts;
  std::vector<float> weights;
};
// Values of x are about 1. Experts of a token differ.
MoeStep RandomStep(const MoeTestShape& shape, int64_t rows, uint64_t seed);
// One slot a token: run lengths as given, the tokens of all experts mixed.
MoeStep StepOfRuns(const MoeTestShape& shape, const std::vector<int64_t>& lengths, uint64_t seed);

class MoeHarness {
 public:
  // Steps of at most `rows` tokens. No value: the machine lacks the ISA, or there is no kernel (`why` says).
  MoeHarness(const MoeTestShape& shape, Isa isa, int64_t rows, int threads, int64_t l2_bytes = 1 << 20);

  bool has_isa() const { return library_ != nullptr; }
  bool ok() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  const MoePlan& plan() const { return *plan_; }
  const MoeRuns& runs() const { return *stages_->runs(0); }

  // Runs the stages; out = residual + experts. `first`: number of the expert that matrix 0 is.
  std::vector<float> Run(const MoeStep& step, int64_t first = 0);
  // What Run() left, against the references.
  void Check(const MoeStep& step, const std::vector<float>& out, int64_t first = 0);

 private:
  struct Row {  // of a slot
    const float* c = nullptr;
    int64_t unit = -1;
    int64_t row = 0;
  };
  std::vector<Row> RowsOfSlots(int64_t slots) const;

  MoeTestShape shape_;
  std::string why_;
  std::unique_ptr<KernelLibrary> library_;
  std::optional<MoePlan> plan_;
  std::optional<MoeStages> stages_;
  std::unique_ptr<WorkerPool> pool_;
  std::vector<std::vector<std::byte>> scratch_;
  std::vector<std::byte> weights_, tables_, work_;
  const std::byte *gate_up_ = nullptr, *down_ = nullptr;
  std::vector<float> residual_;
};

}  // namespace xjit::testing
