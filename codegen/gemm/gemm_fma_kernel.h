// The two shapes of the kernels whose sums are f32 (vfmadd231ps, vdpbf16ps), at either vector width:
//
// stream: few rows. All sums of a panel are in registers; each weight is read once, unpacked in registers, and used for
// every row. bf16 activations by weights with scales outside: the sums of a scale block are of unscaled weights, exact
// in bf16, and each is scaled and added to the total in one fma.
//
// panels: many rows. A k block of the panel is unpacked to f32 in scratch (or used where it is, if it needs no
// unpacking) and register blocks of rows x columns go over it; their sums wait in a compact [m_block][32] tile in
// scratch; the epilogue is one pass at the end of k. With k blocks that fit L1 also few rows, where 16 registers do not
// hold their sums.
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
// Vectors of columns that a register block of the panel shape takes: 16 registers hold 6x2 sums, 32 hold 12x2.
inline constexpr int kTileVectors = 2;
// Unrolled steps of a register block.
inline constexpr int kTileUnroll = 4;

// What no planner here takes: activations other than `a`, sizes that are no whole panel or block, rows that overlap.
absl::Status CheckFloatDesc(const GemmDesc& desc, DType a);
// plan.scratch_bytes == 0 means stream. Scratch of the panel shape: the tile of sums, then the unpacked k block.
GemmPlan PlanFloat(const GemmDesc& desc, const TargetInfo& target, const FloatOps& ops);
absl::Status EmitFloat(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);

// The plan's prefetches for the weights at [w + offset, w + offset + bytes).
void EmitPrefetch(const GemmPlan& plan, const Xbyak::Reg64& w, int offset, int bytes, Emitter& e);

absl::Status EmitFloatStream(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);
absl::Status EmitFloatPanels(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e);

}  // namespace xjit
