// How a mixture of experts runs on one machine: the kernels of its two products by rows of a unit, units, tasks and
// memory; and the stages' arguments.
#pragma once

#include <array>
#include <cstdint>

#include "codegen/kernels.h"
#include "codegen/moe/grouped.h"
#include "codegen/moe/moe_route.h"
#include "ir/support/encoding.h"

namespace xjit {

// y[token] = residual[token] + sum over the token's slots of weight * (down[e] . (silu(gate[e] . x) * (up[e] . x))).
struct MoeDesc {
  int64_t experts = 0;  // matrices
  int64_t rows = 0;     // most tokens of a step
  int64_t slots = 0;    // experts of a token
  int64_t hidden = 0;
  int64_t intermediate = 0;
  Encoding gate_up, down;   // gate_up: panels of 16 gate and 16 up columns
  DType x = DType::kF32;    // as gate and up read it
  DType mid = DType::kF32;  // as down reads the intermediate
  bool operator==(const MoeDesc&) const = default;
};

// The products as descriptors without rows and their strides: all columns of an expert, padded to whole panels.
GemmDesc UpDesc(const MoeDesc& desc);
GemmDesc DownDesc(const MoeDesc& desc);

// One of the two products.
struct GroupedPlan {
  std::array<const Kernel*, kMaxFewRows + 1> kernels{};  // by rows of a unit; [0]: many
  bool strips = false;                                   // of the many-row kernel's activations
  int64_t panels = 0;
  int64_t panel_bytes = 0;
  int64_t expert_bytes = 0;
  int64_t chunk = 0;  // panels of a task, at most
  int64_t kernel_scratch = 0;

  int64_t chunks() const { return (panels + chunk - 1) / chunk; }
  // Of few rows where there is one, as not for every encoding and ISA; else of many.
  const Kernel* any() const { return kernels[1] != nullptr ? kernels[1] : kernels[0]; }
};

struct MoePlan {
  MoeDesc desc;
  GroupedPlan up, down;
  const Kernel *convert = nullptr, *convert_strips = nullptr;
  int few_rows = 0;
  int64_t unit_rows = 0;
  MoeSizes sizes;
  MoeRowLayout x_layout, mid_layout;
  int64_t c_stride = 0;     // of gate and up's product
  int64_t tile_stride = 0;  // of down's product of one task

  // Of each thread's scratch.
  int64_t up_scratch_bytes() const;
  int64_t down_scratch_bytes() const;
  // Memory, 64-byte aligned. Tables are zeroed before the first step and kept from step to step: runs, which every
  // thread sorts for itself (that takes no longer than waiting for one that does it), and counters. Work is what gate
  // and up leave for down.
  int64_t table_bytes(int threads) const;
  int64_t work_bytes() const;
  // Tasks of gate and up.
  int64_t up_tasks() const { return sizes.units * up.chunks(); }
};

// Whether every thread of a step of at most `rows` tokens routes for itself, which saves a barrier.
bool ReplicatesRoute(int64_t rows, int64_t experts);

// Asks the library for the kernels, for `threads` threads. Fails as the library does where there is no kernel for many
// rows; run lengths that have no kernel of their own are taken as many rows.
absl::StatusOr<MoePlan> PlanMoe(const MoeDesc& desc, KernelLibrary& library, int threads);

// The stages' arguments. Pointers of the caller's data are left to fill in: experts (sort), x and weights (up), out,
// residual, weight and weights (down); and their rows' strides.
class MoeStages {
 public:
  // `tables` of table_bytes(threads), `work` of work_bytes().
  MoeStages(const MoePlan& plan, int threads, std::byte* tables, std::byte* work);

  MoeSortArgs Sort(int thread) const;
  // `scratch` of up_scratch_bytes().
  GroupedUpArgs Up(int thread, std::byte* scratch) const;
  // `scratch` of down_scratch_bytes().
  GroupedDownArgs Down(int thread, std::byte* scratch) const;

  const MoePlan& plan() const { return plan_; }
  MoeRuns* runs(int thread) const { return reinterpret_cast<MoeRuns*>(Table(thread)); }
  float* c() const { return reinterpret_cast<float*>(work_); }
  const std::byte* mid() const { return mid_; }
  int64_t mid_stride() const;

 private:
  std::byte* Table(int thread) const;

  MoePlan plan_;
  std::byte *tables_, *done_, *work_, *mid_;
};

}  // namespace xjit
