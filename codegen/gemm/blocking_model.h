// The cost model behind blocking.h, and plans for kernels that kernels.inc does not have yet. Costs are cycles of one
// core, turned into time by the machine file's measured peaks; a peak that nobody measured takes a nominal clock, which
// leaves the order of candidates as it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "codegen/gemm/blocking.h"

namespace xjit {

// The kernels of one instruction set: a row of kernels.inc, or one to come.
struct KernelFamily {
  std::string_view name;
  Isa isa;
  bool tiles;         // AMX
  int lanes;          // columns of a vector or tile
  int k_per_dot;      // products that one instruction adds to each sum
  double dot_cycles;  // from one such instruction to the next
};
// The highest first; every gemm row of kernels.inc is one of them.
std::span<const KernelFamily> KernelFamilies();

// Why the family cannot compute the product; empty: it can.
std::string ModelRefusal(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target);
Blocking ModelBlocking(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target);

// The part of the work that the busiest thread has where threads take b's tasks in turn.
double LargestShare(const Blocking& b, int threads);
// Sets the tasks, threads and chunk of panels that threads take.
void SharePanelTasks(int64_t panels, int64_t panel_bytes, int64_t rows, int64_t experts, int threads, Blocking* b);
// Sets the costs and `reason` where the busiest thread computes for `cycles`: never less than the machine's peaks and
// the reading of the weights take.
void SetCost(const BlockingShape& shape, const TargetInfo& target, double cycles, Blocking* b);

}  // namespace xjit
