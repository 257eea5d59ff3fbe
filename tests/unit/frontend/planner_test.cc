#include "frontend/planner.h"

#include <gtest/gtest.h>

#include "frontend/machine_file.h"

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
  const auto module = PlanFromConfig(*checkpoint, "", PassStage::kPlanned, &context);
  ASSERT_TRUE(module.ok()) << module.status();
  const std::string text = ExplainKernels(context);
  EXPECT_TRUE(text.starts_with("@layer %")) << text;
  EXPECT_NE(text.find("\n  chose avx512_bf16 "), std::string::npos) << text;
  EXPECT_NE(text.find("\n  avx2 refused: "), std::string::npos) << text;
  EXPECT_NE(text.find("@step %logits\n"), std::string::npos) << text;
  context.rank = 1;
  EXPECT_FALSE(PlanFromConfig(*checkpoint, "", PassStage::kPlanned, &context).ok());
}

}  // namespace
}  // namespace xjit
