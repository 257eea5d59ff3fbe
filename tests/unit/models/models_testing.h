// Small specs of every family, and weights to run them on the interpreter.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "ir/interpreter.h"
#include "ir/verifier.h"
#include "models/registry.h"

namespace xjit {

inline ModelSpec Dense(std::string_view arch, int64_t layers) {
  ModelSpec spec;
  spec.arch = arch;
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

inline ModelSpec WithExperts(ModelSpec spec) {
  spec.moe.experts = 8;
  spec.moe.experts_per_token = 2;
  spec.moe.intermediate_size = 32;
  spec.moe.layers.assign(static_cast<size_t>(spec.layers), true);
  return spec;
}

inline ModelSpec DeepSeek(std::string_view arch, int64_t layers) {
  ModelSpec spec = WithExperts(Dense(arch, layers));
  spec.mla = {.q_lora_rank = 24, .kv_lora_rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 12};
  spec.head_dim = 24;
  spec.kv_heads = 4;
  spec.moe.shared_intermediate_size = 48;
  spec.moe.groups = 4;
  spec.moe.top_groups = 2;
  spec.moe.layers[0] = false;
  spec.rope_pairs_adjacent = true;
  if (arch == "deepseek_v2") {
    spec.mla.q_lora_rank = 0;
  } else {
    spec.moe.score = MoeSpec::Score::kSigmoid;
    spec.moe.normalize = spec.moe.correction_bias = true;
    spec.moe.scale = 2.5;
    spec.moe.group_top = 2;
  }
  return spec;
}

// A spec as the configuration readers fill it.
inline ModelSpec SpecOf(std::string_view arch, int64_t layers) {
  ModelSpec spec = Dense(arch, layers);
  if (arch.starts_with("deepseek")) return DeepSeek(arch, layers);
  if (arch == "mistral") spec.windows.assign(static_cast<size_t>(layers), 16);
  if (arch == "qwen2") spec.qkv_bias = true;
  if (arch == "qwen3" || arch == "qwen3_moe") spec.qk_norm = true;
  if (arch == "phi3") spec.rotary_dim = 12;
  if (arch == "qwen3_moe" || arch == "mixtral" || arch == "gpt_oss") spec = WithExperts(std::move(spec));
  if (arch == "qwen3_moe") spec.moe.normalize = true;
  if (arch == "mixtral") spec.moe.score = MoeSpec::Score::kSoftmaxOfChosen;
  if (arch == "gpt_oss") {
    spec.moe.score = MoeSpec::Score::kSoftmaxOfChosen;
    spec.moe.router_bias = spec.moe.expert_bias = true;
    spec.qkv_bias = spec.o_bias = spec.sinks = true;
    spec.activation = Activation::kClampedSwiglu;
    for (int64_t i = 0; i < layers; ++i) spec.windows.push_back(i % 2 == 0 ? 16 : 0);
  }
  if (arch == "gemma3") {
    spec.qk_norm = spec.post_norms = spec.tie_word_embeddings = true;
    spec.norm_offset = 1;
    spec.embed_scale = 8;
    spec.attention_scale = 0.125;
    spec.activation = Activation::kGeluTanh;
    spec.local_rope.emplace();
    for (int64_t i = 0; i < layers; ++i) spec.windows.push_back(i % 3 == 2 ? 0 : 16);
  }
  return spec;
}

// One encoding for all.
inline ModelWeights AllOf(const ModelSpec& spec, DType type = DType::kBF16) {
  return {{{"", type}}, std::vector<Encodings>(static_cast<size_t>(spec.layers), Encodings{{"", type}})};
}

inline std::unique_ptr<Module> Build(const ModelSpec& spec, const ModelWeights& weights) {
  const auto family = FindFamily(spec.arch);
  EXPECT_TRUE(family.ok()) << family.status();
  auto module = (*family)->build(spec, weights);
  EXPECT_TRUE(module.ok()) << module.status();
  if (!module.ok()) return nullptr;
  EXPECT_TRUE(VerifyModule(**module).ok()) << VerifyModule(**module);
  return *std::move(module);
}

inline std::vector<std::string> Functions(const Module& module) {
  std::vector<std::string> names;
  for (const auto& f : module.functions) names.push_back(f->name);
  return names;
}
inline std::string Schedule(const Module& module) {
  for (const auto& op : module.Find("step")->ops) {
    if (op->code == OpCode::kRepeat) return op->Str("schedule");
  }
  return "";
}
inline std::vector<OpCode> Codes(const Function& f) {
  std::vector<OpCode> codes;
  for (const auto& op : f.ops) codes.push_back(op->code);
  return codes;
}
inline int64_t Count(const Function& f, OpCode code) {
  const auto codes = Codes(f);
  return std::count(codes.begin(), codes.end(), code);
}
// The only op of that code.
inline const Op& TheOp(const Function& f, OpCode code) {
  EXPECT_EQ(Count(f, code), 1);
  return **std::find_if(f.ops.begin(), f.ops.end(), [code](const auto& op) { return op->code == code; });
}

// Values that depend on symbol, layer, row and column: matrices with a standard deviation of 1 / sqrt(k), vectors
// around 1.
class HashedWeights : public WeightSource {
 public:
  absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) override {
    uint64_t state = std::hash<std::string>{}(w.name) ^ (static_cast<uint64_t>(layer + 2) << 40) ^
                     (static_cast<uint64_t>(n + 1) * 0x9e3779b97f4a7c15u);
    const bool vector = w.type.dims.size() == 1;
    const double spread = vector ? 0.2 : std::sqrt(12.0 / static_cast<double>(out.size()));
    for (float& value : out) {
      // splitmix64  [Steele et al. 2014, doi:10.1145/2660193.2660195]
      uint64_t z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      z ^= z >> 31;
      value = static_cast<float>((vector ? 1.0 : 0.0) + spread * (static_cast<double>(z >> 11) * 0x1p-53 - 0.5));
    }
    return absl::OkStatus();
  }
};

// Logits of the last of `ids`, fed `chunk` at a time.
inline std::vector<float> LastLogits(const Module& module, const std::vector<int32_t>& ids, size_t chunk) {
  HashedWeights weights;
  InterpKv kv;
  std::vector<float> logits;
  for (size_t at = 0; at < ids.size(); at += chunk) {
    InterpStep step;
    for (size_t i = at; i < std::min(at + chunk, ids.size()); ++i) {
      step.ids.push_back(ids[i]);
      step.positions.push_back(static_cast<int32_t>(i));
      step.kv.push_back(&kv);
    }
    step.logit_rows = {static_cast<int32_t>(step.ids.size()) - 1};
    const auto result = Interpret(module, step, weights);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    logits = result->f;
  }
  return logits;
}

}  // namespace xjit
