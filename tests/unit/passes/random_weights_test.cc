// RandomWeights: a slice, join or stack of symbols has the values that the symbols have.
#include <gtest/gtest.h>

#include <cmath>

#include "passes/check.h"

namespace xjit {
namespace {

Weight W(std::string name, std::vector<int64_t> dims, std::vector<int64_t> part_rows = {},
         std::vector<int64_t> stack_experts = {}) {
  Weight w;
  w.name = std::move(name);
  std::vector<Dim> sizes;
  for (int64_t d : dims) sizes.push_back({d, 0});
  w.type = Type::Tensor(std::move(sizes), DType::kF32);
  w.part_rows = std::move(part_rows);
  w.stack_experts = std::move(stack_experts);
  return w;
}

std::vector<float> Row(const Weight& w, int64_t n, int64_t layer = 0) {
  std::vector<float> out(static_cast<size_t>(w.type.cols()));
  EXPECT_TRUE(RandomWeights(7).Row(layer, w, n, out).ok());
  return out;
}

TEST(RandomWeights, SlicesAndJoinsHaveTheSymbolsValues) {
  const Weight a = W("a", {8, 32}), b = W("b", {4, 32});
  EXPECT_EQ(Row(W("a+b", {12, 32}, {8, 4}), 9), Row(b, 1));
  EXPECT_EQ(Row(W("a|b", {12, 32}, {8, 4}), 9), Row(b, 1));
  EXPECT_EQ(Row(W("a[4:8,:]", {4, 32}), 1), Row(a, 5));
  EXPECT_EQ(Row(W("a[1:8:2,:]", {4, 32}), 2), Row(a, 5));
  const auto whole = Row(a, 5);
  EXPECT_EQ(Row(W("a[:,8:16]", {8, 8}), 5), std::vector(whole.begin() + 8, whole.begin() + 16));
  EXPECT_EQ(Row(W("a[:,1:32:2]", {8, 16}), 5)[3], whole[7]);
  const Weight v = W("v", {16});
  const auto vector = Row(v, 0);
  EXPECT_EQ(Row(W("v[4:12]", {8}), 0), std::vector(vector.begin() + 4, vector.begin() + 12));
}

TEST(RandomWeights, StacksHaveTheSymbolsValues) {
  const Weight e = W("e", {3, 4, 32}), shared = W("s", {4, 32});
  const Weight stack = W("e&s", {4, 4, 32}, {}, {3, 1});
  EXPECT_EQ(Row(stack, 6), Row(e, 6));
  EXPECT_EQ(Row(stack, 13), Row(shared, 1));
  EXPECT_EQ(Row(W("e[1:3,2:4,:]", {2, 2, 32}), 3), Row(e, 11));
  EXPECT_EQ(Row(W("e[:,0:2,:]&s[0:2,:]", {4, 2, 32}, {}, {3, 1}), 7), Row(shared, 1));
}

TEST(RandomWeights, DifferInAllThatNamesThem) {
  const Weight e = W("e", {3, 4, 32});
  const auto row = Row(e, 0);
  EXPECT_NE(row, Row(e, 1));
  EXPECT_NE(row, Row(e, 4));  // row 0 of expert 1
  EXPECT_NE(row, Row(e, 0, 1));
  EXPECT_NE(row, Row(W("f", {3, 4, 32}), 0));
  EXPECT_NE(row[0], row[1]);
  double square = 0;
  for (int64_t n = 0; n < 12; ++n) {
    for (float x : Row(e, n)) square += static_cast<double>(x) * static_cast<double>(x);
  }
  EXPECT_NEAR(std::sqrt(square / 384), 1.0 / 8, 0.02);
}

}  // namespace
}  // namespace xjit
