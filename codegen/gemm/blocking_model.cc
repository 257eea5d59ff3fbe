#include "codegen/gemm/blocking_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "codegen/gemm/pack.h"
#include "ir/support/align.h"
#include "ir/support/dtype.h"

namespace xjit {
namespace {

// AMX: one TDP in 16 cycles (github.com/usstq/mm_amx, README), full tiles or not, as one tile configuration serves all.
// Vectors: two multiply ports as codegen/gemm/gemm_plan_fma.cc counts them; vpdpbusd one a cycle as gemm_plan_vnni.cc
// does (measured on a 2-core Zen 4).
constexpr std::array<KernelFamily, 6> kFamilies = {{
    {"amx_bf16", Isa::kAmx, true, 16, 32, 16},
    {"amx_int8", Isa::kAmx, true, 16, 64, 16},
    {"avx512_vnni", Isa::kAvx512Vnni, false, 16, 4, 1},
    {"avx512_bf16", Isa::kAvx512Bf16, false, 16, 2, 0.5},
    {"avx512", Isa::kAvx512, false, 16, 1, 0.5},
    {"avx2", Isa::kAvx2, false, 8, 1, 0.5},
}};

constexpr int kTileRows = 16, kTileColumns = 16;
constexpr int kTileBytes = 1024;
// 16 rows of 64 bytes, two loads a cycle from L1; L2 gives a core 48 bytes a cycle (usstq/mm_amx, README).
constexpr double kTileLoadL1 = 8, kTileLoadL2 = kTileBytes / 48.0;
// 16 stores of 64 bytes, one a cycle.
constexpr double kTileStore = 16;
// L3 gives a core 22 to 26 bytes a cycle (measured on a 2-core Zen 4), mesh parts of Intel less: with tiles from there
// usstq/mm_amx (README) fills 11 to 15% of the TDP slots, one tile a slot: 7 to 10 bytes a cycle.
constexpr double kL3Bytes = 8;
// Rows of two tiles below each other, columns of two side by side: 4 sums cover a TDP's latency, 52
// cycles (Intel 64 and IA-32 Architectures Optimization Reference Manual, AMX), and a TDP needs one load only. Up to 16
// rows one tile of rows and four of columns do the same with 1.25 loads.
constexpr int64_t kBlockRows = 2 * kTileRows, kBlockColumns = 2 * kTileColumns;
constexpr int kFewTiles = 4;
// Depth whose scales an f8e4m3 block shares (its sums are scaled once for it), and a q8act block.
constexpr int64_t kF8Depth = 128, kQ8Depth = 32;
// Rows of the vector kernels' tile of sums (gemm_plan_fma.cc).
constexpr int64_t kVectorRows = 504;
// A narrow product's depth is cut so that so many tasks are there for the largest node known (Xeon 6980P: 43 cores of
// one sub-NUMA cluster; EPYC 9005: 64 and more). A count of the shape alone: the order of its sums must not depend on
// the number of threads.
constexpr int64_t kNarrowTasks = 64;
// Where the machine file has no peaks.
constexpr double kNominalMhz = 2500;

bool Plain(DType w) { return w == DType::kI8 || w == DType::kF8E4M3 || w == DType::kI4; }
int ElementBytes(DType a) { return a == DType::kF32 ? 4 : a == DType::kBF16 ? 2 : 1; }

double PeakGflops(std::string_view family, const TargetInfo& target) {
  if (family.ends_with("bf16")) return target.bf16_gflops;
  if (family == "amx_int8" || family == "avx512_vnni") return target.int8_gops;
  return target.f32_gflops;
}

// Cycles, as the families count them, in a microsecond: the measured peak over what a cycle computes.
double Mhz(std::string_view family, const TargetInfo& target) {
  // The peaks of bf16 and int8 are those of tiles where there are any, 1024 and 2048 operations a cycle.
  const bool amx = target.isa >= Isa::kAmx;
  const bool bf16 = family.ends_with("bf16"), int8 = family == "amx_int8" || family == "avx512_vnni";
  if (bf16 && target.bf16_gflops > 0) return 1e3 * target.bf16_gflops / (amx ? 1024 : 128);
  if (int8 && target.int8_gops > 0) return 1e3 * target.int8_gops / (amx ? 2048 : 128);
  const double wide = target.isa >= Isa::kAvx512 ? 64 : 32;
  return target.f32_gflops > 0 ? 1e3 * target.f32_gflops / wide : kNominalMhz;
}

// Cycles to turn a weight into what a dot product reads, its store included.
double UnpackCycles(DType w, DType a) {
  if (w == a || w == DType::kF32 || (w == DType::kI8 && a == DType::kI8Act)) return 0;
  // The exact table of 128 entries (vpermi2b twice) and a store: 31.5 GB/s (measured on a core of Zen 4 at 3.67 GHz).
  if (w == DType::kF8E4M3) return 0.12;
  // Of 16 values 3.5 (nibbles) or 4.5 operations four a cycle (gemm_plan_fma.cc), a scale, half a conversion to bf16 of
  // two vectors at 1.5, half a store at 2 (measured on a 2-core Zen 4).
  const bool bits = w == DType::kQ5_0 || w == DType::kQ5_1 || w == DType::kQ5_K || w == DType::kQ6_K;
  return (0.25 * (bits ? 4.5 : 3.5) + 0.5 + 0.75 + 1) / 16;
}

// Depth of a tile: what a TDP takes; int8 blocks with a scale each take 32, half a tile.
int64_t TileDepth(const KernelFamily& family, const BlockingShape& shape) {
  return shape.a == DType::kQ8Act ? kQ8Depth : family.k_per_dot;
}

// Cycles of one core for m rows and n columns, weights as they come out of L2, unpacked.
double AmxCycles(const KernelFamily& family, const BlockingShape& shape, int64_t m, int64_t n, int64_t block_k) {
  const int64_t depth = TileDepth(family, shape);
  const double steps = static_cast<double>(CeilDiv(shape.k, depth));
  const double across = static_cast<double>(CeilDiv(n, kTileColumns));
  const int64_t down = CeilDiv(m, kTileRows);
  // A from L1, B from L2: the slower of dots and loads.
  const double pair = std::max(4 * family.dot_cycles, 2 * kTileLoadL1 + 2 * kTileLoadL2);
  const double row = std::max(kFewTiles * family.dot_cycles, kTileLoadL1 + kFewTiles * kTileLoadL2) / kFewTiles;
  double cycles = steps * static_cast<double>(down / 2) * std::ceil(across / 2) * pair;
  cycles += steps * static_cast<double>(down % 2) * across * row;
  // Sums leave and come back once a block of depth; the blocks of f8e4m3 and q8act are scaled in vectors: 16 rows, each
  // a load with conversion and a multiply-add with the row's scale.
  const double sums = across * static_cast<double>(down);
  const double blocks = static_cast<double>(CeilDiv(shape.k, block_k));
  cycles += sums * (blocks * kTileStore + (blocks - 1) * kTileLoadL1);
  if (shape.w.type == DType::kF8E4M3) cycles += sums * static_cast<double>(shape.k) / kF8Depth * kTileStore;
  if (shape.a == DType::kQ8Act) cycles += sums * steps * (kTileStore + 16 * 2.5);
  // A is copied to compact tiles once, 32 bytes a cycle.
  return cycles + static_cast<double>(m * shape.k * ElementBytes(shape.a)) / 32;
}

// A depth of which whole blocks of scales and whole tiles are multiples.
int64_t DepthUnit(const KernelFamily& family, const BlockingShape& shape) {
  int64_t unit = std::lcm(TileDepth(family, shape), int64_t{Info(shape.w.type).block_elems});
  const Scales& s = shape.w.scales;
  if (s.kind == Scales::Kind::kBlock || s.kind == Scales::Kind::kGroup) unit = std::lcm(unit, int64_t{s.cols});
  return unit;
}

// The longest that a thread works, in units of columns, where each of `matrices` is cut into so many ranges.
int64_t LongestTurn(int64_t cuts, int64_t units, int64_t matrices, int64_t threads) {
  return CeilDiv(cuts * matrices, threads) * CeilDiv(units, cuts);
}

// Cuts of each of `matrices`, from the least to twice that many, with the shortest longest turn; of equals the one that
// leaves fewest threads without work in the last round. The least of a single matrix has both already.
int64_t BestCuts(int64_t least, int64_t units, int64_t matrices, int64_t threads) {
  const auto idle = [&](int64_t cuts) { return CeilDiv(cuts * matrices, threads) * threads - cuts * matrices; };
  int64_t best = least;
  for (int64_t cuts = least; cuts <= std::min(units, 2 * least) && idle(best) > 0; ++cuts) {
    const int64_t turn = LongestTurn(cuts, units, matrices, threads);
    const int64_t best_turn = LongestTurn(best, units, matrices, threads);
    if (turn < best_turn || (turn == best_turn && idle(cuts) < idle(best))) best = cuts;
  }
  return best;
}

// Few rows: each weight byte is streamed once, in chunks of equal bytes.
Blocking AmxFew(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  Blocking b;
  b.family = family.name;
  b.tile_m = 1;
  b.tile_n = kFewTiles;
  b.block_m = shape.m;
  b.loop_order = "n,k";
  const int64_t unit = ColumnUnit(shape.interleaved);
  const int64_t units = CeilDiv(shape.n, unit), all_units = units * shape.experts;
  const int64_t bytes = EncodedBytes(shape.w, shape.n, shape.k) * shape.experts;
  // Narrow: fewer columns than threads could share. Each part of the depth must still be worth a task.
  int64_t parts = 1;
  if (all_units < kNarrowTasks) {
    parts = std::clamp<int64_t>(bytes / all_units / kMinTaskBytes, 1, CeilDiv(kNarrowTasks, all_units));
  }
  const int64_t depth_unit = DepthUnit(family, shape);
  b.block_k = parts == 1 ? shape.k : std::min(shape.k, CeilDiv(CeilDiv(shape.k, parts), depth_unit) * depth_unit);
  parts = CeilDiv(shape.k, b.block_k);
  // As many rounds as keep a task under the most bytes; some for stealing while a task keeps the least.
  const int64_t threads = target.threads, part_units = all_units * parts;
  int64_t rounds = std::max<int64_t>(CeilDiv(bytes, threads * kMaxTaskBytes),
                                     std::min<int64_t>(kTasksPerThread, bytes / threads / kMinTaskBytes));
  rounds = std::clamp<int64_t>(rounds, 1, std::max<int64_t>(1, part_units / threads));
  const int64_t matrices = shape.experts * parts;
  const int64_t cuts = BestCuts(std::clamp<int64_t>(rounds * threads / matrices, 1, units), units, matrices, threads);
  b.chunk = CeilDiv(units, cuts) * unit;
  b.block_n = std::min<int64_t>(b.chunk, kFewTiles * kTileColumns);
  b.tasks = cuts * matrices;
  b.threads_n = static_cast<int>(std::min(threads, cuts * shape.experts));
  b.threads_k = static_cast<int>(std::min(threads / b.threads_n, parts));
  const int64_t last = b.tasks % threads;
  b.busy_threads = static_cast<int>(last == 0 ? threads : last);
  const double each = AmxCycles(family, shape, shape.m, shape.n, b.block_k) +
                      UnpackCycles(shape.w.type, shape.a) * static_cast<double>(shape.n * shape.k);
  // One of each matrix's parts of depth costs each / parts.
  const double turn = static_cast<double>(LongestTurn(cuts, units, matrices, threads));
  SetCost(shape, target, each / static_cast<double>(parts * units) * turn, &b);
  return b;
}

// Cache blocks for a thread's share of m rows and n columns.
void BlockMany(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target, int64_t m, int64_t n,
               Blocking* b) {
  const int64_t bytes = ElementBytes(shape.a), unit = DepthUnit(family, shape);
  // The panel of A, 32 rows of block_k, stays in two thirds of L1, the stream of B tiles in the rest. Of two by two
  // tiles A and B from L2 would be four tiles for four TDPs, 64 bytes a cycle where it gives 48; B alone is 32. Blocks
  // of equal depth.
  const int64_t most_k = std::max(unit, target.l1d_bytes * 2 / 3 / (kBlockRows * bytes) / unit * unit);
  const int64_t parts = CeilDiv(shape.k, most_k);
  b->block_k = std::min(shape.k, CeilDiv(CeilDiv(shape.k, parts), unit) * unit);
  // Unpacked B in half of L2; f32 sums of all rows in a quarter; the rest is for A on its way. Two register blocks of
  // columns at least, so that A's panel is used from L1 as often as it is loaded.
  const int64_t half = target.l2_bytes / 2 / (b->block_k * bytes), quarter = target.l2_bytes / 4 / (4 * m);
  const int64_t least = std::min<int64_t>(half, 2 * kBlockColumns);
  b->block_n = std::clamp(std::min(half, quarter), least, half) / kBlockColumns * kBlockColumns;
  b->block_n = std::min(CeilDiv(n, kTileColumns) * kTileColumns, std::max(b->block_n, kBlockColumns));
  const int64_t rows = std::max(kBlockRows, target.l2_bytes / 4 / (4 * b->block_n) / kBlockRows * kBlockRows);
  b->block_m = std::min(m, rows);
  b->loop_order = b->block_m < m ? "n,m,k,zigzag m" : "n,k,zigzag m";
}

double ManyCycles(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target, int64_t m,
                  int64_t n, const Blocking& b) {
  // The walk goes over each block of weights once for block_m rows.
  const double walks = static_cast<double>(CeilDiv(m, b.block_m));
  const double weights = static_cast<double>(n * shape.k);
  const double unpack = walks * UnpackCycles(shape.w.type, shape.a) * weights;
  // From L3: all of A for each block of columns, all of B for each walk. What comes from memory for the first time is
  // counted there.
  const double read_a = static_cast<double>(CeilDiv(n, b.block_n) * m * shape.k * ElementBytes(shape.a));
  const double first = static_cast<double>(EncodedBytes(shape.w, shape.n, shape.k)) / target.threads;
  const double read_b = std::max(0.0, walks * static_cast<double>(EncodedBytes(shape.w, n, shape.k)) - first);
  return std::max(AmxCycles(family, shape, m, n, b.block_k) + unpack, (read_a + read_b) / kL3Bytes);
}

// The fastest of several ways to cut a product of many rows on tiles.
struct FastestMany {
  Blocking best;
  double cycles = 0;

  void Take(const Blocking& b, double its_cycles) {
    if (best.tasks > 0 && its_cycles >= cycles) return;
    best = b;
    cycles = its_cycles;
  }
  Blocking Finished(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
    best.family = family.name;
    best.tile_m = best.tile_n = 2;
    best.unpack_once = UnpackCycles(shape.w.type, shape.a) > 0;
    SetCost(shape, target, cycles, &best);
    return best;
  }
};

// Many rows of one matrix: strips of columns, in each of which threads share the rows; C in f32. Where the threads do
// not divide evenly, some strips have a thread more and are wider in proportion: all rectangles are of one area, and
// none idles, also with 43 threads.
Blocking AmxMany(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  const int64_t unit = ColumnUnit(shape.interleaved);
  const int64_t units = CeilDiv(shape.n, unit), down = CeilDiv(shape.m, kTileRows);
  FastestMany best;
  for (int64_t strips = 1; strips <= std::min<int64_t>(target.threads, units); ++strips) {
    int64_t fewer = target.threads / strips, more = CeilDiv(target.threads, strips);
    if (units < target.threads) more = fewer = std::min(fewer, down);  // strips of one width
    if (more > down) continue;
    const int64_t threads = units < target.threads ? fewer * strips : target.threads;
    // The rectangles of a strip with fewer threads, and of one with more.
    const auto rows = [&](int64_t t) { return std::min(shape.m, CeilDiv(down, t) * kTileRows); };
    const auto columns = [&](int64_t t) { return std::min(units, CeilDiv(units * t, threads)) * unit; };
    Blocking b;
    BlockMany(family, shape, target, rows(fewer), columns(more), &b);
    // A thread takes one block of columns at a time, all of equal width.
    const int64_t turns = CeilDiv(columns(more), std::max(b.block_n, unit));
    b.chunk = CeilDiv(columns(more) / unit, turns) * unit;
    b.block_n = std::min(b.block_n, b.chunk);
    b.threads_m = static_cast<int>(fewer);
    b.threads_n = static_cast<int>(strips);
    b.tasks = threads * turns;
    b.busy_threads = static_cast<int>(threads);
    const double cycles = std::max(ManyCycles(family, shape, target, rows(fewer), columns(fewer), b),
                                   ManyCycles(family, shape, target, rows(more), columns(more), b));
    best.Take(b, cycles);
  }
  return best.Finished(family, shape, target);
}

// Runs of many rows: threads take ranges of the experts' columns in turn, or of their rows where a run is long.
Blocking AmxRuns(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  const int64_t unit = ColumnUnit(shape.interleaved);
  const int64_t units = CeilDiv(shape.n, unit), down = CeilDiv(shape.m, kTileRows);
  const int64_t threads = target.threads;
  FastestMany best;
  for (int64_t tm = 1; tm <= std::min(threads, down); tm *= 2) {
    const int64_t across = std::clamp<int64_t>(threads / tm / shape.experts, 1, units);
    const int64_t m = std::min(shape.m, CeilDiv(down, tm) * kTileRows), n = CeilDiv(units, across) * unit;
    Blocking b;
    BlockMany(family, shape, target, m, n, &b);
    const int64_t least = std::min(units, across * CeilDiv(n, std::max(b.block_n, unit)));
    const int64_t cuts = BestCuts(least, units, tm * shape.experts, threads);
    b.chunk = CeilDiv(units, cuts) * unit;
    b.block_n = std::min(b.block_n, b.chunk);
    b.threads_m = static_cast<int>(tm);
    b.threads_n = static_cast<int>(std::min(threads / tm, cuts * shape.experts));
    b.tasks = tm * cuts * shape.experts;
    const int64_t last = b.tasks % threads;
    b.busy_threads = static_cast<int>(last == 0 ? threads : last);
    const double cycles =
        ManyCycles(family, shape, target, m, b.chunk, b) * static_cast<double>(CeilDiv(b.tasks, threads));
    best.Take(b, cycles);
  }
  return best.Finished(family, shape, target);
}

// Vector kernels for encodings without panels yet: the shapes of gemm_plan_fma.cc with another reader of weights.
Blocking Vectors(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  Blocking b;
  b.family = family.name;
  const int per_panel = kPanelColumns / family.lanes;
  const bool few = shape.m <= kMaxFewRows;
  const int most_rows = family.lanes == 16 ? 12 : 6;
  b.tile_m = few ? static_cast<int>(shape.m) : most_rows;
  b.tile_n = few ? per_panel : 2;
  b.block_m = few ? shape.m : std::min(shape.m, kVectorRows);
  b.block_n = kPanelColumns;
  // Half of L2 for the unpacked panel, a dword for each k or pair or four of a column.
  const int64_t unit = std::lcm(DepthUnit(family, shape), int64_t{32});
  const int64_t most_k = std::max(unit, target.l2_bytes / 2 / (kPanelColumns * 4) * family.k_per_dot / unit * unit);
  b.block_k = few ? shape.k : std::min(shape.k, most_k);
  b.loop_order = few ? "n,k" : b.block_m < shape.m ? "n,m,k,m" : "n,k,m";
  const double unpack = UnpackCycles(shape.w.type, shape.a);
  b.unpack_once = !few && unpack > 0;
  const int64_t columns = PackedColumns(shape.n, shape.interleaved);
  SharePanelTasks(columns / kPanelColumns, EncodedBytes(shape.w, kPanelColumns, shape.k), shape.m, shape.experts,
                  target.threads, &b);
  const double weights = static_cast<double>(columns * shape.k * shape.experts);
  const double dots = weights * static_cast<double>(shape.m) / family.lanes / family.k_per_dot * family.dot_cycles;
  // Each task that has some of the rows unpacks its panels for them.
  const double walks = static_cast<double>(std::max<int64_t>(b.threads_m, CeilDiv(shape.m, b.block_m)));
  SetCost(shape, target, (dots + walks * unpack * weights) * LargestShare(b, target.threads), &b);
  return b;
}

}  // namespace

std::span<const KernelFamily> KernelFamilies() { return kFamilies; }

std::string ModelRefusal(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  const DType w = shape.w.type;
  const auto takes = [&](DType a) {
    return shape.a == a ? std::string() : fmt::format("activations are {}, it takes {}", Name(shape.a), Name(a));
  };
  if (!HasPanels(w) && !Plain(w)) return fmt::format("{} weights have no packed layout", Name(w));
  if (family.name == "amx_bf16") {
    if (w == DType::kF32 || w == DType::kF16) return fmt::format("bf16 tiles would round {} weights", Name(w));
    return takes(DType::kBF16);
  }
  if (family.name == "amx_int8") {
    if (IsQuantized(w)) return takes(DType::kQ8Act);
    return w == DType::kI8 ? takes(DType::kI8Act) : fmt::format("{} weights are no integers of 8 bits", Name(w));
  }
  if (family.name == "avx512_vnni") {
    if (w != DType::kI8) return fmt::format("{} weights are no integers of 8 bits", Name(w));
    if (target.isa >= Isa::kAmx) return "u8 by s8 needs a compensation, which weights for tiles (s8 by s8) lack";
    return takes(DType::kI8Act);
  }
  return takes(family.name == "avx512_bf16" ? DType::kBF16 : DType::kF32);
}

Blocking ModelBlocking(const KernelFamily& family, const BlockingShape& shape, const TargetInfo& target) {
  if (!family.tiles) return Vectors(family, shape, target);
  if (shape.m <= kTileRows) return AmxFew(family, shape, target);
  return shape.experts == 1 ? AmxMany(family, shape, target) : AmxRuns(family, shape, target);
}

double LargestShare(const Blocking& b, int threads) {
  return static_cast<double>(CeilDiv(b.tasks, threads)) / static_cast<double>(b.tasks);
}

void SharePanelTasks(int64_t panels, int64_t panel_bytes, int64_t rows, int64_t experts, int threads, Blocking* b) {
  const int64_t wanted = std::max<int64_t>(1, int64_t{threads} * kTasksPerThread / experts);
  const PanelTasks share = SharePanels(panels, panel_bytes, rows, wanted);
  const int64_t across = CeilDiv(panels, share.panels) * experts;
  const int64_t down = share.rows > 0 ? CeilDiv(rows, share.rows) : 1;
  b->chunk = std::min(share.panels, panels) * kPanelColumns;
  b->tasks = across * down;
  b->threads_n = static_cast<int>(std::min<int64_t>(threads, across));
  b->threads_m = static_cast<int>(std::min<int64_t>(threads / b->threads_n, down));
  const int64_t last = b->tasks % threads;
  b->busy_threads = static_cast<int>(last == 0 ? threads : last);
}

void SetCost(const BlockingShape& shape, const TargetInfo& target, double cycles, Blocking* b) {
  const double products = static_cast<double>(shape.n * shape.k) * static_cast<double>(shape.m * shape.experts);
  const double peak = PeakGflops(b->family, target) * target.threads;
  b->compute_us = cycles / Mhz(b->family, target);
  if (peak > 0) b->compute_us = std::max(b->compute_us, 2 * products / peak / 1e3);
  const double bytes =
      static_cast<double>(EncodedBytes(shape.w, shape.n, shape.k)) * static_cast<double>(shape.experts);
  double rate = target.node_read_gb_s;
  if (target.core_read_gb_s > 0) {
    const double cores = target.core_read_gb_s * target.threads;
    rate = rate > 0 ? std::min(rate, cores) : cores;
  }
  b->memory_us = rate > 0 ? bytes / rate / 1e3 : 0;
  b->cost_us = std::max(b->compute_us, b->memory_us);
  b->reason = fmt::format("{:.3g} us of arithmetic", b->compute_us);
  b->reason += rate > 0 ? fmt::format(", {:.3g} us of reading", b->memory_us) : std::string(", reading not measured");
}

}  // namespace xjit
