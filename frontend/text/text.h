// Tokenizers, streaming decoding and chat templates in C++ types, over the C interface in xjit_text.h.
//
// This folder includes nothing of ours, so failures are plain: a Result holds a value or an Error.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/text/xjit_text.h"

namespace xjit::text {

enum class ErrorKind {
  kInvalid = XJIT_TEXT_INVALID,    // the input is not what it should be
  kRaised = XJIT_TEXT_RAISED,      // the template's own raise_exception; the message is its argument, word for word
  kTemplate = XJIT_TEXT_TEMPLATE,  // the template is not valid, or used what is not defined; the message has the line
  kRender = XJIT_TEXT_RENDER,      // rendering failed: a type error, too many steps
  kInternal = XJIT_TEXT_INTERNAL,  // a fault in the library below
};

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;  // one line
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(std::move(error)) {}
  bool ok() const { return value_.has_value(); }
  // Only where ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  // Only where not ok().
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

// The metadata tokenizer.ggml.* of a GGUF file, as it is there; a value that is missing there is missing here. The
// views need only last for the call.
struct GgufVocabulary {
  std::string_view model;                         // tokenizer.ggml.model: "gpt2" or "llama"
  std::optional<std::string_view> pre;            // tokenizer.ggml.pre: needed for "gpt2"
  std::vector<std::string_view> tokens;           // tokenizer.ggml.tokens
  std::span<const float> scores;                  // tokenizer.ggml.scores: needed for "llama"
  std::span<const int32_t> types;                 // tokenizer.ggml.token_type; empty: all normal
  std::vector<std::string_view> merges;           // tokenizer.ggml.merges: for "gpt2"
  std::optional<uint32_t> bos, eos, unk, pad;     // tokenizer.ggml.{bos,eos,unknown,padding}_token_id
  std::optional<bool> add_bos, add_eos;           // tokenizer.ggml.add_{bos,eos}_token
  std::optional<bool> add_space_prefix;           // tokenizer.ggml.add_space_prefix
  std::optional<std::string_view> chat_template;  // tokenizer.chat_template
};

// One rendering of a chat template.
struct RenderRequest {
  std::string_view messages;               // JSON array of {"role": ..., "content": ...}
  std::optional<std::string_view> tools;   // JSON array
  std::optional<std::string_view> kwargs;  // JSON object: further variables of the template
  bool add_generation_prompt = true;
  // What strftime_now formats: seconds since 1970-01-01 00:00 of the wall clock. Missing: now, in the local time zone.
  std::optional<int64_t> now;
};

// Decodes one token at a time: a character is given as soon as the token with its last byte has come. Bytes that can't
// begin or go on a character become U+FFFD. Keeps its tokenizer's tables alive. For one thread at a time.
class StreamDecoder {
 public:
  // The characters that this token completes; often none. An id that is no token gives none.
  std::string Push(uint32_t id);
  // What is left at the end: U+FFFD for a character that was cut off. The stream begins anew.
  std::string Finish();

 private:
  friend class Tokenizer;
  struct Free {
    void operator()(xjit_text_stream* stream) const { xjit_text_stream_free(stream); }
  };
  explicit StreamDecoder(xjit_text_stream* stream) : stream_(stream) {}
  std::unique_ptr<xjit_text_stream, Free> stream_;
};

// A tokenizer with its special tokens and chat templates. May be used from several threads at once.
class Tokenizer {
 public:
  // `json` is the content of tokenizer.json. `config` is that of tokenizer_config.json (special tokens, chat_template)
  // and `jinja` that of chat_template.jinja, which takes the place of the former's template. A template that can't
  // render is an error (kTemplate or kRender) with its line.
  static Result<Tokenizer> FromJson(std::string_view json, std::optional<std::string_view> config = std::nullopt,
                                    std::optional<std::string_view> jinja = std::nullopt);
  // An unknown model or pre-tokenizer is an error that names it and lists the known ones.
  static Result<Tokenizer> FromGguf(const GgufVocabulary& vocabulary);

  // add_special: what the tokenizer puts around a text (<s> and the like). parse_special: special tokens written in the
  // text are read as such, otherwise they are plain text. Fails where `text` is not UTF-8.
  Result<std::vector<uint32_t>> Encode(std::string_view text, bool add_special, bool parse_special) const;
  // Ids that are no token decode to nothing. skip_special leaves special tokens out.
  Result<std::string> Decode(std::span<const uint32_t> ids, bool skip_special) const;
  StreamDecoder Stream(bool skip_special) const;

  // `token` is its spelling in the vocabulary.
  std::optional<uint32_t> TokenToId(std::string_view token) const;
  // The bytes that a token stands for in the middle of a text; not always whole characters.
  std::optional<std::string> TokenBytes(uint32_t id) const;
  // A token's spelling in the vocabulary, for people.
  std::optional<std::string> TokenSpelling(uint32_t id) const;
  bool IsSpecial(uint32_t id) const;

  // Number of tokens, added ones included; a model's logits may be padded beyond it.
  size_t vocab_size() const;
  // What the tables and templates hold in memory.
  size_t memory_bytes() const;
  std::optional<uint32_t> bos() const;
  std::optional<uint32_t> eos() const;
  std::optional<uint32_t> unk() const;
  std::optional<uint32_t> pad() const;
  // The ids that end a generation: eos and the special tokens which model families use so (<|im_end|>, <|eot_id|>,
  // <end_of_turn>, ...); sorted.
  std::vector<uint32_t> end_ids() const;

  bool has_chat_template() const;
  // Fails with kInvalid where there is no template or the request is no such JSON, else as the template does.
  Result<std::string> Render(const RenderRequest& request) const;

 private:
  struct Free {
    void operator()(xjit_text_tokenizer* tokenizer) const { xjit_text_tokenizer_free(tokenizer); }
  };
  explicit Tokenizer(xjit_text_tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  std::unique_ptr<xjit_text_tokenizer, Free> tokenizer_;
};

// A chat template by itself, which is compiled only: those that come with a tokenizer are also rendered once, on a
// short dialogue, while it is loaded. May be used from several threads at once.
class ChatTemplate {
 public:
  // What the template sees as bos_token and so on; one that is missing is undefined there.
  struct SpecialTokens {
    std::optional<std::string_view> bos, eos, unk, pad;
  };
  static Result<ChatTemplate> Compile(std::string_view source, const SpecialTokens& tokens);
  Result<std::string> Render(const RenderRequest& request) const;

 private:
  struct Free {
    void operator()(xjit_text_template* chat_template) const { xjit_text_template_free(chat_template); }
  };
  explicit ChatTemplate(xjit_text_template* chat_template) : template_(chat_template) {}
  std::unique_ptr<xjit_text_template, Free> template_;
};

}  // namespace xjit::text
