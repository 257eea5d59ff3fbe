#include "frontend/quant_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;
using Method = QuantConfig::Method;

absl::StatusOr<QuantConfig> Parse(std::string_view text) {
  const auto json = ParseJson(text, "c");
  if (!json.ok()) return json.status();
  const auto object = JsonObject::From(*json, "c");
  if (!object.ok()) return object.status();
  return QuantConfig::Parse(*object);
}
QuantConfig Quant(const std::string& object) {
  auto quant = Parse("{\"quantization_config\": " + object + "}");
  EXPECT_TRUE(quant.ok()) << quant.status();
  return quant.ok() ? *std::move(quant) : QuantConfig{};
}
std::string Error(const std::string& object, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto quant = Parse("{\"quantization_config\": " + object + "}");
  EXPECT_EQ(quant.status().code(), code) << object;
  return quant.ok() ? "" : std::string(Message(quant.status()));
}
std::string Of(const QuantConfig& quant, std::string_view module) {
  const auto encoding = quant.Of(module);
  return encoding ? ToString(*encoding) : "-";
}
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

TEST(QuantConfig, NoneAndTypes) {
  const auto none = Parse("{}");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->method, Method::kNone);
  EXPECT_EQ(none->plain, DType::kBF16);
  EXPECT_EQ(Of(*none, "model.layers.0.mlp.up_proj"), "-");
  EXPECT_EQ(Parse(R"({"torch_dtype": "float16"})")->plain, DType::kF16);
  EXPECT_EQ(Parse(R"({"dtype": "float32"})")->plain, DType::kF32);
  EXPECT_EQ(Message(Parse(R"({"torch_dtype": 3})").status()), "c: torch_dtype: is 3, expected a string");
  EXPECT_EQ(Error(R"({"quant_method": "hqq"})", kUnimplemented),
            "c: quantization_config.quant_method: is \"hqq\", which is not supported (known: fp8, compressed-tensors, "
            "awq, gptq, mxfp4)");
  EXPECT_EQ(Error("[]"), "c: quantization_config: is a list, expected an object");
}

TEST(QuantConfig, Fp8) {
  const QuantConfig blocks = Quant(R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]})");
  EXPECT_EQ(blocks.method, Method::kFp8);
  EXPECT_EQ(Of(blocks, "model.layers.0.self_attn.kv_b_proj"), "f8e4m3<128x128>");
  EXPECT_EQ(Of(blocks, "model.layers.4.mlp.experts.17.gate_proj"), "f8e4m3<128x128>");
  for (const char* module : {"lm_head", "model.embed_tokens", "model.norm", "model.layers.0.input_layernorm",
                             "model.layers.3.mlp.gate", "model.layers.0.self_attn.q_a_layernorm"}) {
    EXPECT_EQ(Of(blocks, module), "-") << module;
  }
  const QuantConfig tensor = Quant(
      R"({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "model.layers.1", "model.layers.*.self_attn.k_proj",
          "o_proj"]})");
  EXPECT_EQ(Of(tensor, "model.layers.0.mlp.up_proj"), "f8e4m3<tensor>");
  EXPECT_EQ(Of(tensor, "model.layers.1.mlp.up_proj"), "-");
  EXPECT_EQ(Of(tensor, "model.layers.11.mlp.up_proj"), "f8e4m3<tensor>");
  EXPECT_EQ(Of(tensor, "model.layers.7.self_attn.k_proj"), "-");
  EXPECT_EQ(Of(tensor, "model.layers.7.self_attn.o_proj"), "-");
  EXPECT_EQ(
      Of(Quant(R"({"quant_method": "fp8", "ignored_layers": ["model.layers.2.mlp"]})"), "model.layers.2.mlp.up_proj"),
      "-");
  EXPECT_THAT(Error(R"({"quant_method": "fp8", "fmt": "e5m2"})", kUnimplemented), HasSubstr("fmt: is \"e5m2\""));
  EXPECT_THAT(Error(R"({"quant_method": "fp8", "weight_block_size": [128]})"), HasSubstr("expected two numbers"));
  EXPECT_THAT(Error(R"({"quant_method": "fp8", "weight_block_size": [0, 128]})"),
              HasSubstr("weight_block_size[0]: is 0"));
}

std::string Compressed(const std::string& weights, const std::string& rest = R"("ignore": ["lm_head"])",
                       const std::string& inputs = "null") {
  return R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {"targets":
      ["Linear"], "weights": )" +
         weights + R"(, "input_activations": )" + inputs + "}}, " + rest + "}";
}

TEST(QuantConfig, CompressedTensors) {
  const QuantConfig int8 =
      Quant(Compressed(R"({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true})",
                       R"("ignore": ["lm_head", "re:.*mlp.gate$", "model.layers.0.mlp.down_proj"])",
                       R"({"num_bits": 8, "type": "int", "dynamic": true, "strategy": "token"})"));
  EXPECT_EQ(Of(int8, "model.layers.0.self_attn.q_proj"), "i8<channel>");
  EXPECT_EQ(Of(int8, "model.layers.0.mlp.experts.0.down_proj"), "i8<channel>");
  for (const char* module : {"lm_head", "model.layers.5.mlp.gate", "model.layers.0.mlp.down_proj", "model.norm"}) {
    EXPECT_EQ(Of(int8, module), "-") << module;
  }
  const std::pair<const char*, const char*> kForms[] = {
      // Made for weights alone: activations are not rounded to int8.
      {R"({"num_bits": 8, "type": "int", "strategy": "tensor"})", "i8<channel, weight_only>"},
      {R"({"num_bits": 8, "type": "float", "strategy": "tensor"})", "f8e4m3<tensor>"},
      {R"({"num_bits": 8, "type": "float", "strategy": "channel"})", "f8e4m3<channel>"},
      {R"({"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 64]})", "f8e4m3<128x64>"},
      {R"({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64, "symmetric": false})",
       "i4<group 64, zeros>"},
      {R"({"num_bits": 4, "type": "int", "group_size": 128, "actorder": "group"})", "i4<group 128, act_order>"},
      {R"({"num_bits": 4, "type": "int", "group_size": 128, "actorder": "weight"})", "i4<group 128>"},
      {R"({"num_bits": 4, "type": "int", "strategy": "channel"})", "i4<group 2147483647>"}};
  for (const auto& [weights, encoding] : kForms) {
    EXPECT_EQ(Of(Quant(Compressed(weights)), "model.layers.0.mlp.up_proj"), encoding) << weights;
  }
  EXPECT_EQ(Of(Quant(Compressed(R"({"num_bits": 8})", R"("ignore": [])")), "lm_head"), "i8<channel, weight_only>");
  const auto with_inputs = [](const char* inputs) {
    return Of(Quant(Compressed(R"({"num_bits": 8})", R"("ignore": [])", inputs)), "lm_head");
  };
  EXPECT_EQ(with_inputs(R"({"num_bits": 8, "dynamic": true})"), "i8<channel>");
  EXPECT_EQ(with_inputs(R"({"num_bits": 8, "type": "float"})"), "i8<channel, weight_only>");
}

TEST(QuantConfig, CompressedTensorsGroups) {
  const QuantConfig mixed = Quant(
      R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "ignore": [], "config_groups": {
          "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}},
          "b": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
          "c": {"targets": ["model.layers.1.mlp.up_proj"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}}})");
  EXPECT_EQ(Of(mixed, "model.layers.1.mlp.gate_proj"), "f8e4m3<channel>");
  EXPECT_EQ(Of(mixed, "model.layers.1.mlp.down_proj"), "i8<channel, weight_only>");
  EXPECT_EQ(Of(mixed, "model.layers.1.mlp.up_proj"), "i4<group 32>");
}

TEST(QuantConfig, CompressedTensorsErrors) {
  const std::pair<const char*, const char*> kForms[] = {
      {R"({"num_bits": 4, "type": "float"})", "type: \"float\""},
      {R"({"num_bits": 2, "type": "int"})", "weights of 2 bits"},
      {R"({"num_bits": 8, "type": "int", "symmetric": false})", "symmetric: \"false\""},
      {R"({"num_bits": 8, "type": "int", "strategy": "group", "group_size": 128})", "strategy: \"group\""},
      {R"({"num_bits": 4, "type": "int", "strategy": "tensor"})", "strategy: \"tensor\""}};
  for (const auto& [weights, message] : kForms)
    EXPECT_THAT(Error(Compressed(weights), kUnimplemented), HasSubstr(message));
  EXPECT_THAT(
      Error(Compressed(R"({"num_bits": 8})", R"("ignore": [])", R"({"num_bits": 8, "type": "int", "dynamic": false})"),
            kUnimplemented),
      HasSubstr("group_0.input_activations.dynamic: expected true"));
  EXPECT_THAT(Error(Compressed(R"({"num_bits": 8})", R"("ignore": ["re:(a"])")), HasSubstr("ignore: \"(a\" has a ("));
  EXPECT_THAT(
      Error(Compressed(R"({"num_bits": 8})", R"("sparsity_config": {"format": "sparse-24-bitmask"})"), kUnimplemented),
      HasSubstr("sparsity_config.format: is \"sparse-24-bitmask\""));
  EXPECT_THAT(
      Error(R"({"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {}})", kUnimplemented),
      HasSubstr("format: is \"marlin-24\""));
  EXPECT_THAT(Error(R"({"quant_method": "compressed-tensors"})"), HasSubstr("config_groups: missing"));
  EXPECT_THAT(Error(Compressed(R"({"num_bits": 4, "type": "int", "group_size": 20})")), HasSubstr("group_size: is 20"));
}

TEST(QuantConfig, Awq) {
  const QuantConfig awq = Quant(
      R"({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "GEMM",
          "modules_to_not_convert": ["visual", "q_proj"]})");
  EXPECT_EQ(Of(awq, "model.layers.0.mlp.gate_proj"), "i4<group 32, zeros>");
  EXPECT_EQ(Of(awq, "model.layers.0.self_attn.q_proj"), "-");
  EXPECT_EQ(Of(awq, "lm_head"), "-");
  EXPECT_EQ(Of(Quant(R"({"quant_method": "awq", "zero_point": false})"), "model.layers.0.mlp.gate_proj"),
            "i4<group 128>");
  EXPECT_THAT(Error(R"({"quant_method": "awq", "bits": 8})", kUnimplemented), HasSubstr("bits: is 8, expected 4"));
  EXPECT_THAT(Error(R"({"quant_method": "awq", "version": "gemv"})", kUnimplemented),
              HasSubstr("version: is \"gemv\""));
  EXPECT_THAT(Error(R"({"quant_method": "awq", "group_size": 0})"), HasSubstr("group_size: is 0"));
}

TEST(QuantConfig, Gptq) {
  const QuantConfig plain = Quant(R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false,
                                      "sym": true, "checkpoint_format": "gptq", "lm_head": false})");
  EXPECT_EQ(Of(plain, "model.layers.0.mlp.up_proj"), "i4<group 128>");
  EXPECT_EQ(Of(plain, "lm_head"), "-");
  EXPECT_EQ(plain.zero_offset, 1);
  const QuantConfig ordered = Quant(R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": true,
                                        "sym": false, "checkpoint_format": "gptq_v2", "lm_head": true})");
  EXPECT_EQ(Of(ordered, "model.layers.0.mlp.up_proj"), "i4<group 32, zeros, act_order>");
  EXPECT_EQ(Of(ordered, "lm_head"), "i4<group 32, zeros, act_order>");
  EXPECT_EQ(ordered.zero_offset, 0);
  EXPECT_EQ(Quant(R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": true})")
                .Of("model.layers.0.mlp.up_proj"),
            Encoding::Int4(QuantConfig::kWholeRow, false));
  const QuantConfig only = Quant(R"({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize":
                                     [["self_attn.q_proj"], ["mlp.up_proj"]]})");
  EXPECT_EQ(Of(only, "model.layers.0.mlp.up_proj"), "i4<group 128>");
  EXPECT_EQ(Of(only, "model.layers.0.mlp.down_proj"), "-");
  EXPECT_THAT(Error(R"({"quant_method": "gptq", "bits": 3})", kUnimplemented), HasSubstr("bits: is 3"));
  EXPECT_THAT(Error(R"({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {"bits": 8}}})", kUnimplemented),
              HasSubstr("dynamic: other settings"));
  EXPECT_THAT(Error(R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"})", kUnimplemented),
              HasSubstr("checkpoint_format: is \"marlin\""));
}

TEST(QuantConfig, Mxfp4) {
  const QuantConfig quant = Quant(
      R"({"quant_method": "mxfp4", "modules_to_not_convert":
          ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]})");
  EXPECT_EQ(Of(quant, "model.layers.1.mlp.experts.gate_up_proj"), "mxfp4");
  EXPECT_EQ(Of(quant, "model.layers.1.mlp.experts.down_proj"), "mxfp4");
  for (const char* module : {"model.layers.1.self_attn.q_proj", "model.layers.1.mlp.router", "lm_head"}) {
    EXPECT_EQ(Of(quant, module), "-") << module;
  }
}

constexpr TensorName kTensors[] = {
    {"embed", "model.embed_tokens.weight", ""},
    {"q", "model.layers.{}.self_attn.q_proj.weight", ""},
    {"q_bias", "model.layers.{}.self_attn.q_proj.bias", ""},
    {"norm", "model.layers.{}.input_layernorm.weight", ""},
    {"router", "model.layers.{}.mlp.gate.weight", ""},
    {"up_exps", "model.layers.{}.mlp.experts.{e}.up_proj.weight", ""},
    {"lm_head", "lm_head.weight", ""},
};

TEST(ConfigWeights, FollowsTheConfigurationOrTheFlag) {
  ModelSpec spec;
  spec.layers = 3;
  const ModelFamily family{.tensors = kTensors};
  const QuantConfig fp8 = Quant(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                                    "modules_to_not_convert": ["model.layers.1.self_attn"]})");
  const auto weights = ConfigWeights(spec, family, fp8);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const Encodings converted = {{"", DType::kBF16}, {"q", Encoding::Fp8Blocks()}, {"up_exps", Encoding::Fp8Blocks()}};
  EXPECT_EQ(weights->layers[0], converted);
  EXPECT_EQ(weights->layers[2], converted);
  EXPECT_EQ(weights->layers[1].count("q"), 0u);
  EXPECT_EQ(weights->outer, (Encodings{{"", DType::kBF16}}));
  const std::pair<const char*, const char*> kFlags[] = {
      {"bf16", "bf16"}, {"int8", "i8<channel>"}, {"fp8", "f8e4m3<128x128>"}, {"int4", "i4<group 128>"}};
  for (const auto& [flag, encoding] : kFlags) {
    const auto forced = ConfigWeights(spec, family, fp8, flag);
    ASSERT_TRUE(forced.ok()) << forced.status();
    for (const Encodings& layer : forced->layers) {
      EXPECT_EQ(layer.size(), 3u);
      EXPECT_EQ(ToString(layer.at("q")), encoding);
      EXPECT_EQ(ToString(layer.at("up_exps")), encoding);
      EXPECT_EQ(ToString(layer.at("")), "bf16");
    }
    EXPECT_EQ(forced->outer.size(), 1u);
  }
  EXPECT_EQ(Message(ConfigWeights(spec, family, fp8, "int3").status()),
            "quantize: is \"int3\", expected bf16, int8, fp8 or int4");
}

TEST(QuantConfig, MutationsNeverCrash) {
  const std::string config = R"({"torch_dtype": "float16", "quantization_config": )" +
                             Compressed(R"({"num_bits": 4, "type": "int", "group_size": 64})",
                                        R"("ignore": ["re:.*(mlp|x+)\\.gate$", "lm_head"])") +
                             "}";
  testing::ForEachMutation(config, 9, 20000, [](std::span<const std::byte> bytes) {
    const auto quant = Parse(testing::Text(bytes));
    if (quant.ok()) {
      quant->Of("model.layers.0.mlp.gate");
    } else {
      EXPECT_EQ(Message(quant.status()).find('\n'), std::string_view::npos);
    }
  });
}

}  // namespace
}  // namespace xjit
