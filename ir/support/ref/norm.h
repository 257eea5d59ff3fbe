// Scalar references of the norms: plain loops, no SIMD.
#pragma once

#include <cstdint>

namespace xjit::ref {

// y[cols] = x * gain / sqrt(mean(x^2) + eps), all f32; the mean is taken in double, so that a result is within a few
// roundings of the exact one. y may be x. Zhang & Sennrich 2019, arXiv:1910.07467.
void RmsNorm(const float* x, const float* gain, int64_t cols, float eps, float* y);

// The largest relative error of a kernel's y against RmsNorm when it sums squares in f32 with `lanes` partial sums:
// a sum of n positive terms is off by at most n u, halved by the square root, and six more roundings follow.
double RmsNormBound(int64_t cols, int64_t lanes);

}  // namespace xjit::ref
