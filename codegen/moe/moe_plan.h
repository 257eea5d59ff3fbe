// How a mixture of experts runs on one machine: the kernels of its two products by rows of a unit, units, tasks and
// memory; and the stages' arguments.
#pragma once

#include <array>
#include <cstdint>
#include <string>

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
  bool x_strips = false;    // x is in strips
  DType mid = DType::kF32;  // as down reads the intermediate
  bool operator==(const MoeDesc&) const = default;
};

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
  // Memory of the stages together, zeroed before the first step, 64-byte aligned. Sorting fills runs(i), which are
  // `tables` times there: a table for each thread that sorts for itself, or one.
  int64_t memory_bytes(int tables) const;
  // Tasks of gate and up.
  int64_t up_tasks() const { return sizes.units * up.chunks(); }
};

// Asks the library for the kernels, for `threads` threads. Fails as the library does where there is no kernel for many
// rows; run lengths that have no kernel of their own are taken as many rows.
absl::StatusOr<MoePlan> PlanMoe(const MoeDesc& desc, KernelLibrary& library, int threads);

// The stages' arguments over `memory` of memory_bytes(tables). Pointers of the caller's data are left to fill in:
// experts (sort), x and weights (up), out, residual, weight and weights (down).
class MoeMemory {
 public:
  MoeMemory(const MoePlan& plan, std::byte* memory, int tables);

  MoeSortArgs Sort(int table) const;
  // `scratch` of up_scratch_bytes(), `tag` zeroed.
  GroupedUpArgs Up(int table, std::byte* scratch, GatherTag* tag) const;
  // `scratch` of down_scratch_bytes().
  GroupedDownArgs Down(int table, std::byte* scratch) const;

  MoeRuns* runs(int table) const { return reinterpret_cast<MoeRuns*>(memory_ + table * table_bytes_); }
  float* c() const { return reinterpret_cast<float*>(c_); }
  std::byte* mid() const { return mid_; }
  int64_t mid_stride() const;

 private:
  const MoePlan& plan_;
  std::byte* memory_;
  int64_t table_bytes_;
  std::byte *done_, *c_, *mid_;
};

// "grouped.q8act_q4_k.e128k2048n1536": of logs and profiles.
std::string MoeName(const MoeDesc& desc);

}  // namespace xjit
