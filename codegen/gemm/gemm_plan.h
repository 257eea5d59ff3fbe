// How a matrix product runs: the one plan struct of all gemm kernels. A planner fills it from the descriptor and the
// machine, an emitter obeys it and decides nothing. Plain, printable, comparable.
#pragma once

#include <cstdint>
#include <string>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

struct GemmPlan {
  // Rows of C of one register block; with many rows (desc.rows = 0) the emitter also emits a body for each smaller
  // count, so that no row outside the call is touched.
  int tile_rows = 0;
  // Vectors of columns of one register block.
  int tile_vectors = 2;
  // Depth that one unpacked panel block covers (many rows), or one pass of the loop over k (few rows).
  int64_t k_block = 0;
  // Many rows: calls of at most so many rows, whose activations stay in L2, take k blocks of this depth, which stay in
  // L1. 0: k_block serves all.
  int64_t near_rows = 0, near_k_block = 0;
  // Rows that share one unpacked k block when k is blocked; 0: all rows of the call.
  int64_t m_block = 0;
  // Many rows: panels that share one reading of A, since a register block's rows go over them all while they are in L1.
  // Vectors take two side by side, tiles as many as L2 has room for. 0: one after the other, each with all rows. A
  // call of fewer panels reads A more often, so tasks are cut by it (SharePanels()).
  int64_t n_block = 0;
  // The emitter obeys the three fields below: few rows on vectors. Others copy or read weights in an order of their
  // own.
  bool streams_weights = false;
  // Software prefetch of packed weights: one prefetch each `prefetch_every` bytes, `prefetch_distance` bytes ahead.
  PrefetchHint prefetch = PrefetchHint::kNone;
  int prefetch_distance = 0;
  int prefetch_every = 0;
  // Many rows: while rows run, bytes of the next panel are prefetched into L2 (prefetcht1), by avx512_vnni one each
  // `prefetch_every` bytes.
  bool prefetch_next_panel = false;
  // Many rows: what comes next of a tile's rows is prefetched into L1.
  bool prefetch_a = false;
  // Tables of 64 and 128 bytes are looked up in registers (vpermb, vpermi2b).
  bool vbmi = false;
  // ymm with vpdpbusd (AVX-VNNI).
  bool vex_dot = false;
  // Bytes of GemmArgs::scratch of each thread.
  int64_t scratch_bytes = 0;
  // Estimated cycles of one core for one row times one column, whole k, weights in L2. Compared between kernels that
  // accept the same descriptor.
  double cost = 0;
  bool operator==(const GemmPlan&) const = default;
};

// "tile_rows 1, k_block 256, prefetch t1 +8192 every 384, scratch 0, cost 138.0"
std::string ToString(const GemmPlan& plan);

// What every kernel asks of sizes: whole panels, whole blocks of weights, a number of rows that there is, rows of A and
// C that do not overlap, and a part that is what GemmDesc::depth says.
absl::Status CheckSizes(const GemmDesc& desc);

// How far ahead few rows prefetch every line of packed weights into an L1 of 48 KiB. EPYC 9005, 1 thread, 8 and 10 KiB
// ahead, share of an ascending read at 42 GB/s: one row of q5_k 94 and 97; four rows of q4_k 84 and 87, q5_k 86 and 91,
// q6_k 93 and 99, int4 88 and 93, mxfp4 85 and 92, fp8 92 and 97, int8 and bf16 the same; 2 threads and other encodings
// the same. 12 KiB is no better, 14 is worse.
inline constexpr int kPrefetchT0Ahead = 10 << 10;
inline bool HasLargeL1(const TargetInfo& target) { return target.l1d_bytes >= 48 << 10; }
// With a smaller one 8 KiB, as measured on Zen 4 (gemm_plan_vnni.cc).
inline int PrefetchAhead(const TargetInfo& target) { return HasLargeL1(target) ? kPrefetchT0Ahead : 8 << 10; }

// prefetcht0, prefetcht1 or nothing.
void EmitPrefetchAt(PrefetchHint hint, const Xbyak::Address& place, Emitter& e);

// The plan with the prefetch that was measured on the target for such a product, where one was.
GemmPlan WithTuning(const GemmDesc& desc, const TargetInfo& target, GemmPlan plan);

// AVX512-VNNI, a = kQ8Act, any quantised w: vpdpbusd on weights unpacked to u8. Refuses (with the reason) what it does
// not do. Results do not depend on desc.rows, on the plan, or on how calls split panels and rows.
absl::StatusOr<GemmPlan> PlanGemmVnni(const GemmDesc& desc, const TargetInfo& target);
absl::Status EmitGemmVnni(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
