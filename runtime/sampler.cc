#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "ir/support/align.h"
#include "runtime/vector_math.h"

namespace xjit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

size_t Blocks(size_t values) { return CeilDiv(values, kLogitBlock); }

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
    if (top_p) KeepTopP(max, Weigh(max, 1));
  } else if (top_p) {
    // Tokens below the cut have less than 1 - top_p together, whatever they are: none of them is needed. Half of that,
    // so that rounding does not matter.
    const double total = ExpSum(logits, max, 1, nullptr);
    const double cut = (1 - static_cast<double>(params_.top_p)) / 2 * total / vocab_;
    Collect(logits, max + static_cast<float>(std::log(cut)));
    Weigh(max, 1);
    KeepTopP(max, total);
  } else {
    Collect(logits, floor);
  }
  if (floor > -kInfinity) std::erase_if(kept_, [&](const Candidate& c) { return c.logit < floor; });
  return Draw(max);
}

// kept_ = all tokens with logit >= threshold and > -infinity.
void Sampler::Collect(std::span<const float> logits, float threshold) {
  const float lowest = std::max(threshold, std::numeric_limits<float>::lowest());
  size_t kept = 0;
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < lowest) continue;
    const size_t first = block * kLogitBlock, last = std::min(first + kLogitBlock, logits.size());
    if (kept_.size() < kept + kLogitBlock) kept_.resize((kept + kLogitBlock) * 2);
    // Without a branch, which would be mispredicted as often as not where the distribution is flat.
    Candidate* const out = kept_.data();
    for (size_t i = first; i < last; ++i) {
      out[kept] = {logits[i], static_cast<int32_t>(i)};
      kept += logits[i] >= lowest ? 1 : 0;
    }
  }
  kept_.resize(kept);
}

// weights_ = exp((logit - max) * scale) of kept_; returns the sum.
double Sampler::Weigh(float max, float scale) {
  order_.resize(kept_.size());
  weights_.resize(kept_.size());
  for (size_t i = 0; i < kept_.size(); ++i) order_[i] = kept_[i].logit;
  return ExpSum(order_, max, scale, weights_.data());
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

// Keeps the fewest of kept_, by rank, whose weights add up to top_p of `total`; one at least.
void Sampler::KeepTopP(float max, double total) {
  const double target = params_.top_p * total;
  // First by buckets of the distance to the best logit; only the bucket where the target is reached is ranked.
  constexpr int32_t kBuckets = 1024;
  constexpr float kBucketsPerUnit = 32;  // the last bucket holds all that is below e^-32
  const auto bucket_of = [&](const Candidate& c) {
    return static_cast<int32_t>(std::min((max - c.logit) * kBucketsPerUnit, static_cast<float>(kBuckets - 1)));
  };
  bucket_mass_.assign(kBuckets, 0);
  for (size_t i = 0; i < kept_.size(); ++i) bucket_mass_[bucket_of(kept_[i])] += static_cast<double>(weights_[i]);
  double before = 0;
  int32_t bucket = 0;
  while (bucket < kBuckets && before + bucket_mass_[bucket] < target) before += bucket_mass_[bucket++];
  if (bucket == kBuckets) return;  // short of the target by rounding: all are needed

  edge_.clear();
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (bucket_of(kept_[i]) == bucket) edge_.emplace_back(kept_[i], weights_[i]);
  }
  const auto ahead = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  // Halving: the last one kept is in [lo, hi) by rank, all before lo are kept and weigh `before`.
  size_t lo = 0, hi = edge_.size();
  while (hi - lo > 1) {
    const size_t mid = lo + (hi - lo) / 2;
    const auto at = [&](size_t i) { return edge_.begin() + static_cast<ptrdiff_t>(i); };
    std::nth_element(at(lo), at(mid), at(hi), [&](const auto& a, const auto& b) { return ahead(a.first, b.first); });
    double upper = 0;
    for (size_t i = lo; i < mid; ++i) upper += static_cast<double>(edge_[i].second);
    if (before + upper >= target) {
      hi = mid;
    } else {
      before += upper;
      lo = mid;
    }
  }
  const Candidate last = edge_[lo].first;
  size_t kept = 0;
  for (const Candidate& c : kept_) {
    const bool keep = c.logit > last.logit || (c.logit == last.logit && c.id <= last.id);
    kept_[kept] = c;
    kept += keep ? 1 : 0;
  }
  kept_.resize(kept);
}

int32_t Sampler::Draw(float max) {
  // Bounded, so that the best token's 0 * scale is 0 at any temperature.
  const float scale = std::min(1 / params_.temperature, 1e30f);
  const double total = Weigh(max, scale);
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
