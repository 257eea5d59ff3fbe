// The two shapes of the kernels whose sums are f32 (vfmadd231ps, vdpbf16ps), at either vector width:
//
// stream: few rows. All sums of a panel are in registers; each weight is read once, unpacked in registers, and used for
// every row. bf16 activations by weights with scales outside: the sums of a scale block are of unscaled weights, exact
// in bf16, and each is scaled and added to the total in one fma.
//
// panels: many rows. A k block of the panels that lie side by side is unpacked to f32 in scratch (or used where it is,
// if it needs no unpacking) and stays in L2; 16 rows of A after the other meet it, in register blocks of 8 rows x 32
// columns (6 x 16 of 16 registers). Sums wait for the next k block in scratch; the epilogue comes with the last one,
// row by row of a register block. bf16 activations by weights with scales outside: pairs of bf16 are unpacked, exact
// and unscaled, and their sums are scaled as few rows' are. With k blocks that fit L1 also few rows, where 16 registers
// do not hold their sums.
//
// In both, a sum starts at zero and takes one product at a time in ascending k. The bits of C therefore depend on
// nothing but the operands: not on the shape, the plan, the row count or the vector width (but for SiLU's exp).
#pragma once

#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"
#include "ir/support/dtype.h"
#include "ir/support/status.h"

namespace xjit {

// What a planner has picked beside the plan's numbers.
struct FloatOps {
  bool wide = false;  // zmm
  bool dot = false;   // vdpbf16ps on dwords of two bf16, else vfmadd231ps
};

// How desc.w is read by a WeightReader: bf16 as dwords as they are for the dot product.
inline Encoding ReadAs(const GemmDesc& desc, const FloatOps& ops) { return ops.dot ? Encoding(DType::kF32) : desc.w; }
// Whether desc.w becomes pairs of bf16 in registers (pair_reader.h).
inline bool ReadsPairs(const GemmDesc& desc, const FloatOps& ops) { return ops.dot && HasScalesOutside(desc.w.type); }
// Dwords of a row of A that are multiplied.
inline int64_t Steps(const GemmDesc& desc, const FloatOps& ops) { return ops.dot ? CeilDiv(desc.k, 2) : desc.k; }
// Vectors of columns that a register block of the panel shape takes.
inline constexpr int kTileVectors = 2;
// Steps of a register block between two looks at its loop count: a chunk of a strip.
inline constexpr int kTileSteps = 16;
// The last kNextRows rows of a block prefetch the next packed bytes, every kNextEvery steps half a line, which is as
// much as they read, or where there are fewer rows a line. From the first row on, and so too early where rows are many,
// or twice as fast it is 1 to 3% slower (EPYC 9005, bf16 1024x8192x3072 and 128x2048x7168; without any 2 and 15%).
inline constexpr int kNextRows = 128, kNextEvery = 4;

// What no planner here takes: activations other than `a`, sizes that are no whole panel or block, rows that overlap.
absl::Status CheckFloatDesc(const GemmDesc& desc, DType a);
// Scratch of the panel shape: of each panel the sums, then of each panel the unpacked k block and its scales.
struct PanelScratch {
  int64_t panels = 1;
  // Of one panel, in bytes.
  int64_t sums = 0, weights = 0, scales = 0;

  int64_t block() const { return weights + scales; }
  int64_t bytes() const { return panels * (sums + block()); }
};
PanelScratch PanelScratchOf(const GemmDesc& desc, const FloatOps& ops, int64_t panels, int64_t rows, int64_t steps);

// plan.scratch_bytes == 0 means stream. plan.k_block counts k's, not steps.
GemmPlan PlanFloat(const GemmDesc& desc, const TargetInfo& target, const FloatOps& ops);
absl::Status EmitFloat(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);

// The plan's prefetches for the weights at [w + offset, w + offset + bytes).
void EmitPrefetch(const GemmPlan& plan, const Xbyak::Reg64& w, int offset, int bytes, Emitter& e);

absl::Status EmitFloatStream(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);
absl::Status EmitFloatPanels(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);

}  // namespace xjit
