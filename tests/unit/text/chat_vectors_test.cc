// Every case of the chat vectors: what Jinja2, set up as in transformers, makes of conversations and of small
// templates.
#include <gtest/gtest.h>

#include "tests/unit/text/text_data.h"

namespace xjit::text::test {
namespace {

// 2026-01-15 10:30:00, the time of the vectors' strftime_now.
constexpr int64_t kNow = 1768473000;

// A case's request with the storage behind its views.
struct Rendering {
  explicit Rendering(const Json& c) : messages(c.at("messages").dump()) {
    if (c.contains("tools")) tools = c.at("tools").dump();
    if (c.contains("kwargs")) kwargs = c.at("kwargs").dump();
    add_generation_prompt = c.at("add_generation_prompt");
  }
  RenderRequest View() const {
    return {.messages = messages,
            .tools = tools,
            .kwargs = kwargs,
            .add_generation_prompt = add_generation_prompt,
            .now = kNow};
  }
  std::string messages;
  std::optional<std::string> tools, kwargs;
  bool add_generation_prompt;
};

void Check(const Json& c, const Result<std::string>& rendered) {
  if (!c.contains("error")) {
    ASSERT_TRUE(rendered.ok()) << rendered.error().message;
    EXPECT_EQ(*rendered, c.at("rendered").get<std::string>());
    return;
  }
  ASSERT_FALSE(rendered.ok()) << *rendered;
  const std::string kind = c.at("error_kind");
  EXPECT_EQ(rendered.error().message.find('\n'), std::string::npos) << rendered.error().message;
  if (kind == "raised") {
    EXPECT_EQ(rendered.error().kind, ErrorKind::kRaised);
    EXPECT_EQ(rendered.error().message, c.at("error").get<std::string>());
  } else {
    EXPECT_EQ(rendered.error().kind, kind == "template" ? ErrorKind::kTemplate : ErrorKind::kRender)
        << rendered.error().message;
    EXPECT_NE(rendered.error().message.find("line "), std::string::npos) << rendered.error().message;
  }
}

class Chat : public testing::TestWithParam<std::string> {};

TEST_P(Chat, Vectors) {
  if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
  const auto files = FindFiles(GetParam());
  if (!files) GTEST_SKIP() << GetParam() << " is not at " << FetchedDir() << " (tests/fetch_tokenizers.sh fetches it)";
  const auto tokenizer = Tokenizer::FromJson(files->json, files->config, files->jinja);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  ASSERT_TRUE(tokenizer->has_chat_template());
  const std::vector<Json> cases = ReadLines(*SharedDir() / "text/chat" / (GetParam() + ".jsonl"));
  ASSERT_GT(cases.size(), 30u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    const auto rendered = tokenizer->Render(Rendering(c).View());
    Check(c, rendered);
    if (!rendered.ok() || c.contains("error")) continue;
    const auto ids = tokenizer->Encode(*rendered, /*add_special=*/false, /*parse_special=*/true);
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(*ids, c.at("ids").get<std::vector<uint32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, Chat,
                         testing::Values("smollm2", "spm4k", "qwen3", "llama3", "llama3_1", "llama2", "deepseek_v3",
                                         "gemma3", "gptoss"),
                         [](const auto& info) { return info.param; });

TEST(ChatVectors, FromGguf) {
  if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
  for (const char* name : {"smollm2", "spm4k"}) {
    const auto vocabulary = ReadGgufVocabulary(*SharedDir() / "text/tokenizers" / name / "vocab.gguf");
    ASSERT_TRUE(vocabulary);
    const auto tokenizer = Tokenizer::FromGguf(vocabulary->View());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    for (const Json& c : ReadLines(*SharedDir() / "text/chat" / (std::string(name) + ".jsonl"))) {
      SCOPED_TRACE(c.at("name").get<std::string>());
      Check(c, tokenizer->Render(Rendering(c).View()));
    }
  }
}

TEST(ChatVectors, TemplateLanguage) {
  if (!SharedDir()) GTEST_SKIP() << "no expected results at " << XJIT_SHARED_DIR;
  const std::vector<Json> cases = ReadLines(*SharedDir() / "text/chat/jinja_features.jsonl");
  ASSERT_GT(cases.size(), 40u);
  for (const Json& c : cases) {
    SCOPED_TRACE(c.at("name").get<std::string>());
    SCOPED_TRACE(c.at("template").get<std::string>());
    const auto compiled = ChatTemplate::Compile(c.at("template").get<std::string>(),
                                                {.bos = "<s>", .eos = "</s>", .unk = "<unk>", .pad = {}});
    // A template that is wrong for all conversations is refused at once.
    Check(c, compiled.ok() ? compiled->Render(Rendering(c).View()) : Result<std::string>(compiled.error()));
  }
}

}  // namespace
}  // namespace xjit::text::test
