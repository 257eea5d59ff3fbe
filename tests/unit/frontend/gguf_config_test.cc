#include "frontend/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "frontend/architectures.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TinyGguf;
using testing::TinyGgufModel;

absl::StatusOr<ModelSpec> Spec(const GgufWriter& writer) {
  const std::string file = writer.File();
  const auto gguf = GgufFile::Parse(std::as_bytes(std::span(file)), "m");
  if (!gguf.ok()) return gguf.status();
  return GgufSpec(*gguf, FindGgufModelTensors([&](std::string_view name) { return gguf->FindTensor(name); }));
}
std::string Error(const GgufWriter& writer, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto spec = Spec(writer);
  EXPECT_EQ(spec.status().code(), code);
  return spec.ok() ? "" : std::string(Message(spec.status()));
}

TEST(GgufConfig, ReadsLlamaAndQwen2) {
  for (const std::string arch : {"llama", "qwen2"}) {
    const auto spec = Spec(TinyGgufModel(arch));
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->arch, arch);
    EXPECT_EQ(spec->name, "tiny");
    EXPECT_EQ(spec->vocab_size, 5);
    EXPECT_EQ(spec->hidden_size, 8);
    EXPECT_EQ(spec->intermediate_size, 16);
    EXPECT_EQ(spec->layers, 1);
    EXPECT_EQ(spec->heads, 2);
    EXPECT_EQ(spec->kv_heads, 2);
    EXPECT_EQ(spec->head_dim, 4);
    EXPECT_EQ(spec->max_positions, 64);
    EXPECT_EQ(static_cast<float>(spec->rms_norm_eps), 1e-5f);
    EXPECT_EQ(spec->rope.theta, 10000);
    EXPECT_EQ(spec->rope.scaling, RopeSpec::Scaling::kNone);
    EXPECT_TRUE(spec->tie_word_embeddings);
    EXPECT_FALSE(spec->qkv_bias);
    EXPECT_EQ(spec->rope_pairs_adjacent, arch == "llama");
    EXPECT_THAT(spec->bos_ids, ElementsAre(0));
    EXPECT_THAT(spec->eos_ids, ElementsAre(1));
  }
}

TEST(GgufConfig, TensorsSayTyingBiasesAndFactors) {
  const std::string eight(8 * 4, '\0');
  GgufWriter writer = TinyGgufModel();
  writer.Tensor("output.weight", {8, 5}, 0, std::string(160, 'o')).Tensor("blk.0.attn_q.bias", {8}, 0, eight);
  writer.Tensor("blk.0.attn_output.bias", {8}, 0, eight).Tensor("blk.0.ffn_up.bias", {8}, 0, eight);
  writer.Tensor("rope_freqs.weight", {2}, 0, Bytes(1.0f) + Bytes(8.0f));
  const auto spec = Spec(writer);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->tie_word_embeddings);
  EXPECT_TRUE(spec->qkv_bias && spec->o_bias && spec->mlp_bias);
  EXPECT_THAT(spec->rope.freq_factors, ElementsAre(1.0f, 8.0f));
  const auto factors = [](const std::vector<uint64_t>& dims, uint32_t type, const std::string& data) {
    return Error(TinyGgufModel().Tensor("rope_freqs.weight", dims, type, data));
  };
  EXPECT_EQ(factors({3}, 0, std::string(12, 'x')), "m: tensor rope_freqs.weight: expected F32 [2] for heads of 4");
  EXPECT_THAT(factors({2}, 1, "abcd"), HasSubstr("expected F32 [2]"));
  EXPECT_THAT(factors({2}, 0, Bytes(1.0f) + Bytes(0.0f)), HasSubstr("has factor 0, expected above 0"));
  EXPECT_THAT(factors({2}, 0, Bytes(NAN) + Bytes(1.0f)), HasSubstr("has factor nan"));
}

TEST(GgufConfig, VocabularySizeFallsBack) {
  EXPECT_EQ(Spec(TinyGguf().U32("llama.vocab_size", 7))->vocab_size, 7);
  EXPECT_EQ(Spec(TinyGguf().Strings("tokenizer.ggml.tokens", {"a", "b"}))->vocab_size, 2);
  EXPECT_THAT(Error(TinyGguf()), HasSubstr("m: llama.vocab_size: the vocabulary has 0 tokens"));
}

GgufWriter WithVocabulary() { return TinyGguf().U32("llama.vocab_size", 7); }

TEST(GgufConfig, HeadsAndLengths) {
  EXPECT_EQ(Spec(WithVocabulary().U32("llama.attention.head_count_kv", 1))->kv_heads, 1);
  EXPECT_EQ(Spec(WithVocabulary().U32("llama.attention.key_length", 6))->head_dim, 6);
  const auto kv = [](uint32_t a, uint32_t b) {
    return WithVocabulary().Array("llama.attention.head_count_kv", GgufType::kU32, 2, Bytes(a) + Bytes(b));
  };
  EXPECT_EQ(Spec(kv(1, 1))->kv_heads, 1);
  EXPECT_THAT(Error(kv(1, 2), absl::StatusCode::kUnimplemented), HasSubstr("head_count_kv: differs between layers"));
  EXPECT_THAT(Error(WithVocabulary().U32("llama.attention.head_count_kv", 3)),
              HasSubstr("head_count_kv: 3 does not divide the 2 heads"));
  EXPECT_THAT(Error(WithVocabulary().U32("llama.attention.key_length", 5)),
              HasSubstr("key_length: gives odd heads of 5"));
  EXPECT_THAT(Error(WithVocabulary().U32("llama.attention.value_length", 6), absl::StatusCode::kUnimplemented),
              HasSubstr("value_length: is 6 where keys have 4"));
  EXPECT_THAT(Error(TinyGguf("qwen2").U32("qwen2.expert_count", 8), absl::StatusCode::kUnimplemented),
              HasSubstr("qwen2.expert_count: is 8 in a file of qwen2"));
}

TEST(GgufConfig, Rope) {
  using Scaling = RopeSpec::Scaling;
  const auto linear = Spec(WithVocabulary().F32("llama.rope.scaling.factor", 4));
  EXPECT_EQ(linear->rope.scaling, Scaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 4);
  EXPECT_EQ(Spec(WithVocabulary().F32("llama.rope.scale_linear", 2))->rope.factor, 2);
  EXPECT_EQ(Spec(WithVocabulary().String("llama.rope.scaling.type", "none").F32("llama.rope.scaling.factor", 4))
                ->rope.scaling,
            Scaling::kNone);
  GgufWriter yarn = WithVocabulary();
  yarn.String("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
  yarn.U32("llama.rope.scaling.original_context_length", 16).F32("llama.rope.freq_base", 5e5f);
  EXPECT_EQ(Spec(yarn)->rope.scaling, Scaling::kYarn);
  EXPECT_EQ(Spec(yarn)->rope.factor, 4);
  EXPECT_EQ(Spec(yarn)->rope.original_max_positions, 16);
  EXPECT_EQ(Spec(yarn)->rope.theta, 5e5);
  EXPECT_EQ(Spec(yarn)->rope.attention_factor, std::nullopt);
  yarn.F32("llama.rope.scaling.attn_factor", 0.5f);
  EXPECT_DOUBLE_EQ(*Spec(yarn)->rope.attention_factor, 0.5 * (0.1 * std::log(4.0) + 1));

  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_THAT(Error(WithVocabulary().String("llama.rope.scaling.type", "longrope"), unimplemented),
              HasSubstr("m: llama.rope.scaling.type: is \"longrope\""));
  EXPECT_THAT(Error(WithVocabulary().U32("llama.rope.dimension_count", 2), unimplemented),
              HasSubstr("m: llama.rope.dimension_count: is 2 of a head's 4 (partial rotary embedding)"));
  EXPECT_THAT(Error(WithVocabulary().F32("llama.rope.scaling.attn_factor", 2), unimplemented),
              HasSubstr("attn_factor"));
  EXPECT_THAT(Error(WithVocabulary().F32("llama.rope.freq_base", -1)), HasSubstr("m: llama.rope.freq_base: is -1"));
  EXPECT_THAT(Error(WithVocabulary().F32("llama.rope.freq_base", NAN)), HasSubstr("m: llama.rope.freq_base: is nan"));
}

TEST(GgufConfig, MissingAndAbsurdKeys) {
  EXPECT_EQ(Error(GgufWriter()), "m: general.architecture: missing");
  EXPECT_EQ(Error(GgufWriter().String("general.architecture", "bert"), absl::StatusCode::kUnimplemented),
            "m: general.architecture: is \"bert\", which is not supported (known: " + ArchitectureList() + ")");
  EXPECT_EQ(Error(GgufWriter().U32("general.architecture", 1)).substr(0, 44),
            "m: general.architecture: has type u32, expec");
  GgufWriter writer;
  writer.String("general.architecture", "llama");
  EXPECT_EQ(Error(writer), "m: llama.block_count: missing");
  for (const int32_t bad : {0, -1, 100000}) {
    EXPECT_EQ(Error(GgufWriter(writer).I32("llama.block_count", bad)),
              fmt::format("m: llama.block_count: is {}, expected 1 to 4096", bad));
  }
  writer.U32("llama.block_count", 1);
  for (const char* key :
       {"llama.context_length", "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count"}) {
    EXPECT_EQ(Error(writer), fmt::format("m: {}: missing", key));
    EXPECT_THAT(Error(GgufWriter(writer).U32(key, 1u << 31)), HasSubstr("is 2147483648, expected 1 to 2147483647"));
    writer.U32(key, 8);
  }
}

absl::StatusOr<GgufFile> Parse(const std::string& file) { return GgufFile::Parse(std::as_bytes(std::span(file)), "m"); }

TEST(GgufVocabulary, Reads) {
  const std::string file = TinyGgufModel().File();
  const auto gguf = Parse(file);
  ASSERT_TRUE(gguf.ok());
  const auto vocabulary = ReadGgufVocabulary(*gguf);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->model, "gpt2");
  EXPECT_EQ(vocabulary->pre, "gpt-2");
  EXPECT_THAT(vocabulary->tokens, ElementsAre("<s>", "</s>", "a", "b", "ab"));
  EXPECT_THAT(vocabulary->merges, ElementsAre("a b"));
  EXPECT_THAT(vocabulary->types, ElementsAre(3, 3, 1, 1, 1));
  EXPECT_EQ(vocabulary->scores.size(), 5u);
  EXPECT_EQ(vocabulary->bos, 0);
  EXPECT_EQ(vocabulary->eos, 1);
  EXPECT_EQ(vocabulary->unk, std::nullopt);
  EXPECT_EQ(vocabulary->add_bos, true);
  EXPECT_EQ(vocabulary->add_eos, std::nullopt);
  EXPECT_EQ(vocabulary->chat_template, "{{ x }}");
  EXPECT_GE(vocabulary->tokens[0].data(), file.data());
  EXPECT_LT(vocabulary->tokens[0].data(), file.data() + file.size());
}

TEST(GgufVocabulary, Errors) {
  const auto error = [](const GgufWriter& writer) {
    const std::string file = writer.File();
    const auto gguf = Parse(file);
    EXPECT_TRUE(gguf.ok()) << gguf.status();
    const auto vocabulary = ReadGgufVocabulary(*gguf);
    return vocabulary.ok() ? "" : std::string(Message(vocabulary.status()));
  };
  const auto tokens = [] { return GgufWriter().Strings("tokenizer.ggml.tokens", {"a", "b"}); };
  EXPECT_EQ(error(tokens()), "");
  EXPECT_EQ(error(tokens().Array("tokenizer.ggml.scores", GgufType::kF32, 1, Bytes(1.0f))),
            "m: tokenizer.ggml.scores: has 1 entries for 2 tokens");
  EXPECT_EQ(error(tokens().Array("tokenizer.ggml.token_type", GgufType::kI32, 1, Bytes(1))),
            "m: tokenizer.ggml.token_type: has 1 entries for 2 tokens");
  EXPECT_THAT(error(tokens().Array("tokenizer.ggml.token_type", GgufType::kI32, 2, Bytes(1) + Bytes(999))),
              HasSubstr("has 999, expected 0 to 255"));
  EXPECT_EQ(error(tokens().U32("tokenizer.ggml.eos_token_id", 2)),
            "m: tokenizer.ggml.eos_token_id: is 2, but there are 2 tokens");
  EXPECT_EQ(error(tokens().U32("tokenizer.ggml.eos_token_id", UINT32_MAX)), "");  // "none"
  EXPECT_THAT(error(tokens().I32("tokenizer.ggml.eos_token_id", -2)), HasSubstr("is -2, expected a token id"));
  EXPECT_THAT(error(GgufWriter().U32("tokenizer.ggml.tokens", 1)), HasSubstr("expected array of string"));
  EXPECT_THAT(error(tokens().U32("tokenizer.ggml.add_bos_token", 1)), HasSubstr("has type u32, expected bool"));
}

}  // namespace
}  // namespace xjit
