// What each family's config.json gives, from the layouts of published ones with tiny numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "frontend/checkpoint.h"
#include "frontend/hf_config.h"
#include "ir/support/status.h"
#include "models/rope.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using Scaling = RopeSpec::Scaling;
using testing::Describe;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::string_view kBase = R"({
  "vocab_size": 288, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-06, "bos_token_id": 1, "eos_token_id": 2})";

const std::pair<std::string_view, std::string_view> kFamilies[] = {
    {"llama", R"({"head_dim": 32, "attention_bias": true})"},
    {"mistral", R"({"sliding_window": 16})"},
    {"mixtral", R"({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": null, "rope_theta": 1e6})"},
    {"phi3", R"({"partial_rotary_factor": 0.75, "head_dim": 32, "original_max_position_embeddings": 64,
                 "sliding_window": 2047, "rope_scaling": {"type": "su",
                 "short_factor": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1.5],
                 "long_factor": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}})"},
    {"qwen2", R"({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 2})"},
    {"qwen3", R"({"head_dim": 32, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
                  "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]})"},
    {"qwen3_moe", R"({"head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                      "norm_topk_prob": true, "decoder_sparse_step": 2, "mlp_only_layers": [3]})"},
    {"gemma3_text", R"({"head_dim": 32, "rope_theta": 1e6, "rope_local_base_freq": 10000, "sliding_window": 16,
                        "query_pre_attn_scalar": 168, "final_logit_softcapping": 30, "sliding_window_pattern": 3,
                        "hidden_activation": "gelu_pytorch_tanh",
                        "rope_scaling": {"rope_type": "linear", "factor": 8}})"},
    {"gpt_oss", R"({"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
                    "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000,
                    "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64,
                                     "beta_fast": 32, "beta_slow": 1, "truncate": false}})"},
    {"deepseek_v2", R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64,
                        "mscale": 0.707, "mscale_all_dim": 0.707}, "kv_lora_rank": 32, "q_lora_rank": null,
                        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8,
                        "n_shared_experts": 2, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
                        "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": false,
                        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "moe_layer_freq": 1,
                        "routed_scaling_factor": 16.0})"},
    {"deepseek_v3", R"({"rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64,
                        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}, "kv_lora_rank": 32,
                        "q_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
                        "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4,
                        "topk_group": 2, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true,
                        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
                        "num_nextn_predict_layers": 1})"},
};

std::string Config(std::string_view family, std::string_view changes = "{}") {
  Json config = Json::parse(kBase);
  for (const auto& [name, keys] : kFamilies) {
    if (name == family) config.merge_patch(Json::parse(keys));
  }
  config["model_type"] = family;
  config.merge_patch(Json::parse(changes));
  return config.dump();
}
ModelSpec Spec(std::string_view family, std::string_view changes = "{}") {
  const auto spec = ParseHfConfig(Config(family, changes), "c");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec{};
}
std::string Error(std::string_view family, std::string_view changes,
                  absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto spec = ParseHfConfig(Config(family, changes), "c");
  EXPECT_EQ(spec.status().code(), code) << family << changes;
  return spec.ok() ? "" : std::string(Message(spec.status()));
}
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(Families, Mistral) {
  EXPECT_THAT(Spec("mistral").windows, ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(Spec("mistral", R"({"sliding_window": null})").windows, IsEmpty());
  EXPECT_THAT(Error("mistral", R"({"layer_types": ["sliding_attention", "full_attention", "full_attention",
                                                   "full_attention"]})",
                    kUnimplemented),
              HasSubstr("layer_types[1]: is \"full_attention\"; mistral has sliding_attention layers"));
}

TEST(Families, Mixtral) {
  const ModelSpec spec = Spec("mixtral");
  EXPECT_EQ(spec.moe.experts, 4);
  EXPECT_EQ(spec.moe.experts_per_token, 2);
  EXPECT_EQ(spec.moe.intermediate_size, 160);
  EXPECT_EQ(spec.moe.score, MoeSpec::Score::kSoftmaxOfChosen);
  EXPECT_THAT(spec.moe.layers, ElementsAre(true, true, true, true));
  EXPECT_EQ(Spec("mixtral", R"({"rope_theta": null})").rope.theta, 1e6);
  EXPECT_EQ(Error("mixtral", R"({"num_experts_per_tok": 5})"), "c: num_experts_per_tok: 5 of 4 experts");
  EXPECT_EQ(Error("mixtral", R"({"num_local_experts": null})"), "c: num_local_experts: missing");
  EXPECT_THAT(Error("mixtral", R"({"num_local_experts": 2000000})"), HasSubstr("num_local_experts: is 2000000"));
}

TEST(Families, Phi3) {
  const ModelSpec spec = Spec("phi3");
  EXPECT_EQ(spec.rotary_dim, 24);
  EXPECT_EQ(spec.rope.scaling, Scaling::kLongRope);
  EXPECT_EQ(spec.rope.original_max_positions, 64);
  EXPECT_EQ(spec.rope.factor, 4);
  EXPECT_THAT(*spec.rope.attention_factor, DoubleEq(std::sqrt(1 + std::log(4.0) / std::log(64.0))));
  EXPECT_EQ(RopeScale(spec.rope), *spec.rope.attention_factor);
  EXPECT_EQ(spec.rope.short_factors.size(), 12u);
  EXPECT_EQ(spec.rope.long_factors[11], 12);
  EXPECT_THAT(spec.windows, ElementsAre(2047, 2047, 2047, 2047));
  EXPECT_THAT(Error("phi3", R"({"partial_rotary_factor": 1})"),
              HasSubstr("rope_scaling.short_factor: has 12 entries, expected one for each of the 16 rotated pairs"));
  EXPECT_THAT(Error("phi3", R"({"partial_rotary_factor": 0.1})"), HasSubstr("rotates 3 of a head's 32"));
  EXPECT_THAT(Error("phi3", R"({"rope_scaling": {"short_mscale": 1.2}})", kUnimplemented), HasSubstr("short_mscale"));
  EXPECT_THAT(Error("phi3", R"({"original_max_position_embeddings": 1})"),
              HasSubstr("original_max_position_embeddings: is 1, too small"));
}

TEST(Families, Qwen3) {
  const ModelSpec spec = Spec("qwen3");
  EXPECT_TRUE(spec.qk_norm);
  EXPECT_FALSE(spec.qkv_bias || spec.o_bias);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(Spec("qwen3", R"({"head_dim": null})").head_dim, 128);
  EXPECT_TRUE(Spec("qwen3", R"({"attention_bias": true})").o_bias);
}

TEST(Families, Qwen3Moe) {
  const ModelSpec spec = Spec("qwen3_moe");
  EXPECT_TRUE(spec.qk_norm && spec.moe.normalize);
  EXPECT_EQ(spec.moe.experts, 8);
  EXPECT_EQ(spec.moe.intermediate_size, 48);
  EXPECT_EQ(spec.moe.score, MoeSpec::Score::kSoftmax);
  EXPECT_THAT(spec.moe.layers, ElementsAre(false, true, false, false));
  EXPECT_THAT(Spec("qwen3_moe", R"({"decoder_sparse_step": null, "mlp_only_layers": []})").moe.layers,
              ElementsAre(true, true, true, true));
  // All layers: this family has no max_window_layers.
  EXPECT_THAT(Spec("qwen3_moe", R"({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3})").windows,
              ElementsAre(8, 8, 8, 8));
  EXPECT_FALSE(Spec("qwen3_moe", R"({"norm_topk_prob": null})").moe.normalize);
  EXPECT_THAT(Error("qwen3_moe", R"({"decoder_sparse_step": 5})"), HasSubstr("leaves no layer with experts"));
  EXPECT_THAT(Error("qwen3_moe", R"({"mlp_only_layers": [4]})"), HasSubstr("mlp_only_layers[0]: is 4"));
}

TEST(Families, Gemma3) {
  const ModelSpec spec = Spec("gemma3_text");
  EXPECT_EQ(spec.arch, "gemma3");
  EXPECT_EQ(spec.norm_offset, 1);
  EXPECT_EQ(spec.embed_scale, 8);
  EXPECT_EQ(spec.attention_scale, 1 / std::sqrt(168.0));
  EXPECT_EQ(spec.final_soft_cap, 30);
  EXPECT_EQ(spec.attention_soft_cap, 0);
  EXPECT_TRUE(spec.qk_norm && spec.post_norms && spec.tie_word_embeddings);
  EXPECT_EQ(spec.activation, Activation::kGeluTanh);
  EXPECT_THAT(spec.windows, ElementsAre(16, 16, 0, 16));
  EXPECT_EQ(spec.rope.scaling, Scaling::kLinear);
  ASSERT_TRUE(spec.local_rope);
  EXPECT_EQ(spec.local_rope->theta, 10000);
  EXPECT_EQ(spec.local_rope->scaling, Scaling::kNone);
  EXPECT_THAT(Spec("gemma3_text", R"({"sliding_window_pattern": null})").windows, ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(Spec("gemma3_text", R"({"layer_types": ["full_attention", "sliding_attention", "full_attention",
                                                      "full_attention"]})")
                  .windows,
              ElementsAre(0, 16, 0, 0));
  const ModelSpec newer =
      Spec("gemma3_text", R"({"rope_theta": null, "rope_local_base_freq": null, "rope_scaling": null,
      "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 10000}}})");
  EXPECT_EQ(newer, spec);
  EXPECT_THAT(Error("gemma3_text", R"({"hidden_activation": "gelu"})", kUnimplemented), HasSubstr("expected gelu_"));
  EXPECT_THAT(Error("gemma3_text", R"({"use_bidirectional_attention": true})", kUnimplemented), HasSubstr("is true"));
}

TEST(Families, Gemma3OfManyModalities) {
  const auto spec = ParseHfConfig(
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106],
          "vision_config": {"hidden_size": 1152}, "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
          "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024,
          "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})",
      "c");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->arch, "gemma3");
  EXPECT_EQ(spec->hidden_size, 2560);
  EXPECT_EQ(spec->vocab_size, 262208);
  EXPECT_EQ(spec->heads, 8);
  EXPECT_EQ(spec->kv_heads, 4);
  EXPECT_EQ(spec->head_dim, 256);
  EXPECT_EQ(spec->max_positions, 131072);
  EXPECT_EQ(spec->rope.theta, 1e6);
  EXPECT_EQ(spec->attention_scale, 1.0 / 16);
  EXPECT_EQ(spec->window(4), 1024);
  EXPECT_EQ(spec->window(5), 0);
  EXPECT_TRUE(spec->tie_word_embeddings);
  EXPECT_THAT(spec->eos_ids, ElementsAre(1, 106));
}

TEST(Families, GptOss) {
  const ModelSpec spec = Spec("gpt_oss");
  EXPECT_TRUE(spec.sinks && spec.qkv_bias && spec.o_bias && spec.moe.router_bias && spec.moe.expert_bias);
  EXPECT_EQ(spec.activation, Activation::kClampedSwiglu);
  EXPECT_EQ(spec.swiglu_limit, 7);
  EXPECT_EQ(spec.moe.score, MoeSpec::Score::kSoftmaxOfChosen);
  EXPECT_EQ(spec.moe.intermediate_size, 160);
  EXPECT_THAT(spec.windows, ElementsAre(16, 0, 16, 0));
  EXPECT_THAT(spec.moe.layers, ElementsAre(true, true, true, true));
  EXPECT_FALSE(spec.rope.truncate);
  const RopeSpec unsaid = Spec("gpt_oss", R"({"rope_scaling": null})").rope;
  EXPECT_EQ(unsaid.scaling, Scaling::kYarn);
  EXPECT_EQ(unsaid.factor, 32);
  EXPECT_EQ(unsaid.original_max_positions, 4096);
}

TEST(Families, DeepSeekV2) {
  const ModelSpec spec = Spec("deepseek_v2");
  EXPECT_EQ(spec.mla.q_lora_rank, 0);
  EXPECT_EQ(spec.mla.kv_lora_rank, 32);
  EXPECT_EQ(spec.mla.nope_dim, 32);
  EXPECT_EQ(spec.mla.rope_dim, 16);
  EXPECT_EQ(spec.mla.v_dim, 24);
  EXPECT_EQ(spec.head_dim, 48);
  EXPECT_EQ(spec.kv_heads, 4);
  EXPECT_TRUE(spec.rope_pairs_adjacent);
  const double mscale = 0.1 * 0.707 * std::log(4.0) + 1;
  EXPECT_THAT(spec.attention_scale, DoubleEq(1 / std::sqrt(48.0) * mscale * mscale));
  EXPECT_EQ(RopeScale(spec.rope), 1);
  EXPECT_EQ(spec.moe.score, MoeSpec::Score::kSoftmax);
  EXPECT_EQ(spec.moe.scale, 16);
  EXPECT_EQ(spec.moe.groups, 4);
  EXPECT_EQ(spec.moe.top_groups, 2);
  EXPECT_EQ(spec.moe.group_top, 1);
  EXPECT_EQ(spec.moe.shared_intermediate_size, 64);
  EXPECT_FALSE(spec.moe.normalize || spec.moe.correction_bias);
  EXPECT_THAT(spec.moe.layers, ElementsAre(false, true, true, true));
  EXPECT_EQ(Spec("deepseek_v2", R"({"topk_method": "greedy"})").moe.groups, 1);
  EXPECT_THAT(Spec("deepseek_v2", R"({"moe_layer_freq": 2})").moe.layers, ElementsAre(false, false, true, false));
  EXPECT_THAT(Error("deepseek_v2", R"({"norm_topk_prob": true})", kUnimplemented),
              HasSubstr("norm_topk_prob: is true"));
  EXPECT_THAT(Error("deepseek_v2", R"({"topk_method": "noaux_tc"})", kUnimplemented), HasSubstr("topk_method"));
  EXPECT_THAT(Error("deepseek_v2", R"({"scoring_func": "sigmoid"})", kUnimplemented), HasSubstr("scoring_func"));
  EXPECT_THAT(Error("deepseek_v2", R"({"attention_bias": true})", kUnimplemented), HasSubstr("attention_bias"));
  EXPECT_EQ(Error("deepseek_v2", R"({"n_group": 3})"), "c: n_group: 3 does not divide the 8 experts");
  EXPECT_EQ(Error("deepseek_v2", R"({"topk_group": 5})"), "c: topk_group: 5 of 4 groups");
  EXPECT_EQ(Error("deepseek_v2", R"({"topk_group": 1})"), "c: num_experts_per_tok: 3 of the 2 experts in 1 groups");
  EXPECT_EQ(Error("deepseek_v2", R"({"kv_lora_rank": null})"), "c: kv_lora_rank: missing");
  EXPECT_THAT(Error("deepseek_v2", R"({"qk_rope_head_dim": 15})"), HasSubstr("qk_rope_head_dim: is 15"));
}

TEST(Families, DeepSeekV3) {
  const ModelSpec spec = Spec("deepseek_v3");
  EXPECT_EQ(spec.mla.q_lora_rank, 48);
  EXPECT_EQ(spec.moe.score, MoeSpec::Score::kSigmoid);
  EXPECT_TRUE(spec.moe.correction_bias && spec.moe.normalize);
  EXPECT_EQ(spec.moe.group_top, 2);
  EXPECT_EQ(spec.moe.scale, 2.5);
  EXPECT_EQ(spec.moe.shared_intermediate_size, 24);
  const double mscale = 0.1 * std::log(40.0) + 1;
  EXPECT_THAT(spec.attention_scale, DoubleEq(1 / std::sqrt(48.0) * mscale * mscale));
  EXPECT_FALSE(Spec("deepseek_v3", R"({"rope_interleave": false})").rope_pairs_adjacent);
  EXPECT_THAT(Error("deepseek_v3", R"({"topk_method": "greedy"})", kUnimplemented), HasSubstr("expected noaux_tc"));
  EXPECT_THAT(Error("deepseek_v3", R"({"n_group": 16})"), HasSubstr("leaves 1 experts in a group, whose best 2"));
  EXPECT_THAT(Error("deepseek_v3", R"({"first_k_dense_replace": 4})"), HasSubstr("first_k_dense_replace: is 4"));
  EXPECT_THAT(Error("deepseek_v3", R"({"n_shared_experts": 65536, "moe_intermediate_size": 100000})"),
              HasSubstr("too wide"));
}

TEST(Families, KeysRoundTrip) {
  for (const auto& [family, unused] : kFamilies) {
    for (const char* changes :
         {"{}", R"({"rope_scaling": null, "tie_word_embeddings": true})",
          R"({"rope_scaling": {"rope_type": "yarn", "factor": 2}, "max_position_embeddings": 99})",
          R"({"layer_types": null, "sliding_window": null, "query_pre_attn_scalar": 0.3})",
          R"({"first_k_dense_replace": 0, "moe_layer_freq": 4, "num_hidden_layers": 3,
                                    "mlp_only_layers": [], "layer_types": null})"}) {
      const auto spec = ParseHfConfig(Config(family, changes), "c");
      if (!spec.ok()) {  // phi3 calls longrope yarn
        EXPECT_EQ(family, "phi3") << spec.status();
        continue;
      }
      const Json keys = Json::parse(ToHfKeys(*spec).dump());
      const auto object = JsonObject::From(keys, "m");
      ASSERT_TRUE(object.ok());
      const auto back = HfSpec(*object, keys["arch"].get<std::string>());
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(*back, *spec) << keys.dump(1);
    }
  }
}

TEST(Families, MutationsNeverCrash) {
  uint32_t seed = 0;
  for (const auto& [family, unused] : kFamilies) {
    testing::ForEachMutation(Config(family), ++seed, 5000, [](std::span<const std::byte> bytes) {
      const auto spec = ParseHfConfig(testing::Text(bytes), "c");
      if (!spec.ok()) {
        EXPECT_EQ(Message(spec.status()).find('\n'), std::string_view::npos);
      }
    });
  }
}

// All weights of a model, from its sizes alone.
int64_t Parameters(const ModelSpec& spec) {
  const int64_t d = spec.hidden_size, q = spec.heads * spec.head_dim, kv = spec.kv_heads * spec.head_dim;
  const MlaSpec& mla = spec.mla;
  const MoeSpec& moe = spec.moe;
  int64_t attention =
      d * q * 2 + d * kv * 2 + (spec.qkv_bias ? q + 2 * kv : 0) + (spec.qk_norm ? 2 * spec.head_dim : 0);
  if (mla.kv_lora_rank > 0) {
    attention = d * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * q + d * (mla.kv_lora_rank + mla.rope_dim) +
                mla.kv_lora_rank + mla.kv_lora_rank * spec.heads * (mla.nope_dim + mla.v_dim) +
                spec.heads * mla.v_dim * d;
  }
  int64_t all = spec.vocab_size * d * (spec.tie_word_embeddings ? 1 : 2) + d;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    all += 2 * d + attention;
    all += spec.has_experts(layer) ? moe.experts * (d + (moe.correction_bias ? 1 : 0)) +
                                         3 * d * (moe.experts * moe.intermediate_size + moe.shared_intermediate_size)
                                   : 3 * d * spec.intermediate_size;
  }
  return all;
}

// The manifests of published models open without weights and have as many parameters as the models' pages say (R1:
// without its layer that predicts a further token).
TEST(Configs, OpenWithoutWeights) {
  const std::string folder = std::string(XJIT_SOURCE_DIR) + "/models/configs/";
  const std::map<std::string, int64_t> kParameters = {
      {"deepseek-r1-671b.json", 671026419200},    {"qwen3-235b-a22b.json", 235093634560},
      {"r1-distill-llama-70b.json", 70553706496}, {"r1-distill-qwen-7b.json", 7615616512},
      {"llama-3.2-3b.json", 3212749824},          {"qwen2-7b.json", 7615616512}};
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto checkpoint = OpenCheckpoint(entry.path().string(), {.require_weights = false});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto expected = kParameters.find(entry.path().filename().string());
    ASSERT_NE(expected, kParameters.end()) << entry.path();
    EXPECT_EQ(Parameters((*checkpoint)->spec()), expected->second) << entry.path();
    EXPECT_FALSE((*checkpoint)->spec().name.empty());
    ++count;
  }
  EXPECT_EQ(count, kParameters.size());
  const auto r1 = OpenCheckpoint(folder + "deepseek-r1-671b.json", {.require_weights = false});
  ASSERT_TRUE(r1.ok()) << r1.status();
  EXPECT_EQ((*r1)->quant().Of("model.layers.3.mlp.experts.0.up_proj"), Encoding::Fp8Blocks());
}

TEST(Checkpoint, KeepsTheLanguageModelOfManyModalities) {
  for (const bool newer : {false, true}) {
    const testing::TempFolder folder;
    folder.Write("config.json",
                 R"({"model_type": "gemma3", "vision_config": {}, "torch_dtype": "bfloat16", "text_config":
        {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
         "num_key_value_heads": 1, "vocab_size": 2}})");
    const std::string prefix = newer ? "model.language_model." : "language_model.model.";
    folder.Write(
        "model.safetensors",
        testing::Safetensors(R"({"vision_tower.x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},")" + prefix +
                                 R"(embed_tokens.weight":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                             "aaaabbbb"));
    const auto checkpoint = OpenCheckpoint(folder.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_EQ((*checkpoint)->tensors().size(), 1u);
    const TensorView* tensor = (*checkpoint)->Find("model.embed_tokens.weight");
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(testing::Text(tensor->data), "bbbb");
  }
}

TEST(Goldens, EveryFolderImports) {
  const std::filesystem::path goldens = std::string(XJIT_SHARED_DIR) + "/goldens";
  if (!std::filesystem::exists(goldens)) GTEST_SKIP() << "no " << goldens;
  const testing::TempFolder folder;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(goldens)) {
    std::string path = entry.path().string();
    if (std::filesystem::exists(entry.path() / "model.gguf"))
      path += "/model.gguf";
    else if (!std::filesystem::exists(entry.path() / "config.json"))
      continue;
    const auto checkpoint = OpenCheckpoint(path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const absl::Status written = WriteManifest(**checkpoint, folder.Path("model.json"));
    ASSERT_TRUE(written.ok()) << written;
    const auto back = OpenCheckpoint(folder.Path("model.json"));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ((*back)->spec(), (*checkpoint)->spec()) << path;
    EXPECT_EQ((*back)->quant().method, (*checkpoint)->quant().method) << path;
    EXPECT_EQ((*back)->quant().source, (*checkpoint)->quant().source) << path;
    EXPECT_EQ((*back)->quant().plain, (*checkpoint)->quant().plain) << path;
    // Exactly the modules that are converted have scales in the file.
    for (const TensorView& tensor : (*checkpoint)->tensors()) {
      std::string module = tensor.name;
      const auto ends = [&](std::string_view suffix) {
        if (!module.ends_with(suffix)) return false;
        module.resize(module.size() - suffix.size());
        return true;
      };
      if (ends(".qweight") || ends(".weight_scale") || ends(".weight_scale_inv") || ends("_blocks")) {
        EXPECT_TRUE((*checkpoint)->quant().Of(module)) << tensor.name;
      } else if (ends(".weight") && tensor.type_name == "BF16") {
        EXPECT_FALSE((*checkpoint)->quant().Of(module)) << tensor.name;
      }
    }
    ++count;
  }
  EXPECT_GE(count, 30);
}

}  // namespace
}  // namespace xjit
