// Passes over a vocabulary of logits, in vectors of the widest kind that the machine has (AVX2, else SSE2).
#pragma once

#include <cstdint>
#include <span>

namespace xjit {

inline constexpr int64_t kLogitBlock = 128;

// Whether the machine has the wide form; `wide` below is for tests to ask for the other.
bool HasWideVectors();

// Writes the maximum of each block of 128 values to `block_max` [ceil(size / 128)]; returns whether every value is a
// number below +infinity (-infinity is allowed).
bool BlockMaxima(std::span<const float> x, float* block_max, bool wide = HasWideVectors());

// w[i] = exp(t) for t = (x[i] - max) * scale, computed in f32 and at most 0; relative error below 2^-20, and 0 for
// t < -86. w may be nullptr. Returns the sum: f32 within a block of 128, f64 across blocks. The same bits on every
// machine.
double ExpSum(std::span<const float> x, float max, float scale, float* w, bool wide = HasWideVectors());

}  // namespace xjit
