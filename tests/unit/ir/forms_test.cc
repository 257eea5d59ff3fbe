// Ops of experts, latent attention and ranks: against numbers worked out by hand, and forms that must agree with each
// other. Bounds: references sum in double and round to f32 once a step, so that forms which differ in the order of a
// few roundings agree to about 1e-5 of values near 1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/interp_ranks.h"
#include "ir/interpreter.h"
#include "ir/support/ref/moe.h"
#include "ir/weight_rows.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using testing::HashWeights;
using ::testing::HasSubstr;
using testing::Parse;
using testing::Random;
using testing::RandomRows;

constexpr double kSame = 1e-5;

struct Tokens {
  InterpKv kv;
  InterpStep step;
  explicit Tokens(int64_t tokens, int64_t first = 0) {
    for (int64_t i = 0; i < tokens; ++i) {
      step.ids.push_back(static_cast<int32_t>(i * 7 % 48));
      step.positions.push_back(static_cast<int32_t>(first + i));
      step.kv.push_back(&kv);
      step.logit_rows.push_back(static_cast<int32_t>(i));
    }
  }
};

absl::StatusOr<std::vector<TensorData>> Results(std::string_view text, std::vector<TensorData> args, Tokens& run) {
  auto module = ParseModule(text, "t.xir");
  if (!module.ok()) return module.status();
  HashWeights weights;
  return InterpretFunction(**module, *(*module)->functions[0], std::move(args), run.step, 0, weights);
}

TensorData Result(std::string_view text, std::vector<TensorData> args, Tokens& run) {
  auto results = Results(text, std::move(args), run);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? (*results)[0] : TensorData();
}

void ExpectNear(const TensorData& want, const TensorData& got, double bound = kSame) {
  ASSERT_EQ(want.f.size(), got.f.size());
  ASSERT_FALSE(want.f.empty());
  for (size_t i = 0; i < want.f.size(); ++i) {
    ASSERT_NEAR(want.f[i], got.f[i], bound * std::max(1.0, std::fabs(static_cast<double>(want.f[i])))) << i;
  }
}

std::string Error(std::string_view text) {
  const auto module = ParseModule(text, "t.xir");
  return module.ok() ? "" : std::string(Message(module.status()));
}

std::string OneOp(std::string_view body) {
  return fmt::format(
      "module @m {{ func @f(%x: tensor<T x 8 x f32>, %step: !step) -> tensor<T x 8 x f32> {{ {} return "
      "%x }} }}",
      body);
}

TEST(Route, SoftmaxOverAllThenTheBest) {
  const float logits[] = {0, std::log(3.0f), std::log(2.0f), std::log(4.0f)};  // softmax: 0.1, 0.3, 0.2, 0.4
  int32_t chosen[2];
  float weights[2];
  ref::Route({.experts = 4, .top_k = 2}, logits, nullptr, chosen, weights);
  EXPECT_THAT(chosen, ElementsAre(3, 1));
  EXPECT_NEAR(weights[0], 0.4, 1e-6);
  EXPECT_NEAR(weights[1], 0.3, 1e-6);
  ref::Route({.experts = 4, .top_k = 2, .normalize = true, .scale = 2}, logits, nullptr, chosen, weights);
  EXPECT_NEAR(weights[0], 2 * 4 / 7.0, 1e-6);
  ref::Route({.experts = 4, .top_k = 2, .score = ref::RouterScore::kSoftmaxChosen}, logits, nullptr, chosen, weights);
  EXPECT_NEAR(weights[0], 4 / 7.0, 1e-6);
}

TEST(Route, BiasChoosesButDoesNotWeigh) {
  const float logits[] = {0, 0, 2, 1}, bias[] = {1, 0, 0, 0};
  int32_t chosen[2];
  float weights[2];
  ref::Route({.experts = 4, .top_k = 2, .score = ref::RouterScore::kSigmoid}, logits, bias, chosen, weights);
  EXPECT_THAT(chosen, ElementsAre(0, 2));
  EXPECT_NEAR(weights[0], 0.5, 1e-6);
}

TEST(Route, GroupsAreJudgedByTheirBest) {
  // Sigmoid is monotone: group 0 has the single best expert, group 1 the best pair.
  const float logits[] = {5, -5, 3, 3, 0, 0};
  int32_t chosen[2];
  float weights[2];
  ref::RouteParams params = {
      .experts = 6, .top_k = 2, .score = ref::RouterScore::kSigmoid, .groups = 3, .top_groups = 1};
  ref::Route(params, logits, nullptr, chosen, weights);
  EXPECT_THAT(chosen, ElementsAre(0, 1));
  params.group_top = 2;
  ref::Route(params, logits, nullptr, chosen, weights);
  EXPECT_THAT(chosen, ElementsAre(2, 3));
}

TEST(Route, EqualScoresGoToTheLowerNumberAndNanComesLast) {
  const float logits[] = {1, std::nanf(""), 1, 1};
  int32_t chosen[4];
  float weights[4];
  ref::Route({.experts = 4, .top_k = 4, .score = ref::RouterScore::kSigmoid}, logits, nullptr, chosen, weights);
  EXPECT_THAT(chosen, ElementsAre(0, 2, 3, 1));
}

constexpr std::string_view kExperts = R"(module @m {{ func @f(%x: tensor<T x 32 x f32>) -> tensor<T x {} x f32> {{
  %l = linear %x, @router<6 x 32 x f32>
  %e, %w = route %l {{top_k = 3, normalize = true{}}}
  {}
  return %y }} }})";

TEST(Experts, ASlotIsItsExpertsLinear) {
  // With one expert an expert_linear is a linear, whatever was chosen.
  Random random(1);
  const TensorData x = RandomRows(random, 5, 32);
  Tokens a(5), b(5);
  const TensorData want = Result(
      "module @m { func @f(%x: tensor<T x 32 x f32>) -> tensor<T x 24 x f32> { %y = linear "
      "%x, @w<24 x 32 x f32> return %y } }",
      {x}, a);
  const TensorData got = Result(
      "module @m { func @f(%x: tensor<T x 32 x f32>) -> tensor<T x 24 x f32> { %l = linear %x, @r<1 x 32 x f32> %e, %v "
      "= route %l {top_k = 1} %y = expert_linear %x, %e, @w<1 x 24 x 32 x f32> return %y } }",
      {x}, b);
  EXPECT_EQ(want.f, got.f);
}

TEST(Experts, GroupedFormAgreesWithOps) {
  Random random(2);
  const TensorData x = RandomRows(random, 7, 32);
  Tokens a(7), b(7);
  const TensorData want = Result(fmt::format(kExperts, 32, "", R"(
    %g = expert_linear %x, %e, @gate<6 x 48 x 32 x f32>
    %gb = expert_bias %g, %e, @gate_bias<6 x 48 x 1 x f32>
    %u = expert_linear %x, %e, @up<6 x 48 x 32 x f32>
    %ub = expert_bias %u, %e, @up_bias<6 x 48 x 1 x f32>
    %s = silu %gb
    %f = mul %s, %ub
    %d = expert_linear %f, %e, @down<6 x 32 x 48 x f32>
    %c = combine %d, %w
    %y = add %c, %x)"),
                                 {x}, a);
  const TensorData got = Result(fmt::format(kExperts, 32, "", R"(
    %o, %at = moe_sort %e {experts = 6}
    %f = grouped_gemm %x, %e, @gate|up<6 x 48|48 x 32 x f32>, %o, %at {epilogue = [bias(@gate_bias|up_bias<6 x 48|48 x 1 x f32>), silu_mul]}
    %y = grouped_gemm %f, %e, @down<6 x 32 x 48 x f32>, %o, %at {epilogue = [combine(%w), residual(%x)]})"),
                                {x}, b);
  ExpectNear(want, got);
}

TEST(Experts, AStackedMatrixIsOneMoreExpertOfWeightOne) {
  Random random(3);
  const TensorData x = RandomRows(random, 4, 32);
  Tokens a(4), b(4);
  const TensorData want = Result(fmt::format(kExperts, 16, "", R"(
    %d = expert_linear %x, %e, @down<6 x 16 x 32 x f32>
    %c = combine %d, %w
    %s = linear %x, @shared<16 x 32 x f32>
    %y = add %c, %s)"),
                                 {x}, a);
  const TensorData got = Result(fmt::format(kExperts, 16, ", constant = 1", R"(
    %d = expert_linear %x, %e, @down&shared<6&1 x 16 x 32 x f32>
    %y = combine %d, %w)"),
                                {x}, b);
  ExpectNear(want, got);
}

TEST(Experts, SharesOfExpertsAddUp) {
  Random random(4);
  const TensorData x = RandomRows(random, 6, 32);
  Tokens a(6), b(6);
  const TensorData want = Result(fmt::format(kExperts, 16, "", R"(
    %d = expert_linear %x, %e, @down<6 x 16 x 32 x f32>
    %y = combine %d, %w)"),
                                 {x}, a);
  const TensorData got = Result(fmt::format(kExperts, 16, "", R"(
    %o1, %a1 = moe_sort %e {experts = 2, first = 0}
    %o2, %a2 = moe_sort %e {experts = 4, first = 2}
    %d1 = grouped_gemm %x, %e, @down[0:2,:,:]<2 x 16 x 32 x f32>, %o1, %a1 {first = 0, epilogue = [combine(%w)]}
    %d2 = grouped_gemm %x, %e, @down[2:6,:,:]<4 x 16 x 32 x f32>, %o2, %a2 {first = 2, epilogue = [combine(%w)]}
    %y = add %d1, %d2)"),
                                {x}, b);
  ExpectNear(want, got);
}

TEST(Experts, MoeSortKeepsRowsInOrder) {
  // One-hot rows choose the expert whose router row has the largest weight there.
  Random random(5);
  const TensorData x = RandomRows(random, 6, 32);
  Tokens run(6);
  auto results = Results(
      R"(module @m { func @f(%x: tensor<T x 32 x f32>) -> tensor<T x 2 x i32>, tensor<T x 2 x i32>, tensor<1 x 7 x i32> {
    %l = linear %x, @router<6 x 32 x f32>
    %e, %w = route %l {top_k = 2}
    %o, %at = moe_sort %e {experts = 6}
    return %e, %o, %at } })",
      {x}, run);
  ASSERT_TRUE(results.ok()) << results.status();
  const auto& experts = (*results)[0].ids;
  const auto& order = (*results)[1].ids;
  const auto& offsets = (*results)[2].ids;
  ASSERT_EQ(order.size(), 12u);
  EXPECT_EQ(offsets.front(), 0);
  EXPECT_EQ(offsets.back(), 12);
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    for (int i = offsets[e]; i < offsets[e + 1]; ++i) {
      EXPECT_EQ(experts[static_cast<size_t>(order[static_cast<size_t>(i)])], static_cast<int>(e));
      if (i == offsets[e]) continue;
      EXPECT_LT(order[static_cast<size_t>(i - 1)], order[static_cast<size_t>(i)]);
    }
  }
}

TEST(Experts, BadRoutesAreErrors) {
  EXPECT_THAT(Error(OneOp("%e, %w = route %x {top_k = 9}")), HasSubstr("top_k = 9 of 8 experts"));
  EXPECT_THAT(Error(OneOp("%e, %w = route %x {top_k = 2, groups = 3}")), HasSubstr("are not 3 groups"));
  EXPECT_THAT(Error(OneOp("%e, %w = route %x {top_k = 2, score = \"x\"}")), HasSubstr("not 'x'"));
  EXPECT_THAT(Error(OneOp("%e, %w = route %x {top_k = 2} %y = expert_linear %x, %e, @w<3 x 4 x 7 x f32>")),
              HasSubstr("has k = 8 but @w has k = 7"));
}

constexpr std::string_view kLatent = R"(module @m {{ func @f(%q: tensor<T x 72 x f32>, %c: tensor<T x 16 x f32>,
    %p: tensor<T x 8 x f32>, %rope: tensor<T x 8 x f32>, %step: !step) -> tensor<T x 30 x f32> {{ {} return %y }} }})";
constexpr std::string_view kHeads = "heads = 3, nope_dim = 16, v_dim = 10";

TEST(Mla, AbsorbedAndExpandedFormsAgreeOverSeveralSteps) {
  const std::string published = fmt::format(kLatent, R"(
    %n = rms_norm %c, @c_norm<16 x f32> {eps = 1e-06}
    %qr = rope %q, %rope {heads = 3, offset = 16}
    %pr = rope %p, %rope {heads = 1}
    kv_store_latent %n, %pr, %step
    %y = mla_attention %qr, %step, @kv_b<78 x 16 x f32> {heads = 3, nope_dim = 16, v_dim = 10, scale = 0.2})");
  const std::string absorbed = fmt::format(kLatent, R"(
    %qa = absorb_q %q, @kv_b<78 x 16 x f32> {heads = 3, nope_dim = 16, v_dim = 10}
    %s = latent_store %qa, %c, %p, %rope, %step, @c_norm<16 x f32> {heads = 3, nope_dim = 16, scale = 0.2, eps = 1e-06}
    %a = flash_attention %s, %step {heads = 3, kv_heads = 1, v_dim = 16, latent = true}
    %y = absorb_v %a, @kv_b {heads = 3, nope_dim = 16, v_dim = 10})");
  const std::string expanded = fmt::format(kLatent, R"(
    %s = latent_store %q, %c, %p, %rope, %step, @c_norm<16 x f32> {heads = 3, nope_dim = 16, scale = 0.2, eps = 1e-06}
    %y = mla_extend %s, %step, @kv_b<78 x 16 x f32> {heads = 3, nope_dim = 16, v_dim = 10})");
  Tokens runs[] = {Tokens(4), Tokens(4), Tokens(4)};
  Random random(6);
  for (int64_t first = 0; first < 12; first += 4) {
    const std::vector<TensorData> args = {RandomRows(random, 4, 72), RandomRows(random, 4, 16),
                                          RandomRows(random, 4, 8), RandomRows(random, 4, 8)};
    for (Tokens& run : runs) {
      for (int64_t i = 0; i < 4; ++i) run.step.positions[static_cast<size_t>(i)] = static_cast<int32_t>(first + i);
    }
    const TensorData want = Result(published, args, runs[0]);
    ExpectNear(want, Result(absorbed, args, runs[1]), 1e-4);
    ExpectNear(want, Result(expanded, args, runs[2]), 1e-4);
  }
}

TEST(Mla, IsPlainAttentionOverItsExpandedKeys) {
  // With heads of their own keys and values made by hand, attention must give the same.
  Random random(7);
  const std::vector<TensorData> args = {RandomRows(random, 5, 72), RandomRows(random, 5, 16), RandomRows(random, 5, 8),
                                        RandomRows(random, 5, 8)};
  Tokens a(5), b(5);
  const TensorData got = Result(fmt::format(kLatent, R"(
    kv_store_latent %c, %p, %step
    %y = mla_attention %q, %step, @kv_b<78 x 16 x f32> {heads = 3, nope_dim = 16, v_dim = 10, scale = 0.3})"),
                                args, a);
  HashWeights weights;
  const auto module = Parse(
      "module @m { func @f(%c: tensor<T x 16 x f32>) -> tensor<T x 78 x f32> { %y = linear %c, "
      "@kv_b<78 x 16 x f32> return %y } }");
  Tokens c(5);
  const auto kv = InterpretFunction(*module, *module->functions[0], {args[1]}, c.step, 0, weights);
  ASSERT_TRUE(kv.ok());
  TensorData k{.rows = 5, .cols = 72, .f = {}, .ids = {}}, v{.rows = 5, .cols = 30, .f = {}, .ids = {}};
  for (int64_t m = 0; m < 5; ++m) {
    for (int64_t h = 0; h < 3; ++h) {
      const float* head = (*kv)[0].row(m) + h * 26;
      k.f.insert(k.f.end(), head, head + 16);
      k.f.insert(k.f.end(), args[2].row(m), args[2].row(m) + 8);
      v.f.insert(v.f.end(), head + 16, head + 26);
    }
  }
  const TensorData want = Result(
      R"(module @m { func @f(%q: tensor<T x 72 x f32>, %k: tensor<T x 72 x f32>, %v: tensor<T x 30 x f32>, %step: !step) -> tensor<T x 30 x f32> {
      kv_store %k, %v, %step {kv_heads = 3}
      %y = attention %q, %step {heads = 3, kv_heads = 3, v_dim = 10, scale = 0.3}
      return %y } })",
      {args[0], k, v}, b);
  ExpectNear(want, got);
  EXPECT_THAT(Error(fmt::format(kLatent,
                                "%y = mla_attention %q, %step, @kv_b<77 x 16 x f32> {heads = 3, nope_dim = 16, "
                                "v_dim = 10, scale = 1.0}")),
              HasSubstr("@kv_b has 77 rows, not 3 heads of 16 + 10"));
}

constexpr std::string_view kAttention = R"(module @m {{ func @f(%q: tensor<T x 32 x f32>, %k: tensor<T x 16 x f32>,
    %v: tensor<T x 16 x f32>, %step: !step) -> tensor<T x 32 x f32> {{
  kv_store %k, %v, %step {{kv_heads = 2}}
  {}
  return %y }} }})";

std::vector<TensorData> AttentionArgs(uint64_t seed) {
  Random random(seed);
  return {RandomRows(random, 6, 32), RandomRows(random, 6, 16), RandomRows(random, 6, 16)};
}

TEST(Rope, AnOffsetIsInsideOfAHead) {
  for (const char* offset : {"61", "9223372036854775807", "-1"}) {
    EXPECT_THAT(
        Error(fmt::format("module @m {{ func @f(%x: tensor<T x 64 x f32>, %rope: tensor<T x 4 x f32>) -> "
                          "tensor<T x 64 x f32> {{ %y = rope %x, %rope {{heads = 1, offset = {}}} return %y }} }}",
                          offset)),
        HasSubstr("is turned from"))
        << offset;
  }
}

TEST(Attention, UnevenGroupsReadTheirHeads) {
  // Heads 0 and 1..3 of the uneven form read KV head 0 and 1: the same as the even form's heads where they agree.
  Tokens a(6), b(6);
  const TensorData even = Result(
      fmt::format(kAttention, "%y = attention %q, %step {heads = 4, kv_heads = 2, scale = 0.3}"), AttentionArgs(8), a);
  const TensorData uneven = Result(
      fmt::format(kAttention, "%y = attention %q, %step {heads = 4, kv_heads = 2, scale = 0.3, groups = [1, 3]}"),
      AttentionArgs(8), b);
  for (int64_t m = 0; m < 6; ++m) {
    for (int64_t i = 0; i < 32; ++i) {
      // A single token's softmax is 1: head 1 differs from the first row on, as the values do.
      const bool moved = i >= 8 && i < 16;
      EXPECT_EQ(even.row(m)[i] != uneven.row(m)[i], moved) << m << " " << i;
    }
  }
  EXPECT_THAT(Error(fmt::format(kAttention,
                                "%y = attention %q, %step {heads = 4, kv_heads = 2, scale = 0.3, groups = "
                                "[1, 2]}")),
              HasSubstr("groups are 2 of 3 heads, not 2 of 4"));
}

TEST(Attention, ASinkTakesItsShare) {
  Tokens a(1), b(1);
  const auto args = AttentionArgs(9);
  std::vector<TensorData> one;
  for (const TensorData& t : args) {
    one.push_back({.rows = 1, .cols = t.cols, .f = {t.f.begin(), t.f.begin() + t.cols}, .ids = {}});
  }
  const TensorData plain =
      Result(fmt::format(kAttention, "%y = attention %q, %step {heads = 4, kv_heads = 2, scale = 0.3}"), one, a);
  const TensorData sunk = Result(
      fmt::format(kAttention, "%y = attention %q, %step, @sinks<4 x f32> {heads = 4, kv_heads = 2, scale = 0.3}"), one,
      b);
  for (int64_t h = 0; h < 4; ++h) {
    double score = 0;
    for (int64_t d = 0; d < 8; ++d) {
      score += 0.3 * static_cast<double>(one[0].f[static_cast<size_t>(h * 8 + d)]) *
               static_cast<double>(one[1].f[static_cast<size_t>(h / 2 * 8 + d)]);
    }
    const double sink = HashWeights::Value("sinks", 0, h, 0);
    const double share = 1 / (1 + std::exp(sink - score));
    for (int64_t d = 0; d < 8; ++d)
      EXPECT_NEAR(sunk.f[static_cast<size_t>(h * 8 + d)], share * plain.f[static_cast<size_t>(h * 8 + d)], 1e-6);
  }
}

TEST(Attention, ASoftCapBoundsScores) {
  // With a tiny cap all scores are equal, so that the result is the mean of the values.
  Tokens run(6);
  const auto args = AttentionArgs(10);
  const TensorData y = Result(
      fmt::format(kAttention, "%y = attention %q, %step {heads = 4, kv_heads = 2, scale = 0.3, soft_cap = 1e-6}"), args,
      run);
  for (int64_t d = 0; d < 8; ++d) {
    double mean = 0;
    for (int64_t m = 0; m < 6; ++m) mean += args[2].row(m)[d] / 6.0;
    EXPECT_NEAR(y.row(5)[d], mean, 1e-5);
  }
}

TEST(RopeStore, NormsHeadsWhereGainsAreGiven) {
  const std::string_view text =
      R"(module @m {{ func @f(%q: tensor<T x 32 x f32>, %k: tensor<T x 16 x f32>, %v: tensor<T x 16 x f32>,
      %rope: tensor<T x 4 x f32>, %step: !step) -> tensor<T x 32 x f32> {{ {} return %y }} }})";
  Random random(11);
  auto args = AttentionArgs(11);
  args.push_back(RandomRows(random, 6, 4));
  Tokens a(6), b(6);
  const TensorData want = Result(fmt::format(fmt::runtime(text), R"(
    %qn = rms_norm %q, @qg<8 x f32> {eps = 1e-06}
    %kn = rms_norm %k, @kg<8 x f32> {eps = 1e-06}
    %qr = rope %qn, %rope {heads = 4}
    %kr = rope %kn, %rope {heads = 2}
    kv_store %kr, %v, %step {kv_heads = 2}
    %y = attention %qr, %step {heads = 4, kv_heads = 2, scale = 0.3})"),
                                 args, a);
  const TensorData got = Result(fmt::format(fmt::runtime(text), R"(
    %s = rope_store %q, %k, %v, %rope, %step, @qg<8 x f32>, @kg<8 x f32> {heads = 4, kv_heads = 2, scale = 0.3, eps = 1e-06}
    %y = flash_attention %s, %step {heads = 4, kv_heads = 2})"),
                                args, b);
  ExpectNear(want, got);
}

TEST(Ranks, ReduceGatherAndRows) {
  const auto module_of = [](int rank) {
    return Parse(fmt::format(
        R"(module @m {{ func @f(%ids: tensor<T x i32>, %x: tensor<T x 8 x f32>, %step: !step) -> tensor<T x 48 x f32>, tensor<T x 8 x f32>, tensor<T x 8 x f32> {{
      %e = embed %ids, @table[{0}:{1},:]<{2} x 8 x f32> {{first = {0}, vocab = 48}}
      %h, %n = all_reduce %e {{epilogue = [residual(%x), rms_norm(@g<8 x f32>, 1e-06)]}}
      %l = linear %n, @table[{0}:{1},:]
      %y = all_gather %l {{sizes = [20, 20, 8]}}
      %own = own_rows %x, %step
      %back = gather_rows %own, %step
      return %y, %h, %back }} }})",
        rank * 20, std::min(48, rank * 20 + 20), std::min(20, 48 - rank * 20)));
  };
  Random random(12);
  const TensorData x = RandomRows(random, 7, 8);
  Tokens run(7);
  run.step.sequence = {0, 1, 2, 3, 0, 1, 4};
  TensorData ids;
  ids.rows = 7;
  ids.ids = run.step.ids;
  const auto whole = Results(
      R"(module @m { func @f(%ids: tensor<T x i32>, %x: tensor<T x 8 x f32>) -> tensor<T x 48 x f32>, tensor<T x 8 x f32>, tensor<T x 8 x f32> {
      %e = embed %ids, @table<48 x 8 x f32>
      %h = add %e, %x
      %n = rms_norm %h, @g<8 x f32> {eps = 1e-06}
      %y = linear %n, @table
      return %y, %h, %x } })",
      {ids, x}, run);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto ranks = RunRanks(3, [&](Collective& collective) -> absl::StatusOr<std::vector<TensorData>> {
    const auto module = module_of(collective.rank());
    InterpStep step = run.step;
    step.ranks = &collective;
    HashWeights weights;
    return InterpretFunction(*module, *module->functions[0], {ids, x}, step, 0, weights);
  });
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  for (const auto& rank : *ranks) {
    for (size_t r = 0; r < 3; ++r) ExpectNear((*whole)[r], rank[r]);
  }
}

TEST(Ranks, AFailureOfOneIsTheFailureOfAll) {
  const auto ranks = RunRanks(3, [](Collective& collective) -> absl::StatusOr<std::vector<TensorData>> {
    if (collective.rank() == 1) return InvalidArgument("rank 1 is ill");
    XJIT_RETURN_IF_ERROR(collective.Gather({1.0f}).status());
    return std::vector<TensorData>();
  });
  EXPECT_EQ(Message(ranks.status()), "rank 1 is ill");
}

TEST(WeightNames, SlicesComposeAndErrorsAreNamed) {
  EXPECT_EQ(SliceWeightName("q", 2, 0, 16, 32).value(), "q[16:32,:]");
  EXPECT_EQ(SliceWeightName("qkv[64:128,:]", 2, 0, 16, 32).value(), "qkv[80:96,:]");
  EXPECT_EQ(SliceWeightName("gate_up[:,0:64:2,:]", 3, 1, 8, 16).value(), "gate_up[:,16:31:2,:]");
  EXPECT_EQ(SliceWeightName("gate&shared", 3, 1, 0, 8, std::vector<int64_t>{8, 1}).value(),
            "gate[:,0:8,:]&shared[0:8,:]");
  EXPECT_EQ(SliceWeightName("down&shared", 3, 2, 8, 16, std::vector<int64_t>{8, 1}).value(),
            "down[:,:,8:16]&shared[:,8:16]");
  EXPECT_EQ(SliceWeightName("a&b", 3, 2, 8, 16, std::vector<int64_t>{8, 2}).value(), "a[:,:,8:16]&b[:,:,8:16]");
  EXPECT_THAT(Message(SliceWeightName("a&b", 3, 2, 8, 16).status()), HasSubstr("stacks 2 symbols"));
  EXPECT_THAT(Error(OneOp("%y = linear %x, @w[0:3,:]<4 x 8 x f32>")), HasSubstr("'@w[0:3,:]' is not 4 rows"));
  EXPECT_THAT(Error(OneOp("%y = linear %x, @w[:,0:3]<4 x 8 x f32>")), HasSubstr("is not 8 columns"));
  EXPECT_THAT(Error(OneOp("%y = linear %x, @w[3:1,:]<4 x 8 x f32>")), HasSubstr("'3:1' is not a range"));
  EXPECT_THAT(Error(OneOp("%y = linear %x, @w[0:4]<4 x 8 x f32>")), HasSubstr("has 1 ranges"));
  EXPECT_THAT(Error(OneOp("%y = linear %x, @a&b<4 x 8 x f32>")), HasSubstr("stacks 2 symbols"));
}

// Behind an '&' a symbol stands for a matrix only where it counts for one expert.
TEST(WeightNames, StackedSymbolsHaveTheirExperts) {
  Weight w;
  w.name = "a&b&c";
  w.type = Type::Weight({{5, 0}, {4, 0}, {8, 0}}, DType::kF32);
  w.stack_experts = {2, 2, 1};
  ASSERT_TRUE(CheckWeight(w).ok()) << CheckWeight(w);
  const auto rows = WeightRows::Of(w);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<std::string> sources;
  for (int64_t expert = 0; expert < 5; ++expert) {
    const auto at = rows->At(expert * 4 + 3);
    sources.push_back(fmt::format("{}{} {} {}", at.ref->symbol, at.matrix ? "" : " of experts", at.expert, at.row));
  }
  EXPECT_THAT(sources,
              ElementsAre("a of experts 0 3", "a of experts 1 3", "b of experts 0 3", "b of experts 1 3", "c 0 3"));
}

}  // namespace
}  // namespace xjit
