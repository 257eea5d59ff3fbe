// How the kernels with f32 sums run: shape, register block and cache blocks, from the descriptor and the cache sizes.
#include <algorithm>

#include "codegen/gemm/gemm_fma.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/pair_reader.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Rows whose sums wait in scratch at a time, where they have to: 64 KiB a panel, far below any L2, and unpacking a
// panel again for the next so many rows costs less than 1% (by the instructions that PlanFloat counts). A multiple of
// 16 and of 12, whole groups of rows.
constexpr int64_t kMostRows = 528;

// Panels side by side: rows of A come from L3 half as often, which is worth 1.5% (EPYC 9005, bf16 1024x8192x3072); with
// four the blocks are too short.
constexpr int kPanelsTogether = 2;

// From panel to panel; the emitter adds it as an immediate.
constexpr int64_t kMostStride = int64_t{1} << 30;

constexpr int kRowBytes = kPanelColumns * 4;  // of the sums, and of one unpacked k

// Steps that cannot be divided between k blocks: units of the weights and chunks of A; whole scale blocks, if there are
// several.
int64_t StepUnit(const GemmDesc& desc, const FloatOps& ops) {
  if (!ReadsPairs(desc, ops)) return std::max(32, WeightUnit(ReadAs(desc, ops)));
  const ScaledBlocks blocks = ScaledBlocksOf(desc.w, desc.k);
  return blocks.count(desc.k) > 1 ? blocks.depth / 2 : 32;
}

// Steps whose unpacked rows take `bytes`: whole units, at least one.
int64_t BlockOf(int64_t bytes, int64_t unit) { return std::max(unit, bytes / kRowBytes / unit * unit); }

// Panels side by side. The readers of scaled f32 weights keep state from one unit of a panel to the next.
int64_t PanelsTogether(const GemmDesc& desc, const FloatOps& ops) {
  const bool state = HasScalesOutside(desc.w.type) && !ops.dot;
  return state || PanelBytes(desc.w, desc.k) >= kMostStride ? 1 : std::min<int64_t>(desc.panels(), kPanelsTogether);
}

// Vector registers of the stream shape: sums, weights on their way, broadcast activations.
int StreamVectors(const GemmDesc& desc, const FloatOps& ops, bool vbmi) {
  const int weights =
      ReadsPairs(desc, ops) ? PairVectors(desc.w, vbmi) : WeightVectors(ReadAs(desc, ops), ops.wide, vbmi);
  return desc.rows * (ops.wide ? 2 : 4) + weights + (ops.wide ? 2 : 1);
}

// Vector instructions for one vector of weights before it can be multiplied (gemm_fma_weights.cc).
double UnpackInstructions(const Encoding& w, const FloatOps& ops) {
  if (ops.dot && HasScalesOutside(w.type)) return w.type == DType::kI8 ? 3 : 2;
  switch (w.type) {
    case DType::kF8E4M3:
      return 5;
    case DType::kF32:
      return 0;
    case DType::kF16:
    case DType::kBF16:
      return 1;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kQ3_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMxfp4:
      return 4.5;
    default:
      return 3.5;
  }
}

// Prefetches of every line, for few rows. Where a row or two of f32 or bf16 pairs leave the loads time to run ahead,
// the hardware follows the stream at full speed and a prefetch only costs. Elsewhere it gains (EPYC 9005, one thread,
// share of an ascending read at 37-42 GB/s, without, with 4 and with 8 KiB ahead): bf16 dot 4 rows 90, 96, 99%, 8 rows
// 79, 89, 94%; f16 4 rows 64, 85, 97%; f8e4m3 1 row 86, 94, 101%, 4 rows 59, 82, 95%; f32 8 rows 74, 91, 95%. 10 KiB is
// better still (kPrefetchT0Ahead); 12 to 32 KiB and T1 are not.
void SetFewRowsPrefetch(const Encoding& w, const FloatOps& ops, int rows, const TargetInfo& target, GemmPlan* plan) {
  if (w.type == DType::kF32 && rows <= (ops.wide ? 2 : 1)) return;
  plan->prefetch = PrefetchHint::kT0;
  plan->prefetch_distance = PrefetchAhead(target);
  plan->prefetch_every = 64;
}

}  // namespace

absl::Status CheckFloatDesc(const GemmDesc& desc, DType a) {
  if (desc.a != a) return Unimplemented("activations are {}, this kernel takes {}", Name(desc.a), Name(a));
  if (!HasPanels(desc.w)) return Unimplemented("{} weights have no packed layout", ToString(desc.w));
  const bool strips = a == DType::kBF16 && desc.rows == 0;
  if (desc.strips != strips) {
    return Unimplemented("activations are in {}, this kernel takes {}", desc.strips ? "strips" : "rows",
                         strips ? "strips" : "rows");
  }
  XJIT_RETURN_IF_ERROR(CheckSizes(desc));
  // A register block's rows are addressed by 32-bit displacements.
  constexpr int64_t kMostRowBytes = int64_t{1} << 26;
  if (std::max({desc.lda_bytes, desc.ldc_bytes, ActivationRowBytes(desc)}) > kMostRowBytes) {
    return Unimplemented("a row of {} or {} bytes is longer than {}", desc.lda_bytes, desc.ldc_bytes, kMostRowBytes);
  }
  return absl::OkStatus();
}

PanelScratch PanelScratchOf(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, int64_t steps) {
  // Without m_block sums wait for nothing but the epilogue of their register block.
  PanelScratch scratch{.panels = std::max<int64_t>(1, plan.n_block),
                       .sums = (plan.m_block > 0 ? plan.m_block : plan.tile_rows) * kRowBytes};
  if (ReadsPairs(desc, ops)) {
    const ScaledBlocks blocks = ScaledBlocksOf(desc.w, desc.k);
    scratch.weights = AlignUp(steps, kTileSteps) * kRowBytes;
    scratch.scales = blocks.count(desc.k) > 1 ? CeilDiv(2 * steps, blocks.depth) * kRowBytes : kRowBytes;
  } else if (ReadAs(desc, ops).type != DType::kF32) {
    scratch.weights = steps * kRowBytes;
  }
  return scratch;
}

GemmPlan PlanFloat(const GemmDesc& desc, const TargetInfo& target, const FloatOps& ops) {
  const int64_t steps = Steps(desc, ops);
  // What is between the packed bytes and the multiplication.
  const Encoding w = ReadsPairs(desc, ops) ? desc.w : ReadAs(desc, ops);
  const int registers = ops.wide ? 32 : 16;
  const int lanes = ops.wide ? 16 : 8;
  GemmPlan plan;
  plan.streams_weights = desc.rows > 0;
  plan.vbmi = target.vbmi && ops.wide && HasScalesOutside(w.type);
  // Two multiply ports, four vector ports.
  const double multiply = static_cast<double>(steps) / lanes * 0.5;
  const double unpack = static_cast<double>(desc.k) / lanes * 0.25 * UnpackInstructions(w, ops);
  if (desc.rows > 0 && StreamVectors(desc, ops, plan.vbmi) <= registers) {
    plan.tile_rows = desc.rows;
    plan.tile_vectors = kPanelColumns / lanes;
    plan.k_block = ReadsPairs(desc, ops) ? PairUnit(w) : WeightUnit(w);
    SetFewRowsPrefetch(w, ops, desc.rows, target, &plan);
    plan.cost = multiply + unpack / desc.rows;
    return plan;
  }
  // 8 x 2 sums reach the same speed as 12 x 2 with their operands in L1, and with operands in L2 3% more (EPYC 9005):
  // a strip is two such blocks.
  const int64_t unit = StepUnit(desc, ops);
  const int most_tile_rows = ops.wide ? 8 : 6;
  plan.tile_vectors = kTileVectors;
  if (desc.rows > 0) {
    // The unpacked block goes through L1.
    plan.tile_rows = desc.rows <= most_tile_rows ? desc.rows : (desc.rows + 1) / 2;
    plan.m_block = desc.rows;
    plan.k_block = std::min(steps, BlockOf(target.l1d_bytes / 4, unit));
    plan.cost = multiply + unpack / desc.rows;
  } else {
    plan.tile_rows = most_tile_rows;
    plan.n_block = PanelsTogether(desc, ops);
    // All of k where its blocks fit 3/8 of L2, since as much is prefetched and A passes through: a block's end costs a
    // register block 30 cycles. Else blocks alike of at most a quarter (EPYC 9005, bf16 128x2048x7168: 896 dwords 95%,
    // 1216 93%, 608 94%).
    plan.k_block = steps;
    if (steps > BlockOf(target.l2_bytes * 3 / 8 / plan.n_block, unit)) {
      const int64_t most = BlockOf(target.l2_bytes / 4 / plan.n_block, unit);
      plan.k_block = std::min(most, AlignUp(CeilDiv(steps, CeilDiv(steps, most)), unit));
      plan.m_block = kMostRows;
    }
    plan.prefetch_next_panel = true;
    // The next chunk (EPYC 9005, 1024x8192x3072, 512x4096x4096, 128x2048x7168, conversion included):
    // bf16 92.3, 91.8, 90.1 to 95.0, 94.5, 92.3% of the peak, with two threads 91.7, 90.9, 88.4 to 93.6, 92.3, 91.4;
    // f32 93.0, 93.7, 91.0 to 93.6, 94.3, 92.1. Further ahead is no better. Without AVX-512 not measured.
    plan.prefetch_a = ops.wide;
    plan.cost = multiply + unpack / 64;
  }
  plan.scratch_bytes = PanelScratchOf(desc, plan, ops, plan.k_block).bytes();
  if (ops.dot) plan.k_block *= 2;
  if (desc.rows > 0) SetFewRowsPrefetch(w, ops, desc.rows, target, &plan);
  return plan;
}

absl::StatusOr<GemmPlan> PlanGemmFma512(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(CheckFloatDesc(desc, DType::kF32));
  return PlanFloat(desc, target, {.wide = true});
}

absl::StatusOr<GemmPlan> PlanGemmFma2(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(CheckFloatDesc(desc, DType::kF32));
  return PlanFloat(desc, target, {.wide = false});
}

}  // namespace xjit
