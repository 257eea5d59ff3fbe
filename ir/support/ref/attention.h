// Scalar reference of attention.
#pragma once

#include <cstdint>

namespace xjit::ref {

// out[head_dim] = sum over tokens t in [begin, end) of softmax(scale * q . k[t]) v[t], in double.
// k and v: the head's values of token t at k + t * stride. Vaswani et al. 2017, arXiv:1706.03762.
void AttendOne(const float* q, const float* k, const float* v, int64_t stride, int64_t begin, int64_t end,
               int64_t head_dim, double scale, float* out);

}  // namespace xjit::ref
