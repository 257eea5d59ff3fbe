// The attention family in plain loops, over the same arguments and page layout: the specification that the emitted
// kernels are tested against. Softmax and sums are taken in double.
#pragma once

#include <cstdint>

#include "codegen/attention/attention_desc.h"

namespace xjit {

float Bf16ToF32(uint16_t value);
// To nearest, ties to even; a NaN becomes a quiet NaN.
uint16_t F32ToBf16(float value);

// Byte offsets, inside a page, of dimension d of the token in `slot` (position % kPageTokens).
int64_t KvPageKOffset(DType kv, int64_t head_dim, int64_t slot, int64_t d);
int64_t KvPageVOffset(DType kv, int64_t head_dim, int64_t slot, int64_t d);

void AttentionRef(const AttentionDesc& desc, const AttentionArgs& args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);
void AttentionMergeRef(const AttentionDesc& desc, const AttentionMergeArgs& args, int64_t n0, int64_t n1, int64_t m0,
                       int64_t m1);
// In f32 with the operations and the order of the kernels (y1 = fma(x1, cos, -(x2 sin)), y2 = fma(x2, cos, x1 sin),
// then the scale of q), so results are equal bit by bit.
void RopeStoreRef(const RopeStoreDesc& desc, const RopeStoreArgs& args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

}  // namespace xjit
