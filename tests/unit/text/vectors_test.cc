// Every case of the text vectors: encoding, decoding and streaming as the tokenizers' own libraries do them, from
// tokenizer.json and from GGUF vocabularies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/text/text_data.h"

namespace xjit::text::test {
namespace {

// Where the tokenizer is loaded from.
enum class Source {
  kJson,      // tokenizer.json
  kGguf,      // a GGUF file
  kConverted  // tokenizer.json, converted to a GGUF vocabulary by the test
};

struct Case {
  std::string name;
  Source source;
  std::string pre;  // for kConverted
};

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  const char* suffix[] = {"_json", "_gguf", "_converted"};
  return info.param.name + suffix[static_cast<int>(info.param.source)];
}

class Vectors : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
    const auto& [name, source, pre] = GetParam();
    std::optional<Result<Tokenizer>> loaded;
    if (source == Source::kGguf) {
      const auto vocabulary = ReadGgufVocabulary(*SharedDir() / "text/tokenizers" / name / "vocab.gguf");
      ASSERT_TRUE(vocabulary);
      loaded.emplace(Tokenizer::FromGguf(vocabulary->View()));
    } else {
      const auto files = FindFiles(name);
      if (!files) GTEST_SKIP() << name << " is not at " << FetchedDir() << " (tests/fetch_tokenizers.sh fetches it)";
      if (source == Source::kJson) {
        loaded.emplace(Tokenizer::FromJson(files->json, files->config, files->jinja));
      } else {
        OwnedVocabulary v = ConvertToGguf(Json::parse(files->json), pre);
        SetEnds(v, name);
        loaded.emplace(Tokenizer::FromGguf(v.View()));
      }
    }
    ASSERT_TRUE(loaded->ok()) << loaded->error().message;
    tokenizer_.emplace(std::move(**loaded));
    cases_ = ReadLines(*SharedDir() / "text/vectors" / (name + ".jsonl"));
    ASSERT_GT(cases_.size(), 100u);
  }

  // What the files that are converted say about the ends of a text.
  static void SetEnds(OwnedVocabulary& v, const std::string& name) {
    const auto id = [&](const char* key) -> std::optional<uint32_t> {
      const Json& token = Index().at(name).at(key);
      if (token.is_null()) return std::nullopt;
      return std::find(v.tokens.begin(), v.tokens.end(), token.get<std::string>()) - v.tokens.begin();
    };
    v.bos = id("bos_token");
    v.eos = id("eos_token");
    v.add_bos = name == "llama3_1" || name == "llama2" || name == "gemma3";
    v.add_space_prefix = name == "llama2";
  }

  std::optional<Tokenizer> tokenizer_;
  std::vector<Json> cases_;
};

TEST_P(Vectors, Encode) {
  for (const Json& c : cases_) {
    if (c.at("kind") != "encode") continue;
    SCOPED_TRACE(c.at("id").get<std::string>());
    const auto ids = tokenizer_->Encode(c.at("text").get<std::string>(), c.at("add_special"), c.at("parse_special"));
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c.at("ids").get<std::vector<uint32_t>>()) << c.at("text");
  }
}

TEST_P(Vectors, Decode) {
  for (const Json& c : cases_) {
    if (c.at("kind") != "encode") continue;
    SCOPED_TRACE(c.at("id").get<std::string>());
    const auto ids = c.at("ids").get<std::vector<uint32_t>>();
    const auto shown = tokenizer_->Decode(ids, /*skip_special=*/false);
    const auto skipped = tokenizer_->Decode(ids, /*skip_special=*/true);
    ASSERT_TRUE(shown.ok() && skipped.ok());
    EXPECT_EQ(*shown, c.at("decoded").get<std::string>());
    EXPECT_EQ(*skipped, c.at("decoded_skip_special").get<std::string>());
  }
}

TEST_P(Vectors, Stream) {
  int streams = 0;
  for (const Json& c : cases_) {
    if (c.at("kind") != "stream") continue;
    ++streams;
    SCOPED_TRACE(c.at("id").get<std::string>());
    StreamDecoder stream = tokenizer_->Stream(c.at("skip_special"));
    // The second round shows that Finish begins anew.
    for (int round = 0; round < 2; ++round) {
      std::vector<std::string> pieces;
      for (const uint32_t id : c.at("ids")) pieces.push_back(stream.Push(id));
      EXPECT_EQ(pieces, c.at("pieces").get<std::vector<std::string>>());
      EXPECT_EQ(stream.Finish(), c.at("rest").get<std::string>());
    }
  }
  EXPECT_GT(streams, 10);
}

TEST_P(Vectors, TokensAndTheirBytes) {
  EXPECT_EQ(tokenizer_->vocab_size(), Index().at(GetParam().name).at("vocab_size").get<size_t>());
  EXPECT_GT(tokenizer_->memory_bytes(), tokenizer_->vocab_size() * 10);
  const Json& eos = Index().at(GetParam().name).at("eos_token");
  ASSERT_TRUE(tokenizer_->eos());
  EXPECT_EQ(tokenizer_->TokenSpelling(*tokenizer_->eos()), eos.get<std::string>());
  EXPECT_EQ(tokenizer_->TokenToId(eos.get<std::string>()), tokenizer_->eos());
  EXPECT_THAT(tokenizer_->end_ids(), testing::Contains(*tokenizer_->eos()));
  EXPECT_TRUE(tokenizer_->IsSpecial(*tokenizer_->eos()));
  EXPECT_FALSE(tokenizer_->TokenBytes(1u << 30));
}

INSTANTIATE_TEST_SUITE_P(All, Vectors,
                         testing::Values(Case{"smollm2", Source::kJson, ""}, Case{"smollm2", Source::kGguf, ""},
                                         Case{"smollm2", Source::kConverted, "smollm"},
                                         Case{"spm4k", Source::kJson, ""}, Case{"spm4k", Source::kGguf, ""},
                                         Case{"qwen3", Source::kJson, ""}, Case{"qwen3", Source::kConverted, "qwen2"},
                                         Case{"llama3", Source::kJson, ""},
                                         Case{"llama3", Source::kConverted, "llama-bpe"},
                                         Case{"llama3_1", Source::kJson, ""},
                                         Case{"llama3_1", Source::kConverted, "llama-bpe"},
                                         Case{"llama2", Source::kJson, ""}, Case{"llama2", Source::kConverted, ""},
                                         Case{"deepseek_v3", Source::kJson, ""},
                                         Case{"deepseek_v3", Source::kConverted, "deepseek-v3"},
                                         Case{"gemma3", Source::kJson, ""}, Case{"gemma3", Source::kConverted, ""},
                                         Case{"gptoss", Source::kJson, ""},
                                         Case{"gptoss", Source::kConverted, "gpt-4o"}),
                         CaseName);

// The small models' tokenizers: texts, ids without the beginning-of-text token, and the text that comes back.
class Goldens : public testing::TestWithParam<std::string> {};

void CheckGolden(const Tokenizer& tokenizer, const Json& cases) {
  for (const Json& c : cases) {
    const std::string text = c.at("text");
    SCOPED_TRACE(text);
    const auto ids = tokenizer.Encode(text, /*add_special=*/false, /*parse_special=*/true);
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c.at("ids").get<std::vector<uint32_t>>());
    const auto decoded = tokenizer.Decode(*ids, /*skip_special=*/true);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, c.at("decoded").get<std::string>());
  }
}

TEST_P(Goldens, Cases) {
  if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
  const std::filesystem::path dir = *SharedDir() / "goldens" / GetParam();
  const auto cases = ReadFile(dir / "tokenizer_cases.json");
  ASSERT_TRUE(cases) << dir;
  {
    SCOPED_TRACE("tokenizer.json");
    const auto json = Tokenizer::FromJson(ReadFile(dir / "tokenizer.json").value());
    ASSERT_TRUE(json.ok()) << json.error().message;
    CheckGolden(*json, Json::parse(*cases));
  }
  if (const auto vocabulary = ReadGgufVocabulary(dir / "model.gguf")) {
    SCOPED_TRACE("model.gguf");
    const auto gguf = Tokenizer::FromGguf(vocabulary->View());
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    CheckGolden(*gguf, Json::parse(*cases));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Goldens,
                         testing::Values("tokenizer_bpe_gpt2", "tokenizer_bpe_llama3", "tokenizer_bpe_qwen2",
                                         "tokenizer_spm_noprefix", "tokenizer_spm_prefix", "gguf_gemma3_bf16",
                                         "gguf_llama_bf16", "gguf_llama_f16", "gguf_llama_f32", "gguf_llama_kmix",
                                         "gguf_llama_q4_0", "gguf_llama_q4_1", "gguf_llama_q4_k_m", "gguf_llama_q5_0",
                                         "gguf_llama_q5_1", "gguf_llama_q8_0", "gguf_llama_spm_rope3",
                                         "gguf_qwen2_q8_0"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace xjit::text::test
