// Plans of the int8 gemm: which products it takes, register and cache blocks and prefetch.
#include <algorithm>
#include <limits>

#include "codegen/gemm/gemm_int8.h"
#include "codegen/gemm/gemm_int8_plan.h"
#include "codegen/gemm/gemm_int8_tile.h"
#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Offsets of rows and panels are immediate operands and displacements of 32 bits.
constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max() / 2;
// Rows that go over one block of k where k is blocked.
constexpr int64_t kBlockRows = 128;

absl::Status Check(const char* row, Isa least, const GemmDesc& desc, const TargetInfo& target) {
  if (target.isa < least) return FailedPrecondition("gemm {}: the target has {} only", row, Name(target.isa));
  if (desc.a != DType::kI8Act) return Unimplemented("gemm {}: activations are {}, not i8act", row, Name(desc.a));
  const bool one_scale = desc.w.scales.kind == Scales::Kind::kChannel || desc.w.scales.kind == Scales::Kind::kTensor;
  if (desc.w.type != DType::kI8 || !one_scale) {
    return Unimplemented("gemm {}: weights are {}, not i8 with a scale a column", row, ToString(desc.w));
  }
  if (desc.k > kMaxInt8Depth) return Unimplemented("gemm {}: k = {} is more than {}", row, desc.k, kMaxInt8Depth);
  if (desc.strips != (desc.rows == 0)) {
    return Unimplemented("gemm {}: many rows of i8act come in strips, few do not", row);
  }
  XJIT_RETURN_IF_ERROR(CheckSizes(desc));
  if (desc.lda_bytes * std::max(desc.rows, 1) + ActivationRowBytes(desc) > kMaxOffset ||
      desc.ldc_bytes * kBlockRows > kMaxOffset) {
    return Unimplemented("gemm {}: rows of {} and {} bytes exceed 32-bit offsets", row, desc.lda_bytes, desc.ldc_bytes);
  }
  return absl::OkStatus();
}

// Rows of a register block: with 32 registers 16 of them are sums of many rows, of 8 x 2 vectors; with 16, 12 or 8.
int TileRows(const GemmDesc& desc, bool wide, bool pairs) {
  const int most = wide ? 8 : pairs ? 2 : 3;
  return desc.rows > 0 ? std::min(desc.rows, most) : most;
}

// Many rows read the panel again for each register block, from L2: only where it would fill more than half of that k is
// blocked. Few rows that take more than one register block read it again from L1.
void BlockDepth(const GemmDesc& desc, const TargetInfo& target, GemmPlan* plan) {
  const int64_t depth = AlignUp(desc.k, kInt8Chunk);
  const int64_t bytes = desc.rows == 0 ? target.l2_bytes / 2 : target.l1d_bytes / 2;
  const int64_t most = std::max<int64_t>(1, bytes / kInt8ChunkBytes) * kInt8Chunk;
  plan->k_block = depth;
  if (desc.rows > 0 && plan->tile_rows == desc.rows) return;
  const int64_t parts = CeilDiv(depth, most);
  plan->k_block = AlignUp(CeilDiv(depth, parts), kInt8Chunk);
  if (desc.rows == 0 && parts > 1) plan->m_block = kBlockRows;
}

// Weights in memory, alternated with an ascending reader, one thread, 8192 x 3072 (EPYC, Zen 5; share of the reader's
// speed): 1 row 100% without prefetch, 97% with T0 8 KiB ahead; 2 rows 93 and 87%; 4 rows 79 and 89-92%; 8 rows 68 and
// 89%. With 32 KiB of L1 data T1 is better (gemm_plan_vnni.cc).
void ChoosePrefetch(const GemmDesc& desc, const TargetInfo& target, GemmPlan* plan) {
  if (desc.rows <= 2) return;
  plan->prefetch = HasLargeL1(target) ? PrefetchHint::kT0 : PrefetchHint::kT1;
  plan->prefetch_distance = PrefetchAhead(target);
  plan->prefetch_every = 64;
}

GemmPlan PlanFor(const GemmDesc& desc, const TargetInfo& target, bool wide, Int8Dot dot) {
  const bool pairs = dot == Int8Dot::kPairs;
  GemmPlan plan;
  plan.vex_dot = dot == Int8Dot::kVex;
  plan.tile_vectors = wide ? 2 : 4;
  plan.tile_rows = TileRows(desc, wide, pairs);
  BlockDepth(desc, target, &plan);
  if (desc.rows > 0) {
    plan.streams_weights = true;
    ChoosePrefetch(desc, target, &plan);
  } else {
    plan.prefetch_next_panel = true;
    // 512 x 4096 x 4096: 92 -> 93% of the peak of vpdpbusd; 128 x 2048 x 7168: within noise (Zen 5).
    plan.prefetch_a = !pairs;
  }
  const bool blocked = plan.k_block < desc.k;
  plan.scratch_bytes = Int8PairsScratch(desc, plan, pairs) +
                       (blocked ? (desc.rows > 0 ? desc.rows : plan.m_block) * kPanelColumns * 4 : 0);
  // Multiplications, at one a cycle.
  plan.cost = static_cast<double>(CeilDiv(desc.k, 4)) * (pairs ? 2 : 1) / (wide ? 16 : 8);
  return plan;
}

}  // namespace

int64_t Int8PairsScratch(const GemmDesc& desc, const GemmPlan& plan, bool pairs) {
  if (!pairs) return 0;
  const int64_t rows = desc.rows > 0 ? desc.rows : kStripRows;
  const int64_t depth = desc.rows > 0 ? AlignUp(desc.k, kInt8Chunk) : plan.k_block;
  return rows * depth * 2;
}

absl::StatusOr<GemmPlan> PlanGemmInt8Vnni(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check("int8_vnni", Isa::kAvx512Vnni, desc, target));
  return PlanFor(desc, target, true, Int8Dot::kEvex);
}

absl::StatusOr<GemmPlan> PlanGemmInt8Avx512(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check("int8_avx512", Isa::kAvx512, desc, target));
  return PlanFor(desc, target, true, Int8Dot::kPairs);
}

absl::StatusOr<GemmPlan> PlanGemmInt8Avx2(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check("int8_avx2", Isa::kAvx2, desc, target));
  return PlanFor(desc, target, false, target.avx_vnni ? Int8Dot::kVex : Int8Dot::kPairs);
}

}  // namespace xjit
