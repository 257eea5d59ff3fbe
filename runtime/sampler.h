// From logits to a token: greedy, or by chance with the usual filters, without ever sorting the vocabulary.
//
// Order, as llama.cpp's default chain: logit_bias, penalties, top_k, top_p, min_p, temperature, draw. So top_p and
// min_p see probabilities at temperature 1. Equal logits rank by token id, lowest first, in every step.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

struct SamplerParams {
  float temperature = 1.0f;  // 0: the most likely token, lowest id of equals; top_k, top_p and min_p do not matter then
  int32_t top_k = 0;         // > 0: only the k most likely tokens
  float top_p = 1.0f;        // < 1: the fewest tokens, most likely first, with this much probability together
  float min_p = 0.0f;        // > 0: only tokens with at least this share of the most likely one's probability
  // Of tokens in the last `penalty_last_n` of the history (-1: all of it): a positive logit is divided by
  // repeat_penalty, another multiplied [Keskar et al. 2019, arXiv:1909.05858]; then presence_penalty, and
  // frequency_penalty for each occurrence, are subtracted (as in OpenAI's API).
  int32_t penalty_last_n = 64;
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, added to its logit; -infinity forbids it
  uint64_t seed = 0;
};

class Sampler {
 public:
  // InvalidArgument, naming the parameter, for values without sense.
  static absl::StatusOr<Sampler> Create(const SamplerParams& params, int32_t vocab);

  // The next token. `logits` has `vocab` values; it is changed in place meanwhile and restored before returning.
  // `history` is the text so far, prompt included. Draws come from std::mt19937_64, whose output the C++ standard
  // fixes: the same seed and logits give the same tokens everywhere. InvalidArgument for a history token outside of the
  // vocabulary; Internal when a logit is NaN or +infinity, or all are -infinity.
  absl::StatusOr<int32_t> Sample(std::span<float> logits, std::span<const int32_t> history);

  const SamplerParams& params() const { return params_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  Sampler() = default;
  absl::Status Adjust(std::span<float> logits, std::span<const int32_t> history);
  absl::StatusOr<int32_t> Choose(std::span<const float> logits);
  void CollectTopK(std::span<const float> logits);
  void Collect(std::span<const float> logits, float threshold);
  double Weigh(float max, float scale);
  void KeepTopP(float max, double total);
  int32_t Draw(float max);

  SamplerParams params_;
  int32_t vocab_ = 0;
  bool penalties_ = false;
  std::mt19937_64 random_;
  std::vector<float> block_max_;                   // of each 128 logits
  std::vector<float> order_;                       // scratch for thresholds
  std::vector<Candidate> kept_;                    // ascending ids
  std::vector<float> weights_;                     // of kept_
  std::vector<std::pair<Candidate, float>> edge_;  // scratch: candidates where top_p ends, and their weights
  std::vector<double> bucket_mass_;                // scratch
  std::vector<int32_t> counts_;                    // of the history's tokens, zero between calls
  std::vector<std::pair<int32_t, float>> before_;  // logits changed in place, as they were
};

// Natural logarithm of the probability of `id` under softmax(logits); for perplexity and log-probabilities. Internal
// when a logit is NaN or +infinity.
absl::StatusOr<double> LogProbability(std::span<const float> logits, int32_t id);

}  // namespace xjit
