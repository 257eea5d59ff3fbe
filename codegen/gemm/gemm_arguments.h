// How the integer kernels keep the arguments of a call: what changes once a panel in registers, the rest in the frame.
#pragma once

#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"

namespace xjit {

// The frame's first slots of eight bytes. ...0: of the call's first row, and of c and residual in the first panel.
enum ArgumentSlot { kPanels, kRows, kA0, kC0, kResidual0, kScratch, kArgumentSlots };

// Stores them, and sets w and bias to the first panel's; `t` is overwritten, none of the three may be an argument
// register. Jumps to `done` where there are no panels or no rows.
void EmitArguments(const GemmDesc& desc, int64_t panel_bytes, const Xbyak::Reg64& w, const Xbyak::Reg64& bias,
                   const Xbyak::Reg64& t, const Xbyak::Label& done, Emitter& e);

}  // namespace xjit
