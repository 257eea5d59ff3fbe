#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/vector_math.h"

namespace xjit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

size_t Blocks(size_t values) { return (values + kLogitBlock - 1) / kLogitBlock; }

absl::Status NotFinite(std::span<const float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < kInfinity)) return Internal("logit of token {} is {}", i, logits[i]);
  }
  return Internal("no token has a finite logit");
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(const SamplerParams& params, int32_t vocab) {
  if (vocab < 1) return InvalidArgument("a vocabulary of {} tokens", vocab);
  // Written so that NaN fails too.
  if (!(params.temperature >= 0 && params.temperature <= 1e6f)) {
    return InvalidArgument("temperature is {}, must be 0 or more", params.temperature);
  }
  if (params.top_k < 0) return InvalidArgument("top_k is {}, must be 0 (off) or more", params.top_k);
  if (!(params.top_p >= 0 && params.top_p <= 1)) return InvalidArgument("top_p is {}, must be 0 to 1", params.top_p);
  if (!(params.min_p >= 0 && params.min_p <= 1)) return InvalidArgument("min_p is {}, must be 0 to 1", params.min_p);
  if (params.penalty_last_n < -1) {
    return InvalidArgument("penalty_last_n is {}, must be -1 (all), 0 (off) or more", params.penalty_last_n);
  }
  if (!(params.repeat_penalty > 0 && params.repeat_penalty <= 1e6f)) {
    return InvalidArgument("repeat_penalty is {}, must be above 0", params.repeat_penalty);
  }
  if (!std::isfinite(params.presence_penalty) || !std::isfinite(params.frequency_penalty)) {
    return InvalidArgument("presence_penalty {} and frequency_penalty {} must be numbers", params.presence_penalty,
                           params.frequency_penalty);
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (id < 0 || id >= vocab) {
      return InvalidArgument("logit_bias: token {} is not in the vocabulary of {}", id, vocab);
    }
    if (!(bias < kInfinity)) return InvalidArgument("logit_bias of token {} is {}", id, bias);
  }
  Sampler sampler;
  sampler.params_ = params;
  sampler.vocab_ = vocab;
  sampler.penalties_ = params.penalty_last_n != 0 &&
                       (params.repeat_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0);
  sampler.random_.seed(params.seed);
  sampler.block_max_.resize(Blocks(vocab));
  if (sampler.penalties_) sampler.counts_.resize(vocab);
  return sampler;
}

absl::StatusOr<int32_t> Sampler::Sample(std::span<float> logits, std::span<const int32_t> history) {
  if (logits.size() != static_cast<size_t>(vocab_)) {
    return Internal("sampler: {} logits for a vocabulary of {}", logits.size(), vocab_);
  }
  before_.clear();
  absl::Status status = Adjust(logits, history);
  absl::StatusOr<int32_t> token = status.ok() ? Choose(logits) : absl::StatusOr<int32_t>(status);
  // Backwards: a token may have been changed twice.
  for (auto it = before_.rbegin(); it != before_.rend(); ++it) logits[it->first] = it->second;
  return token;
}

absl::Status Sampler::Adjust(std::span<float> logits, std::span<const int32_t> history) {
  for (const auto& [id, bias] : params_.logit_bias) {
    before_.emplace_back(id, logits[id]);
    logits[id] += bias;
  }
  if (!penalties_) return absl::OkStatus();
  if (params_.penalty_last_n > 0 && history.size() > static_cast<size_t>(params_.penalty_last_n)) {
    history = history.last(params_.penalty_last_n);
  }
  for (int32_t id : history) {
    if (id < 0 || id >= vocab_) return InvalidArgument("token {} is not in the vocabulary of {}", id, vocab_);
  }
  for (int32_t id : history) ++counts_[id];
  for (int32_t id : history) {
    const int32_t count = counts_[id];
    if (count == 0) continue;  // done
    counts_[id] = 0;
    float& logit = logits[id];
    before_.emplace_back(id, logit);
    logit = logit > 0 ? logit / params_.repeat_penalty : logit * params_.repeat_penalty;
    logit -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> Sampler::Choose(std::span<const float> logits) {
  if (!BlockMaxima(logits, block_max_.data())) return NotFinite(logits);
  const auto best = std::max_element(block_max_.begin(), block_max_.end());
  const float max = *best;
  if (max == -kInfinity) return NotFinite(logits);
  if (params_.temperature == 0 || params_.top_k == 1) {
    const auto first = logits.begin() + (best - block_max_.begin()) * kLogitBlock;
    return static_cast<int32_t>(std::find(first, logits.end(), max) - logits.begin());
  }

  const bool top_k = params_.top_k > 0 && params_.top_k < vocab_, top_p = params_.top_p < 1;
  const float floor = params_.min_p > 0 ? max + std::log(params_.min_p) : -kInfinity;
  if (top_k) {
    CollectTopK(logits);
    if (top_p) {
      order_.resize(kept_.size());
      for (size_t i = 0; i < kept_.size(); ++i) order_[i] = kept_[i].logit;
      KeepTopP(max, ExpSum(order_, max, 1, nullptr));
    }
  } else if (top_p) {
    // The smallest set is found among tokens near the best: widen the range until it holds enough probability. Past
    // e^-32 nothing is left to find in f32, and everything is taken.
    const double total = ExpSum(logits, max, 1, nullptr);
    for (float range = 4;; range *= 2) {
      Collect(logits, range > 32 ? -kInfinity : max - range);
      order_.resize(kept_.size());
      for (size_t i = 0; i < kept_.size(); ++i) order_[i] = kept_[i].logit;
      if (range > 32 || ExpSum(order_, max, 1, nullptr) >= params_.top_p * total) break;
    }
    KeepTopP(max, total);
  } else {
    Collect(logits, floor);
  }
  if (floor > -kInfinity) std::erase_if(kept_, [&](const Candidate& c) { return c.logit < floor; });
  return Draw(max);
}

// kept_ = all tokens with logit >= threshold and > -infinity.
void Sampler::Collect(std::span<const float> logits, float threshold) {
  kept_.clear();
  const float lowest = std::max(threshold, std::numeric_limits<float>::lowest());
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < lowest) continue;
    const size_t first = block * kLogitBlock, last = std::min(first + kLogitBlock, logits.size());
    for (size_t i = first; i < last; ++i) {
      if (logits[i] >= lowest) kept_.push_back({logits[i], static_cast<int32_t>(i)});
    }
  }
}

void Sampler::CollectTopK(std::span<const float> logits) {
  const auto k = static_cast<size_t>(params_.top_k);
  float threshold = -kInfinity;
  if (k <= block_max_.size()) {
    // k blocks have a maximum of at least the k-th largest maximum, so k tokens have such a logit.
    order_.assign(block_max_.begin(), block_max_.end());
    std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k - 1), order_.end(), std::greater<>());
    threshold = order_[k - 1];
  }
  Collect(logits, threshold);
  if (kept_.size() <= k) return;
  order_.resize(kept_.size());
  for (size_t i = 0; i < kept_.size(); ++i) order_[i] = kept_[i].logit;
  std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(k - 1), order_.end(), std::greater<>());
  const float kth = order_[k - 1];
  size_t equal = k - static_cast<size_t>(
                         std::count_if(kept_.begin(), kept_.end(), [&](const Candidate& c) { return c.logit > kth; }));
  std::erase_if(kept_, [&](const Candidate& c) {
    if (c.logit != kth) return c.logit < kth;
    if (equal == 0) return true;
    --equal;
    return false;
  });
}

// Keeps the fewest of kept_, by rank, whose probabilities exp(logit - max) / total add up to top_p; one at least.
void Sampler::KeepTopP(float max, double total) {
  const double target = params_.top_p * total;
  const auto ahead = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto weight = [&](const Candidate& c) { return std::exp(static_cast<double>(c.logit - max)); };
  // Halving: the last one kept is in [lo, hi) by rank, all before lo are kept and weigh `before`.
  ranked_ = kept_;
  size_t lo = 0, hi = ranked_.size();
  double before = 0;
  while (hi - lo > 1) {
    const size_t mid = lo + (hi - lo) / 2;
    const auto at = [&](size_t i) { return ranked_.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(at(lo), at(mid), at(hi), ahead);
    double upper = 0;
    for (size_t i = lo; i < mid; ++i) upper += weight(ranked_[i]);
    if (before + upper >= target) {
      hi = mid;
    } else {
      before += upper;
      lo = mid;
    }
  }
  const Candidate last = ranked_[lo];
  std::erase_if(kept_, [&](const Candidate& c) { return ahead(last, c); });
}

int32_t Sampler::Draw(float max) {
  order_.resize(kept_.size());
  weights_.resize(kept_.size());
  for (size_t i = 0; i < kept_.size(); ++i) order_[i] = kept_[i].logit;
  // Bounded, so that the best token's 0 * scale is 0 at any temperature.
  const float scale = std::min(1 / params_.temperature, 1e30f);
  const double total = ExpSum(order_, max, scale, weights_.data());
  // 53 random bits, [0, 1).
  const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
  double left = u * total;
  // Whole blocks first, by the same sums that make up the total.
  size_t i = 0;
  for (; i + kLogitBlock < weights_.size(); i += kLogitBlock) {
    double part[4] = {};
    for (size_t k = i; k < i + kLogitBlock; k += 4) {
      for (size_t j = 0; j < 4; ++j) part[j] += static_cast<double>(weights_[k + j]);
    }
    const double block = (part[0] + part[1]) + (part[2] + part[3]);
    if (left < block) break;
    left -= block;
  }
  int32_t token = kept_.back().id;
  for (; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    token = kept_[i].id;  // rounding may leave a little of `left` at the end: the last possible token takes it
    left -= static_cast<double>(weights_[i]);
    if (left < 0) break;
  }
  return token;
}

absl::StatusOr<double> LogProbability(std::span<const float> logits, int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= logits.size()) {
    return InvalidArgument("token {} is not in the vocabulary of {}", id, logits.size());
  }
  std::vector<float> maxima(Blocks(logits.size()));
  if (!BlockMaxima(logits, maxima.data())) return NotFinite(logits);
  const float max = *std::max_element(maxima.begin(), maxima.end());
  if (max == -kInfinity) return NotFinite(logits);
  return static_cast<double>(logits[id]) - static_cast<double>(max) - std::log(ExpSum(logits, max, 1, nullptr));
}

}  // namespace xjit
