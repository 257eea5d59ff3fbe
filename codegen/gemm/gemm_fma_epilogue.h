// The end of a row of a panel: sums in registers become columns of C.
#pragma once

#include <span>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/regs.h"

namespace xjit {

// Bytes that a panel takes of a row of C.
inline int PanelBytesOfC(const GemmDesc& desc) { return (desc.epilogue.silu_mul ? kGroupColumns : kPanelColumns) * 4; }

struct PanelPointers {
  Xbyak::Reg64 c, residual;  // of the panel's first row; residual only if the epilogue has one
  Xbyak::Reg64 bias;         // of the panel; only if the epilogue has one
};

// Finishes and stores the row whose sums are the lanes.per_panel() registers `acc`, at `row_bytes` from the pointers.
// Overwrites acc. SiLU takes kSiluVectors more registers.
inline constexpr int kSiluVectors = 3;
void EmitRowEpilogue(const GemmDesc& desc, std::span<const int> acc, const PanelPointers& at, int row_bytes, Emitter& e,
                     Regs& regs, const Lanes& lanes);

}  // namespace xjit
