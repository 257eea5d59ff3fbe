// Plans of the AVX512-VNNI gemm: which products it takes, and block sizes and prefetch from the encoding and caches.
#include <algorithm>
#include <limits>

#include "codegen/gemm/gemm_vnni_tile.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

// Offsets of rows and panels are immediate operands and displacements of 32 bits.
constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max() / 2;
// Rows that go over one block of k where k is blocked: whole tiles of 4 and of 6.
constexpr int64_t kBlockRows = 120;
// Most rows whose sums are in scratch while k blocks of L1 are unpacked: 64 KiB, which L2 holds beside the activations.
constexpr int64_t kMostNearRows = 512;

absl::Status Check(const GemmDesc& desc, const TargetInfo& target) {
  if (target.isa < Isa::kAvx512Vnni) {
    return FailedPrecondition("gemm avx512_vnni: the target has {} only", Name(target.isa));
  }
  if (desc.a != DType::kQ8Act) return Unimplemented("gemm avx512_vnni: activations are {}, not q8act", Name(desc.a));
  if ((!IsQuantized(desc.w.type) && desc.w.type != DType::kI4) || !HasPanels(desc.w))
    return Unimplemented("gemm avx512_vnni: weights are {}, not a block encoding", ToString(desc.w));
  if (desc.w.type == DType::kI4 && desc.k % kQ8Block != 0) {
    return InvalidArgument("gemm avx512_vnni: k = {} is not a positive multiple of {}, the block of q8act", desc.k,
                           kQ8Block);
  }
  XJIT_RETURN_IF_ERROR(CheckSizes(desc));
  if (desc.lda_bytes * kBlockRows + ActivationRowBytes(desc) > kMaxOffset || desc.ldc_bytes * kBlockRows > kMaxOffset ||
      PanelBytes(desc.w, desc.k) > kMaxOffset) {
    return Unimplemented("gemm avx512_vnni: k = {}, rows of {} and {} bytes exceed 32-bit offsets", desc.k,
                         desc.lda_bytes, desc.ldc_bytes);
  }
  return absl::OkStatus();
}

// Vector multiplications for 16 columns, one row and 32 k (vpdpbusd, vmulps and fma share the multiply ports).
int Multiplications(const VnniWeights& w) {
  if (w.minimum && w.halves()) return 8 + 5;
  return 8 + (w.minimum || w.halves() ? 3 : 2);
}

// Measured with the weights in memory, alternated with an ascending reader, 1 and 2 threads (8192 x 3072, share of the
// reader's speed). Cores with 48 KiB of L1 data: EPYC, Zen 5: every line into L1 is best for all encodings and 1 to 8
// rows (one row 94-103%, without 43-90%; 2 threads 100%). With 32 KiB: EPYC, Zen 4: there dense prefetch costs one row
// 5-30%, and the streamer alone suffices but for the long superblocks of K-quants, where one line in six gains up to 17
// points; from two rows on every line into L2 is best.
void ChoosePrefetch(const GemmDesc& desc, const VnniWeights& weights, const TargetInfo& target, GemmPlan* plan) {
  plan->prefetch_distance = PrefetchAhead(target);
  plan->prefetch_every = 64;
  if (HasLargeL1(target)) {
    plan->prefetch = PrefetchHint::kT0;
  } else if (desc.rows > 1) {
    plan->prefetch = PrefetchHint::kT1;
  } else if (weights.parts > 1) {
    plan->prefetch = PrefetchHint::kT1;
    plan->prefetch_every = 384;
  } else {
    plan->prefetch = PrefetchHint::kNone;
    plan->prefetch_distance = plan->prefetch_every = 0;
  }
}

// Blocks of 32 k in the body of the loop of few rows. Where nobody measured (PrefetchTuning): one, and for one row of
// plain encodings about 1 KiB. One row of a K-quant runs so far ahead of memory that prefetches alone bring all of it,
// and the processor's prefetchers, which follow bodies below 2 KiB (VnniUnpacker), get in their way. Zen 5, bodies of
// 1, 2 and 8 blocks, one thread and two threads at 48 GB/s, share of an ascending read: q4_k 86, 97, 95 and 81, 104,
// 100%; q5_k 93, 89, 95 and 80, 79, 100; q6_k 91, 95, 96 and 82, 91, 101; iq4_xs 88, 91, 94 and 83, 77, 98. Two bits
// take more arithmetic: q2_k 98, 97, 78 and 100, 101, 92; q3_k 99, 97, 71 and 95 (with 4 KiB ahead), 86, 94.
int BodyBlocks(const GemmDesc& desc, const VnniWeights& weights, const TargetInfo& target) {
  int wanted = 1;
  if (desc.rows == 1) {
    wanted = !weights.super_blocks() ? 1280 / weights.step_bytes : weights.bits >= 4 ? weights.parts : 1;
  }
  for (const PrefetchTuning& t : target.prefetch) {
    if (t.For(desc.w.type, desc.rows) && t.k_block > 0) wanted = t.k_block / 32;
  }
  const int64_t blocks = desc.k / 32;
  const auto divides = [&](int n) {
    if (weights.super_blocks()) return weights.parts % n == 0;
    if (weights.far_header()) return weights.far_header_steps % n == 0 && weights.last_header_steps % n == 0;
    return blocks % n == 0;
  };
  int body = std::clamp(wanted, 1, 8);
  while (!divides(body)) --body;
  return body;
}

// Depth of at most `bytes` of unpacked blocks, in parts alike of whole steps.
int64_t DepthOf(int64_t bytes, int64_t blocks, const VnniWeights& weights) {
  const int64_t steps = CeilDiv(blocks, int64_t{weights.parts});
  const int64_t most = std::max<int64_t>(1, bytes / VnniUnpackedBytes(weights) / weights.parts);
  return 32 * weights.parts * CeilDiv(steps, CeilDiv(steps, most));
}

// The unpacked panel is read again for each tile of rows: six rows read it from L2 as fast as from L1 (512 rows, k =
// 1536 and 8960 on Zen 5: blocks of 384 to 768 that stay in L1 gain at most a point, or lose three), but not from L3.
// So k is blocked only where the panel would fill more than half of L2. The four rows of a tile with two int32 sums
// read it half as often again: in blocks of five eighths of L1 (Zen 5, q6_k, k = 1536: 66.5% of the speed of vpdpbusd
// alone against 64.5; 64 rows 63 against 61; a block of half that loses it again). Blocks of 120 rows use a block
// twenty times or more, and their sums are 15 KiB.
//
// Unpacking writes what it unpacks: to L1 it costs as much as the products of 2 rows, to L2 of 5. So calls whose
// activations stay in L2 unpack a block of L1 at a time, and read their activations once for each (Zen 5, k = 1536,
// q4_k with 16, 32, 64, 128 and 256 rows 51.5, 59.1, 64.7, 66.5, 68.9 to 57.6, 64.1, 67.0, 68.3, 69.2%; activations
// that come from L3, 512 rows, k = 8960: 68.2 to 67.5). Three quarters of L2 leave room for the sums and the next
// panel: activations of 1.2 times L2 (512 rows, k = 1536) lose with two threads what they gain with one.
void BlockDepth(const GemmDesc& desc, const VnniWeights& weights, const TargetInfo& target, GemmPlan* plan) {
  const int64_t blocks = desc.k / 32;
  const int64_t near_bytes = target.l1d_bytes / 8 * 5, far_bytes = target.l2_bytes / 2;
  plan->k_block = DepthOf(weights.halves() ? std::min(near_bytes, far_bytes) : far_bytes, blocks, weights);
  if (plan->k_block < desc.k) plan->m_block = kBlockRows;
  const int64_t near_k_block = DepthOf(near_bytes, blocks, weights);
  const int64_t near_rows = std::min(kMostNearRows, target.l2_bytes * 3 / 4 / Q8Layout{desc.k}.row_bytes());
  if (near_k_block >= desc.k || near_rows == 0) return;
  plan->near_k_block = near_k_block;
  plan->near_rows = near_rows;
}

}  // namespace

absl::StatusOr<GemmPlan> PlanGemmVnni(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc, target));
  const VnniWeights weights = VnniWeightsOf(desc.w, desc.k);
  const int64_t blocks = desc.k / 32;
  const double cycles_a_row = static_cast<double>(blocks) * Multiplications(weights) / kGroupColumns;
  GemmPlan plan;
  plan.tile_vectors = kPanelColumns / kGroupColumns;
  if (desc.rows > 0) {
    plan.tile_rows = desc.rows;
    plan.streams_weights = true;
    plan.k_block = 32 * BodyBlocks(desc, weights, target);
    ChoosePrefetch(desc, weights, target, &plan);
    // Unpacking: about 3 operations for each of 8 registers, two a cycle, shared by the rows.
    plan.cost = cycles_a_row + static_cast<double>(blocks) * 12 / kGroupColumns / desc.rows;
    return plan;
  }
  // int32 and f32 sums of a tile are registers: 24 of 32 for 6 x 2, and with two int32 sums for two halves 24 for 4
  // x 2. Zen 5, data in L1: 79.8% of the speed of vpdpbusd alone, where the multiplications of the scales leave 80% (8
  // of 10), with minima 72.5 and halves 72.0 of 72.7% (8 of 11). Activations broadcast by each dot product instead of
  // once for both groups cost 3 to 8 points, and so 5 x 2 for halves, which leaves no register for them; 7 x 2 costs 2.
  plan.tile_rows = weights.halves() ? 4 : 6;
  BlockDepth(desc, weights, target, &plan);
  plan.prefetch_next_panel = true;
  plan.prefetch_every = 64;
  // Rows of a tile that do not stay in L1 from one panel to the next (Zen 5, k = 8960: a point more; k = 1536, where
  // they do: half a point less). Two panels side by side, so that rows come from L3 half as often, gain nothing.
  plan.prefetch_a = plan.tile_rows * Q8Layout{desc.k}.row_bytes() > target.l1d_bytes / 2;
  plan.scratch_bytes = blocks * VnniUnpackedBytes(weights) + std::max(plan.m_block, plan.near_rows) * 128;
  plan.cost = cycles_a_row;
  return plan;
}

}  // namespace xjit
