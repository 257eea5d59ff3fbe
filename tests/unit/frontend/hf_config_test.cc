#include "frontend/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/architectures.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Describe;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kTinyConfig;

// The tiny config with the keys of `changes` set, or removed where null.
std::string Config(std::string_view changes = "{}") {
  Json config = Json::parse(kTinyConfig);
  config.merge_patch(Json::parse(changes));
  return config.dump();
}
ModelSpec Spec(std::string_view changes = "{}") {
  const auto spec = ParseHfConfig(Config(changes), "config.json");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : ModelSpec{};
}
std::string Error(std::string_view changes, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto spec = ParseHfConfig(Config(changes), "c");
  EXPECT_EQ(spec.status().code(), code) << changes;
  return spec.ok() ? "" : std::string(Message(spec.status()));
}

TEST(HfConfig, ReadsLlama) {
  const ModelSpec spec = Spec();
  EXPECT_EQ(spec.arch, "llama");
  EXPECT_EQ(spec.vocab_size, 5);
  EXPECT_EQ(spec.hidden_size, 8);
  EXPECT_EQ(spec.intermediate_size, 16);
  EXPECT_EQ(spec.layers, 2);
  EXPECT_EQ(spec.heads, 2);
  EXPECT_EQ(spec.kv_heads, 1);
  EXPECT_EQ(spec.head_dim, 4);
  EXPECT_EQ(spec.max_positions, 64);
  EXPECT_EQ(spec.rms_norm_eps, 1e-5);
  EXPECT_FALSE(spec.tie_word_embeddings || spec.qkv_bias || spec.o_bias || spec.mlp_bias || spec.rope_pairs_adjacent);
  EXPECT_THAT(spec.bos_ids, ElementsAre(0));
  EXPECT_THAT(spec.eos_ids, ElementsAre(1, 2));
}

TEST(HfConfig, DefaultsAndNulls) {
  const ModelSpec spec = Spec(
      R"({"num_key_value_heads": null, "rms_norm_eps": null, "rope_theta": null, "hidden_act": null, "bos_token_id": null,
          "eos_token_id": null})");
  EXPECT_EQ(spec.kv_heads, 2);
  EXPECT_EQ(spec.rms_norm_eps, 1e-6);
  EXPECT_EQ(spec.rope.theta, 10000);
  EXPECT_TRUE(spec.bos_ids.empty() && spec.eos_ids.empty());
  EXPECT_EQ(Spec(R"({"head_dim": 6})").head_dim, 6);
  const ModelSpec biased = Spec(R"({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true})");
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias && biased.tie_word_embeddings);
}

TEST(HfConfig, ArchitectureByClass) {
  EXPECT_EQ(Spec(R"({"model_type": null, "architectures": ["X", "Qwen2ForCausalLM"]})").arch, "qwen2");
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(Error(R"({"model_type": "gpt2"})", unimplemented),
            "c: model_type: is \"gpt2\", which is not supported (known: " + ArchitectureList() + ")");
  EXPECT_EQ(Error(R"({"model_type": null, "architectures": ["GPT2LMHeadModel"]})", unimplemented),
            "c: architectures: is \"GPT2LMHeadModel\", which is not supported (known: " + ArchitectureList() + ")");
  EXPECT_EQ(Error(R"({"model_type": null})"), "c: model_type: missing (and no architectures)");
}

TEST(HfConfig, RopeScaling) {
  using Scaling = RopeSpec::Scaling;
  EXPECT_EQ(Spec(R"({"rope_scaling": {"type": "default"}})").rope.scaling, Scaling::kNone);
  const RopeSpec linear = Spec(R"({"rope_scaling": {"type": "linear", "factor": 2.0}})").rope;
  EXPECT_EQ(linear.scaling, Scaling::kLinear);
  EXPECT_EQ(linear.factor, 2);
  const std::string llama3 =
      R"("rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 3,
         "original_max_position_embeddings": 32)";
  for (const std::string& form :
       {"{\"rope_theta\": 7.0, \"rope_scaling\": {" + llama3 + "}}",
        "{\"rope_theta\": null, \"rope_parameters\": {\"rope_theta\": 7.0, " + llama3 + "}}"}) {
    const RopeSpec rope = Spec(form).rope;
    EXPECT_EQ(rope.scaling, Scaling::kLlama3);
    EXPECT_EQ(rope.theta, 7);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.low_freq_factor, 1);
    EXPECT_EQ(rope.high_freq_factor, 3);
    EXPECT_EQ(rope.original_max_positions, 32);
  }
  const RopeSpec yarn =
      Spec(
          R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.5,
          "mscale": 0.707, "mscale_all_dim": 0.8, "truncate": false}})")
          .rope;
  EXPECT_EQ(yarn.scaling, Scaling::kYarn);
  EXPECT_EQ(yarn.original_max_positions, 64);  // of max_position_embeddings
  EXPECT_EQ(yarn.beta_fast, 16);
  EXPECT_EQ(yarn.beta_slow, 2);
  EXPECT_EQ(yarn.attention_factor, 0.5);
  EXPECT_EQ(yarn.mscale, 0.707);
  EXPECT_EQ(yarn.mscale_all_dim, 0.8);
  EXPECT_FALSE(yarn.truncate);
  const RopeSpec ratio = Spec(R"({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 16}})").rope;
  EXPECT_EQ(ratio.factor, 4);
  EXPECT_EQ(ratio.beta_fast, 32);
  EXPECT_EQ(ratio.attention_factor, std::nullopt);
}

TEST(HfConfig, RopeErrors) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(Error(R"({"rope_scaling": {"rope_type": "ntk", "factor": 2}})", unimplemented),
            "c: rope_scaling.rope_type: is \"ntk\", expected default, linear, llama3, yarn or longrope");
  EXPECT_EQ(Error(R"({"rope_scaling": {"type": "dynamic", "factor": 2}})", unimplemented),
            "c: rope_scaling.type: is \"dynamic\", expected default, linear, llama3, yarn or longrope");
  EXPECT_THAT(Error(R"({"partial_rotary_factor": 0.5})", unimplemented), HasSubstr("c: partial_rotary_factor: is 0.5"));
  EXPECT_THAT(
      Error(R"({"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_theta": 5}}})", unimplemented),
      HasSubstr("c: rope_parameters: differs between kinds of layers"));
  EXPECT_EQ(Error(R"({"rope_scaling": {"type": "linear"}})"), "c: rope_scaling.factor: missing");
  EXPECT_EQ(Error(R"({"rope_scaling": {"factor": 2}})"), "c: rope_scaling.rope_type: missing, but there is a factor");
  EXPECT_EQ(Error(R"({"rope_scaling": "x"})"), "c: rope_scaling: is \"x\", expected an object");
  EXPECT_THAT(Error(R"({"rope_scaling": {"type": "linear", "factor": 0}})"), HasSubstr("c: rope_scaling.factor: is 0"));
  EXPECT_EQ(Error(R"({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4}})"),
            "c: rope_scaling.original_max_position_embeddings: missing");
  EXPECT_THAT(Error(R"({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4,
                        "original_max_position_embeddings": 32}})"),
              HasSubstr("high_freq_factor: is 4, expected above low_freq_factor = 4"));
  EXPECT_THAT(Error(R"({"rope_theta": -1})"), HasSubstr("c: rope_theta: is -1"));
}

TEST(HfConfig, Qwen2WindowAndBias) {
  const ModelSpec plain = Spec(R"({"model_type": "qwen2", "sliding_window": 16})");
  EXPECT_TRUE(plain.qkv_bias);
  EXPECT_FALSE(plain.o_bias);
  EXPECT_THAT(plain.windows, IsEmpty());
  const ModelSpec window =
      Spec(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1})");
  EXPECT_THAT(window.windows, ElementsAre(0, 16));
  // All layers are below max_window_layers: none has a window.
  EXPECT_THAT(Spec(R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16})").windows, IsEmpty());
  const std::string types =
      R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "layer_types": )";
  const ModelSpec named = Spec(types + R"(["full_attention", "sliding_attention"]})");
  EXPECT_THAT(named.windows, ElementsAre(0, 16));
  EXPECT_THAT(Spec(types + R"(["full_attention", "full_attention"]})").windows, IsEmpty());
  EXPECT_THAT(Spec(types + R"(["sliding_attention", "full_attention"]})").windows, ElementsAre(16, 0));
  EXPECT_THAT(Error(types + R"(["sliding_attention", "chunked"]})", absl::StatusCode::kUnimplemented),
              HasSubstr("c: layer_types[1]: is \"chunked\""));
  EXPECT_EQ(Error(types + R"(["full_attention"]})"), "c: layer_types: has 1 entries for 2 layers");
}

TEST(HfConfig, RefusesWhatIsNotSupported) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(Error(R"({"hidden_act": "gelu"})", unimplemented), "c: hidden_act: is \"gelu\", expected silu");
  EXPECT_THAT(Error(R"({"text_config": {}})", unimplemented), HasSubstr("c: text_config: llama with other modalities"));
  EXPECT_THAT(Error(R"({"layer_types": ["full_attention", "sliding_attention"]})", unimplemented),
              HasSubstr("c: layer_types[1]: is \"sliding_attention\"; llama has full_attention layers"));
}

TEST(HfConfig, NamesMissingAndAbsurdKeys) {
  for (const std::string key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                "num_attention_heads", "max_position_embeddings"}) {
    EXPECT_EQ(Error("{\"" + key + "\": null}"), "c: " + key + ": missing");
    EXPECT_EQ(Error("{\"" + key + "\": \"x\"}"), "c: " + key + ": is \"x\", expected an integer");
    for (const char* value : {"0", "-3", "2147483648", "1e300", "18446744073709551615", "[1]", "true"}) {
      EXPECT_THAT(Error("{\"" + key + "\": " + value + "}"), HasSubstr("c: " + key + ": is ")) << value;
    }
  }
  EXPECT_EQ(Error(R"({"num_key_value_heads": 3})"),
            "c: num_key_value_heads: 3 does not divide num_attention_heads = 2");
  EXPECT_EQ(Error(R"({"head_dim": 3})"), "c: head_dim: is 3, expected an even number (rotary embedding turns pairs)");
  EXPECT_THAT(Error(R"({"hidden_size": 9})"), HasSubstr("c: num_attention_heads: 2 does not divide hidden_size = 9"));
  EXPECT_THAT(Error(R"({"rms_norm_eps": 2})"), HasSubstr("c: rms_norm_eps: is 2"));
  EXPECT_THAT(Error(R"({"eos_token_id": [1, "x"]})"), HasSubstr("c: eos_token_id[1]: is \"x\""));
}

TEST(GenerationConfig, ReplacesTokenIds) {
  ModelSpec spec = Spec();
  ASSERT_TRUE(ApplyGenerationConfig(R"({"eos_token_id": [7, 8], "temperature": 0.6})", "g", spec).ok());
  EXPECT_THAT(spec.eos_ids, ElementsAre(7, 8));
  EXPECT_THAT(spec.bos_ids, ElementsAre(0));
  EXPECT_EQ(Message(ApplyGenerationConfig(R"({"eos_token_id": "x"})", "g", spec)),
            "g: eos_token_id: is \"x\", expected an integer");
  EXPECT_FALSE(ApplyGenerationConfig("[]", "g", spec).ok());
}

TEST(HfConfig, KeysRoundTrip) {
  for (const char* changes :
       {"{}", R"({"head_dim": 6, "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true})",
        R"({"rope_scaling": {"type": "linear", "factor": 2.5}})",
        R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 3,
            "original_max_position_embeddings": 32}})",
        R"({"rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 0.1, "mscale": 0.3, "truncate": false}})",
        R"({"model_type": "qwen2"})",
        R"({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 0})"}) {
    const ModelSpec spec = Spec(changes);
    const Json keys = Json::parse(ToHfKeys(spec).dump());
    const auto object = JsonObject::From(keys, "m");
    ASSERT_TRUE(object.ok());
    const auto back = HfSpec(*object, keys["arch"].get<std::string>());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(*back, spec) << Describe(*back) << "\n" << Describe(spec);
  }
}

TEST(HfConfig, EveryTruncationIsAnError) {
  testing::ForEachPrefix(kTinyConfig, [](std::span<const std::byte> bytes, size_t size) {
    EXPECT_FALSE(ParseHfConfig(testing::Text(bytes), "c").ok()) << size;
  });
}

TEST(HfConfig, MutationsNeverCrash) {
  const std::string config = Config(
      R"({"model_type": "qwen2", "use_sliding_window": true, "layer_types": ["full_attention", "sliding_attention"],
          "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}})");
  testing::ForEachMutation(config, 5, 20000, [](std::span<const std::byte> bytes) {
    const auto spec = ParseHfConfig(testing::Text(bytes), "c");
    if (!spec.ok()) {
      EXPECT_EQ(Message(spec.status()).find('\n'), std::string_view::npos);
    }
  });
}

}  // namespace
}  // namespace xjit
