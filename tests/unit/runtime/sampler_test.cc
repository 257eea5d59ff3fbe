// The sampler against plain sorting, in double, and the statistics of its draws.
#include "runtime/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "runtime/vector_math.h"

namespace xjit {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Sampler Make(const SamplerParams& params, size_t vocab) {
  auto sampler = Sampler::Create(params, static_cast<int32_t>(vocab));
  EXPECT_TRUE(sampler.ok()) << sampler.status();
  return *std::move(sampler);
}

std::vector<float> RandomLogits(size_t vocab, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(random);
  return logits;
}

// The specification: sort everything, filter in order, then softmax at the temperature.
std::map<int32_t, double> Reference(std::vector<float> logits, const SamplerParams& p) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::erase_if(ids, [&](int32_t id) { return logits[id] == -kInf; });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) ids.resize(p.top_k);
  const double max = logits[ids[0]];
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (int32_t id : ids) total += std::exp(logits[id] - max);
    size_t keep = 0;
    while (keep < ids.size() && (keep == 0 || sum < p.top_p * total)) sum += std::exp(logits[ids[keep++]] - max);
    ids.resize(keep);
  }
  if (p.min_p > 0) std::erase_if(ids, [&](int32_t id) { return logits[id] < max + std::log(p.min_p); });
  std::map<int32_t, double> out;
  double total = 0;
  for (int32_t id : ids) total += out[id] = std::exp((logits[id] - max) / p.temperature);
  for (auto& [id, probability] : out) probability /= total;
  return out;
}

// Draws and compares by Pearson's statistic. Its upper tail at df degrees of freedom is below e^-x beyond
// df + 2 sqrt(df x) + 2 x [Laurent & Massart 2000, lemma 1]; x = 20 is 2e-9. Outcomes expected less than 5 times are
// counted together.
void CheckDistribution(std::vector<float> logits, SamplerParams params, int draws) {
  const std::map<int32_t, double> want = Reference(logits, params);
  Sampler sampler = Make(params, logits.size());
  std::map<int32_t, int> got;
  for (int i = 0; i < draws; ++i) {
    const auto token = sampler.Sample(logits, {});
    ASSERT_TRUE(token.ok()) << token.status();
    ASSERT_TRUE(want.contains(*token)) << "token " << *token << " was filtered out";
    ++got[*token];
  }
  double chi2 = 0, rare_expected = 0, df = -1;
  int rare = 0;
  for (const auto& [id, probability] : want) {
    const double expected = probability * draws;
    if (expected < 5) {
      rare_expected += expected;
      rare += got[id];
      continue;
    }
    chi2 += (got[id] - expected) * (got[id] - expected) / expected;
    ++df;
  }
  if (rare_expected >= 5) {
    chi2 += (rare - rare_expected) * (rare - rare_expected) / rare_expected;
    ++df;
  }
  if (df < 1) return;
  constexpr double kX = 20;
  EXPECT_LT(chi2, df + 2 * std::sqrt(df * kX) + 2 * kX) << df << " degrees of freedom, " << want.size() << " tokens";
}

TEST(Sampler, DrawsFromTheFilteredDistribution) {
  const SamplerParams cases[] = {
      {.seed = 1},
      {.temperature = 0.5f, .seed = 2},
      {.temperature = 2.0f, .seed = 3},
      {.top_k = 40, .seed = 4},
      {.top_k = 3, .seed = 5},
      {.top_k = 1000000, .seed = 6},
      {.top_p = 0.9f, .seed = 7},
      {.top_p = 0.3f, .seed = 8},
      {.top_p = 0.99999f, .seed = 9},
      {.min_p = 0.05f, .seed = 10},
      {.temperature = 0.7f, .top_k = 40, .top_p = 0.9f, .min_p = 0.02f, .seed = 11},
      {.temperature = 1.5f, .top_k = 100, .top_p = 0.5f, .seed = 12},
  };
  for (const SamplerParams& params : cases) {
    for (const size_t vocab : {1UL, 5UL, 127UL, 128UL, 129UL, 1000UL, 20000UL}) {
      SCOPED_TRACE(testing::Message() << "seed " << params.seed << " vocab " << vocab);
      ASSERT_NO_FATAL_FAILURE(
          CheckDistribution(RandomLogits(vocab, 2.5f, params.seed), params, vocab > 1000 ? 500 : 3000));
    }
  }
}

TEST(Sampler, FlatAndPeakedLogits) {
  for (const SamplerParams& params : {SamplerParams{.top_p = 0.5f, .seed = 1}, SamplerParams{.top_k = 50, .seed = 2},
                                      SamplerParams{.seed = 3}, SamplerParams{.min_p = 1.0f, .seed = 4}}) {
    CheckDistribution(std::vector<float>(700, 1.25f), params, 20000);  // ties: lowest ids rank first
    std::vector<float> peaked(700, -50.0f);
    peaked[300] = 50;
    CheckDistribution(peaked, params, 50);
    std::vector<float> forbidden(700, -kInf);
    forbidden[5] = 1;
    forbidden[699] = 0;
    CheckDistribution(forbidden, params, 2000);
  }
}

TEST(Sampler, TopPKeepsTheFewest) {
  // Probabilities 0.5, 0.25, 0.125, ...: every sum of the largest ones is known exactly.
  std::vector<float> logits(12);
  for (size_t i = 0; i < logits.size(); ++i) logits[(i * 5) % 12] = -static_cast<float>(i) * std::log(2.0f);
  const auto kept = [&](float top_p) {
    SamplerParams params{.temperature = 1e6f, .top_p = top_p, .seed = 1};  // nearly uniform over what is kept
    Sampler sampler = Make(params, logits.size());
    std::map<int32_t, int> seen;
    for (int i = 0; i < 500; ++i) ++seen[*sampler.Sample(logits, {})];
    return seen.size();
  };
  EXPECT_EQ(kept(0.0f), 1U);
  EXPECT_EQ(kept(0.45f), 1U);
  EXPECT_EQ(kept(0.6f), 2U);
  EXPECT_EQ(kept(0.8f), 3U);
  EXPECT_EQ(kept(1.0f), 12U);
}

TEST(Sampler, ZeroTemperatureIsTheFirstOfTheBest) {
  for (const size_t vocab : {1UL, 130UL, 5000UL}) {
    std::vector<float> logits = RandomLogits(vocab, 3, 9);
    const size_t best = vocab / 2;
    logits[best] = 100;
    logits.back() = 100;
    Sampler sampler = Make({.temperature = 0}, vocab);
    EXPECT_EQ(*sampler.Sample(logits, {}), static_cast<int32_t>(best));
    Sampler top1 = Make({.temperature = 3, .top_k = 1}, vocab);
    EXPECT_EQ(*top1.Sample(logits, {}), static_cast<int32_t>(best));
  }
}

TEST(Sampler, ExtremeTemperatures) {
  std::vector<float> logits = {1, 3, 2, 3e38f, -3e38f};
  for (const float t : {1e-45f, 1e-30f, 1e-6f}) {
    Sampler sampler = Make({.temperature = t}, logits.size());
    EXPECT_EQ(*sampler.Sample(logits, {}), 3) << t;
  }
  Sampler hot = Make({.temperature = 1e6f}, logits.size());
  EXPECT_TRUE(hot.Sample(logits, {}).ok());
}

TEST(Sampler, SameSeedSameTokens) {
  std::vector<float> logits = RandomLogits(3000, 2, 5);
  const auto draw = [&](uint64_t seed) {
    Sampler sampler = Make({.top_p = 0.95f, .seed = seed}, logits.size());
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(*sampler.Sample(logits, {}));
    return tokens;
  };
  EXPECT_EQ(draw(42), draw(42));
  EXPECT_NE(draw(42), draw(43));
}

TEST(Sampler, PenaltiesAndBias) {
  const std::vector<int32_t> history = {0, 1, 1, 1, 2, 0};
  std::vector<float> logits = {4, 4, -2, 3.0f, -kInf};
  const std::vector<float> before = logits;
  // Which logit must beat another is worked out by hand: token 0 appears twice, 1 three times, 2 once.
  const auto greedy = [&](SamplerParams params) {
    params.temperature = 0;
    Sampler sampler = Make(params, logits.size());
    const auto token = sampler.Sample(logits, history);
    EXPECT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(logits, before) << "restored";
    return *token;
  };
  EXPECT_EQ(greedy({}), 0);
  EXPECT_EQ(greedy({.repeat_penalty = 1.3f}), 0);      // 4 / 1.3 = 3.08
  EXPECT_EQ(greedy({.repeat_penalty = 1.4f}), 3);      // 4 / 1.4 = 2.86
  EXPECT_EQ(greedy({.presence_penalty = 0.9f}), 0);    // 3.1
  EXPECT_EQ(greedy({.presence_penalty = 1.1f}), 3);    // 2.9
  EXPECT_EQ(greedy({.frequency_penalty = 0.45f}), 0);  // 4 - 0.9
  EXPECT_EQ(greedy({.frequency_penalty = 0.55f}), 3);  // 4 - 1.1
  EXPECT_EQ(greedy({.frequency_penalty = -1.0f}), 1);  // 4 + 3
  // Only the last n: token 0 is in the last one, token 1 is not.
  EXPECT_EQ(greedy({.penalty_last_n = 1, .repeat_penalty = 1.4f}), 1);
  EXPECT_EQ(greedy({.penalty_last_n = 0, .repeat_penalty = 1.4f}), 0);
  EXPECT_EQ(greedy({.penalty_last_n = -1, .repeat_penalty = 1.4f}), 3);
  EXPECT_EQ(greedy({.logit_bias = {{2, 7.0f}}}), 2);
  EXPECT_EQ(greedy({.logit_bias = {{0, -kInf}, {1, -kInf}}}), 3);
  EXPECT_EQ(greedy({.logit_bias = {{2, 4.0f}, {2, 4.0f}}}), 2);
  // Bias comes first: token 2 is at 6, then penalised as positive: 6 / 2 = 3 beats 4 / 2, and is a tie with token 3.
  EXPECT_EQ(greedy({.repeat_penalty = 2.0f, .logit_bias = {{2, 8.0f}}}), 2);
  // A negative logit is multiplied: forced to choose between -2 * 2 = -4 and -3.9.
  logits = {-kInf, -kInf, -2, -3.9f, -kInf};
  Sampler sampler = Make({.temperature = 0, .repeat_penalty = 2.0f}, logits.size());
  EXPECT_EQ(*sampler.Sample(logits, history), 3);
}

TEST(Sampler, BadLogitsAreErrors) {
  for (const size_t at : {0UL, 15UL, 16UL, 127UL, 128UL, 299UL}) {
    for (const float bad : {kNan, kInf}) {
      std::vector<float> logits = RandomLogits(300, 2, 1);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        Sampler sampler = Make({.temperature = temperature, .top_k = 5}, logits.size());
        const auto status = sampler.Sample(logits, {}).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
        EXPECT_THAT(std::string(status.message()), HasSubstr("token " + std::to_string(at)));
      }
    }
  }
  std::vector<float> none(300, -kInf);
  Sampler sampler = Make({}, none.size());
  EXPECT_EQ(sampler.Sample(none, {}).status().code(), absl::StatusCode::kInternal);
  std::vector<float> other(299);
  EXPECT_EQ(sampler.Sample(other, {}).status().code(), absl::StatusCode::kInternal);
}

TEST(Sampler, HistoryOutsideTheVocabularyIsAnError) {
  std::vector<float> logits(10);
  Sampler sampler = Make({.presence_penalty = 1}, logits.size());
  for (const int32_t bad : {-1, 10}) {
    const std::vector<int32_t> history = {1, bad};
    EXPECT_EQ(sampler.Sample(logits, history).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(sampler.Sample(logits, std::vector<int32_t>{1, 1}).ok());
}

TEST(Sampler, BadParametersAreNamed) {
  const std::pair<const char*, SamplerParams> cases[] = {
      {"temperature", {.temperature = -1}},
      {"temperature", {.temperature = kNan}},
      {"top_k", {.top_k = -1}},
      {"top_p", {.top_p = 1.5f}},
      {"top_p", {.top_p = kNan}},
      {"min_p", {.min_p = -0.1f}},
      {"penalty_last_n", {.penalty_last_n = -2}},
      {"repeat_penalty", {.repeat_penalty = 0}},
      {"presence_penalty", {.presence_penalty = kInf}},
      {"frequency_penalty", {.frequency_penalty = kNan}},
      {"logit_bias", {.logit_bias = {{10, 0.0f}}}},
      {"logit_bias", {.logit_bias = {{1, kNan}}}},
  };
  for (const auto& [name, params] : cases) {
    const auto status = Sampler::Create(params, 10).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  EXPECT_FALSE(Sampler::Create({}, 0).ok());
}

TEST(VectorMath, ExpIsAccurateAndTheSameInBothWidths) {
  for (const size_t size : {1UL, 7UL, 8UL, 9UL, 127UL, 128UL, 129UL, 40000UL}) {
    std::vector<float> x(size), narrow(size), wide(size);
    for (size_t i = 0; i < size; ++i) x[i] = -90.0f * static_cast<float>(i) / static_cast<float>(size);
    const double sum = ExpSum(x, 0, 1, narrow.data(), false);
    double want = 0;
    for (size_t i = 0; i < size; ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      want += exact;
      if (x[i] < -86) {
        ASSERT_EQ(narrow[i], 0) << x[i];
      } else {
        ASSERT_NEAR(narrow[i] / exact, 1, 0x1p-20) << x[i];
      }
    }
    // Each f32 lane of a block adds 16 values: 15 roundings, 3 more to join the lanes.
    EXPECT_NEAR(sum / want, 1, 0x1p-20 + 18 * 0x1p-24);
    EXPECT_EQ(ExpSum(x, 0, 1, nullptr, false), sum);
    if (!HasWideVectors()) continue;
    EXPECT_EQ(ExpSum(x, 0, 1, wide.data(), true), sum);
    EXPECT_EQ(wide, narrow);
  }
}

TEST(VectorMath, BlockMaxima) {
  for (const size_t size : {1UL, 16UL, 127UL, 128UL, 129UL, 1000UL}) {
    for (const bool wide : {false, HasWideVectors()}) {
      std::vector<float> x = RandomLogits(size, 3, 2), maxima((size + 127) / 128);
      ASSERT_TRUE(BlockMaxima(x, maxima.data(), wide));
      for (size_t b = 0; b < maxima.size(); ++b) {
        ASSERT_EQ(maxima[b], *std::max_element(x.begin() + b * 128, x.begin() + std::min(size, (b + 1) * 128)));
      }
      for (size_t i = 0; i < size; ++i) {
        for (const float bad : {kNan, kInf}) {
          const float saved = std::exchange(x[i], bad);
          ASSERT_FALSE(BlockMaxima(x, maxima.data(), wide)) << i;
          x[i] = saved;
        }
      }
    }
  }
}

TEST(LogProbability, MatchesSoftmax) {
  const std::vector<float> logits = RandomLogits(1000, 4, 3);
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  for (const int32_t id : {0, 500, 999}) {
    const auto got = LogProbability(logits, id);
    ASSERT_TRUE(got.ok());
    // The sum's relative error (see ExpIsAccurate...) and that of x - max, below 40 in size, in f32.
    EXPECT_NEAR(*got, logits[id] - std::log(total), 0x1p-20 + 18 * 0x1p-24 + 40 * 0x1p-24);
  }
  EXPECT_FALSE(LogProbability(logits, 1000).ok());
  EXPECT_FALSE(LogProbability(std::vector<float>{1, kNan}, 0).ok());
}

}  // namespace
}  // namespace xjit
