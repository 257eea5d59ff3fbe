#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace xjit {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double Llama3(const RopeSpec& rope, double freq) {
  const double wavelength = kTwoPi / freq;
  const double original = static_cast<double>(rope.original_max_positions);
  if (wavelength < original / rope.high_freq_factor) return freq;
  if (wavelength > original / rope.low_freq_factor) return freq / rope.factor;
  const double smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * freq / rope.factor + smooth * freq;
}

// The dimension that turns `rotations` times within the original context.
double YarnDimension(const RopeSpec& rope, double rotations, double d) {
  return d * std::log(static_cast<double>(rope.original_max_positions) / (rotations * kTwoPi)) /
         (2 * std::log(rope.theta));
}

double YarnMscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

}  // namespace

int64_t RotaryDim(const ModelSpec& spec) {
  if (spec.mla.kv_lora_rank > 0) return spec.mla.rope_dim;
  return spec.rotary_dim > 0 ? spec.rotary_dim : spec.head_dim;
}

std::vector<float> RopeInvFreq(const RopeSpec& rope, int64_t head_dim, int64_t context) {
  const auto& factors = context > rope.original_max_positions ? rope.long_factors : rope.short_factors;
  const double d = static_cast<double>(head_dim);
  std::vector<float> freq(static_cast<size_t>(head_dim / 2));
  double low = 0, high = 0;
  if (rope.scaling == RopeSpec::Scaling::kYarn) {
    low = YarnDimension(rope, rope.beta_fast, d);
    high = YarnDimension(rope, rope.beta_slow, d);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, d - 1);
    if (low == high) high += 0.001;
  }
  for (size_t i = 0; i < freq.size(); ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / d);
    double f = plain;
    switch (rope.scaling) {
      case RopeSpec::Scaling::kNone:
        break;
      case RopeSpec::Scaling::kLinear:
        f = plain / rope.factor;
        break;
      case RopeSpec::Scaling::kLlama3:
        f = Llama3(rope, plain);
        break;
      case RopeSpec::Scaling::kYarn: {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        f = plain / rope.factor * ramp + plain * (1 - ramp);
        break;
      }
      case RopeSpec::Scaling::kLongRope:
        f = plain / factors[i];
        break;
    }
    if (i < rope.freq_factors.size()) f /= static_cast<double>(rope.freq_factors[i]);
    freq[i] = static_cast<float>(f);
  }
  return freq;
}

double RopeScale(const RopeSpec& rope) {
  if (rope.scaling == RopeSpec::Scaling::kLongRope) return rope.attention_factor.value_or(1.0);
  if (rope.scaling != RopeSpec::Scaling::kYarn) return 1.0;
  if (rope.attention_factor.has_value()) return *rope.attention_factor;
  if (rope.mscale.has_value() && rope.mscale_all_dim.has_value() && *rope.mscale_all_dim != 0) {
    return YarnMscale(rope.factor, *rope.mscale) / YarnMscale(rope.factor, *rope.mscale_all_dim);
  }
  return YarnMscale(rope.factor, 1.0);
}

}  // namespace xjit
