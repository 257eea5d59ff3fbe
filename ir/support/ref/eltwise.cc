#include "ir/support/ref/eltwise.h"

#include <cmath>
#include <numbers>

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

void Scale(const float* x, int64_t n, float by, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * by;
}

void SoftCap(const float* x, int64_t n, float cap, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] =
        static_cast<float>(static_cast<double>(cap) * std::tanh(static_cast<double>(x[i]) / static_cast<double>(cap)));
  }
}

void Gelu(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const double d = x[i];
    const double inner = std::sqrt(2 / std::numbers::pi) * (d + 0.044715 * d * d * d);
    y[i] = static_cast<float>(0.5 * d * (1 + std::tanh(inner)));
  }
}

void GeluMul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    float g = 0;
    Gelu(gate + i, 1, &g);
    y[i] = g * up[i];
  }
}

void ClampedSwiglu(const float* gate, const float* up, int64_t n, float limit, float alpha, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const double g = gate[i] > limit ? limit : gate[i];
    const double u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    y[i] = static_cast<float>((u + 1) * (g / (1 + std::exp(-static_cast<double>(alpha) * g))));
  }
}

}  // namespace xjit::ref
