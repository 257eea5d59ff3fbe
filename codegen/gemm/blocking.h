// How a matrix product is cut up for one machine: kernel, register or tile grid, cache blocks, and the shares of
// threads. Functions of numbers alone; passes/plan_blocking.cc writes the answer into the IR. Every row of kernels.inc
// is asked for its plan, so that what is printed is what runs: passes/lower_linear.cc takes the kernel from there,
// block sizes come from that kernel's plan, and both have the threads' shares from SharePanels().
//
// Costs are cycles of one core, turned into time by the machine file's measured peaks; a peak that nobody measured
// takes a nominal clock, which leaves the order of candidates as it is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "ir/support/encoding.h"
#include "ir/support/target.h"

namespace xjit {

struct BlockingShape {
  int64_t m = 1, n = 1, k = 1;  // rows, columns and depth; with several experts the rows expected of each one's run
  int64_t experts = 1;          // matrices [n, k], each multiplied with rows of its own
  Encoding w;
  DType a = DType::kF32;     // activations: kF32, kBF16, kF16, kQ8Act, kI8Act
  bool interleaved = false;  // of gate and up, 16 columns each
  bool grouped = false;      // experts' products, which are not cut over depth
};

struct Blocking {
  std::string_view family;  // the row of kernels.inc, which of several experts does each one's product
  bool refused = false;     // then `reason` says why, and the rest is empty
  // Rows of sums held at a time, and vectors or tiles of columns.
  int tile_m = 0, tile_n = 0;
  // Sizes that caches ask for: rows that share a block of weights, its columns, its depth.
  int64_t block_m = 0, block_n = 0, block_k = 0;
  std::string loop_order;  // of a task's blocks, the outermost first: "n,k,m"
  // Parts that depth is cut into (split.h): as the shape says, so that the order of a sum does not depend on the number
  // of threads.
  int64_t parts = 1;
  // Threads at work side by side on rows, and on columns and parts.
  int threads_m = 1, threads_n = 1;
  int64_t chunk = 0;         // most columns that a thread takes at a time
  int64_t tasks = 0;         // of all columns, parts and rows
  bool unpack_once = false;  // a block of weights is converted once, into cache, for all rows of the walk
  double compute_us = 0, memory_us = 0;
  double cost_us = 0;  // the larger of both
  std::string reason;
};

// One candidate for each row of kernels.inc that the target's ISA grants, in their order.
std::vector<Blocking> BlockingCandidates(const BlockingShape& shape, const TargetInfo& target);
// The cheapest that is not refused; of two that memory makes equal, the one with less to compute. Refused if all are.
Blocking ChooseBlocking(std::span<const Blocking> candidates);

// The parts in which the kernel of a row of kernels.inc does the product: DepthParts(), or 1 where it refuses them.
int64_t PartsBy(std::string_view row, const GemmDesc& desc, const TargetInfo& target);

// What the plan of a row of kernels.inc makes of `rows` rows of each of `experts` matrices and that many threads;
// without costs. With several parts `plan` is PartOf(desc)'s.
Blocking BlockingOf(const GemmDesc& desc, const GemmPlan& plan, int64_t rows, int64_t experts, int threads,
                    int64_t parts = 1);

// Tasks of a shared stage for each thread: enough that a thread which was slowed for a moment is relieved by the
// others, few enough that taking them (10 to 20 ns each) does not show.
inline constexpr int kTasksPerThread = 4;
// A task of a few-row product reads 32 to 256 KiB, 1 to 8 us at 30 GB/s: in a small model's stages taking tasks stays
// under 2% of the time, in a large one's no thread waits long for the last task.
inline constexpr int64_t kMinTaskBytes = int64_t{32} << 10, kMaxTaskBytes = int64_t{256} << 10;

// What there is to cut.
struct PanelGrid {
  int64_t panels = 1, panel_bytes = 1;
  int64_t rows = 1;
  int64_t products = 1;         // of these sizes, whose tasks threads take at once: experts
  int64_t panels_together = 0;  // Kernel::panels_together
  bool unpack = false;          // a panel's weights are converted for all rows of a task
};
// With several parts of the depth each part of a panel is cut as a panel is.
PanelGrid GridOf(const GemmDesc& desc, int64_t panels_together, int64_t rows, int64_t parts = 1);

// How panels and rows are cut into at least kTasksPerThread tasks a thread (as far as there is work for them).
struct PanelTasks {
  int64_t panels = 1;  // of a task
  int64_t rows = 0;    // of a task; 0: all
};
PanelTasks SharePanels(const PanelGrid& grid, int threads);

// The name of the order in which the bytes of weights with panels lie in memory (pack.h): one for every encoding, ISA
// and number of rows, since weights exist once.
inline constexpr std::string_view kPanelLayout = "panels.32";

}  // namespace xjit
