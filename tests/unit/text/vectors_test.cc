// Every case of the text vectors: encoding, decoding and streaming as the tokenizers' own libraries do them, from
// tokenizer.json and from GGUF vocabularies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

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

// What the files that are converted say about the ends of a text.
void SetEnds(OwnedVocabulary& v, const std::string& name) {
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

Result<Tokenizer> LoadFrom(const Case& c, const Files& files) {
  if (c.source == Source::kJson) return Tokenizer::FromJson(files.json, files.config, files.jinja);
  OwnedVocabulary v = ConvertToGguf(files.json, c.pre);
  SetEnds(v, c.name);
  return Tokenizer::FromGguf(v.View());
}

std::shared_ptr<const Tokenizer> Load(const Case& c) {
  Result<Tokenizer> loaded = Error{};
  if (c.source == Source::kGguf) {
    const auto vocabulary = ReadGgufVocabulary(*SharedDir() / "text/tokenizers" / c.name / "vocab.gguf");
    if (vocabulary) loaded = Tokenizer::FromGguf(vocabulary->View());
  } else {
    const auto files = FindFiles(c.name);
    if (!files) return nullptr;
    loaded = LoadFrom(c, *files);
  }
  EXPECT_TRUE(loaded.ok()) << loaded.error().message;
  return loaded.ok() ? std::make_shared<Tokenizer>(std::move(*loaded)) : nullptr;
}

void CheckEncode(const Tokenizer& tokenizer, const std::vector<Json>& cases) {
  for (const Json& c : cases) {
    if (c.at("kind") != "encode") continue;
    SCOPED_TRACE(c.at("id").get<std::string>());
    const auto ids = tokenizer.Encode(c.at("text").get<std::string>(), c.at("add_special"), c.at("parse_special"));
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    EXPECT_EQ(*ids, c.at("ids").get<std::vector<uint32_t>>()) << c.at("text");
  }
}

void CheckDecode(const Tokenizer& tokenizer, const std::vector<Json>& cases) {
  for (const Json& c : cases) {
    if (c.at("kind") != "encode") continue;
    SCOPED_TRACE(c.at("id").get<std::string>());
    const auto ids = c.at("ids").get<std::vector<uint32_t>>();
    const auto shown = tokenizer.Decode(ids, /*skip_special=*/false);
    const auto skipped = tokenizer.Decode(ids, /*skip_special=*/true);
    ASSERT_TRUE(shown.ok() && skipped.ok());
    EXPECT_EQ(*shown, c.at("decoded").get<std::string>());
    EXPECT_EQ(*skipped, c.at("decoded_skip_special").get<std::string>());
  }
}

void CheckStream(const Tokenizer& tokenizer, const std::vector<Json>& cases) {
  int streams = 0;
  for (const Json& c : cases) {
    if (c.at("kind") != "stream") continue;
    ++streams;
    SCOPED_TRACE(c.at("id").get<std::string>());
    StreamDecoder stream = tokenizer.Stream(c.at("skip_special"));
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

void CheckTokens(const Tokenizer& tokenizer, const Json& entry) {
  EXPECT_EQ(tokenizer.vocab_size(), entry.at("vocab_size").get<size_t>());
  EXPECT_GT(tokenizer.memory_bytes(), tokenizer.vocab_size() * 10);
  const std::string eos = entry.at("eos_token");
  ASSERT_TRUE(tokenizer.eos());
  EXPECT_EQ(tokenizer.TokenSpelling(*tokenizer.eos()), eos);
  EXPECT_EQ(tokenizer.TokenToId(eos), tokenizer.eos());
  EXPECT_THAT(tokenizer.end_ids(), testing::Contains(*tokenizer.eos()));
  EXPECT_TRUE(tokenizer.IsSpecial(*tokenizer.eos()));
  EXPECT_FALSE(tokenizer.TokenBytes(1u << 30));
}

class Vectors : public testing::TestWithParam<Case> {};

// One test for all, because loading takes longer than the cases do.
TEST_P(Vectors, Cases) {
  if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
  const std::shared_ptr<const Tokenizer> tokenizer = Load(GetParam());
  if (HasFailure()) return;
  if (!tokenizer) {
    GTEST_SKIP() << GetParam().name << " is not at " << FetchedDir() << " (tests/fetch_tokenizers.sh fetches it)";
  }
  const std::vector<Json> cases = ReadLines(*SharedDir() / "text/vectors" / (GetParam().name + ".jsonl"));
  ASSERT_GT(cases.size(), 100u);
  CheckEncode(*tokenizer, cases);
  CheckDecode(*tokenizer, cases);
  CheckStream(*tokenizer, cases);
  CheckTokens(*tokenizer, Index().at(GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(
    All, Vectors,
    testing::Values(Case{"smollm2", Source::kJson, ""}, Case{"smollm2", Source::kGguf, ""},
                    Case{"smollm2", Source::kConverted, "smollm"}, Case{"spm4k", Source::kJson, ""},
                    Case{"spm4k", Source::kGguf, ""}, Case{"qwen3", Source::kJson, ""},
                    Case{"qwen3", Source::kConverted, "qwen2"}, Case{"llama3", Source::kJson, ""},
                    Case{"llama3", Source::kConverted, "llama-bpe"}, Case{"llama3_1", Source::kJson, ""},
                    Case{"llama3_1", Source::kConverted, "llama-bpe"}, Case{"llama2", Source::kJson, ""},
                    Case{"llama2", Source::kConverted, ""}, Case{"deepseek_v3", Source::kJson, ""},
                    Case{"deepseek_v3", Source::kConverted, "deepseek-v3"}, Case{"gemma3", Source::kJson, ""},
                    Case{"gemma3", Source::kConverted, ""}, Case{"gptoss", Source::kJson, ""},
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
    const auto decoded = tokenizer.Decode(*ids, /*skip_special=*/false);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(*decoded, c.at("decoded").get<std::string>());
  }
}

constexpr char kDecomposed[] = "cafe\u0301";

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
    Json rest = Json::array();
    for (Json& c : Json::parse(*cases)) {
      const std::string text = c.at("text");
      if (vocabulary->pre == "qwen2" && text == kDecomposed) {
        // "qwen2" stands for a tokenizer that composes characters first, which this file's tokenizer.json does not.
        EXPECT_EQ(*gguf->Encode(text, false, true), *gguf->Encode("caf\u00e9", false, true));
      } else {
        rest.push_back(std::move(c));
      }
    }
    CheckGolden(*gguf, rest);
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
