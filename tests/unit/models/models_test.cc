// Graphs of model families: what a spec turns into.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ir/ops.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "models/registry.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSpec Llama(int64_t layers) {
  ModelSpec spec;
  spec.arch = "llama";
  spec.vocab_size = 320;
  spec.hidden_size = 64;
  spec.intermediate_size = 96;
  spec.layers = layers;
  spec.heads = 4;
  spec.kv_heads = 2;
  spec.head_dim = 16;
  spec.max_positions = 128;
  return spec;
}
ModelSpec Qwen2(int64_t layers) {
  ModelSpec spec = Llama(layers);
  spec.arch = "qwen2";
  spec.qkv_bias = true;
  return spec;
}
ModelWeights Weights(const ModelSpec& spec, DType type = DType::kQ8_0) {
  const Encodings layer = {{"q", type},    {"k", type},  {"v", type},   {"o", type},
                           {"gate", type}, {"up", type}, {"down", type}};
  return {{{"embed", type}, {"lm_head", type}}, std::vector<Encodings>(static_cast<size_t>(spec.layers), layer)};
}

std::unique_ptr<Module> Build(const ModelSpec& spec, const ModelWeights& weights) {
  const auto family = FindFamily(spec.arch);
  EXPECT_TRUE(family.ok()) << family.status();
  auto module = (*family)->build(spec, weights);
  EXPECT_TRUE(module.ok()) << module.status();
  if (!module.ok()) return nullptr;
  EXPECT_TRUE(VerifyModule(**module).ok()) << VerifyModule(**module);
  return *std::move(module);
}
std::vector<std::string> Functions(const Module& module) {
  std::vector<std::string> names;
  for (const auto& f : module.functions) names.push_back(f->name);
  return names;
}
std::string Schedule(const Module& module) {
  for (const auto& op : module.Find("step")->ops) {
    if (op->code == OpCode::kRepeat) return op->Str("schedule");
  }
  return "";
}
std::vector<OpCode> Codes(const Function& f) {
  std::vector<OpCode> codes;
  for (const auto& op : f.ops) codes.push_back(op->code);
  return codes;
}
int64_t Count(const Function& f, OpCode code) {
  const auto codes = Codes(f);
  return std::count(codes.begin(), codes.end(), code);
}

TEST(Families, AreFoundByName) {
  EXPECT_EQ(*FindFamily("llama"), &kLlama);
  EXPECT_EQ(*FindFamily("qwen2"), &kQwen2);
  const auto unknown = FindFamily("gpt17");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(Message(unknown.status())), "unknown architecture 'gpt17' (known: llama, qwen2)");
  EXPECT_EQ(KnownFamilies(), "llama, qwen2");
}

TEST(Families, TensorTablesCoverTheGraph) {
  for (ModelSpec spec : {Llama(1), Qwen2(1)}) {
    spec.o_bias = spec.mlp_bias = spec.qkv_bias = true;
    const auto module = Build(spec, Weights(spec));
    ASSERT_NE(module, nullptr);
    const auto tensors = (*FindFamily(spec.arch))->tensors;
    std::set<std::string> symbols, hf, gguf;
    for (const TensorName& t : tensors) {
      EXPECT_TRUE(symbols.insert(std::string(t.symbol)).second) << t.symbol;
      EXPECT_TRUE(hf.insert(std::string(t.hf)).second) << t.hf;
      EXPECT_TRUE(gguf.insert(std::string(t.gguf)).second) << t.gguf;
      const bool rotary = t.symbol == "q" || t.symbol == "k" || t.symbol == "q_bias" || t.symbol == "k_bias";
      EXPECT_EQ((t.flags & TensorName::kRopeRows) != 0, rotary) << t.symbol;
      EXPECT_EQ(t.hf.find("{}") == std::string_view::npos, t.gguf.find("{}") == std::string_view::npos) << t.symbol;
    }
    for (const auto& f : module->functions) {
      for (const auto& w : f->weights) {
        if (w->name == "inv_freq") continue;  // computed, in no checkpoint
        EXPECT_TRUE(symbols.contains(w->name)) << w->name;
      }
    }
  }
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
