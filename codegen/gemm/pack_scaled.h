// Packed columns of encodings with scales outside, behind pack.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codegen/gemm/pack.h"

namespace xjit {

void UnpackScaledColumn(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, float* out);
void UnpackInt4Block(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, int64_t block,
                     ColumnBlock* out);

}  // namespace xjit
