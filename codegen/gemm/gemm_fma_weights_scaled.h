// Readers of the encodings whose scales lie outside, behind gemm_fma_weights.h.
#pragma once

#include <memory>

#include "codegen/gemm/gemm_fma_weights.h"

namespace xjit {

// i8, f8e4m3, i4.
std::unique_ptr<WeightReader> MakeScaledReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs,
                                               const Lanes& lanes);
int ScaledUnit(const Encoding& w);
int ScaledVectors(const Encoding& w, bool wide, bool vbmi);

}  // namespace xjit
