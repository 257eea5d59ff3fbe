#include "runtime/vector_math.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace xjit {
namespace {

// GCC's vector types: one AVX2 operation each; at the baseline, which no supported machine needs, they are taken apart.
// They are never passed by value, since the calling convention for them depends on the instruction set.
using F8 = float __attribute__((vector_size(32), aligned(4), may_alias));
using I8 = int32_t __attribute__((vector_size(32)));
constexpr int64_t kLanes = 8;

#define XJIT_ALWAYS_INLINE inline __attribute__((always_inline))

XJIT_ALWAYS_INLINE bool BlockMaximaBody(const float* x, int64_t size, float* block_max) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const F8 largest = std::numeric_limits<float>::max() - F8{};
  I8 good = I8{} - 1;
  bool tail_good = true;
  for (int64_t block = 0; block * kLogitBlock < size; ++block) {
    const int64_t first = block * kLogitBlock, last = std::min(first + kLogitBlock, size);
    F8 max0 = kLowest + F8{}, max1 = max0;
    int64_t i = first;
    for (; i + 2 * kLanes <= last; i += 2 * kLanes) {
      const F8 a = *reinterpret_cast<const F8*>(x + i), b = *reinterpret_cast<const F8*>(x + i + kLanes);
      good &= (a <= largest) & (b <= largest);  // false for NaN and +infinity
      max0 = a > max0 ? a : max0;
      max1 = b > max1 ? b : max1;
    }
    max0 = max0 > max1 ? max0 : max1;
    float max = kLowest;
    for (int lane = 0; lane < kLanes; ++lane) max = std::max(max, max0[lane]);
    for (; i < last; ++i) {
      tail_good &= x[i] <= std::numeric_limits<float>::max();
      max = std::max(max, x[i]);
    }
    block_max[block] = max;
  }
  for (int lane = 0; lane < kLanes; ++lane) tail_good &= good[lane] != 0;
  return tail_good;
}

// exp(t) for t <= 0: 2^n * 2^f with n = round(t * log2(e)), and a polynomial of degree 5 for 2^f on [-1/2, 1/2],
// relative error 2.8e-7 (minimax fit with its constant rounded to 1, so that exp(0) is 1). n comes from the rounding of
// an addition of 1.5 * 2^23, whose low bits then are n. The rest t - n * ln(2) is exact but for its last step: n has 7
// bits and the high part of ln(2), 355/512, has 9 [Cody & Waite 1980].
XJIT_ALWAYS_INLINE void ExpBody(const F8& t, F8& out) {
  constexpr float kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kMagic = 12582912.0f, kLowest = -86.0f;  // 2^-124
  const I8 tiny = t < kLowest;
  const F8 u = tiny ? F8{} : t;
  const F8 shifted = u * kLog2e + kMagic;
  const F8 n = shifted - kMagic;
  const F8 f = ((u - n * kLn2High) - n * kLn2Low) * kLog2e;
  F8 p = 0.0013276472f * f + 0.00967554133f;
  p = p * f + 0.0555071327f;
  p = p * f + 0.240221197f;
  p = p * f + 0.693146967f;
  p = p * f + 1.0f;
  const I8 scaled = reinterpret_cast<const I8&>(p) + (reinterpret_cast<const I8&>(shifted) << 23);
  const I8 kept = tiny ? I8{} : scaled;
  out = reinterpret_cast<const F8&>(kept);
}

XJIT_ALWAYS_INLINE double ExpSumBody(const float* x, int64_t size, float max, float scale, float* w) {
  double sum = 0;
  for (int64_t first = 0; first < size; first += kLogitBlock) {
    const int64_t last = std::min(first + kLogitBlock, size);
    F8 part{};
    int64_t i = first;
    for (; i + kLanes <= last; i += kLanes) {
      const F8 t = (*reinterpret_cast<const F8*>(x + i) - max) * scale;
      F8 e;
      ExpBody(t, e);
      if (w != nullptr) *reinterpret_cast<F8*>(w + i) = e;
      part += e;
    }
    if (i < last) {
      F8 t = -std::numeric_limits<float>::infinity() + F8{};
      for (int64_t k = i; k < last; ++k) t[k - i] = (x[k] - max) * scale;
      F8 e;
      ExpBody(t, e);
      for (int64_t k = i; k < last; ++k) {
        if (w != nullptr) w[k] = e[k - i];
      }
      part += e;  // lanes past the end are 0
    }
    sum +=
        static_cast<double>(((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7])));
  }
  return sum;
}

// No FMA in the wide form: sums and weights, and so draws, are the same on every machine.
__attribute__((target("avx2"))) bool BlockMaximaAvx2(const float* x, int64_t size, float* block_max) {
  return BlockMaximaBody(x, size, block_max);
}
__attribute__((target("avx2"))) double ExpSumAvx2(const float* x, int64_t size, float max, float scale, float* w) {
  return ExpSumBody(x, size, max, scale, w);
}

}  // namespace

bool HasWideVectors() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

bool BlockMaxima(std::span<const float> x, float* block_max, bool wide) {
  const auto size = static_cast<int64_t>(x.size());
  return wide ? BlockMaximaAvx2(x.data(), size, block_max) : BlockMaximaBody(x.data(), size, block_max);
}

double ExpSum(std::span<const float> x, float max, float scale, float* w, bool wide) {
  const auto size = static_cast<int64_t>(x.size());
  return wide ? ExpSumAvx2(x.data(), size, max, scale, w) : ExpSumBody(x.data(), size, max, scale, w);
}

}  // namespace xjit
