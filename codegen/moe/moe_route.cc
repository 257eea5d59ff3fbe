#include "codegen/moe/moe_route.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using ref::RouterScore;

constexpr double kLowest = -std::numeric_limits<double>::infinity();

// Row m of an array whose rows are `bytes` apart.
template <typename T>
T* RowOf(T* base, int64_t bytes, int64_t m) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) + m * bytes);
}

// The operations of ref::Route one by one, in the same order, so that choices and weights are the same bits; but it
// chooses by looking for the largest again and again instead of sorting, and its arrays are the thread's scratch.
class Router {
 public:
  explicit Router(const RouteArgs& args)
      : args_(args),
        p_(args.params),
        scores_(static_cast<double*>(args.scratch)),
        choice_(scores_ + p_.experts),
        judged_(choice_ + p_.experts),
        weight_(judged_ + p_.groups),
        taken_(reinterpret_cast<uint8_t*>(weight_ + p_.top_k)) {}

  void Row(const float* logits, int32_t* chosen, float* weights) {
    const int64_t n = p_.experts;
    std::copy(logits, logits + n, scores_);
    if (p_.score == RouterScore::kSoftmax) Softmax(scores_, n);
    if (p_.score == RouterScore::kSigmoid) {
      for (int64_t e = 0; e < n; ++e) scores_[e] = 1.0 / (1.0 + std::exp(-scores_[e]));
    }
    std::copy(scores_, scores_ + n, choice_);
    if (args_.bias != nullptr) {
      for (int64_t e = 0; e < n; ++e) choice_[e] += static_cast<double>(args_.bias[e]);
    }
    if (p_.groups > 1) CloseGroups();
    Largest(choice_, n, p_.top_k, [&](int64_t i, int64_t e) { chosen[i] = static_cast<int32_t>(e); });
    for (int64_t i = 0; i < p_.top_k; ++i) weight_[i] = scores_[chosen[i]];
    if (p_.score == RouterScore::kSoftmaxChosen) Softmax(weight_, p_.top_k);
    const double sum = p_.normalize ? std::accumulate(weight_, weight_ + p_.top_k, 1e-20) : 1.0;
    for (int64_t i = 0; i < p_.top_k; ++i) weights[i] = static_cast<float>(weight_[i] / sum * p_.scale);
    for (int64_t i = 0; i < args_.constant; ++i) {
      chosen[p_.top_k + i] = static_cast<int32_t>(n + i);
      weights[p_.top_k + i] = 1;
    }
  }

 private:
  static void Softmax(double* x, int64_t n) {
    const double top = *std::max_element(x, x + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
    for (int64_t i = 0; i < n; ++i) x[i] /= sum;
  }

  // take(i, number) for the `count` largest of values[0, n), largest first, the lower number first among equals; NaN
  // counts as least.
  template <typename Take>
  void Largest(const double* values, int64_t n, int64_t count, Take take) {
    std::fill_n(taken_, n, uint8_t{0});
    for (int64_t i = 0; i < count; ++i) {
      int64_t best = -1;
      double most = kLowest;
      for (int64_t e = 0; e < n; ++e) {
        if (taken_[e] != 0) continue;
        if (best < 0) best = e;
        if (values[e] > most) {
          best = e;
          most = values[e];
        }
      }
      taken_[best] = 1;
      take(i, best);
    }
  }

  void CloseGroups() {
    const int64_t size = p_.experts / p_.groups;
    for (int64_t g = 0; g < p_.groups; ++g) {
      const double* group = choice_ + g * size;
      double sum = 0;
      Largest(group, size, p_.group_top, [&](int64_t, int64_t e) { sum += group[e]; });
      judged_[g] = sum;
    }
    Largest(judged_, p_.groups, p_.top_groups, [](int64_t, int64_t) {});
    for (int64_t e = 0; e < p_.experts; ++e) {
      if (taken_[e / size] == 0) choice_[e] = kLowest;
    }
  }

  const RouteArgs& args_;
  const ref::RouteParams& p_;
  double *scores_, *choice_, *judged_, *weight_;
  uint8_t* taken_;
};

}  // namespace

int64_t RouteScratchBytes(const ref::RouteParams& p) {
  return AlignUp(8 * (2 * p.experts + p.groups + p.top_k) + p.experts, 64);
}

void RouteKernel(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const RouteArgs*>(args);
  Router router(a);
  for (int64_t m = m0; m < m1; ++m) {
    router.Row(RowOf(a.logits, a.ldl_bytes, m), RowOf(a.experts, a.lde_bytes, m), RowOf(a.weights, a.ldw_bytes, m));
  }
}

MoeSizes MoeSizesOf(int64_t rows, int64_t slots, int64_t experts, int few_rows, int64_t unit_rows) {
  MoeSizes sizes;
  sizes.slots = rows * slots;
  sizes.units = std::min(experts, sizes.slots);
  sizes.sorted_rows = sizes.slots;
  // A run never has more rows than there are tokens.
  if (rows > few_rows) {
    sizes.units += sizes.slots / unit_rows;
    // Units of many rows end at whole strips.
    const int64_t many = std::min(sizes.units, CeilDiv(sizes.slots, few_rows + 1));
    sizes.sorted_rows += many * (kStripRows - 1);
  }
  return sizes;
}

void MoeSortKernel(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const MoeSortArgs*>(args);
  MoeRuns& runs = *a.runs;
  // Where expert e's run begins is counted up to where it ends.
  std::fill_n(a.begin, a.count + 1, 0);
  const auto each = [&](auto&& f) {
    for (int64_t m = m0; m < m1; ++m) {
      const int32_t* row = RowOf(a.experts, a.lde_bytes, m);
      for (int64_t s = 0; s < a.slots; ++s) {
        const int64_t e = row[s] - a.first;
        if (e >= 0 && e < a.count) f(e, m * a.slots + s);
      }
    }
  };
  each([&](int64_t e, int64_t) { ++a.begin[e + 1]; });
  int64_t many_rows = 0;
  for (int64_t e = 0; e < a.count; ++e) {
    if (a.begin[e + 1] > a.few_rows) many_rows += AlignUp(int64_t{a.begin[e + 1]}, kStripRows);
    a.begin[e + 1] += a.begin[e];
  }
  each([&](int64_t e, int64_t slot) { runs.slot[a.begin[e]++] = static_cast<int32_t>(slot); });

  // Units of many rows lie first, so that they begin at whole strips.
  int64_t units = 0, many_row0 = 0, few_row0 = many_rows;
  int32_t first = 0;
  for (int64_t e = 0; e < a.count; ++e) {
    const int32_t end = a.begin[e];
    const int64_t rows = end - first;
    if (rows > 0 && rows <= a.few_rows) {
      runs.unit[units++] = {static_cast<int32_t>(e), static_cast<int32_t>(rows), static_cast<int32_t>(few_row0), first};
      few_row0 += rows;
      first = end;
    }
    const int64_t parts = CeilDiv(rows, a.unit_rows);
    while (first < end) {
      const int64_t part = AlignUp(CeilDiv(rows, parts), kStripRows);
      const auto n = static_cast<int32_t>(std::min<int64_t>(part, end - first));
      runs.unit[units++] = {static_cast<int32_t>(e), n, static_cast<int32_t>(many_row0), first};
      many_row0 += AlignUp(n, kStripRows);
      first += n;
    }
  }
  runs.units = units;
  ++runs.generation;
}

}  // namespace xjit
