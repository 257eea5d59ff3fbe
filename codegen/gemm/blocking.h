// How a matrix product is cut up for one machine: kernel family, register or tile grid, cache blocks, and the shares of
// threads. Functions of numbers alone; passes/plan_blocking.cc writes the answer into the IR. passes/lower.cc takes the
// kernel from there and refuses a layout that nobody packs; block sizes come from that kernel's plan and the threads'
// shares from SharePanels(), which is where the answer has them from.
//
// A family with a row in kernels.inc is asked for its plan where the weight lies in panels, which is all that those
// rows read, so that what is printed is what runs. For the others (AMX; weights that lie otherwise) the plan is made
// here, for an emitter that obeys it.
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
  DType a = DType::kF32;     // activations: kF32, kBF16, kQ8Act, kI8Act
  bool interleaved = false;  // of gate and up, 16 columns each
  std::string layout;        // of the weight's bytes; empty: PackedLayout()
};

struct Blocking {
  std::string_view family;  // "amx_bf16", "amx_int8", "avx512_vnni", "avx512_bf16", "avx512", "avx2"
  bool refused = false;     // then `reason` says why, and the rest is empty
  bool exists = false;      // a row of kernels.inc does it, from panels
  // Rows and columns of sums held at a time: AMX in tiles of 16 x 16, else rows x vectors.
  int tile_m = 0, tile_n = 0;
  // Sizes that caches ask for: rows that share a block of weights, its columns, its depth.
  int64_t block_m = 0, block_n = 0, block_k = 0;
  std::string loop_order;  // of blocks, the outermost first: "n,k,m"; "n,k,zigzag m" walks rows to and fro
  // Threads at work side by side on rows, columns and depth; where they do not divide evenly, some strips of columns
  // have one more over their rows and are wider in proportion. Depth is cut by shape alone, so that the order of a sum
  // does not depend on the number of threads.
  int threads_m = 1, threads_n = 1, threads_k = 1;
  // Most columns that a thread takes at a time: ranges of whole units, none longer than another by more than one unit.
  int64_t chunk = 0;
  int64_t tasks = 0;         // of all columns, rows and depths
  bool unpack_once = false;  // a block of weights is converted once, into cache, for all rows of the walk
  int busy_threads = 0;      // with work in the last round
  double compute_us = 0, memory_us = 0;
  double cost_us = 0;  // the larger of both
  std::string reason;
};

// One candidate for each family that the target's ISA has, the highest first.
std::vector<Blocking> BlockingCandidates(const BlockingShape& shape, const TargetInfo& target);
// The cheapest that is not refused; of two that memory makes equal, the one with less to compute. Refused if all are.
Blocking ChooseBlocking(std::span<const Blocking> candidates);
Blocking ChooseBlocking(const BlockingShape& shape, const TargetInfo& target);

// What the plan of a row of kernels.inc makes of `rows` rows of each of `experts` matrices and that many threads;
// without costs.
Blocking BlockingOf(const GemmDesc& desc, const GemmPlan& plan, int64_t rows, int64_t experts, int threads);

// The least columns that a task may have: 16, one tile or vector; of an interleaved weight 16 of each part.
int64_t ColumnUnit(bool interleaved);

// Tasks of a shared stage for each thread: enough that a thread which was slowed for a moment is relieved by the
// others, few enough that taking them (10 to 20 ns each) does not show.
inline constexpr int kTasksPerThread = 4;
// A task of a few-row product reads 32 to 256 KiB, 1 to 8 us at 30 GB/s: in a small model's stages taking tasks stays
// under 2% of the time, in a large one's no thread waits long for the last task.
inline constexpr int64_t kMinTaskBytes = int64_t{32} << 10, kMaxTaskBytes = int64_t{256} << 10;

// How the panels of a product and its rows are cut into at least so many tasks (as far as it has work for them).
struct PanelTasks {
  int64_t panels = 1;  // of a task
  int64_t rows = 0;    // of a task; 0: all
};
PanelTasks SharePanels(int64_t panels, int64_t panel_bytes, int64_t rows, int64_t tasks);

// What the packer (pack.h) makes and the rows of kernels.inc read.
inline constexpr std::string_view kPanelLayout = "panels.32";

// The name of the order in which the bytes of a weight should lie in memory:
//   panels.32          pack.h
//   vnni2.16x32        bf16 tiles of 16 columns x 32 k, [16 k/2][16][2], 1 KiB each: what a tile load takes at its best
//                      (strided tile loads are slower than compact ones: github.com/usstq/mm_amx, README), and
//                      ascending for the few-row stream
//   vnni4.16x64        int8 tiles [16 k/4][16][4], f32 column scales in front; tdpbssd multiplies s8 by s8
//   vnni4.16x64.comp   the same for vpdpbusd, which takes u8 by s8: -128 sum_k w of each column behind its scale
//   f8.vnni2.16x32     bytes so interleaved that the 128-entry table's unpacks (vpermi2b, high and low halves) give
//                      vnni2.16x32; scales beside their 128 k
//   i8.vnni2.16x32     of weight_only: bytes so interleaved that widening them to 16 bits gives vnni2.16x32
//   i4.vnni2.16x32     nibbles of k and k + 16 of a tile in one byte; scales (and zeros) of a group in front of it
//   i8.16, f8.16, i4.16  the same encodings where there are no 16-bit or 8-bit dot products: [k][16]
// Weights exist once, so it does not depend on the number of rows: what many rows read fastest, few rows stream too.
std::string_view PackedLayout(const Encoding& w, Isa isa);

}  // namespace xjit
