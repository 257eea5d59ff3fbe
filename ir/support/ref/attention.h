// Scalar reference of attention.
#pragma once

#include <cstdint>

namespace xjit::ref {

// One query head over the tokens [begin, end) of one KV head.
struct AttendArgs {
  const float* q = nullptr;  // [head_dim]
  const float* k = nullptr;  // of token t at k + t * k_stride
  const float* v = nullptr;  // of token t at v + t * v_stride
  int64_t k_stride = 0, v_stride = 0;
  int64_t begin = 0, end = 0;
  int64_t head_dim = 0, v_dim = 0;
  double scale = 1;
  double soft_cap = 0;          // scores become cap * tanh(score / cap); 0: as they are
  const float* sink = nullptr;  // a score that takes part in the softmax and has no value
};

// out[v_dim] = sum over t of softmax(scale * q . k[t]) v[t], in double. Vaswani et al. 2017, arXiv:1706.03762; soft
// cap: Gemma 2, arXiv:2408.00118; sink: Xiao et al. 2023, arXiv:2309.17453, as gpt-oss learns it.
void AttendOne(const AttendArgs& args, float* out);

}  // namespace xjit::ref
