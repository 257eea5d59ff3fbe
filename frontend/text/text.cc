// C++ types over the C interface of the Rust library.
#include "frontend/text/text.h"

#include <ctime>

namespace xjit::text {
namespace {

// A given text that is empty must still have an address: NULL means not given.
xjit_text_bytes Bytes(std::string_view text) { return {text.data() ? text.data() : "", text.size()}; }

xjit_text_bytes Bytes(const std::optional<std::string_view>& text) {
  return text ? Bytes(*text) : xjit_text_bytes{nullptr, 0};
}

struct Buffer : xjit_text_buffer {
  Buffer() : xjit_text_buffer{nullptr, 0, 0} {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { xjit_text_buffer_free(this); }
  std::string str() const { return size ? std::string(data, size) : std::string(); }
};

struct Ids : xjit_text_ids {
  Ids() : xjit_text_ids{nullptr, 0, 0} {}
  Ids(const Ids&) = delete;
  Ids& operator=(const Ids&) = delete;
  ~Ids() { xjit_text_ids_free(this); }
  std::vector<uint32_t> vec() const {
    return size ? std::vector<uint32_t>(data, data + size) : std::vector<uint32_t>();
  }
};

Error MakeError(int status, const Buffer& message) { return {static_cast<ErrorKind>(status), message.str()}; }

int64_t LocalSeconds() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) return now;
  return timegm(&local);
}

xjit_text_render_request Convert(const RenderRequest& r) {
  return {Bytes(r.messages), Bytes(r.tools), Bytes(r.kwargs), r.add_generation_prompt, r.now ? *r.now : LocalSeconds()};
}

std::optional<uint32_t> Id(int64_t id) {
  return id < 0 ? std::nullopt : std::optional<uint32_t>(static_cast<uint32_t>(id));
}

std::optional<std::string> Token(const xjit_text_tokenizer* tokenizer, uint32_t id, bool spelling) {
  Buffer out;
  if (!xjit_text_token(tokenizer, id, spelling, &out)) return std::nullopt;
  return out.str();
}

}  // namespace

std::string StreamDecoder::Push(uint32_t id) {
  Buffer out;
  xjit_text_stream_push(stream_.get(), id, &out);
  return out.str();
}

std::string StreamDecoder::Finish() {
  Buffer out;
  xjit_text_stream_finish(stream_.get(), &out);
  return out.str();
}

Result<Tokenizer> Tokenizer::FromJson(std::string_view json, std::optional<std::string_view> config,
                                      std::optional<std::string_view> jinja) {
  xjit_text_tokenizer* out = nullptr;
  Buffer message;
  const int status = xjit_text_tokenizer_from_json(Bytes(json), Bytes(config), Bytes(jinja), &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return Tokenizer(out);
}

Result<Tokenizer> Tokenizer::FromGguf(const GgufVocabulary& v) {
  std::vector<xjit_text_bytes> tokens, merges;
  tokens.reserve(v.tokens.size());
  merges.reserve(v.merges.size());
  for (const std::string_view token : v.tokens) tokens.push_back(Bytes(token));
  for (const std::string_view merge : v.merges) merges.push_back(Bytes(merge));
  const auto id = [](const std::optional<uint32_t>& x) { return x ? static_cast<int64_t>(*x) : -1; };
  const auto flag = [](const std::optional<bool>& x) { return x ? static_cast<int32_t>(*x) : -1; };
  const xjit_text_gguf_vocabulary c = {
      .model = Bytes(v.model),
      .pre = Bytes(v.pre),
      .chat_template = Bytes(v.chat_template),
      .tokens = tokens.data(),
      .token_count = tokens.size(),
      .scores = v.scores.data(),
      .score_count = v.scores.size(),
      .types = v.types.data(),
      .type_count = v.types.size(),
      .merges = merges.data(),
      .merge_count = merges.size(),
      .bos = id(v.bos),
      .eos = id(v.eos),
      .unk = id(v.unk),
      .pad = id(v.pad),
      .add_bos = flag(v.add_bos),
      .add_eos = flag(v.add_eos),
      .add_space_prefix = flag(v.add_space_prefix),
  };
  xjit_text_tokenizer* out = nullptr;
  Buffer message;
  const int status = xjit_text_tokenizer_from_gguf(&c, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return Tokenizer(out);
}

Result<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text, bool add_special, bool parse_special) const {
  Ids out;
  Buffer message;
  const int status = xjit_text_encode(tokenizer_.get(), Bytes(text), add_special, parse_special, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return out.vec();
}

Result<std::string> Tokenizer::Decode(std::span<const uint32_t> ids, bool skip_special) const {
  Buffer out, message;
  const int status = xjit_text_decode(tokenizer_.get(), ids.data(), ids.size(), skip_special, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return out.str();
}

StreamDecoder Tokenizer::Stream(bool skip_special) const {
  return StreamDecoder(xjit_text_stream_new(tokenizer_.get(), skip_special));
}

std::optional<uint32_t> Tokenizer::TokenToId(std::string_view token) const {
  return Id(xjit_text_token_to_id(tokenizer_.get(), Bytes(token)));
}

std::optional<std::string> Tokenizer::TokenBytes(uint32_t id) const { return Token(tokenizer_.get(), id, false); }
std::optional<std::string> Tokenizer::TokenSpelling(uint32_t id) const { return Token(tokenizer_.get(), id, true); }
bool Tokenizer::IsSpecial(uint32_t id) const { return xjit_text_is_special(tokenizer_.get(), id); }
size_t Tokenizer::vocab_size() const { return xjit_text_vocab_size(tokenizer_.get()); }
size_t Tokenizer::memory_bytes() const { return xjit_text_memory_bytes(tokenizer_.get()); }
std::optional<uint32_t> Tokenizer::bos() const { return Id(xjit_text_token_ids(tokenizer_.get()).bos); }
std::optional<uint32_t> Tokenizer::eos() const { return Id(xjit_text_token_ids(tokenizer_.get()).eos); }
std::optional<uint32_t> Tokenizer::unk() const { return Id(xjit_text_token_ids(tokenizer_.get()).unk); }
std::optional<uint32_t> Tokenizer::pad() const { return Id(xjit_text_token_ids(tokenizer_.get()).pad); }

std::vector<uint32_t> Tokenizer::end_ids() const {
  Ids out;
  xjit_text_end_ids(tokenizer_.get(), &out);
  return out.vec();
}

bool Tokenizer::has_chat_template() const { return xjit_text_has_chat_template(tokenizer_.get()); }

Result<std::string> Tokenizer::Render(const RenderRequest& request) const {
  const xjit_text_render_request c = Convert(request);
  Buffer out, message;
  const int status = xjit_text_render(tokenizer_.get(), &c, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return out.str();
}

Result<ChatTemplate> ChatTemplate::Compile(std::string_view source, const SpecialTokens& tokens) {
  const xjit_text_special_tokens c = {Bytes(tokens.bos), Bytes(tokens.eos), Bytes(tokens.unk), Bytes(tokens.pad)};
  xjit_text_template* out = nullptr;
  Buffer message;
  const int status = xjit_text_template_new(Bytes(source), &c, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return ChatTemplate(out);
}

Result<std::string> ChatTemplate::Render(const RenderRequest& request) const {
  const xjit_text_render_request c = Convert(request);
  Buffer out, message;
  const int status = xjit_text_template_render(template_.get(), &c, &out, &message);
  if (status != XJIT_TEXT_OK) return MakeError(status, message);
  return out.str();
}

}  // namespace xjit::text
