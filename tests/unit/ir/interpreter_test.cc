// The interpreter against formulas written out here, and fused ops against the ops that they replace. u = 2^-24 is half
// an ulp of f32 relative to 1; references compute in double and round their results once.
#include "ir/interpreter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::HashWeights;
using ::testing::HasSubstr;
using testing::Parse;
using testing::Random;
using testing::RandomRows;

constexpr double kU = 0x1p-24;

InterpStep StepOf(int64_t first, int64_t tokens, InterpKv* kv) {
  InterpStep step;
  for (int64_t i = 0; i < tokens; ++i) {
    step.ids.push_back(static_cast<int32_t>((first + i) * 7 % 48));
    step.positions.push_back(static_cast<int32_t>(first + i));
    step.kv.push_back(kv);
    step.logit_rows.push_back(static_cast<int32_t>(i));
  }
  return step;
}

absl::StatusOr<TensorData> RunFunction(const Module& module, std::string_view name, std::vector<TensorData> args,
                                       const InterpStep& step) {
  HashWeights weights;
  auto results = InterpretFunction(module, *module.Find(name), std::move(args), step, 0, weights);
  if (!results.ok()) return results.status();
  return std::move((*results)[0]);
}

double MaxAbs(const std::vector<float>& v) {
  double worst = 0;
  for (float f : v) worst = std::max(worst, std::fabs(static_cast<double>(f)));
  return worst;
}

struct Heads {
  int64_t heads, kv_heads, head_dim, window;
};
constexpr Heads kHeads[] = {{1, 1, 16, 0}, {4, 2, 16, 0}, {6, 2, 8, 3}, {4, 4, 32, 1}, {8, 1, 16, 100}};

class AttentionTest : public ::testing::TestWithParam<Heads> {};
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest, ::testing::ValuesIn(kHeads));

TEST_P(AttentionTest, WindowsAreBruteForce) {
  const Heads h = GetParam();
  const int64_t tokens = 9, q_cols = h.heads * h.head_dim, kv_cols = h.kv_heads * h.head_dim;
  const auto module = Parse(fmt::format(R"(module @m {{
  func @f(%q: tensor<T x {0} x f32>, %k: tensor<T x {1} x f32>, %v: tensor<T x {1} x f32>, %s: !step) -> tensor<T x {0} x f32> {{
    kv_store %k, %v, %s {{kv_heads = {2}}}
    %a = attention %q, %s {{heads = {3}, kv_heads = {2}, scale = 0.25, window = {4}}}
    return %a
  }}
}})",
                                        q_cols, kv_cols, h.kv_heads, h.heads, h.window));
  Random random(11);
  const TensorData q = RandomRows(random, tokens, q_cols), k = RandomRows(random, tokens, kv_cols);
  const TensorData v = RandomRows(random, tokens, kv_cols);
  InterpKv kv;
  const auto got = RunFunction(*module, "f", {q, k, v}, StepOf(0, tokens, &kv));
  ASSERT_TRUE(got.ok()) << got.status();
  for (int64_t m = 0; m < tokens; ++m) {
    for (int64_t head = 0; head < h.heads; ++head) {
      const int64_t shared = head / (h.heads / h.kv_heads) * h.head_dim;
      std::vector<double> weight(static_cast<size_t>(tokens), 0.0);
      double sum = 0;
      for (int64_t t = 0; t <= m; ++t) {
        if (h.window > 0 && m - t >= h.window) continue;
        double dot = 0;
        for (int64_t i = 0; i < h.head_dim; ++i) {
          dot += static_cast<double>(q.row(m)[head * h.head_dim + i]) * static_cast<double>(k.row(t)[shared + i]);
        }
        sum += weight[static_cast<size_t>(t)] = std::exp(0.25 * dot);
      }
      for (int64_t i = 0; i < h.head_dim; ++i) {
        double want = 0;
        for (int64_t t = 0; t <= m; ++t)
          want += weight[static_cast<size_t>(t)] / sum * static_cast<double>(v.row(t)[shared + i]);
        // One rounding of the result; what double adds is a thousandth of it.
        EXPECT_NEAR(static_cast<double>(got->row(m)[head * h.head_dim + i]), want, 1.01 * kU * MaxAbs(v.f))
            << m << " " << head;
      }
    }
  }
}

TEST_P(AttentionTest, RopeStoreAndFlashAttentionEqualTheirParts) {
  const Heads h = GetParam();
  const int64_t tokens = 7, q_cols = h.heads * h.head_dim, kv_cols = h.kv_heads * h.head_dim;
  const auto module = Parse(fmt::format(R"(module @m {{
  func @parts(%q: tensor<T x {0} x f32>, %k: tensor<T x {1} x f32>, %v: tensor<T x {1} x f32>, %r: tensor<T x {5} x f32>, %s: !step) -> tensor<T x {0} x f32> {{
    %qr = rope %q, %r {{heads = {3}}}
    %kr = rope %k, %r {{heads = {2}}}
    kv_store %kr, %v, %s {{kv_heads = {2}}}
    %a = attention %qr, %s {{heads = {3}, kv_heads = {2}, scale = 0.3, window = {4}}}
    return %a
  }}
  func @fused(%q: tensor<T x {0} x f32>, %k: tensor<T x {1} x f32>, %v: tensor<T x {1} x f32>, %r: tensor<T x {5} x f32>, %s: !step) -> tensor<T x {0} x f32> {{
    %qr = rope_store %q, %k, %v, %r, %s {{heads = {3}, kv_heads = {2}, scale = 0.3}}
    %a = flash_attention %qr, %s {{heads = {3}, kv_heads = {2}, window = {4}}}
    return %a
  }}
}})",
                                        q_cols, kv_cols, h.kv_heads, h.heads, h.window, h.head_dim));
  Random random(12);
  const std::vector<TensorData> args = {RandomRows(random, tokens, q_cols), RandomRows(random, tokens, kv_cols),
                                        RandomRows(random, tokens, kv_cols), RandomRows(random, tokens, h.head_dim)};
  InterpKv parts_kv, fused_kv;
  const auto parts = RunFunction(*module, "parts", args, StepOf(0, tokens, &parts_kv));
  const auto fused = RunFunction(*module, "fused", args, StepOf(0, tokens, &fused_kv));
  ASSERT_TRUE(parts.ok() && fused.ok()) << parts.status() << fused.status();
  EXPECT_EQ(parts_kv.k, fused_kv.k);
  EXPECT_EQ(parts_kv.v, fused_kv.v);
  // q is scaled in f32: the factor and the product are each rounded once, so a logit moves by 2 u of the sum of its
  // terms' magnitudes. |x| <= 1 rotates to at most sqrt(2) cos and sin, so a term is at most 4. A weight moves by twice
  // its logits' change, relatively; the result by that, times the largest v, and its own rounding.
  const double logit = 0.3 * 4 * static_cast<double>(h.head_dim);
  const double bound = (2 * 2 * 2 * kU * logit + 2 * kU) * MaxAbs(args[2].f);
  for (size_t i = 0; i < parts->f.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(fused->f[i]), static_cast<double>(parts->f[i]), bound) << i;
  }
}

TEST(Interpreter, GemmChainsEqualUnfusedOps) {
  const auto module = Parse(R"(module @m {
  func @parts(%x: tensor<T x 64 x f32>, %r: tensor<T x 32 x f32>) -> tensor<T x 32 x f32> {
    %n = rms_norm %x, @norm<64 x f32> {eps = 1e-06}
    %g0 = linear %n, @gate<32 x 64 x q8_0>
    %g = add_bias %g0, @gb<32 x f32>
    %u0 = linear %n, @up<32 x 64 x q8_0>
    %u = add_bias %u0, @ub<32 x f32>
    %s = silu %g
    %f = mul %s, %u
    %y = add %f, %r
    return %y
  }
  func @fused(%x: tensor<T x 64 x f32>, %r: tensor<T x 32 x f32>) -> tensor<T x 32 x f32> {
    %y = gemm %x, @gate|up<32|32 x 64 x q8_0> {prologue = [rms_norm(@norm<64 x f32>, 1e-06)], epilogue = [bias(@gb|ub<32|32 x f32>), silu_mul, residual(%r)]}
    return %y
  }
  func @planned(%x: tensor<T x 64 x f32>, %r: tensor<T x 32 x f32>) -> tensor<T x 32 x f32> {
    %p = prepare %x {out = "f32", prologue = [rms_norm(@norm<64 x f32>, 1e-06)]}
    %y = gemm %p, @gate|up<32|32 x 64 x q8_0> {epilogue = [bias(@gb|ub<32|32 x f32>), silu_mul, residual(%r)]}
    return %y
  }
})");
  Random random(5);
  const std::vector<TensorData> args = {RandomRows(random, 5, 64), RandomRows(random, 5, 32)};
  InterpKv kv;
  const auto step = StepOf(0, 5, &kv);
  const auto parts = RunFunction(*module, "parts", args, step), fused = RunFunction(*module, "fused", args, step);
  const auto planned = RunFunction(*module, "planned", args, step);
  ASSERT_TRUE(parts.ok() && fused.ok() && planned.ok());
  EXPECT_EQ(fused->f, planned->f);
  for (size_t i = 0; i < parts->f.size(); ++i) {
    const double unit = std::fabs(static_cast<double>(parts->f[i]) - static_cast<double>(args[1].f[i]));
    // silu and the product may be rounded together, the sum is rounded again.
    EXPECT_NEAR(static_cast<double>(fused->f[i]), static_cast<double>(parts->f[i]),
                4 * kU * unit + 2 * kU * std::fabs(static_cast<double>(parts->f[i])));
  }
}

TEST(Interpreter, LinearIsADotProductPerRow) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 7 x f32>) -> tensor<T x 5 x f32> {
    %y = linear %x, @a+b<2+3 x 7 x f32>
    return %y
  }
})");
  Random random(9);
  const TensorData x = RandomRows(random, 3, 7);
  InterpKv kv;
  const auto y = RunFunction(*module, "f", {x}, StepOf(0, 3, &kv));
  ASSERT_TRUE(y.ok());
  ASSERT_EQ(y->rows, 3);
  ASSERT_EQ(y->cols, 5);
  for (int64_t m = 0; m < 3; ++m) {
    for (int64_t n = 0; n < 5; ++n) {
      double want = 0, magnitude = 0;
      for (int64_t i = 0; i < 7; ++i) {
        const double w =
            static_cast<double>(n < 2 ? HashWeights::Value("a", 0, n, i) : HashWeights::Value("b", 0, n - 2, i));
        want += static_cast<double>(x.row(m)[i]) * w;
        magnitude += std::fabs(static_cast<double>(x.row(m)[i]) * w);
      }
      EXPECT_NEAR(static_cast<double>(y->row(m)[n]), want, 1.01 * kU * magnitude);
    }
  }
}

TEST(Interpreter, PrepareRoundsAsItsTypeSays) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 64 x f32>) -> tensor<T x 64 x q8act>, tensor<T x 64 x bf16>, tensor<T x 64 x f32> {
    %a = prepare %x {out = "q8act"}
    %b = prepare %x {out = "bf16"}
    %c = prepare %x {out = "f32"}
    return %a, %b, %c
  }
})");
  Random random(2);
  TensorData x = RandomRows(random, 2, 64);
  std::fill_n(x.row(1) + 32, 32, 0.0f);
  InterpKv kv;
  HashWeights weights;
  const auto y = InterpretFunction(*module, *module->functions[0], {x}, StepOf(0, 2, &kv), 0, weights);
  ASSERT_TRUE(y.ok()) << y.status();
  for (size_t block = 0; block < x.f.size(); block += 32) {
    double amax = 0;
    for (size_t i = block; i < block + 32; ++i) amax = std::max(amax, std::fabs(static_cast<double>(x.f[i])));
    for (size_t i = block; i < block + 32; ++i) {
      // Half a step of amax / 127; the scale and its reciprocal are rounded too, 127 steps away at most.
      const double half = amax / 254;
      EXPECT_NEAR(static_cast<double>((*y)[0].f[i]), static_cast<double>(x.f[i]), half * (1 + 4 * 254 * kU));
      EXPECT_NEAR(static_cast<double>((*y)[1].f[i]), static_cast<double>(x.f[i]),
                  0x1p-8 * std::fabs(static_cast<double>(x.f[i])));
      EXPECT_EQ((*y)[2].f[i], x.f[i]);
    }
  }
}

TEST(Interpreter, ChunkedStepsEqualOneStep) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const auto module = testing::RandomGraph(seed).Build();
    HashWeights weights;
    InterpKv whole_kv, chunk_kv;
    const auto whole = Interpret(*module, StepOf(0, 7, &whole_kv), weights);
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_EQ(whole->rows, 7);
    std::vector<float> chunks;
    int64_t first = 0;
    for (int64_t size : {3, 1, 2, 1}) {
      const auto part = Interpret(*module, StepOf(first, size, &chunk_kv), weights);
      ASSERT_TRUE(part.ok()) << part.status();
      chunks.insert(chunks.end(), part->f.begin(), part->f.end());
      first += size;
    }
    EXPECT_EQ(chunks, whole->f);
    EXPECT_EQ(chunk_kv.k, whole_kv.k);
  }
}

TEST(Interpreter, SequencesInOneStepDoNotMix) {
  const auto module = testing::RandomGraph(1).Build();
  HashWeights weights;
  InterpKv a, a2, b2;
  const auto first = Interpret(*module, StepOf(0, 3, &a), weights);
  InterpStep both = StepOf(0, 3, &a2);
  for (int32_t i = 0; i < 3; ++i) {
    both.ids.push_back(40 - i);
    both.positions.push_back(i);
    both.kv.push_back(&b2);
  }
  both.logit_rows = {0, 1, 2};
  const auto mixed = Interpret(*module, both, weights);
  ASSERT_TRUE(first.ok() && mixed.ok()) << mixed.status();
  EXPECT_EQ(mixed->f, first->f);
  EXPECT_EQ(a2.k, a.k);
}

TEST(Interpreter, SelectRowsKeepsTheRowsAskedFor) {
  const auto module = testing::RandomGraph(2).Build();
  HashWeights weights;
  InterpKv kv, kv2;
  const auto all = Interpret(*module, StepOf(0, 5, &kv), weights);
  InterpStep step = StepOf(0, 5, &kv2);
  step.logit_rows = {1, 4};
  const auto some = Interpret(*module, step, weights);
  ASSERT_TRUE(all.ok() && some.ok());
  ASSERT_EQ(some->rows, 2);
  EXPECT_TRUE(std::equal(some->row(0), some->row(0) + some->cols, all->row(1)));
  EXPECT_TRUE(std::equal(some->row(1), some->row(1) + some->cols, all->row(4)));
}

TEST(Interpreter, RepeatRunsEachLayerWithItsOwnWeights) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 4 x f32>) -> tensor<T x 4 x f32> {
    %y = add_bias %x, @b<4 x f32>
    return %y
  }
  func @g(%x: tensor<T x 4 x f32>) -> tensor<T x 4 x f32> {
    %y = silu %x
    return %y
  }
  func @all(%x: tensor<T x 4 x f32>) -> tensor<T x 4 x f32> {
    %y = repeat %x {schedule = "@f:0-1, @g:2, @f:3"}
    return %y
  }
})");
  Random random(4);
  TensorData x = RandomRows(random, 2, 4);
  InterpKv kv;
  const auto got = RunFunction(*module, "all", {x}, StepOf(0, 2, &kv));
  ASSERT_TRUE(got.ok()) << got.status();
  for (size_t i = 0; i < x.f.size(); ++i) {
    float want = x.f[i];
    for (int64_t layer : {0, 1}) want += HashWeights::Value("b", layer, static_cast<int64_t>(i % 4), 0);
    want = static_cast<float>(static_cast<double>(want) / (1 + std::exp(-static_cast<double>(want))));
    want += HashWeights::Value("b", 3, static_cast<int64_t>(i % 4), 0);
    EXPECT_EQ(got->f[i], want) << i;
  }
}

TEST(Interpreter, BadStepsAreErrors) {
  const auto module = testing::RandomGraph(0).Build();
  HashWeights weights;
  InterpKv kv;
  InterpStep step = StepOf(0, 2, &kv);
  step.ids[1] = 48;
  EXPECT_THAT(std::string(Message(Interpret(*module, step, weights).status())),
              HasSubstr("token id 48 is outside the vocabulary of 48"));
  step.ids[1] = -1;
  EXPECT_FALSE(Interpret(*module, step, weights).ok());
  step = StepOf(0, 2, &kv);
  step.logit_rows = {2};
  EXPECT_THAT(std::string(Message(Interpret(*module, step, weights).status())), HasSubstr("select_rows: row 2 of 2"));
  const auto no_store = Parse(R"(module @m {
  func @f(%q: tensor<T x 16 x f32>, %s: !step) -> tensor<T x 16 x f32> {
    %a = attention %q, %s {heads = 1, kv_heads = 1, scale = 1.0}
    return %a
  }
})");
  InterpKv empty;
  Random random(1);
  EXPECT_THAT(
      std::string(Message(RunFunction(*no_store, "f", {RandomRows(random, 1, 16)}, StepOf(0, 1, &empty)).status())),
      HasSubstr("is kv_store missing?"));
  EXPECT_THAT(std::string(Message(Interpret(*no_store, step, weights).status())), HasSubstr("module @m has no @step"));
}

}  // namespace
}  // namespace xjit
