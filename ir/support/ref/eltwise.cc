#include "ir/support/ref/eltwise.h"

#include <cmath>

namespace xjit::ref {

float Silu(float x) {
  const double d = x;
  return static_cast<float>(d / (1.0 + std::exp(-d)));
}

void Add(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void Mul(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

void Silu(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = Silu(x[i]);
}

void SiluMul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = Silu(gate[i]) * up[i];
}

}  // namespace xjit::ref
