#include "frontend/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "frontend/machine_file.h"
#include "ir/text.h"

namespace xjit {
namespace {

std::unique_ptr<Checkpoint> Open(std::string_view model) {
  OpenOptions options;
  options.require_weights = false;
  auto checkpoint =
      OpenCheckpoint(std::string(XJIT_SOURCE_DIR) + "/models/configs/" + std::string(model) + ".json", options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}

PlanOptions Options(std::string_view machine) {
  PlanOptions options;
  options.target = *ReadMachine(machine);
  return options;
}

ModelPlan Plan(const Checkpoint& checkpoint, const PlanOptions& options) {
  auto plan = PlanModel(checkpoint, options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : ModelPlan();
}

// Llama-3.2-3B: 28 layers of q 3072, k and v 1024, o 3072, three of 8192; the embedding is the output matrix too.
constexpr double kLayerWeights = 3072.0 * (3072 + 2 * 1024 + 3072 + 3 * 8192);
constexpr double kEmbedding = 128256.0 * 3072;

TEST(Planner, Llama3BByHand) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  const ModelPlan plan = Plan(*checkpoint, Options("emr-12c"));
  ASSERT_EQ(plan.nodes.size(), 1u);
  const double weights = 2 * (28 * kLayerWeights + kEmbedding);
  // Gains are a few hundred KB.
  EXPECT_NEAR(static_cast<double>(plan.nodes[0].weight_bytes), weights, 1e6);
  EXPECT_EQ(plan.nodes[0].kv_bytes, 28 * 2 * 1024 * 2 * 2048);
  EXPECT_TRUE(plan.fits());
  // In the middle of the generation 1536 tokens are cached.
  EXPECT_NEAR(plan.bytes_per_token, weights + 28.0 * 2 * 1024 * 2 * 1536, 1e6);
  EXPECT_NEAR(plan.decode.bandwidth_limit_us, plan.bytes_per_token / 144e3, 1);
  EXPECT_NEAR(plan.flops_per_token, 2 * (28 * kLayerWeights + kEmbedding) + 28.0 * 2 * 24 * 256 * 1536, 1e6);
  EXPECT_NEAR(plan.prefill.flops,
              1024 * 2 * 28 * kLayerWeights + 2 * kEmbedding + 28.0 * 2 * 24 * 256 * 1024 * 1025 / 2, 1e9);
  EXPECT_GT(plan.tpot_us(), plan.decode.bandwidth_limit_us);
  EXPECT_LT(plan.tpot_us(), 1.1 * plan.decode.bandwidth_limit_us);
  EXPECT_GT(plan.ttft_us(), plan.prefill.flops_limit_us);
}

TEST(Planner, PrefillInChunks) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("emr-12c");
  const ModelPlan two = Plan(*checkpoint, options);
  options.chunk = 1024;
  const ModelPlan one = Plan(*checkpoint, options);
  // The same arithmetic; each chunk reads the layers' weights, the last one the output matrix.
  EXPECT_NEAR(one.prefill.flops, two.prefill.flops, 1e-6 * one.prefill.flops);
  EXPECT_NEAR(two.prefill.bytes - one.prefill.bytes, 2 * 28 * kLayerWeights, 1e8);
  options.prompt = 1025;
  EXPECT_NEAR(Plan(*checkpoint, options).prefill.bytes - one.prefill.bytes, 2 * 28 * kLayerWeights, 1.5e8);
}

TEST(Planner, QuantizedWeightsAreSmallerAndFaster) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("spr-56c-2s");
  const ModelPlan bf16 = Plan(*checkpoint, options);
  options.quantize = "int8";
  const ModelPlan int8 = Plan(*checkpoint, options);
  options.quantize = "int4";
  const ModelPlan int4 = Plan(*checkpoint, options);
  EXPECT_NEAR(int8.decode.bytes, bf16.decode.bytes - 28 * kLayerWeights, 1e8);
  EXPECT_LT(int8.tpot_us(), bf16.tpot_us());
  EXPECT_LT(int4.tpot_us(), int8.tpot_us());
  options.quantize = "int3";
  EXPECT_TRUE(Message(PlanModel(*checkpoint, options).status()).starts_with("--quantize: is \"int3\""));
}

TEST(Planner, BatchesShareWeights) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("icx-32c");
  const ModelPlan one = Plan(*checkpoint, options);
  options.batch = 4;
  const ModelPlan four = Plan(*checkpoint, options);
  EXPECT_EQ(four.nodes[0].kv_bytes, 4 * one.nodes[0].kv_bytes);
  EXPECT_GT(four.tpot_us(), one.tpot_us());
  EXPECT_LT(four.tpot_us(), 4 * one.tpot_us());
  EXPECT_LT(four.bytes_per_token, one.bytes_per_token);
}

TEST(Planner, WhatDoesNotFitSaysSo) {
  const auto checkpoint = Open("r1-distill-llama-70b");
  ASSERT_NE(checkpoint, nullptr);
  const ModelPlan plan = Plan(*checkpoint, Options("emr-12c"));
  EXPECT_FALSE(plan.fits());
  EXPECT_GT(plan.nodes[0].weight_bytes, int64_t{140} * 1000 * 1000 * 1000);
}

TEST(Planner, KvDtypes) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(*ParseKvDtype("", *checkpoint), DType::kBF16);
  EXPECT_EQ(*ParseKvDtype("f32", *checkpoint), DType::kF32);
  EXPECT_EQ(*ParseKvDtype("int8", *checkpoint), DType::kI8);
  EXPECT_EQ(*ParseKvDtype("fp8", *checkpoint), DType::kF8E4M3);
  EXPECT_EQ(*ParseKvDtype("q4_0", *checkpoint), DType::kQ4_0);
  EXPECT_FALSE(ParseKvDtype("int3", *checkpoint).ok());
}

TEST(Planner, KernelsOfAnyMachine) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PassContext context;
  context.target = *ReadMachine("zen4-2c");
  const auto module = PlanFromConfig(*checkpoint, "", PassStage::kPlanned, {}, &context);
  ASSERT_TRUE(module.ok()) << module.status();
  const std::string text = ExplainKernels(context);
  EXPECT_TRUE(text.starts_with("@layer %")) << text;
  EXPECT_NE(text.find("\n  chose avx512_bf16 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n  avx2 refused: "), std::string::npos) << text;
  EXPECT_NE(text.find("@step %logits\n"), std::string::npos) << text;
  context.rank = 1;
  EXPECT_FALSE(PlanFromConfig(*checkpoint, "", PassStage::kPlanned, {}, &context).ok());
}

int64_t KvBytes(const ModelPlan& plan) {
  int64_t bytes = 0;
  for (const NodePlan& node : plan.nodes) bytes += node.kv_bytes;
  return bytes;
}

// Calls of an op in a step or in a prompt's prefill.
int64_t Calls(const ModelCost& cost, std::string_view op) {
  int64_t calls = 0;
  for (const StageCost& stage : cost.stages) calls += stage.op == op ? stage.count : 0;
  return calls;
}

TEST(Planner, EveryKvTypeCanBePlanned) {
  struct Case {
    DType type;
    double llama, latent;  // bytes of a token in a layer: K and V of 8 heads of 128; a latent row of 512 + 64
  };
  const auto llama = Open("llama-3.2-3b"), r1 = Open("deepseek-r1-671b");
  ASSERT_TRUE(llama != nullptr && r1 != nullptr);
  for (const Case& c : {Case{DType::kBF16, 2048 * 2, 576 * 2}, Case{DType::kF32, 2048 * 4, 576 * 4},
                        Case{DType::kI8, 2048 + 8 * 4, 576 + 4}, Case{DType::kF8E4M3, 2048 + 8 * 4, 576 + 4},
                        Case{DType::kQ4_0, 64 * 18, 18 * 18}}) {
    SCOPED_TRACE(Name(c.type));
    PlanOptions options = Options("emr-12c");
    options.kv_dtype = c.type;
    EXPECT_EQ(KvBytes(Plan(*llama, options)), static_cast<int64_t>(28 * c.llama * 2048));
    // Its prompt takes the expanded form, its decode steps the absorbed one.
    EXPECT_EQ(KvBytes(Plan(*r1, options)), static_cast<int64_t>(61 * c.latent * 2048));
  }
}

TEST(Planner, RanksShareHeadsOfABatch) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("spr-56c-2s");
  options.batch = 4;
  const ModelPlan one = Plan(*checkpoint, options);
  options.tp = 2;
  const ModelPlan two = Plan(*checkpoint, options);
  ASSERT_EQ(one.nodes.size(), 1u);
  ASSERT_EQ(two.nodes.size(), 2u);
  EXPECT_EQ(one.nodes[0].kv_bytes, 4 * 28 * 2 * 1024 * 2 * int64_t{2048});
  for (const NodePlan& node : two.nodes) {
    EXPECT_EQ(node.kv_bytes, one.nodes[0].kv_bytes / 2);
    EXPECT_NEAR(static_cast<double>(node.weight_bytes), 28 * kLayerWeights + kEmbedding, 1e6);
  }
  EXPECT_EQ(Calls(one.decode, "all_reduce"), 0);
  // Two a layer, and one of the embedding, whose vocabulary is dealt.
  EXPECT_EQ(Calls(two.decode, "all_reduce"), 2 * 28 + 1);
  EXPECT_LT(two.tpot_us(), 0.6 * one.tpot_us());
}

TEST(Planner, MoreRanksThanNodesShareThem) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("spr-56c-2s");
  options.tp = 2;
  const ModelPlan two = Plan(*checkpoint, options);
  options.tp = 4;
  const ModelPlan four = Plan(*checkpoint, options);
  ASSERT_EQ(four.nodes.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(four.nodes[i].kv_bytes, two.nodes[i].kv_bytes);
    EXPECT_NEAR(static_cast<double>(four.nodes[i].weight_bytes), static_cast<double>(two.nodes[i].weight_bytes), 2e6);
  }
  // A node's bandwidth is what it was.
  EXPECT_NEAR(four.decode.bandwidth_limit_us, two.decode.bandwidth_limit_us, 0.05 * two.decode.bandwidth_limit_us);
}

TEST(Planner, ThreadsAreARanksPartOfItsNode) {
  const auto checkpoint = Open("llama-3.2-3b");
  ASSERT_NE(checkpoint, nullptr);
  const auto threads = [&](std::string_view machine, int tp, int rank, int at_most = 0) {
    PassContext context;
    context.target = *ReadMachine(machine);
    if (at_most > 0) context.target.threads = at_most;
    context.tp = tp;
    context.rank = rank;
    const auto module = PlanFromConfig(*checkpoint, "", PassStage::kPlanned, {}, &context);
    EXPECT_TRUE(module.ok()) << module.status();
    return module.ok() ? std::get<int64_t>((*module)->attrs.find("threads")->second) : 0;
  };
  EXPECT_EQ(threads("spr-56c-2s", 1, 0), 56);
  EXPECT_EQ(threads("spr-56c-2s", 2, 1), 56);
  EXPECT_EQ(threads("spr-56c-2s", 4, 0), 28);
  EXPECT_EQ(threads("spr-56c-2s", 4, 3), 28);
  // Ranks 0 and 2 are on the first node, rank 1 has the second for itself.
  EXPECT_EQ(threads("spr-56c-2s", 3, 2), 28);
  EXPECT_EQ(threads("spr-56c-2s", 3, 1), 56);
  EXPECT_EQ(threads("spr-56c-2s", 3, 1, 40), 40);
  EXPECT_EQ(threads("xeon6980p-2s", 6, 2), 42);
  // One node.
  EXPECT_EQ(threads("emr-12c", 1, 0), 12);
  EXPECT_EQ(threads("emr-12c", 2, 1), 6);
  EXPECT_EQ(threads("emr-12c", 2, 1, 3), 3);
  EXPECT_EQ(threads("zen4-2c", 4, 1), 1);
}

// Six ranks that each attend for their own of 64 long sequences: a rank keeps its sequences' caches only.
TEST(Planner, DataParallelAttention) {
  const auto checkpoint = Open("deepseek-r1-671b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("xeon6980p-2s");
  options.tp = 6;
  options.quantize = "int8";
  options.prompt = 16384;
  const ModelPlan one = Plan(*checkpoint, options);
  options.batch = 64;
  const ModelPlan many = Plan(*checkpoint, options);
  ASSERT_EQ(many.nodes.size(), 6u);
  constexpr int64_t kCache = int64_t{61} * 576 * 2 * (16384 + 1024);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(one.nodes[i].kv_bytes, kCache);
    EXPECT_EQ(many.nodes[i].kv_bytes, 11 * kCache);
  }
  // Prefill runs on the weights that decoding has: by sequences too, though its first tokens alone would not pay.
  EXPECT_EQ(Calls(one.decode, "gather_rows"), 0);
  EXPECT_EQ(Calls(many.decode, "gather_rows"), 61);
  EXPECT_EQ(Calls(many.prefill, "gather_rows"), 61 * 32);
}

TEST(Planner, ProgramsOfAModelHaveTheSameWeights) {
  const auto checkpoint = Open("deepseek-r1-671b");
  ASSERT_NE(checkpoint, nullptr);
  const DecodeStep decode = {.sequences = 64, .kv_length = 16384};
  const auto weights = [&](int64_t rows, int64_t sequences, int64_t kv_length) {
    PassContext context;
    context.target = *ReadMachine("xeon6980p-2s");
    context.tp = 6;
    context.rank = 1;
    context.rows = rows;
    context.sequences = context.logit_rows = sequences;
    context.kv_length = kv_length;
    const auto module = PlanFromConfig(*checkpoint, "int8", PassStage::kPlanned, decode, &context);
    EXPECT_TRUE(module.ok()) << module.status();
    EXPECT_EQ(context.rows, rows);
    EXPECT_EQ(context.sequences, sequences);
    EXPECT_EQ(context.kv_length, kv_length);
    std::set<std::string> all;
    if (!module.ok()) return all;
    for (const auto& f : (*module)->functions) {
      for (const auto& w : f->weights) all.insert(fmt::format("{} {} {}", f->name, w->name, ToString(w->type)));
    }
    return all;
  };
  const auto decoding = weights(64, 64, 16384);
  EXPECT_FALSE(decoding.empty());
  EXPECT_EQ(weights(512, 1, 512), decoding);
  EXPECT_EQ(weights(1, 1, 0), decoding);
}

// A prompt is one sequence's, however many decode together later.
TEST(Planner, APromptIsExpandedWhateverTheBatch) {
  const auto checkpoint = Open("deepseek-r1-671b");
  ASSERT_NE(checkpoint, nullptr);
  PlanOptions options = Options("xeon6980p-2s");
  options.batch = 64;
  const ModelPlan plan = Plan(*checkpoint, options);
  EXPECT_EQ(Calls(plan.prefill, "mla_extend"), 61 * 2);
  EXPECT_EQ(Calls(plan.prefill, "absorb_q"), 0);
  EXPECT_EQ(Calls(plan.decode, "absorb_q"), 61);
  options.batch = 1;
  const ModelPlan one = Plan(*checkpoint, options);
  EXPECT_EQ(plan.prefill.us, one.prefill.us);
  EXPECT_EQ(plan.prefill.bytes, one.prefill.bytes);
}

}  // namespace
}  // namespace xjit
