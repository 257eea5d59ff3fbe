// Scalar references of elementwise operations, f32.
#pragma once

#include <cstdint>

namespace xjit::ref {

// x / (1 + exp(-x)), computed in double and rounded once.
float Silu(float x);

// n values each; y may be an operand.
void Add(const float* a, const float* b, int64_t n, float* y);
void Mul(const float* a, const float* b, int64_t n, float* y);
void Silu(const float* x, int64_t n, float* y);
void SiluMul(const float* gate, const float* up, int64_t n, float* y);  // silu(gate) * up
void Scale(const float* x, int64_t n, float by, float* y);
// cap * tanh(x / cap).
void SoftCap(const float* x, int64_t n, float cap, float* y);
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): Hendrycks & Gimpel 2016, arXiv:1606.08415.
void Gelu(const float* x, int64_t n, float* y);
void GeluMul(const float* gate, const float* up, int64_t n, float* y);  // gelu(gate) * up
// (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha g), g = min(gate, limit): gpt-oss, arXiv:2508.10925.
void ClampedSwiglu(const float* gate, const float* up, int64_t n, float limit, float alpha, float* y);

}  // namespace xjit::ref
