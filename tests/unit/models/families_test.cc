// Every family beyond Llama and Qwen2: what its layers are made of, and that they run.
#include <gmock/gmock.h>

#include "ir/ops.h"
#include "ir/text.h"
#include "tests/unit/models/models_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum OpCode;

Type Matrix(int64_t n, int64_t k) { return Type::Tensor({{n, 0}, {k, 0}}, DType::kBF16); }
Type OfExperts(int64_t e, int64_t n, int64_t k, DType type = DType::kBF16) {
  return Type::Tensor({{e, 0}, {n, 0}, {k, 0}}, type);
}
Type Vector(int64_t n) { return Type::Tensor({{n, 0}}, DType::kF32); }
std::unique_ptr<Module> Build(const ModelSpec& spec) { return Build(spec, AllOf(spec)); }

class EveryFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryFamily, IsReadBackFromItsText) {
  const auto module = Build(SpecOf(GetParam(), 4));
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->name, GetParam());
  const std::string text = PrintModule(*module);
  const auto again = ParseModule(text, "t");
  ASSERT_TRUE(again.ok()) << again.status() << text;
  EXPECT_EQ(PrintModule(**again), text);
}

// A chunked prompt, down to a token at a time, gives what the whole prompt gives.
TEST_P(EveryFamily, RunsOnTheInterpreter) {
  const auto module = Build(SpecOf(GetParam(), 4));
  ASSERT_NE(module, nullptr);
  const std::vector<int32_t> ids = {5, 319, 77};
  const std::vector<float> whole = LastLogits(*module, ids, 3), single = LastLogits(*module, ids, 1);
  ASSERT_EQ(whole.size(), 320u);
  ASSERT_EQ(single.size(), 320u);
  double square = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_TRUE(std::isfinite(whole[i])) << i;
    EXPECT_NEAR(whole[i], single[i], 1e-5) << i;
    square += static_cast<double>(whole[i]) * static_cast<double>(whole[i]);
  }
  // Normed rows times rows of deviation 1/sqrt(k): logits near a deviation of 1.
  EXPECT_GT(square / 320, 0.3);
  EXPECT_LT(square / 320, 3);
  // Each earlier token counts.
  const std::vector<float> other = LastLogits(*module, {6, 319, 77}, 3);
  EXPECT_NE(whole, other);
}

TEST_P(EveryFamily, PrintsOnTwoScreens) {
  const std::string text = PrintModule(*Build(SpecOf(GetParam(), 61)));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 120) << text;
}

std::vector<std::string> Archs() {
  return {
#define XJIT_FAMILY(Name) std::string(k##Name.arch),
#include "models/families.inc"
#undef XJIT_FAMILY
  };
}
INSTANTIATE_TEST_SUITE_P(Families, EveryFamily, ::testing::ValuesIn(Archs()),
                         [](const auto& family) { return family.param; });

TEST(Mistral, IsLlamaWithAWindow) {
  const auto module = Build(SpecOf("mistral", 3));
  EXPECT_EQ(Schedule(*module), "@layer:0-2");
  EXPECT_EQ(TheOp(*module->Find("layer"), kAttention).Int("window"), 16);
  EXPECT_EQ(Codes(*module->Find("layer")), Codes(*Build(SpecOf("llama", 1))->Find("layer")));
}

TEST(Qwen3, NormsHeadsOfQAndK) {
  const auto module = Build(SpecOf("qwen3", 1));
  const Function& layer = *module->Find("layer");
  EXPECT_THAT(Codes(layer),
              ElementsAre(kRmsNorm, kLinear, kLinear, kLinear, kRmsNorm, kRmsNorm, kRope, kRope, kKvStore, kAttention,
                          kLinear, kAdd, kRmsNorm, kLinear, kLinear, kSilu, kMul, kLinear, kAdd, kReturn));
  EXPECT_EQ(layer.FindWeight("q_norm")->type, Vector(16));
  EXPECT_EQ(layer.ops[4]->weight(1), layer.FindWeight("q_norm"));
  EXPECT_EQ(layer.ops[6]->operand(0), layer.ops[4]->result());
  EXPECT_EQ(layer.ops[5]->weight(1), layer.FindWeight("k_norm"));
  EXPECT_EQ(Count(layer, kAddBias), 0);
}

TEST(Qwen3Moe, ExpertsReplaceTheFeedForward) {
  const auto module = Build(SpecOf("qwen3_moe", 1));
  const Function& layer = *module->Find("layer");
  const auto codes = Codes(layer);
  EXPECT_THAT(std::vector<OpCode>(codes.begin() + 12, codes.end()),
              ElementsAre(kRmsNorm, kLinear, kRoute, kExpertLinear, kExpertLinear, kSilu, kMul, kExpertLinear, kCombine,
                          kAdd, kReturn));
  EXPECT_EQ(layer.FindWeight("router")->type, Matrix(8, 64));
  EXPECT_EQ(layer.FindWeight("gate_exps")->type, OfExperts(8, 32, 64));
  EXPECT_EQ(layer.FindWeight("down_exps")->type, OfExperts(8, 64, 32));
  const Op& route = TheOp(layer, kRoute);
  EXPECT_EQ(route.Int("top_k"), 2);
  EXPECT_EQ(route.Str("score"), "softmax");
  EXPECT_TRUE(route.Bool("normalize"));
  EXPECT_EQ(route.operands.size(), 1u);
  EXPECT_EQ(TheOp(layer, kCombine).operand(1), route.result(1));
}

TEST(Qwen3Moe, DenseLayersAreAKindOfTheirOwn) {
  ModelSpec spec = SpecOf("qwen3_moe", 5);
  spec.moe.layers = {false, true, true, false, true};
  const auto module = Build(spec);
  EXPECT_EQ(Schedule(*module), "@layer:0, @layer2:1-2, @layer:3, @layer2:4");
  EXPECT_EQ(module->Find("layer")->FindWeight("gate")->type, Matrix(96, 64));
  EXPECT_EQ(module->Find("layer")->FindWeight("router"), nullptr);
  EXPECT_EQ(module->Find("layer2")->FindWeight("gate"), nullptr);
}

TEST(Mixtral, SoftmaxOfTheChosen) {
  const auto module = Build(SpecOf("mixtral", 2));
  const Op& route = TheOp(*module->Find("layer"), kRoute);
  EXPECT_EQ(route.Str("score"), "softmax_chosen");
  EXPECT_FALSE(route.Bool("normalize"));
  EXPECT_EQ(Schedule(*module), "@layer:0-1");
}

TEST(Experts, ARouterKeepsItsOwnEncoding) {
  const ModelSpec spec = SpecOf("mixtral", 1);
  ModelWeights weights = AllOf(spec, DType::kQ4_K);
  weights.layers[0]["router"] = DType::kF32;
  const auto module = Build(spec, weights);
  EXPECT_EQ(module->Find("layer")->FindWeight("router")->type.elem, DType::kF32);
  EXPECT_EQ(module->Find("layer")->FindWeight("up_exps")->type.elem, DType::kQ4_K);
}

TEST(Phi3, SlicesOfFusedTensors) {
  const ModelSpec spec = SpecOf("phi3", 1);
  const auto module = Build(spec);
  const Function& layer = *module->Find("layer");
  EXPECT_EQ(layer.FindWeight("qkv[0:64,:]")->type, Matrix(64, 64));
  EXPECT_EQ(layer.FindWeight("qkv[64:96,:]")->type, Matrix(32, 64));
  EXPECT_EQ(layer.FindWeight("qkv[96:128,:]")->type, Matrix(32, 64));
  EXPECT_EQ(layer.FindWeight("gate_up[0:96,:]")->type, Matrix(96, 64));
  EXPECT_EQ(layer.FindWeight("gate_up[96:192,:]")->type, Matrix(96, 64));
  const std::string text = PrintFunction(layer);
  EXPECT_THAT(text, HasSubstr("%gate = linear"));
  EXPECT_THAT(text, HasSubstr("%v = linear"));
}

TEST(Phi3, TheTableIsAsWideAsWhatIsRotated) {
  ModelSpec spec = SpecOf("phi3", 1);
  const auto part = Build(spec);
  EXPECT_EQ(part->Find("step")->FindWeight("inv_freq")->type, Vector(6));
  EXPECT_EQ(ToString(part->Find("layer")->args[1]->type), "tensor<T x 12 x f32>");
  spec.rotary_dim = 0;
  EXPECT_EQ(Build(spec)->Find("step")->FindWeight("inv_freq")->type, Vector(8));
}

TEST(Gemma3, NormsOnBothSidesAndTwoRopeTables) {
  ModelSpec spec = SpecOf("gemma3", 6);
  const auto module = Build(spec);
  EXPECT_EQ(Schedule(*module), "@layer:0-1, @layer2:2, @layer:3-4, @layer2:5");
  const Function& step = *module->Find("step");
  EXPECT_THAT(Codes(step),
              ElementsAre(kEmbed, kScale, kRopeTable, kRopeTable, kRepeat, kSelectRows, kRmsNorm, kLinear, kReturn));
  EXPECT_EQ(step.ops[1]->Float("by"), 8);
  EXPECT_NE(step.FindWeight("inv_freq_local"), nullptr);
  const Function& local = *module->Find("layer");
  EXPECT_THAT(Codes(local), ElementsAre(kRmsNorm, kLinear, kLinear, kLinear, kRmsNorm, kRmsNorm, kRope, kRope, kKvStore,
                                        kAttention, kLinear, kRmsNorm, kAdd, kRmsNorm, kLinear, kLinear, kGelu, kMul,
                                        kLinear, kRmsNorm, kAdd, kReturn));
  ASSERT_EQ(local.args.size(), 4u);
  EXPECT_EQ(local.args[2]->name, "rope_local");
  EXPECT_EQ(local.ops[6]->operand(1), local.args[2].get());
  EXPECT_EQ(local.ops[9]->Int("window"), 16);
  EXPECT_EQ(local.ops[9]->Float("scale"), 0.125);
  const Function& global = *module->Find("layer2");
  EXPECT_EQ(global.ops[6]->operand(1), global.args[1].get());
  EXPECT_EQ(global.ops[9]->Int("window"), 0);
}

TEST(Gemma3, OneTableWhereRopesAreAlike) {
  ModelSpec spec = SpecOf("gemma3", 3);
  spec.local_rope.reset();
  const auto module = Build(spec);
  EXPECT_EQ(Count(*module->Find("step"), kRopeTable), 1);
  EXPECT_EQ(module->Find("layer")->args.size(), 3u);
}

TEST(Gemma3, SoftCaps) {
  ModelSpec spec = SpecOf("gemma3", 1);
  EXPECT_THAT(PrintModule(*Build(spec)), Not(HasSubstr("cap")));
  spec.attention_soft_cap = 50;
  spec.final_soft_cap = 30;
  const auto module = Build(spec);
  EXPECT_EQ(TheOp(*module->Find("layer"), kAttention).Float("soft_cap"), 50);
  EXPECT_EQ(TheOp(*module->Find("step"), kSoftCap).Float("cap"), 30);
}

TEST(GptOss, BiasesSinksAndClampedSwiglu) {
  const auto module = Build(SpecOf("gpt_oss", 3));
  EXPECT_EQ(Schedule(*module), "@layer:0, @layer2:1, @layer:2");
  const Function& layer = *module->Find("layer");
  EXPECT_THAT(Codes(layer), ElementsAre(kRmsNorm, kLinear, kAddBias, kLinear, kAddBias, kLinear, kAddBias, kRope, kRope,
                                        kKvStore, kAttention, kLinear, kAddBias, kAdd, kRmsNorm, kLinear, kAddBias,
                                        kRoute, kExpertLinear, kExpertBias, kExpertLinear, kExpertBias, kClampedSwiglu,
                                        kExpertLinear, kExpertBias, kCombine, kAdd, kReturn));
  EXPECT_EQ(TheOp(layer, kAttention).weight(2), layer.FindWeight("sinks"));
  EXPECT_EQ(layer.FindWeight("sinks")->type, Vector(4));
  EXPECT_EQ(TheOp(layer, kClampedSwiglu).Float("limit"), 7);
  EXPECT_EQ(TheOp(layer, kClampedSwiglu).Float("alpha"), 1.702);
  EXPECT_EQ(layer.FindWeight("router_bias")->type, Vector(8));
}

TEST(GptOss, GateAndUpAlternateOrAreTwoTensors) {
  const ModelSpec spec = SpecOf("gpt_oss", 1);
  ModelWeights weights = AllOf(spec);
  weights.layers[0]["gate_up_exps"] = DType::kMxfp4;
  const auto fused = Build(spec, weights);
  const Function& layer = *fused->Find("layer");
  EXPECT_EQ(layer.FindWeight("gate_up_exps[:,0:64:2,:]")->type, OfExperts(8, 32, 64, DType::kMxfp4));
  EXPECT_EQ(layer.FindWeight("gate_up_exps[:,1:64:2,:]")->type, OfExperts(8, 32, 64, DType::kMxfp4));
  EXPECT_EQ(layer.FindWeight("gate_up_exps_bias[:,0:64:2,:]")->type, OfExperts(8, 32, 1, DType::kF32));
  EXPECT_EQ(layer.FindWeight("gate_up_exps_bias[:,1:64:2,:]")->type, OfExperts(8, 32, 1, DType::kF32));
  EXPECT_EQ(layer.FindWeight("down_exps_bias")->type, OfExperts(8, 64, 1, DType::kF32));
  weights.layers[0] = {{"", DType::kBF16}, {"gate_exps", DType::kMxfp4}, {"up_exps", DType::kMxfp4}};
  const auto apart = Build(spec, weights);
  const Function& two = *apart->Find("layer");
  EXPECT_EQ(two.FindWeight("gate_exps")->type, OfExperts(8, 32, 64, DType::kMxfp4));
  EXPECT_EQ(two.FindWeight("up_exps_bias")->type, OfExperts(8, 32, 1, DType::kF32));
  EXPECT_EQ(Codes(two), Codes(layer));
}

TEST(DeepSeek, LatentAttention) {
  const auto module = Build(SpecOf("deepseek_v3", 3));
  EXPECT_EQ(Schedule(*module), "@layer:0, @layer2:1-2");
  const Function& dense = *module->Find("layer");
  EXPECT_THAT(Codes(dense), ElementsAre(kRmsNorm, kLinear, kRmsNorm, kLinear, kLinear, kSlice, kRmsNorm, kSlice, kRope,
                                        kRope, kKvStoreLatent, kMlaAttention, kLinear, kAdd, kRmsNorm, kLinear, kLinear,
                                        kSilu, kMul, kLinear, kAdd, kReturn));
  EXPECT_EQ(dense.FindWeight("q_a")->type, Matrix(24, 64));
  EXPECT_EQ(dense.FindWeight("q_b")->type, Matrix(96, 24));
  EXPECT_EQ(dense.FindWeight("kv_a")->type, Matrix(40, 64));
  EXPECT_EQ(dense.FindWeight("kv_b")->type, Matrix(4 * (16 + 12), 32));
  EXPECT_EQ(dense.FindWeight("o")->type, Matrix(64, 48));
  EXPECT_EQ(module->Find("step")->FindWeight("inv_freq")->type, Vector(4));
  EXPECT_EQ(dense.ops[8]->Int("heads"), 1);
  EXPECT_EQ(dense.ops[8]->Int("offset"), 0);
  EXPECT_EQ(dense.ops[9]->Int("heads"), 4);
  EXPECT_EQ(dense.ops[9]->Int("offset"), 16);
  EXPECT_DOUBLE_EQ(TheOp(dense, kMlaAttention).Float("scale"), 1 / std::sqrt(24.0));
}

TEST(Spec, WhatATokenKeepsInTheCache) {
  EXPECT_EQ(SpecOf("llama", 1).kv_values(), 2 * 2 * 16);
  EXPECT_EQ(SpecOf("deepseek_v3", 1).kv_values(), 32 + 8);
}

TEST(DeepSeek, EpsilonsOfTheLatentNormsAreTheirOwn) {
  ModelSpec spec = SpecOf("deepseek_v3", 1);
  spec.rms_norm_eps = 1e-3;
  const auto module = Build(spec);
  const Function& layer = *module->Find("layer");
  EXPECT_EQ(layer.ops[0]->Float("eps"), 1e-3);
  EXPECT_EQ(layer.ops[2]->Float("eps"), 1e-6);
  EXPECT_EQ(layer.ops[6]->Float("eps"), 1e-6);
}

TEST(DeepSeekV3, ChoosesInGroupsWithACorrection) {
  const auto module = Build(SpecOf("deepseek_v3", 2));
  const Function& layer = *module->Find("layer2");
  const Op& route = TheOp(layer, kRoute);
  EXPECT_EQ(route.Str("score"), "sigmoid");
  EXPECT_TRUE(route.Bool("normalize"));
  EXPECT_EQ(route.Float("scale"), 2.5);
  EXPECT_EQ(route.Int("groups"), 4);
  EXPECT_EQ(route.Int("top_groups"), 2);
  EXPECT_EQ(route.Int("group_top"), 2);
  EXPECT_EQ(route.weight(1), layer.FindWeight("correction"));
  // The shared expert is added to the combined ones.
  EXPECT_EQ(layer.FindWeight("shared_gate")->type, Matrix(48, 64));
  EXPECT_EQ(layer.FindWeight("shared_down")->type, Matrix(64, 48));
  const Value* combined = TheOp(layer, kCombine).result();
  const auto users = layer.Users(combined);
  ASSERT_EQ(users.size(), 1u);
  EXPECT_EQ(users[0]->code, kAdd);
  EXPECT_EQ(users[0]->operand(1)->def->weight(1), layer.FindWeight("shared_down"));
}

TEST(DeepSeekV2, ProjectsQDirectly) {
  const auto module = Build(SpecOf("deepseek_v2", 2));
  const Function& layer = *module->Find("layer2");
  EXPECT_EQ(layer.FindWeight("q")->type, Matrix(96, 64));
  EXPECT_EQ(layer.FindWeight("q_b"), nullptr);
  EXPECT_EQ(layer.FindWeight("correction"), nullptr);
  const Op& route = TheOp(layer, kRoute);
  EXPECT_EQ(route.Str("score"), "softmax");
  EXPECT_EQ(route.Int("group_top"), 1);
  EXPECT_EQ(route.operands.size(), 1u);
}

}  // namespace
}  // namespace xjit
