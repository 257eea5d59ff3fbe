// How AMX products run: cache blocks from the machine's cache sizes, and what they cost.
#include <algorithm>
#include <cmath>
#include <limits>

#include "codegen/gemm/gemm_amx.h"
#include "codegen/gemm/gemm_amx_layout.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/gemm_int8_plan.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// One TDP of full tiles in 16 cycles; L2 gives a core 48 bytes a cycle (github.com/usstq/mm_amx, README).
constexpr double kDotCycles = 16, kTileFromL2 = kTileBytes / 48.0;
// Fewer rows are left to vectors, which read weights as fast: then memory bounds both.
constexpr int kLeastRows = 5;
// Rows that unpacking is charged to where their number is not known, as gemm_plan_fma.cc does.
constexpr double kUnpackRows = 64;
// Offsets are immediate operands and displacements of 32 bits.
constexpr int64_t kMaxOffset = std::numeric_limits<int32_t>::max() / 4;

absl::Status Check(const GemmDesc& desc, const TargetInfo& target, DType a) {
  if (target.isa < Isa::kAmx) return FailedPrecondition("the target has {} only", Name(target.isa));
  if (desc.a != a) return Unimplemented("activations are {}, this kernel takes {}", Name(desc.a), Name(a));
  if (desc.depth > 0) return Unimplemented("tiles take whole rows of {}, this is a part of one", Name(desc.a));
  if (!HasPanels(desc.w)) return Unimplemented("{} weights have no packed layout", ToString(desc.w));
  if (desc.rows > 0 && desc.rows < kLeastRows) {
    return Unimplemented("{} rows would use too little of a tile's {}", desc.rows, kTileRows);
  }
  if (desc.rows == 0 && !desc.strips) return Unimplemented("activations are in rows, tiles take strips");
  if (desc.rows > 0 && desc.strips)
    return Unimplemented("few rows of activations are in strips, this kernel takes rows");
  return CheckSizes(desc);
}

absl::Status CheckOffsets(const GemmDesc& desc, const AmxLayout& layout) {
  if (layout.strips.strip_bytes() > kMaxOffset || kMostPanels * layout.panel_bytes > kMaxOffset ||
      kMaxFewRows * desc.lda_bytes > kMaxOffset || desc.ldc_bytes > kMaxOffset) {
    return Unimplemented("k = {}, rows of {} and {} bytes exceed 32-bit offsets", desc.k, desc.lda_bytes,
                         desc.ldc_bytes);
  }
  return absl::OkStatus();
}

// The panel of A, 32 rows of a k block (few rows: one strip), takes two thirds of L1 at most, so that it stays there
// while B streams through the rest: A and B both from L2 would be 64 bytes a cycle of the 48 that it gives. Blocks are
// of equal depth.
int64_t DepthOfBlock(const GemmDesc& desc, const AmxLayout& layout, const TargetInfo& target) {
  const int64_t step_bytes = (desc.rows > 0 ? 1 : 2) * kTileBytes;
  const int64_t most = target.l1d_bytes * 2 / 3 / step_bytes * layout.step_k / layout.k_unit * layout.k_unit;
  const int64_t parts = CeilDiv(desc.k, std::max(layout.k_unit, most));
  return AlignUp(CeilDiv(desc.k, parts), layout.k_unit);
}

// Of L2, sums take a quarter and weights of a k block half. A walk over n panels reads A once, a walk over m rows reads
// the weights once: both come from L3 or memory. Where weights need no unpacking, rows and columns are balanced; else
// rows come first, as unpacking costs more than reading.
void BlockRowsAndPanels(const GemmDesc& desc, const AmxLayout& layout, const TargetInfo& target, GemmPlan* plan) {
  const int64_t block_bytes = layout.steps(std::min(desc.k, plan->k_block)) * kStepBytes;
  const int64_t most = std::clamp<int64_t>(target.l2_bytes / 2 / block_bytes, 1, 64);
  if (plan->k_block >= desc.k) {  // no sums wait
    plan->n_block = std::min(desc.panels(), most);
    return;
  }
  const int64_t sums = target.l2_bytes / 4 / kSumBytes;  // rows of a panel
  const double panels = std::sqrt(static_cast<double>(sums) / kPanelColumns) / (layout.unpack ? 2 : 1);
  plan->n_block = std::min({desc.panels(), most, std::max<int64_t>(2, static_cast<int64_t>(panels))});
  plan->m_block = desc.rows > 0
                      ? kTileRows
                      : std::max<int64_t>(2 * kTileRows, sums / plan->n_block / (2 * kTileRows) * 2 * kTileRows);
}

// Vector cycles to turn a weight into bf16 in scratch: as gemm_plan_fma.cc counts instructions, four a cycle and 16
// weights each, and of a pair's conversion, permutation and store half an instruction each. E4M3 by its table: 31.5
// GB/s of weights (one core of Zen 4 at 3.67 GHz).
double UnpackCycles(const Encoding& w) {
  switch (w.type) {
    case DType::kF16:
      return (0.5 + 1 + 1) / 2 / 16;  // of a pair two loads, two permutations on one port, two stores
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kI4:
      return 0.12;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return (4.5 + 2) / 4 / 16;
    default:
      return (3.5 + 2) / 4 / 16;
  }
}

// Cycles for one row and column, whole k.
double Cost(const GemmDesc& desc, const AmxLayout& layout, int64_t k_blocks) {
  const auto steps = static_cast<double>(layout.steps(desc.k));
  const double rows = desc.rows > 0 ? desc.rows : kTileRows;
  // With two tiles of rows the multiplier is busy all the time, with one it waits for B.
  double tile = steps * (desc.rows > 0 ? kTileFromL2 : kDotCycles);
  // Sums leave their tile, and come back; 16 rows with two loads and a store each.
  tile += static_cast<double>(k_blocks) * 24 + 16;
  if (layout.scale == AmxLayout::Scale::kBlocks) tile += static_cast<double>(layout.blocks.count(desc.k)) * 16;
  double cycles = tile / (rows * kGroupColumns);
  if (layout.unpack)
    cycles += UnpackCycles(desc.w) * static_cast<double>(desc.k) / (desc.rows > 0 ? rows : kUnpackRows);
  // Few rows are copied in each call, which may be one panel's: 32 bytes a cycle.
  if (desc.rows > 0) cycles += static_cast<double>(layout.a_row_bytes) / 32 / kPanelColumns;
  return cycles;
}

absl::StatusOr<GemmPlan> Plan(const GemmDesc& desc, const TargetInfo& target, TileDot dot) {
  const AmxLayout layout(desc, dot);
  XJIT_RETURN_IF_ERROR(CheckOffsets(desc, layout));
  GemmPlan plan;
  plan.tile_rows = (desc.rows > 0 ? 1 : 2) * kTileRows;
  plan.tile_vectors = 2;
  plan.vbmi = target.vbmi;
  plan.k_block = DepthOfBlock(desc, layout, target);
  BlockRowsAndPanels(desc, layout, target, &plan);
  const AmxScratch scratch = AmxScratchOf(desc, plan, layout);
  plan.scratch_bytes = scratch.bytes;
  plan.cost = Cost(desc, layout, scratch.k_blocks);
  return plan;
}

}  // namespace

absl::StatusOr<GemmPlan> PlanGemmAmxBf16(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc, target, DType::kBF16));
  const DType w = desc.w.type;
  if (w == DType::kF32 || w == DType::kF16) return Unimplemented("bf16 tiles would round {} weights", Name(w));
  return Plan(desc, target, TileDot::kBf16);
}

absl::StatusOr<GemmPlan> PlanGemmAmxFp16(const GemmDesc& desc, const TargetInfo& target) {
  if (!target.amx_fp16) return FailedPrecondition("the target has no AMX-FP16");
  XJIT_RETURN_IF_ERROR(Check(desc, target, DType::kF16));
  if (desc.w.type != DType::kF16) return Unimplemented("weights are {}, this kernel takes f16", ToString(desc.w));
  return Plan(desc, target, TileDot::kFp16);
}

absl::StatusOr<GemmPlan> PlanGemmAmxInt8(const GemmDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc, target, DType::kI8Act));
  if (desc.w.type != DType::kI8) return Unimplemented("{} weights are no integers of 8 bits", ToString(desc.w));
  if (ScaledBlocksOf(desc.w, desc.k).count(desc.k) > 1) {
    return Unimplemented("{}: sums of all k take one scale a column", ToString(desc.w));
  }
  if (desc.k > kMaxInt8Depth) return Unimplemented("k = {} is more than {}", desc.k, kMaxInt8Depth);
  return Plan(desc, target, TileDot::kInt8);
}

}  // namespace xjit
