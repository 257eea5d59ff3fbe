// The registry and its tables of names.
#include <gmock/gmock.h>

#include <set>

#include "ir/weight_rows.h"
#include "tests/unit/models/models_testing.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;

const std::vector<const ModelFamily*> kAll = {
#define XJIT_FAMILY(Name) &k##Name,
#include "models/families.inc"
#undef XJIT_FAMILY
};

const TensorName* Find(const ModelFamily& family, std::string_view symbol) {
  for (const TensorName& t : family.tensors) {
    if (t.symbol == symbol) return &t;
  }
  return nullptr;
}

// Weights as a GGUF file of the family names them.
ModelWeights GgufWeights(const ModelSpec& spec) {
  ModelWeights weights = AllOf(spec);
  if (spec.arch == "gpt_oss") {
    for (Encodings& layer : weights.layers) layer["gate_exps"] = layer["up_exps"] = DType::kMxfp4;
  }
  return weights;
}

TEST(Families, AreFoundByName) {
  EXPECT_EQ(*FindFamily("llama"), &kLlama);
  EXPECT_EQ(*FindFamily("qwen2"), &kQwen2);
  std::string known;
  for (const ModelFamily* family : kAll) known += fmt::format("{}{}", known.empty() ? "" : ", ", family->arch);
  EXPECT_EQ(KnownFamilies(), known);
  const auto unknown = FindFamily("gpt17");
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(Message(unknown.status())), "unknown architecture 'gpt17' (known: " + known + ")");
  for (const ModelFamily* family : kAll) EXPECT_EQ(*FindFamily(family->arch), family);
}

TEST(Families, NamesAreUnique) {
  for (const ModelFamily* family : kAll) {
    std::set<std::string_view> symbols, hf, gguf;
    for (const TensorName& t : family->tensors) {
      EXPECT_TRUE(symbols.insert(t.symbol).second) << family->arch << " " << t.symbol;
      EXPECT_TRUE(t.hf.empty() || hf.insert(t.hf).second) << family->arch << " " << t.hf;
      EXPECT_TRUE(t.gguf.empty() || gguf.insert(t.gguf).second) << family->arch << " " << t.gguf;
      EXPECT_FALSE(t.hf.empty() && t.gguf.empty()) << family->arch << " " << t.symbol;
      const bool outer = t.symbol == "embed" || t.symbol == "final_norm" || t.symbol == "lm_head";
      for (const std::string_view name : {t.hf, t.gguf}) {
        EXPECT_TRUE(name.empty() || (name.find("{}") == std::string_view::npos) == outer) << name;
      }
    }
  }
}

// Every symbol of the graph has a name in both kinds of files; computed ones have none.
TEST(Families, TensorTablesCoverTheGraph) {
  for (const ModelFamily* family : kAll) {
    const ModelSpec spec = SpecOf(family->arch, 3);
    for (const bool gguf : {false, true}) {
      const auto module = Build(spec, gguf ? GgufWeights(spec) : AllOf(spec));
      ASSERT_NE(module, nullptr);
      for (const auto& f : module->functions) {
        for (const auto& w : f->weights) {
          const auto ref = ParseWeightRef(w->name);
          ASSERT_TRUE(ref.ok()) << w->name;
          const TensorName* name = Find(*family, ref->symbol);
          if (ref->symbol.starts_with("inv_freq")) {
            EXPECT_EQ(name, nullptr);
            continue;
          }
          ASSERT_NE(name, nullptr) << family->arch << " @" << w->name;
          EXPECT_FALSE((gguf ? name->gguf : name->hf).empty()) << family->arch << " @" << w->name;
        }
      }
    }
  }
}

TEST(Families, EveryNameIsUsedOrBelongsToAVariant) {
  // What only some models of a family have.
  const std::set<std::string_view> variants = {
      "lm_head", "q_bias", "k_bias",   "v_bias", "o_bias", "gate_bias", "up_bias",    "down_bias", "q",
      "q_a",     "q_b",    "q_a_norm", "gate",   "up",     "down",      "correction", "kv_b_keys", "kv_b_values"};
  for (const ModelFamily* family : kAll) {
    const ModelSpec spec = SpecOf(family->arch, 3);
    std::set<std::string> used;
    for (const bool gguf : {false, true}) {
      const auto module = Build(spec, gguf ? GgufWeights(spec) : AllOf(spec));
      for (const auto& f : module->functions) {
        for (const auto& w : f->weights) used.insert(ParseWeightRef(w->name)->symbol);
      }
    }
    for (const TensorName& t : family->tensors) {
      EXPECT_TRUE(used.contains(std::string(t.symbol)) || variants.contains(t.symbol))
          << family->arch << " " << t.symbol;
    }
  }
}

TEST(Families, NamesAsPublished) {
  EXPECT_EQ(Find(kMixtral, "up_exps")->hf, "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight");
  EXPECT_EQ(Find(kMixtral, "down_exps")->hf, "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight");
  EXPECT_EQ(Find(kQwen3Moe, "router")->hf, "model.layers.{}.mlp.gate.weight");
  EXPECT_EQ(Find(kPhi3, "gate_up")->gguf, "blk.{}.ffn_up.weight");
  EXPECT_EQ(Find(kGemma3, "ffn_norm")->hf, "model.layers.{}.pre_feedforward_layernorm.weight");
  EXPECT_EQ(Find(kGemma3, "post_ffn_norm")->gguf, "blk.{}.post_ffw_norm.weight");
  EXPECT_EQ(Find(kGptOss, "ffn_norm")->gguf, "blk.{}.post_attention_norm.weight");
  EXPECT_EQ(Find(kGptOss, "gate_up_exps")->hf, "model.layers.{}.mlp.experts.gate_up_proj");
  EXPECT_EQ(Find(kDeepSeekV3, "correction")->gguf, "blk.{}.exp_probs_b.bias");
  EXPECT_EQ(Find(kDeepSeekV2, "kv_a")->hf, "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight");
}

TEST(Families, Flags) {
  using Flags = TensorName::Flags;
  for (const ModelFamily* family : kAll) {
    const bool latent = family->arch.starts_with("deepseek"), gemma = family->arch == "gemma3";
    for (const TensorName& t : family->tensors) {
      const auto s = t.symbol;
      uint8_t flags = Flags::kNone;
      if (!latent && (s == "q" || s == "k" || s == "q_bias" || s == "k_bias")) flags = Flags::kRopeRows;
      if (latent && (s == "q" || s == "q_b")) flags = Flags::kRopeTail;
      if (s == "kv_a") flags = Flags::kRopeSingle;
      if (gemma && s.ends_with("_norm")) flags = Flags::kGain;
      if (family->arch == "gpt_oss" && (s == "gate_up_exps" || s == "down_exps")) flags = Flags::kTransposed;
      EXPECT_EQ(t.flags, flags) << family->arch << " " << s;
    }
  }
}

}  // namespace
}  // namespace xjit
