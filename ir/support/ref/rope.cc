#include "ir/support/ref/rope.h"

#include <cmath>

namespace xjit::ref {

void RopeTable(const int32_t* position, int64_t rows, const float* inv_freq, int64_t half, float scale, float* out) {
  for (int64_t m = 0; m < rows; ++m) {
    float* cosines = out + m * 2 * half;
    float* sines = cosines + half;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<float>(position[m]) * inv_freq[i];
      cosines[i] = static_cast<float>(std::cos(angle)) * scale;
      sines[i] = static_cast<float>(std::sin(angle)) * scale;
    }
  }
}

void Rotate(const float* x, const float* cos_sin, int64_t head_dim, int64_t rope_dim, float* y) {
  const int64_t half = rope_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half], c = cos_sin[i], s = cos_sin[half + i];
    y[i] = a * c - b * s;
    y[i + half] = b * c + a * s;
  }
  for (int64_t i = rope_dim; i < head_dim; ++i) y[i] = x[i];
}

}  // namespace xjit::ref
