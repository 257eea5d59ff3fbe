// What each family's GGUF keys give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "frontend/gguf_config.h"
#include "frontend/hf_config.h"
#include "ir/support/status.h"
#include "models/rope.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Bytes;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Hidden 8, 2 heads of 4, four layers, 7 tokens.
GgufWriter File(const std::string& arch) {
  GgufWriter out;
  out.String("general.architecture", arch).U32(arch + ".block_count", 4).U32(arch + ".context_length", 64);
  out.U32(arch + ".embedding_length", 8).U32(arch + ".feed_forward_length", 16).U32(arch + ".vocab_size", 7);
  out.U32(arch + ".attention.head_count", 2).F32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  return out;
}
absl::StatusOr<ModelSpec> Parse(const GgufWriter& writer) {
  const std::string file = writer.File();
  const auto gguf = GgufFile::Parse(std::as_bytes(std::span(file)), "m");
  if (!gguf.ok()) return gguf.status();
  return GgufSpec(*gguf, FindGgufModelTensors([&](std::string_view name) { return gguf->FindTensor(name); }));
}
// Also checks that a manifest brings everything back but what belongs to the weights.
ModelSpec Spec(const GgufWriter& writer) {
  const auto spec = Parse(writer);
  EXPECT_TRUE(spec.ok()) << spec.status();
  if (!spec.ok()) return {};
  const Json keys = Json::parse(ToHfKeys(*spec).dump());
  const auto object = JsonObject::From(keys, "m");
  auto back = HfSpec(*object, spec->arch);
  EXPECT_TRUE(back.ok()) << back.status();
  if (back.ok()) {
    back->norm_offset = spec->norm_offset;
    back->rope_pairs_adjacent = spec->rope_pairs_adjacent;
    EXPECT_EQ(*back, *spec) << keys.dump(1);
  }
  return *spec;
}
std::string Error(const GgufWriter& writer, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto spec = Parse(writer);
  EXPECT_EQ(spec.status().code(), code);
  return spec.ok() ? "" : std::string(Message(spec.status()));
}
GgufWriter Experts(const std::string& arch, uint32_t experts, uint32_t used) {
  return File(arch).U32(arch + ".expert_count", experts).U32(arch + ".expert_used_count", used);
}

TEST(GgufFamilies, LlamaMayBeMistralOrMixtral) {
  EXPECT_EQ(Spec(File("llama")).arch, "llama");
  const ModelSpec mistral = Spec(File("llama").U32("llama.attention.sliding_window", 16));
  EXPECT_EQ(mistral.arch, "mistral");
  EXPECT_THAT(mistral.windows, ElementsAre(16, 16, 16, 16));
  const ModelSpec mixtral = Spec(Experts("llama", 8, 2));
  EXPECT_EQ(mixtral.arch, "mixtral");
  EXPECT_EQ(mixtral.moe.experts, 8);
  EXPECT_EQ(mixtral.moe.experts_per_token, 2);
  EXPECT_EQ(mixtral.moe.intermediate_size, 16);
  EXPECT_EQ(mixtral.moe.score, MoeSpec::Score::kSoftmaxOfChosen);
  EXPECT_TRUE(mixtral.rope_pairs_adjacent);
  EXPECT_EQ(Error(Experts("llama", 8, 9)), "m: llama.expert_used_count: 9 of 8 experts");
  EXPECT_THAT(Error(Experts("llama", 8, 2).U32("llama.expert_shared_count", 1), kUnimplemented),
              HasSubstr("m: llama.expert_shared_count: is 1 in a file of mixtral"));
  EXPECT_THAT(Error(Experts("llama", 8, 2).U32("llama.expert_gating_func", 2), kUnimplemented),
              HasSubstr("expert_gating_func: is 2"));
}

TEST(GgufFamilies, Qwen3) {
  EXPECT_TRUE(Spec(File("qwen3").U32("qwen3.attention.key_length", 4)).qk_norm);
  const ModelSpec moe = Spec(Experts("qwen3moe", 8, 2).U32("qwen3moe.expert_feed_forward_length", 12));
  EXPECT_EQ(moe.arch, "qwen3_moe");
  EXPECT_TRUE(moe.qk_norm && moe.moe.normalize);
  EXPECT_EQ(moe.moe.intermediate_size, 12);
  EXPECT_EQ(moe.intermediate_size, 16);
}

TEST(GgufFamilies, Gemma3) {
  GgufWriter writer = File("gemma3");
  writer.U32("gemma3.attention.key_length", 16).U32("gemma3.attention.value_length", 16);
  writer.U32("gemma3.attention.sliding_window", 16).F32("gemma3.rope.freq_base", 1e6f);
  writer.String("gemma3.rope.scaling.type", "linear").F32("gemma3.rope.scaling.factor", 8);
  const ModelSpec spec = Spec(writer);
  EXPECT_EQ(spec.norm_offset, 0);
  EXPECT_EQ(spec.embed_scale, std::sqrt(8.0));
  EXPECT_EQ(spec.attention_scale, 0.25);
  EXPECT_THAT(spec.windows, ElementsAre(16, 16, 16, 16));
  EXPECT_TRUE(spec.qk_norm && spec.post_norms);
  EXPECT_EQ(spec.rope.factor, 8);
  EXPECT_EQ(spec.local_rope->theta, 10000);
  EXPECT_EQ(spec.local_rope->scaling, RopeSpec::Scaling::kNone);
  EXPECT_EQ(Spec(GgufWriter(writer).F32("gemma3.rope.freq_base_swa", 5000)).local_rope->theta, 5000);
  EXPECT_EQ(Spec(GgufWriter(writer).F32("gemma3.final_logit_softcapping", 30)).final_soft_cap, 30);
  EXPECT_THAT(Spec(GgufWriter(writer).U32("gemma3.attention.sliding_window_pattern", 2)).windows,
              ElementsAre(16, 0, 16, 0));
}

TEST(GgufFamilies, Phi3) {
  GgufWriter writer = File("phi3");
  writer.U32("phi3.attention.key_length", 8).U32("phi3.attention.value_length", 8);
  writer.U32("phi3.rope.dimension_count", 6).U32("phi3.rope.scaling.original_context_length", 16);
  writer.U32("phi3.attention.sliding_window", 0);
  EXPECT_EQ(Spec(writer).rotary_dim, 6);
  EXPECT_THAT(Spec(writer).windows, IsEmpty());
  writer.F32("phi3.rope.scaling.attn_factor", 1.25f);
  writer.Tensor("rope_factors_short.weight", {3}, 0, Bytes(1.0f) + Bytes(1.5f) + Bytes(2.0f));
  EXPECT_THAT(Error(writer), HasSubstr("there are rope_factors_short without rope_factors_long"));
  writer.Tensor("rope_factors_long.weight", {3}, 0, Bytes(1.0f) + Bytes(4.0f) + Bytes(8.0f));
  const RopeSpec rope = Spec(writer).rope;
  EXPECT_EQ(rope.scaling, RopeSpec::Scaling::kLongRope);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(RopeScale(rope), 1.25);
  EXPECT_THAT(rope.short_factors, ElementsAre(1, 1.5, 2));
  EXPECT_THAT(rope.long_factors, ElementsAre(1, 4, 8));
}

TEST(GgufFamilies, GptOss) {
  GgufWriter writer = Experts("gpt-oss", 4, 2).U32("gpt-oss.expert_feed_forward_length", 24);
  writer.U32("gpt-oss.attention.sliding_window", 16).String("gpt-oss.rope.scaling.type", "yarn");
  writer.F32("gpt-oss.rope.scaling.factor", 4).U32("gpt-oss.rope.scaling.original_context_length", 16);
  writer.Tensor("blk.0.attn_q.bias", {8}, 0, std::string(32, '\0'));
  writer.Tensor("blk.0.attn_output.bias", {8}, 0, std::string(32, '\0'));
  const ModelSpec spec = Spec(writer);
  EXPECT_EQ(spec.arch, "gpt_oss");
  EXPECT_TRUE(spec.sinks && spec.qkv_bias && spec.o_bias && spec.moe.router_bias && spec.moe.expert_bias);
  EXPECT_THAT(spec.windows, ElementsAre(16, 0, 16, 0));
  EXPECT_EQ(spec.moe.intermediate_size, 24);
  EXPECT_FALSE(spec.rope.truncate);
  EXPECT_EQ(spec.activation, Activation::kClampedSwiglu);
}

GgufWriter DeepSeek(uint32_t gating) {
  GgufWriter out = Experts("deepseek2", 8, 2).U32("deepseek2.expert_feed_forward_length", 12);
  out.U32("deepseek2.expert_gating_func", gating).U32("deepseek2.expert_shared_count", 2);
  out.F32("deepseek2.expert_weights_scale", 2.5f).U32("deepseek2.leading_dense_block_count", 1);
  out.U32("deepseek2.expert_group_count", 4).U32("deepseek2.expert_group_used_count", 2);
  out.U32("deepseek2.attention.kv_lora_rank", 32).U32("deepseek2.attention.head_count_kv", 1);
  out.U32("deepseek2.attention.key_length", 36).U32("deepseek2.attention.value_length", 32);
  out.U32("deepseek2.attention.key_length_mla", 12).U32("deepseek2.attention.value_length_mla", 6);
  out.U32("deepseek2.rope.dimension_count", 4).String("deepseek2.rope.scaling.type", "yarn");
  out.F32("deepseek2.rope.scaling.factor", 40).U32("deepseek2.rope.scaling.original_context_length", 16);
  return out;
}

TEST(GgufFamilies, DeepSeek) {
  GgufWriter v3 = DeepSeek(2);
  v3.F32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1f).Bool("deepseek2.expert_weights_norm", true);
  v3.U32("deepseek2.attention.q_lora_rank", 24);
  const ModelSpec spec = Spec(v3);
  EXPECT_EQ(spec.arch, "deepseek_v3");
  EXPECT_EQ(spec.head_dim, 12);
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.mla.nope_dim, 8);
  EXPECT_EQ(spec.mla.rope_dim, 4);
  EXPECT_EQ(spec.mla.v_dim, 6);
  EXPECT_EQ(spec.mla.q_lora_rank, 24);
  EXPECT_TRUE(spec.rope_pairs_adjacent && spec.moe.normalize && spec.moe.correction_bias);
  EXPECT_EQ(spec.moe.scale, 2.5);
  EXPECT_EQ(spec.moe.group_top, 2);
  EXPECT_EQ(spec.moe.shared_intermediate_size, 24);
  EXPECT_THAT(spec.moe.layers, ElementsAre(false, true, true, true));
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_THAT(spec.attention_scale, DoubleEq(1 / std::sqrt(12.0) * mscale * mscale));
  EXPECT_EQ(RopeScale(spec.rope), 1);

  GgufWriter v2 = DeepSeek(1).F32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  const ModelSpec softmax = Spec(v2);
  EXPECT_EQ(softmax.arch, "deepseek_v2");
  EXPECT_EQ(softmax.moe.group_top, 1);
  EXPECT_NEAR(*softmax.rope.mscale_all_dim, 0.707, 1e-12);
  EXPECT_THAT(Error(GgufWriter(v2).Bool("deepseek2.expert_weights_norm", true), kUnimplemented),
              HasSubstr("expert_weights_norm: is true"));
  EXPECT_THAT(Error(DeepSeek(1), kUnimplemented), HasSubstr("yarn_log_multiplier: missing"));
  EXPECT_THAT(Error(DeepSeek(4), kUnimplemented), HasSubstr("expert_gating_func: is 4"));
  // From before llama.cpp absorbed weights.
  GgufWriter old = Experts("deepseek2", 8, 2);
  old.U32("deepseek2.attention.kv_lora_rank", 32).U32("deepseek2.attention.key_length", 12);
  old.U32("deepseek2.attention.value_length", 6).U32("deepseek2.rope.dimension_count", 4);
  EXPECT_EQ(Spec(old).mla, softmax.mla);
  EXPECT_THAT(Error(GgufWriter(old).U32("deepseek2.leading_dense_block_count", 4)),
              HasSubstr("leading_dense_block_count: is 4"));
}

}  // namespace
}  // namespace xjit
