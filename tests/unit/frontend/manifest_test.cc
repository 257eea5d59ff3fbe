#include "frontend/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/architectures.h"
#include "frontend/json.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(std::string_view changes) {
  Json manifest = Json::parse(testing::kTinyConfig);
  manifest["arch"] = manifest["model_type"];
  manifest.erase("model_type");
  manifest.merge_patch(Json::parse(changes));
  return manifest.dump();
}
std::string Error(std::string_view changes, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto manifest = ParseManifest(Text(changes), "m.json");
  EXPECT_EQ(manifest.status().code(), code) << changes;
  return manifest.ok() ? "" : std::string(Message(manifest.status()));
}

TEST(Manifest, ReadsEveryKey) {
  const auto manifest = ParseManifest(
      Text(R"({"name": "tiny", "weights": ["a.safetensors", "/b.safetensors"], "tokenizer": "t/tokenizer.json",
               "tokenizer_config": "tc.json", "generation_config": "g.json", "chat_template": "c.jinja",
               "quantization": "none", "tp": 2, "bind": "0-1|2-3", "kv_dtype": "int8"})"),
      "m.json");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->spec.arch, "llama");
  EXPECT_EQ(manifest->spec.hidden_size, 8);
  EXPECT_EQ(manifest->spec.name, "tiny");
  EXPECT_THAT(manifest->weights, ElementsAre("a.safetensors", "/b.safetensors"));
  EXPECT_EQ(manifest->tokenizer, "t/tokenizer.json");
  EXPECT_EQ(manifest->tokenizer_config, "tc.json");
  EXPECT_EQ(manifest->generation_config, "g.json");
  EXPECT_EQ(manifest->chat_template, "c.jinja");
  EXPECT_EQ(manifest->quantization, "none");
  EXPECT_EQ(manifest->defaults.tp, 2);
  EXPECT_EQ(manifest->defaults.bind, "0-1|2-3");
  EXPECT_EQ(manifest->defaults.kv_dtype, "int8");
}

TEST(Manifest, OneWeightFileMayBeAString) {
  const auto manifest = ParseManifest(Text(R"({"weights": "m.gguf"})"), "m.json");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_THAT(manifest->weights, ElementsAre("m.gguf"));
  EXPECT_EQ(manifest->defaults.tp, std::nullopt);
}

TEST(Manifest, Errors) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(Error(R"({"arch": null})"), "m.json: arch: missing");
  EXPECT_EQ(Error(R"({"arch": null, "model_type": "llama"})"),
            "m.json: arch: missing (this looks like a config.json: name its folder instead)");
  EXPECT_EQ(Error(R"({"arch": "rnn"})", unimplemented),
            "m.json: arch: is \"rnn\", which is not supported (known: " + ArchitectureList() + ")");
  EXPECT_EQ(Error(R"({"arch": 1})"), "m.json: arch: is 1, expected a string");
  EXPECT_EQ(Error(R"({"hidden_size": null})"), "m.json: hidden_size: missing");
  EXPECT_EQ(Error(R"({"weights": [1]})"), "m.json: weights[0]: is 1, expected a string");
  EXPECT_EQ(Error(R"({"weights": [""]})"), "m.json: weights[0]: \"\" is not a path");
  EXPECT_EQ(Error(R"({"tokenizer": "a\u0000b"})"), "m.json: tokenizer: \"a\\x00b\" is not a path");
  EXPECT_EQ(Error(R"({"quantization": "hqq"})", unimplemented),
            "m.json: quantization: \"hqq\" is not supported (known: none, gguf, fp8, compressed-tensors, awq, gptq, "
            "mxfp4)");
  EXPECT_EQ(Error(R"({"quantization": "awq"})"), "m.json: quantization_config: missing, but quantization is \"awq\"");
  EXPECT_EQ(Error(R"({"quantization": "gguf", "quantization_config": {"quant_method": "fp8"}})"),
            "m.json: quantization: is \"gguf\", but quantization_config says fp8");
  EXPECT_EQ(Error(R"({"tp": 0})"), "m.json: tp: is 0, expected 1 to 1024");
  EXPECT_EQ(Error(R"({"kv_dtype": "q2"})"), "m.json: kv_dtype: is \"q2\", expected bf16, int8, fp8, q4_0 or f32");
  EXPECT_EQ(Error(R"({"bind": 3})"), "m.json: bind: is 3, expected a string");
}

TEST(Manifest, QuantizationConfigSaysTheMethod) {
  const auto manifest = ParseManifest(
      Text(R"({"torch_dtype": "float16", "quantization_config": {"quant_method": "awq", "group_size": 32}})"),
      "m.json");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->quantization, "awq");
  EXPECT_EQ(manifest->quant.method, QuantConfig::Method::kAwq);
  EXPECT_EQ(manifest->quant.plain, DType::kF16);
  EXPECT_EQ(manifest->quant.Of("model.layers.1.mlp.up_proj"), Encoding::Int4(32, true));
}

TEST(Manifest, TruncationsAndMutationsNeverCrash) {
  const std::string text =
      Text(R"({"weights": ["a.safetensors"], "tokenizer": "t.json", "tp": 2, "kv_dtype": "int8"})");
  testing::ForEachPrefix(text, [](std::span<const std::byte> bytes, size_t size) {
    EXPECT_FALSE(ParseManifest(testing::Text(bytes), "m.json").ok()) << size;
  });
  testing::ForEachMutation(text, 6, 20000, [](std::span<const std::byte> bytes) {
    const auto manifest = ParseManifest(testing::Text(bytes), "m.json");
    if (!manifest.ok()) {
      EXPECT_EQ(Message(manifest.status()).find('\n'), std::string_view::npos);
    }
  });
}

}  // namespace
}  // namespace xjit
