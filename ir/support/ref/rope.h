// Scalar references of the rotary position embedding. Su et al. 2021, arXiv:2104.09864; pairs (i, i + rope_dim / 2), as
// Hugging Face's rotate_half.
#pragma once

#include <cstdint>

namespace xjit::ref {

// out[rows][2][half]: cosines, then sines, of position * inv_freq[i], times scale. The angle is an f32 product (as
// Hugging Face computes it), cosine and sine are taken in double, rounded to f32, then scaled in f32.
void RopeTable(const int32_t* position, int64_t rows, const float* inv_freq, int64_t half, float scale, float* out);

// Rotates the leading rope_dim of head_dim values with one row of the table and copies the rest; y may be x.
//   y[i] = x[i] cos[i] - x[i + half] sin[i],   y[i + half] = x[i + half] cos[i] + x[i] sin[i],   half = rope_dim / 2
void Rotate(const float* x, const float* cos_sin, int64_t head_dim, int64_t rope_dim, float* y);

}  // namespace xjit::ref
