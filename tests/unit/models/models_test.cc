// Graphs of Llama and Qwen2, and what all families share: the step, and layers that share a function.
#include <gmock/gmock.h>

#include "ir/ops.h"
#include "ir/text.h"
#include "tests/unit/models/models_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSpec Llama(int64_t layers) { return SpecOf("llama", layers); }
ModelSpec Qwen2(int64_t layers) { return SpecOf("qwen2", layers); }
ModelWeights Weights(const ModelSpec& spec, DType type = DType::kQ8_0) {
  const Encodings layer = {{"q", type},    {"k", type},  {"v", type},   {"o", type},
                           {"gate", type}, {"up", type}, {"down", type}};
  return {{{"embed", type}, {"lm_head", type}}, std::vector<Encodings>(static_cast<size_t>(spec.layers), layer)};
}

TEST(Llama, ALayerIsTheseEquations) {
  const ModelSpec spec = Llama(1);
  const auto module = Build(spec, Weights(spec));
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->name, "llama");
  EXPECT_THAT(Functions(*module), ElementsAre("layer", "step"));
  using enum OpCode;
  EXPECT_THAT(Codes(*module->Find("layer")),
              ElementsAre(kRmsNorm, kLinear, kLinear, kLinear, kRope, kRope, kKvStore, kAttention, kLinear, kAdd,
                          kRmsNorm, kLinear, kLinear, kSilu, kMul, kLinear, kAdd, kReturn));
  EXPECT_THAT(Codes(*module->Find("step")),
              ElementsAre(kEmbed, kRopeTable, kRepeat, kSelectRows, kRmsNorm, kLinear, kReturn));
  const Function& layer = *module->Find("layer");
  EXPECT_EQ(layer.FindWeight("q")->type, Type::Tensor({{64, 0}, {64, 0}}, DType::kQ8_0));
  EXPECT_EQ(layer.FindWeight("k")->type, Type::Tensor({{32, 0}, {64, 0}}, DType::kQ8_0));
  EXPECT_EQ(layer.FindWeight("down")->type, Type::Tensor({{64, 0}, {96, 0}}, DType::kQ8_0));
  const Op& attention = *layer.ops[7];
  EXPECT_EQ(attention.Int("heads"), 4);
  EXPECT_EQ(attention.Int("kv_heads"), 2);
  EXPECT_EQ(attention.Float("scale"), 0.25);
  EXPECT_EQ(attention.Int("window"), 0);
  EXPECT_EQ(ToString(module->Find("step")->ops.back()->operand(0)->type), "tensor<L x 320 x f32>");
}

TEST(Llama, HeadsNeedNotFillTheHiddenSize) {
  ModelSpec spec = Llama(1);
  spec.head_dim = 32;
  const auto module = Build(spec, Weights(spec));
  ASSERT_NE(module, nullptr);
  const Function& layer = *module->Find("layer");
  EXPECT_EQ(layer.FindWeight("q")->type.dims[0].size, 128);
  EXPECT_EQ(layer.FindWeight("o")->type.dims[1].size, 128);
}

TEST(Llama, TiedEmbeddings) {
  ModelSpec spec = Llama(1);
  const auto untied = Build(spec, Weights(spec));
  EXPECT_NE(untied->Find("step")->FindWeight("lm_head"), nullptr);
  spec.tie_word_embeddings = true;
  const auto tied = Build(spec, Weights(spec));
  const Function& step = *tied->Find("step");
  EXPECT_EQ(step.FindWeight("lm_head"), nullptr);
  EXPECT_EQ(step.ops[5]->weight(1), step.FindWeight("embed"));
  EXPECT_EQ(step.ops[0]->weight(1), step.FindWeight("embed"));
}

TEST(Llama, EncodingsAndNamesNotGivenAreF32) {
  const ModelSpec spec = Llama(1);
  ModelWeights weights = Weights(spec);
  weights.layers[0].erase("o");
  const auto module = Build(spec, weights);
  EXPECT_EQ(module->Find("layer")->FindWeight("o")->type.elem, DType::kF32);
}

TEST(Llama, AGroupEndsWithItsRow) {
  const ModelSpec spec = Llama(1);
  ModelWeights weights = Weights(spec);
  weights.layers[0]["o"] = weights.layers[0]["down"] = Encoding::Int4(INT32_MAX, true);
  weights.layers[0]["gate"] = Encoding::Int4(32, false);
  const auto module = Build(spec, weights);
  ASSERT_NE(module, nullptr);
  const Function& layer = *module->Find("layer");
  for (const char* name : {"o", "down"}) {
    const Type& type = layer.FindWeight(name)->type;
    EXPECT_EQ(type.encoding(), Encoding::Int4(static_cast<int32_t>(type.cols()), true)) << name;
  }
  EXPECT_EQ(layer.FindWeight("gate")->type.encoding(), Encoding::Int4(32, false));
}

TEST(Llama, LayersOfOneKindShareAFunction) {
  const ModelSpec spec = Llama(6);
  ModelWeights weights = Weights(spec);
  for (size_t layer : {1, 2, 5}) weights.layers[layer]["down"] = DType::kQ5_0;
  const auto module = Build(spec, weights);
  ASSERT_NE(module, nullptr);
  EXPECT_THAT(Functions(*module), ElementsAre("layer", "layer2", "step"));
  EXPECT_EQ(Schedule(*module), "@layer:0, @layer2:1-2, @layer:3-4, @layer2:5");
  EXPECT_EQ(module->Find("layer")->FindWeight("down")->type.elem, DType::kQ8_0);
  EXPECT_EQ(module->Find("layer2")->FindWeight("down")->type.elem, DType::kQ5_0);
}

TEST(Llama, AWindowOnUpperLayersIsAKindOfItsOwn) {
  ModelSpec spec = Qwen2(4);
  spec.windows = {0, 0, 0, 16};
  const auto module = Build(spec, Weights(spec));
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(Schedule(*module), "@layer:0-2, @layer2:3");
  EXPECT_THAT(PrintFunction(*module->Find("layer")), Not(HasSubstr("window")));
  EXPECT_THAT(PrintFunction(*module->Find("layer2")), HasSubstr("window = 16"));
  spec.windows = {16, 16, 16, 16};
  EXPECT_EQ(Schedule(*Build(spec, Weights(spec))), "@layer:0-3");
}

TEST(Qwen2, HasBiasesOnQKV) {
  const ModelSpec spec = Qwen2(2);
  const auto module = Build(spec, Weights(spec));
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->name, "qwen2");
  const Function& layer = *module->Find("layer");
  EXPECT_EQ(Count(layer, OpCode::kAddBias), 3);
  EXPECT_EQ(layer.FindWeight("q_bias")->type, Type::Tensor({{64, 0}}, DType::kF32));
  EXPECT_EQ(layer.FindWeight("k_bias")->type, Type::Tensor({{32, 0}}, DType::kF32));
  EXPECT_EQ(layer.FindWeight("o_bias"), nullptr);
}

TEST(Llama, BiasesWhereTheSpecHasThem) {
  ModelSpec spec = Llama(1);
  spec.o_bias = true;
  EXPECT_EQ(Count(*Build(spec, Weights(spec))->Find("layer"), OpCode::kAddBias), 1);
  spec.mlp_bias = true;
  EXPECT_EQ(Count(*Build(spec, Weights(spec))->Find("layer"), OpCode::kAddBias), 4);
}

TEST(Llama, RopeScaleReachesTheTable) {
  ModelSpec spec = Llama(1);
  spec.rope.scaling = RopeSpec::Scaling::kYarn;
  spec.rope.factor = 4;
  spec.rope.original_max_positions = 64;
  EXPECT_DOUBLE_EQ(Build(spec, Weights(spec))->Find("step")->ops[1]->Float("scale"), 1.138629436111989);
}

TEST(Llama, AnImpossibleShapeIsAnError) {
  ModelSpec spec = Llama(1);
  spec.kv_heads = 3;
  const auto module = kLlama.build(spec, Weights(spec));
  ASSERT_FALSE(module.ok());
  EXPECT_THAT(std::string(Message(module.status())),
              HasSubstr("@layer: attention: 4 query heads do not share 3 KV heads evenly"));
}

TEST(Llama, EncodingsOfEveryLayer) {
  const ModelSpec spec = Llama(2);
  ModelWeights weights = Weights(spec);
  weights.layers.pop_back();
  EXPECT_EQ(kLlama.build(spec, weights).status().code(), absl::StatusCode::kInternal);
}

// What people read with --print: a model of 28 layers of two kinds on a page.
TEST(Qwen2, PrintsOnAPage) {
  const ModelSpec spec = Qwen2(28);
  ModelWeights weights = Weights(spec);
  for (size_t layer = 0; layer < 28; layer += 3) weights.layers[layer]["down"] = DType::kQ5_0;
  const auto module = Build(spec, weights);
  ASSERT_NE(module, nullptr);
  const std::string text = PrintModule(*module);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 80) << text;
  const auto again = ParseModule(text, "t");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintModule(**again), text);
}

}  // namespace
}  // namespace xjit
