#include "ir/support/ref/moe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

namespace xjit::ref {
namespace {

// The numbers of the `count` largest values, largest first, the lower number first among equals. NaN counts as least.
std::vector<int64_t> Largest(const std::vector<double>& values, int64_t count) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto key = [&values](int64_t i) {
    const double v = values[static_cast<size_t>(i)];
    return std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  };
  std::stable_sort(order.begin(), order.end(), [&key](int64_t a, int64_t b) { return key(a) > key(b); });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<double> Softmax(const std::vector<double>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> out;
  double sum = 0;
  for (const double x : logits) sum += out.emplace_back(std::exp(x - top));
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace

void Route(const RouteParams& params, const float* logits, const float* bias, int32_t* chosen, float* weights) {
  std::vector<double> scores(logits, logits + params.experts);
  if (params.score == RouterScore::kSoftmax) scores = Softmax(scores);
  if (params.score == RouterScore::kSigmoid) {
    for (double& s : scores) s = 1.0 / (1.0 + std::exp(-s));
  }
  std::vector<double> choice = scores;
  if (bias != nullptr) {
    for (size_t e = 0; e < choice.size(); ++e) choice[e] += static_cast<double>(bias[e]);
  }
  if (params.groups > 1) {
    const auto size = static_cast<size_t>(params.experts / params.groups);
    std::vector<double> judged;
    for (size_t begin = 0; begin < choice.size(); begin += size) {
      std::vector<double> group(choice.begin() + static_cast<ptrdiff_t>(begin),
                                choice.begin() + static_cast<ptrdiff_t>(begin + size));
      double sum = 0;
      for (const int64_t e : Largest(group, params.group_top)) sum += group[static_cast<size_t>(e)];
      judged.push_back(sum);
    }
    std::vector<bool> open(judged.size());
    for (const int64_t g : Largest(judged, params.top_groups)) open[static_cast<size_t>(g)] = true;
    for (size_t e = 0; e < choice.size(); ++e) {
      if (!open[e / size]) choice[e] = -std::numeric_limits<double>::infinity();
    }
  }
  const std::vector<int64_t> best = Largest(choice, params.top_k);
  std::vector<double> weight;
  for (const int64_t e : best) weight.push_back(scores[static_cast<size_t>(e)]);
  if (params.score == RouterScore::kSoftmaxChosen) weight = Softmax(weight);
  // 1e-20 keeps a sum of zeros from dividing by zero, as the published implementations do.
  const double sum = params.normalize ? std::accumulate(weight.begin(), weight.end(), 1e-20) : 1.0;
  for (size_t i = 0; i < best.size(); ++i) {
    chosen[i] = static_cast<int32_t>(best[i]);
    weights[i] = static_cast<float>(weight[i] / sum * params.scale);
  }
}

}  // namespace xjit::ref
