// What every gemm kernel computes, in plain loops over the packed layout.
#pragma once

#include <cstdint>

#include "codegen/gemm/gemm_desc.h"

namespace xjit {

// C[m, n] for rows [m0, m1) of panels [n0, n1), epilogue included; any desc.a of {kF32, kF16, kBF16, kQ8Act} with any
// desc.w (kQ8Act with GGUF's encodings and i4 only), kI8Act with i8 of a scale a column or one in all. Needs no
// scratch.
//
// kF32, kF16, kBF16: the products a[k] * value(w[k]) are summed in double, in ascending k, and rounded once.
// value() is what the encoding defines, but rounded to bf16 for bf16 activations with GGUF's encodings.
//
// kQ8Act: for each block of 32 k in ascending order, with i the exact int32 dot product of the block, sa the activation
// scale, ssum = scaled_sum of the block, and scale, add as ColumnBlock has them, in f32 with the fused operations as
// written:
//   acc = fma(f32(i) * sa, scale, acc);  if the encoding has a minimum: acc = fma(ssum, add, acc)
//   (i4 has one with zero points)
//   with HasHalfScales, i0 and i1 the dot products and h0 and h1 the sums of the activations of the halves:
//   t = fma(f32(i1), scale[1], f32(i0) * scale[0]);  q2_k: t = fma(f32(h0), add[0], t), t = fma(f32(h1), add[1], t);
//   acc = fma(t, sa, acc)
// kI8Act: f32(i) * sa * scale, i the exact int32 dot product of all k, multiplied from left to right.
//
// A part (GemmDesc::depth) is the same over its k; of kI8Act C is int32 sums, of activations times code + 128.
//
// Kernels with the same operations give the same bits up to the epilogue's SiLU.
void GemmRef(const GemmDesc& desc, const GemmArgs& args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
