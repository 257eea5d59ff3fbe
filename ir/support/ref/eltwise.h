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

}  // namespace xjit::ref
