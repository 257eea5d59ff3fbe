// Scalar references of the row kernels: the same arguments, plain loops, no SIMD.
#pragma once

#include "codegen/rows/rows_desc.h"

namespace xjit {

void PrepareRef(const PrepareDesc& desc, const PrepareArgs& args, int64_t m0, int64_t m1);
void EltwiseRef(const EltwiseDesc& desc, const EltwiseArgs& args, int64_t m0, int64_t m1);

// One row of f32 to one record of Q8Layout{k}; the very operations of the kernels, so that integers and scales agree
// bit for bit.
void QuantizeRow(const float* x, int64_t k, void* record);
// One row of f32 to one record of I8Layout{k}, likewise.
void QuantizeRowI8(const float* x, int64_t k, void* record);
// f32 to bf16, half to even; a NaN stays one.
uint16_t ToBf16(float x);

}  // namespace xjit
