#include "codegen/gemm/blocking.h"

#include <algorithm>
#include <limits>

#include "codegen/gemm/pack.h"
#include "codegen/gemm/split.h"
#include "codegen/kernel_rows.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

// Where the machine file has no peaks.
constexpr double kNominalMhz = 2500;

double PeakGflops(DType a, const TargetInfo& target) {
  switch (a) {
    case DType::kBF16:
    case DType::kF16:
      return target.bf16_gflops;
    case DType::kQ8Act:
    case DType::kI8Act:
      return target.int8_gops;
    default:
      return target.f32_gflops;
  }
}

// Cycles, as the plans count them, in a microsecond: the measured peak over what a cycle computes.
double Mhz(DType a, const TargetInfo& target) {
  const double peak = PeakGflops(a, target);
  if (a == DType::kF32) return peak > 0 ? 1e3 * peak / (target.isa >= Isa::kAvx512 ? 64 : 32) : kNominalMhz;
  // The peaks of bf16 and int8 are those of tiles where there are any, 1024 and 2048 operations a cycle.
  const double tiles = a == DType::kBF16 || a == DType::kF16 ? 1024 : 2048;
  return peak > 0 ? 1e3 * peak / (target.isa >= Isa::kAmx ? tiles : 128) : Mhz(DType::kF32, target);
}

// The part of the work that the busiest thread has where threads take tasks in turn.
double LargestShare(const Blocking& b, int threads) {
  return static_cast<double>(CeilDiv(b.tasks, threads)) / static_cast<double>(b.tasks);
}

// Whether weights are converted before they meet activations.
bool Unpacks(const GemmDesc& desc) {
  const DType w = desc.w.type;
  return desc.rows == 0 && w != desc.a && w != DType::kF32 && desc.a != DType::kI8Act;
}

// More panels than this that rows go over while they are in L1: the kernel is one for tiles.
constexpr int64_t kPanelsSideBySide = 2;
// Rows of two tiles, which meet a panel's two column tiles in four tiles of sums.
constexpr int64_t kTilePairRows = 32;
// In the time of their dots, 64 cycles for each tile's depth (gemm_amx_plan.cc): reading 32 rows or a panel, two tiles,
// from L3, taken to give a core 16 bytes a cycle (assumed, not measured: half or twice as much changes few tasks); and
// unpacking two tiles (UnpackCycles() of gemm_amx_plan.cc: 80 to 120 cycles).
constexpr double kTilesFromL3 = 2, kTilesUnpacked = 1.5;
// Numbers of parts that rows are tried in: the fewest, and some more, since the first that comes out even is seldom
// far.
constexpr int kTaskTries = 6;

// Tasks on tiles: p panels by r times 32 rows are p * r blocks of dots and read p + r times their bytes, so squares are
// best, up to the panels that share A's way into L1. Of the divisions into at least `tasks`, the one with which the
// thread that has most is done first.
PanelTasks ShareTiles(const PanelGrid& grid, int threads, int64_t tasks) {
  const int64_t rows = CeilDiv(grid.rows, kTilePairRows);
  const double panel_cost = kTilesFromL3 + (grid.unpack ? kTilesUnpacked : 0);
  PanelTasks best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t p = 1; p <= std::min(grid.panels_together, grid.panels); ++p) {
    const int64_t across = CeilDiv(grid.panels, p);
    if (CeilDiv(grid.panels, across) != p) continue;  // as many tasks as with fewer panels
    const int64_t cuts = std::min(CeilDiv(tasks, across), rows);
    if (across * cuts < tasks && p > 1) continue;
    // Rows in as many equal parts, or some more: more tasks than asked for may come out even.
    int tries = kTaskTries;
    for (int64_t r = CeilDiv(rows, cuts), down = 0; r > 0 && tries > 0; r = std::min(r - 1, CeilDiv(rows, down + 1))) {
      down = CeilDiv(rows, r);
      if (down < cuts) continue;
      --tries;
      const double task =
          static_cast<double>(p * r) + kTilesFromL3 * static_cast<double>(r) + panel_cost * static_cast<double>(p);
      const double cost = static_cast<double>(CeilDiv(across * down * grid.products, threads)) * task;
      if (cost >= least) continue;
      least = cost;
      best = {.panels = p, .rows = r < rows ? r * kTilePairRows : 0};
    }
  }
  return best;
}

// Pairs of panels of a task, at most so many: of those not below half of that the one with which the thread that has
// most has least (280 panels and two threads: tasks of 14, 10 for each; of 16 one thread has 144).
int64_t EvenPanels(int64_t panels, int64_t most, int threads) {
  int64_t best = most / 2 * 2, least = std::numeric_limits<int64_t>::max();
  for (int64_t p = best; p >= std::max<int64_t>(2, most / 2); p -= 2) {
    const int64_t largest = CeilDiv(CeilDiv(panels, p), threads) * p;
    if (largest >= least) continue;
    best = p;
    least = largest;
  }
  return best;
}

// Sets the tasks, threads and chunk of panels that threads take; the grid's panels are b->parts times as many. Returns
// the rows of a task.
int64_t SharePanelTasks(const PanelGrid& grid, int threads, Blocking* b) {
  const PanelTasks share = SharePanels(grid, threads);
  const int64_t across = CeilDiv(grid.panels, share.panels) * grid.products;
  const int64_t down = share.rows > 0 ? CeilDiv(grid.rows, share.rows) : 1;
  b->chunk = std::min(CeilDiv(share.panels, b->parts), grid.panels / b->parts) * kPanelColumns;
  b->tasks = across * down;
  b->threads_n = static_cast<int>(std::min<int64_t>(threads, across));
  b->threads_m = static_cast<int>(std::min<int64_t>(threads / b->threads_n, down));
  return share.rows > 0 ? std::min(share.rows, grid.rows) : grid.rows;
}

// Sets the costs and `reason` where the busiest thread computes for `cycles`: never less than the machine's peaks and
// the reading of the weights take.
void SetCost(const BlockingShape& shape, const TargetInfo& target, double cycles, Blocking* b) {
  const double products = static_cast<double>(shape.n * shape.k) * static_cast<double>(shape.m * shape.experts);
  const double peak = PeakGflops(shape.a, target) * target.threads;
  b->compute_us = cycles / Mhz(shape.a, target);
  if (peak > 0) b->compute_us = std::max(b->compute_us, 2 * products / peak / 1e3);
  const double bytes =
      static_cast<double>(EncodedBytes(shape.w, shape.n, shape.k)) * static_cast<double>(shape.experts);
  double rate = target.node_read_gb_s;
  if (target.core_read_gb_s > 0) {
    const double cores = target.core_read_gb_s * static_cast<double>(std::min<int64_t>(target.threads, b->tasks));
    rate = rate > 0 ? std::min(rate, cores) : cores;
  }
  b->memory_us = rate > 0 ? bytes / rate / 1e3 : 0;
  b->cost_us = std::max(b->compute_us, b->memory_us);
  b->reason = fmt::format("{:.3g} us of arithmetic", b->compute_us);
  b->reason += rate > 0 ? fmt::format(", {:.3g} us of reading", b->memory_us) : std::string(", reading not measured");
}

Blocking Refused(std::string_view family, std::string why) {
  Blocking b;
  b.family = family;
  b.refused = true;
  b.reason = std::move(why);
  return b;
}

// The descriptor with which lowering would ask for the product; rows lie side by side.
GemmDesc DescOf(const BlockingShape& shape) {
  GemmDesc desc;
  desc.n = PackedColumns(shape.n, shape.interleaved);
  desc.k = shape.k;
  desc.a = shape.a;
  desc.w = shape.w;
  desc.rows = shape.m <= kMaxFewRows ? static_cast<int>(shape.m) : 0;
  desc.strips = StripsFor(shape.a, desc.rows == 0);
  desc.lda_bytes = shape.a == DType::kQ8Act   ? Q8Layout{shape.k}.row_bytes()
                   : shape.a == DType::kI8Act ? I8Layout{shape.k}.row_bytes()
                                              : 4 * AlignUp(shape.k, 32);
  desc.ldc_bytes = 4 * desc.n;
  return desc;
}

// What the row of kernels.inc says. It multiplies one matrix: an expert's run is a call like any other.
Blocking FromRow(const TypedRow<GemmDesc>& row, const BlockingShape& shape, const TargetInfo& target) {
  const GemmDesc desc = DescOf(shape);
  const bool whole = shape.grouped || shape.interleaved || shape.experts > 1;
  const int64_t parts = whole ? 1 : PartsBy(row.name, desc, target);
  const auto plan = row.plan(parts > 1 ? PartOf(desc, parts) : desc, target);
  if (!plan.ok()) return Refused(row.name, std::string(Message(plan.status())));
  Blocking b = BlockingOf(desc, *plan, shape.m, shape.experts, target.threads, parts);
  b.family = row.name;
  // A tile takes as long with few rows as with all.
  const int64_t rows = desc.strips && plan->tile_rows % kStripRows == 0 ? AlignUp(shape.m, kStripRows) : shape.m;
  const double cycles = plan->cost * static_cast<double>(rows * desc.n * shape.experts * parts);
  SetCost(shape, target, cycles * LargestShare(b, target.threads), &b);
  return b;
}

}  // namespace

int64_t PartsBy(std::string_view row, const GemmDesc& desc, const TargetInfo& target) {
  const int64_t parts = DepthParts(desc);
  if (parts == 1) return 1;
  const auto rows = RowsOf<GemmDesc>();
  const auto named = std::find_if(rows.begin(), rows.end(), [row](const auto& r) { return r.name == row; });
  return named != rows.end() && named->plan(PartOf(desc, parts), target).ok() ? parts : 1;
}

Blocking BlockingOf(const GemmDesc& desc, const GemmPlan& plan, int64_t rows, int64_t experts, int threads,
                    int64_t parts) {
  Blocking b;
  b.parts = parts;
  const bool few = desc.rows > 0;
  const int64_t k = desc.k / parts;
  b.tile_m = plan.tile_rows;
  b.tile_n = plan.tile_vectors;
  b.unpack_once = Unpacks(desc);
  PanelGrid grid = GridOf(desc, plan.n_block, rows, parts);
  grid.products = experts;
  const int64_t task_rows = SharePanelTasks(grid, threads, &b);
  const bool near = !few && task_rows <= plan.near_rows;
  b.block_m = plan.m_block > 0 && !near ? std::min(plan.m_block, task_rows) : task_rows;
  // Without scratch few rows stream the whole depth through registers.
  b.block_k = few && plan.scratch_bytes == 0 ? k : std::min(k, near ? plan.near_k_block : plan.k_block);
  b.loop_order = b.block_m < task_rows ? "n,m,k,m" : few ? "n,k" : "n,k,m";
  b.block_n = std::min(b.chunk, std::max<int64_t>(1, plan.n_block) * kPanelColumns);
  return b;
}

std::vector<Blocking> BlockingCandidates(const BlockingShape& shape, const TargetInfo& target) {
  std::vector<Blocking> candidates;
  for (const TypedRow<GemmDesc>& row : RowsOf<GemmDesc>()) {
    if (row.isa <= target.isa) candidates.push_back(FromRow(row, shape, target));
  }
  return candidates;
}

Blocking ChooseBlocking(std::span<const Blocking> candidates) {
  const Blocking* best = nullptr;
  for (const Blocking& b : candidates) {
    if (b.refused) continue;
    if (best == nullptr || b.cost_us < best->cost_us ||
        (b.cost_us == best->cost_us && b.compute_us < best->compute_us)) {
      best = &b;
    }
  }
  if (best != nullptr) return *best;
  std::string reasons;
  for (const Blocking& b : candidates) {
    if (!reasons.empty()) reasons += "; ";
    reasons += fmt::format("{}: {}", b.family, b.reason);
  }
  return Refused("", std::move(reasons));
}

PanelGrid GridOf(const GemmDesc& desc, int64_t panels_together, int64_t rows, int64_t parts) {
  return {.panels = desc.panels() * parts,
          .panel_bytes = PanelBytes(desc.w, desc.k) / parts,
          .rows = rows,
          .panels_together = panels_together,
          .unpack = Unpacks(desc)};
}

PanelTasks SharePanels(const PanelGrid& grid, int threads) {
  PanelTasks share;
  const int64_t tasks = std::max<int64_t>(1, int64_t{threads} * kTasksPerThread / grid.products);
  if (grid.rows <= kMaxFewRows) {
    const int64_t task_bytes = std::clamp(grid.panels * grid.panel_bytes / tasks, kMinTaskBytes, kMaxTaskBytes);
    share.panels = std::max<int64_t>(1, task_bytes / grid.panel_bytes);
  } else if (grid.panels_together > kPanelsSideBySide) {
    share = ShareTiles(grid, threads, tasks);
  } else {
    // Pairs of panels, since two side by side halve the reading of A, and several, since the next one is prefetched
    // within a call; but at least twice as many tasks as asked for, so that no thread waits for a last long one (18
    // panels in pairs are five tasks for one of two threads and four for the other). A panel's unpacking is shared by
    // all rows, so rows are only cut when there are too few panels.
    if (grid.panels >= 4 * tasks) share.panels = EvenPanels(grid.panels, grid.panels / (2 * tasks), threads);
    const int64_t cuts = CeilDiv(tasks, grid.panels);
    if (cuts > 1) share.rows = std::max<int64_t>(32, CeilDiv(grid.rows / cuts, 32) * 32);
  }
  return share;
}

}  // namespace xjit
