// Choosing experts, the same bits as the reference; sorting rows by them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "codegen/moe/moe_route.h"

namespace xjit {
namespace {

using ref::RouteParams;
using ref::RouterScore;

// Logits of a kind: spread out, with equal ones, with NaN and infinities.
std::vector<float> Logits(int64_t count, int kind, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(static_cast<size_t>(count));
  for (float& x : logits) x = kind == 1 ? static_cast<float>(random() % 3) : normal(random);
  if (kind == 2) {
    for (float& x : logits) {
      if (random() % 5 == 0) x = std::numeric_limits<float>::quiet_NaN();
      if (random() % 7 == 0) x = -std::numeric_limits<float>::infinity();
    }
  }
  if (kind == 3) std::fill(logits.begin(), logits.end(), 0.5f);
  return logits;
}

void Check(const RouteParams& p, bool with_bias, int64_t constant) {
  std::mt19937_64 random(static_cast<uint64_t>(p.experts * 100 + p.top_k));
  constexpr int64_t kRows = 12;
  const int64_t slots = p.top_k + constant;
  std::vector<float> logits;
  for (int64_t m = 0; m < kRows; ++m) {
    const auto row = Logits(p.experts, static_cast<int>(m % 4), random);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  const std::vector<float> bias = Logits(p.experts, 0, random);
  std::vector<std::byte> scratch(static_cast<size_t>(RouteScratchBytes(p)) + 8);
  std::vector<int32_t> experts(kRows * static_cast<size_t>(slots), -7), want_experts = experts;
  std::vector<float> weights(experts.size(), -7), want_weights = weights;
  RouteArgs args{.params = p,
                 .constant = constant,
                 .logits = logits.data(),
                 .ldl_bytes = 4 * p.experts,
                 .bias = with_bias ? bias.data() : nullptr,
                 .experts = experts.data(),
                 .lde_bytes = 4 * slots,
                 .weights = weights.data(),
                 .ldw_bytes = 4 * slots,
                 .scratch = scratch.data()};
  RouteKernel(&args, 0, 1, 0, 5);
  RouteKernel(&args, 0, 1, 5, kRows);
  for (int64_t m = 0; m < kRows; ++m) {
    int32_t* chosen = &want_experts[static_cast<size_t>(m * slots)];
    float* weight = &want_weights[static_cast<size_t>(m * slots)];
    ref::Route(p, &logits[static_cast<size_t>(m * p.experts)], args.bias, chosen, weight);
    for (int64_t i = 0; i < constant; ++i) {
      chosen[p.top_k + i] = static_cast<int32_t>(p.experts + i);
      weight[p.top_k + i] = 1;
    }
  }
  EXPECT_EQ(experts, want_experts);
  EXPECT_EQ(std::memcmp(weights.data(), want_weights.data(), 4 * weights.size()), 0);
}

TEST(Route, SameBitsAsTheReference) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid, RouterScore::kSoftmaxChosen}) {
    for (const int64_t experts : {1, 4, 128, 256}) {
      for (const int64_t top_k : {1, 2, 4, 8}) {
        if (top_k > experts) continue;
        for (const bool with_bias : {false, true}) {
          Check({.experts = experts, .top_k = top_k, .score = score}, with_bias, 0);
          Check({.experts = experts, .top_k = top_k, .score = score, .normalize = true, .scale = 2.5}, with_bias, 2);
        }
      }
    }
  }
}

TEST(Route, Groups) {
  for (const bool with_bias : {false, true}) {
    for (const int64_t group_top : {1, 2}) {
      Check({.experts = 64,
             .top_k = 6,
             .score = RouterScore::kSigmoid,
             .normalize = true,
             .groups = 8,
             .top_groups = 3,
             .group_top = group_top},
            with_bias, 1);
    }
  }
}

struct Sorted {
  MoeRuns runs;
  std::vector<MoeUnit> units;
  std::vector<int32_t> slots, begin;
};
void Sort(const std::vector<int32_t>& experts, int64_t rows, int64_t slots, int64_t first, int64_t count, int few_rows,
          int64_t unit_rows, Sorted* out) {
  const MoeSizes sizes = MoeSizesOf(rows, slots, count, few_rows, unit_rows);
  out->units.resize(static_cast<size_t>(sizes.units));
  out->slots.assign(static_cast<size_t>(sizes.slots), -1);
  out->begin.resize(static_cast<size_t>(count) + 1);
  out->runs.unit = out->units.data();
  out->runs.slot = out->slots.data();
  const MoeSortArgs args{.experts = experts.data(),
                         .lde_bytes = 4 * slots,
                         .slots = slots,
                         .first = first,
                         .count = count,
                         .few_rows = few_rows,
                         .unit_rows = unit_rows,
                         .runs = &out->runs,
                         .begin = out->begin.data()};
  MoeSortKernel(&args, 0, 1, 0, rows);
  ASSERT_LE(out->runs.units, sizes.units);
  // Places do not overlap and end within what was promised.
  std::vector<int> used(static_cast<size_t>(sizes.sorted_rows));
  for (int64_t u = 0; u < out->runs.units; ++u) {
    const MoeUnit& unit = out->units[static_cast<size_t>(u)];
    const bool many = unit.rows > few_rows;
    ASSERT_GT(unit.rows, 0);
    ASSERT_LE(unit.rows, many ? unit_rows : few_rows);
    ASSERT_EQ(many ? unit.row0 % 16 : 0, 0);
    const int64_t end = unit.row0 + (many ? (unit.rows + 15) / 16 * 16 : unit.rows);
    ASSERT_LE(end, sizes.sorted_rows);
    for (int64_t r = unit.row0; r < end; ++r) ASSERT_EQ(used[static_cast<size_t>(r)]++, 0);
  }
}

TEST(MoeSort, EverySlotOnceInOrder) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 300; ++round) {
    const int64_t rows = 1 + static_cast<int64_t>(random() % 90), slots = 1 + static_cast<int64_t>(random() % 8);
    const int64_t all = slots + static_cast<int64_t>(random() % 30), first = static_cast<int64_t>(random() % 3);
    const int64_t count = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(all));
    const int few_rows = static_cast<int>(random() % 9);
    const int64_t unit_rows = 16 * (1 + static_cast<int64_t>(random() % 3));
    // Those of a token differ, as route has it; often there are few, so that runs are long.
    std::vector<int32_t> ids(static_cast<size_t>(random() % 2 == 0 ? slots : all)), experts;
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t m = 0; m < rows; ++m) {
      std::shuffle(ids.begin(), ids.end(), random);
      experts.insert(experts.end(), ids.begin(), ids.begin() + slots);
    }
    Sorted sorted;
    Sort(experts, rows, slots, first, count, few_rows, unit_rows, &sorted);
    if (HasFatalFailure()) FAIL() << "round " << round;
    // By expert, then by slot, the units one after the other.
    std::vector<std::pair<int64_t, int64_t>> want, got;
    for (size_t s = 0; s < experts.size(); ++s) {
      const int64_t e = experts[s] - first;
      if (e >= 0 && e < count) want.emplace_back(e, s);
    }
    std::sort(want.begin(), want.end());
    for (int64_t u = 0; u < sorted.runs.units; ++u) {
      const MoeUnit& unit = sorted.units[static_cast<size_t>(u)];
      for (int32_t r = 0; r < unit.rows; ++r)
        got.emplace_back(unit.expert, sorted.slots[static_cast<size_t>(unit.first + r)]);
    }
    ASSERT_EQ(got, want) << "round " << round;
  }
}

TEST(MoeSort, KernelOfARun) {
  // One row, eight, nine, and more than a unit holds.
  std::vector<int32_t> experts(1, 0);
  experts.insert(experts.end(), 8, 1);
  experts.insert(experts.end(), 9, 2);
  experts.insert(experts.end(), 40, 4);
  Sorted sorted;
  Sort(experts, static_cast<int64_t>(experts.size()), 1, 0, 5, 8, 32, &sorted);
  std::vector<std::pair<int32_t, int32_t>> units;
  for (int64_t u = 0; u < sorted.runs.units; ++u)
    units.emplace_back(sorted.units[static_cast<size_t>(u)].expert, sorted.units[static_cast<size_t>(u)].rows);
  EXPECT_EQ(units, (std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {1, 8}, {2, 9}, {4, 32}, {4, 8}}));
}

}  // namespace
}  // namespace xjit
