#include "ir/support/ref/norm.h"

#include <cmath>

#include "ir/support/align.h"

namespace xjit::ref {

void RmsNorm(const float* x, const float* gain, int64_t cols, float eps, float* y) {
  double sum = 0;
  for (int64_t i = 0; i < cols; ++i) sum += static_cast<double>(x[i]) * x[i];
  const auto scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(cols) + eps));
  for (int64_t i = 0; i < cols; ++i) y[i] = x[i] * scale * gain[i];
}

double RmsNormBound(int64_t cols, int64_t lanes) {
  constexpr double kUnit = 0x1p-24;  // half an ulp of f32
  const double chain = static_cast<double>(CeilDiv(cols, lanes)) + std::log2(static_cast<double>(lanes)) + 2;
  return (0.5 * chain + 10) * kUnit;  // division, addition, root, division and two products, on both sides
}

}  // namespace xjit::ref
