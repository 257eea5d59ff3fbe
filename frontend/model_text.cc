#include "frontend/model_text.h"

#include "frontend/json.h"
#include "frontend/mapped_file.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

using TokenizerOr = absl::StatusOr<std::shared_ptr<const text::Tokenizer>>;

TokenizerOr Finish(text::Result<text::Tokenizer> result, std::string_view place) {
  if (!result.ok()) return ToStatus(result.error(), place);
  return std::make_shared<const text::Tokenizer>(std::move(*result));
}

TokenizerOr FromGguf(const Checkpoint& checkpoint) {
  XJIT_ASSIGN_OR_RETURN(const GgufVocabulary v, checkpoint.Vocabulary());
  const std::string& file = checkpoint.vocabulary_file()->file();
  if (v.tokens.empty())
    return FailedPrecondition(
        "{}: it holds no tokenizer (tokenizer.ggml.tokens is missing; --raw-ids works without one)", file);
  text::GgufVocabulary vocabulary;
  auto id = [](std::optional<int32_t> x) { return x.has_value() ? std::optional<uint32_t>(*x) : std::nullopt; };
  vocabulary.model = v.model;
  if (!v.pre.empty()) vocabulary.pre = v.pre;
  vocabulary.tokens = v.tokens;
  vocabulary.scores = v.scores;
  vocabulary.types = v.types;
  vocabulary.merges = v.merges;
  vocabulary.bos = id(v.bos);
  vocabulary.eos = id(v.eos);
  vocabulary.unk = id(v.unk);
  vocabulary.pad = id(v.pad);
  vocabulary.add_bos = v.add_bos;
  vocabulary.add_eos = v.add_eos;
  vocabulary.add_space_prefix = v.add_space_prefix;
  // A manifest's own template takes the place of the vocabulary's.
  const TextSources& texts = checkpoint.texts();
  std::optional<MappedFile> jinja;
  if (!texts.chat_template_text.empty()) {
    vocabulary.chat_template = texts.chat_template_text;
  } else if (!texts.chat_template.empty()) {
    XJIT_ASSIGN_OR_RETURN(jinja, MappedFile::Open(texts.chat_template));
    vocabulary.chat_template = jinja->text();
  } else if (!v.chat_template.empty()) {
    vocabulary.chat_template = v.chat_template;
  }
  return Finish(text::Tokenizer::FromGguf(vocabulary), file);
}

}  // namespace

absl::Status ToStatus(const text::Error& error, std::string_view place) {
  if (error.kind == text::ErrorKind::kInternal) return Internal("{}: {}", place, error.message);
  return InvalidArgument("{}: {}", place, error.message);
}

TokenizerOr LoadTokenizer(const Checkpoint& checkpoint) {
  if (checkpoint.vocabulary_file() != nullptr) return FromGguf(checkpoint);
  const TextSources& texts = checkpoint.texts();
  if (texts.tokenizer.empty()) {
    return FailedPrecondition("{}: there is no tokenizer.json (--raw-ids works without one)", checkpoint.path());
  }
  XJIT_ASSIGN_OR_RETURN(const MappedFile json, MappedFile::Open(texts.tokenizer));
  std::optional<MappedFile> config, jinja;
  std::optional<std::string_view> config_text, jinja_text;
  if (!texts.tokenizer_config.empty()) {
    XJIT_ASSIGN_OR_RETURN(config, MappedFile::Open(texts.tokenizer_config));
    config_text = config->text();
  }
  std::string from_json;
  if (!texts.chat_template_text.empty()) {
    jinja_text = texts.chat_template_text;
  } else if (!texts.chat_template.empty()) {
    XJIT_ASSIGN_OR_RETURN(jinja, MappedFile::Open(texts.chat_template));
    jinja_text = jinja->text();
    if (texts.chat_template.ends_with(".json")) {
      XJIT_ASSIGN_OR_RETURN(const Json document, ParseJson(*jinja_text, texts.chat_template));
      XJIT_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(document, texts.chat_template));
      XJIT_ASSIGN_OR_RETURN(from_json, object.String("chat_template"));
      jinja_text = from_json;
    }
  }
  return Finish(text::Tokenizer::FromJson(json.text(), config_text, jinja_text), texts.tokenizer);
}

std::future<TokenizerOr> LoadTokenizerAsync(const Checkpoint& checkpoint) {
  return std::async(std::launch::async, [&checkpoint] { return LoadTokenizer(checkpoint); });
}

}  // namespace xjit
