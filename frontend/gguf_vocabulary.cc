// The tokenizer keys of a GGUF file.
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/gguf_config.h"
#include "frontend/gguf_keys.h"
#include "ir/support/status.h"

namespace xjit {

absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufFile& gguf) {
  GgufVocabulary out;
  const auto text = [&](std::string_view key, std::string_view& to) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> value, gguf.String(key));
    to = value.value_or("");
    return absl::OkStatus();
  };
  XJIT_RETURN_IF_ERROR(text("tokenizer.ggml.model", out.model));
  XJIT_RETURN_IF_ERROR(text("tokenizer.ggml.pre", out.pre));
  XJIT_RETURN_IF_ERROR(text("tokenizer.chat_template", out.chat_template));
  XJIT_ASSIGN_OR_RETURN(out.tokens, gguf.Strings("tokenizer.ggml.tokens"));
  XJIT_ASSIGN_OR_RETURN(out.merges, gguf.Strings("tokenizer.ggml.merges"));
  XJIT_ASSIGN_OR_RETURN(out.scores, gguf.Floats("tokenizer.ggml.scores"));
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf.Ints("tokenizer.ggml.token_type"));
  for (const int64_t type : types) {
    if (type < 0 || type > 255) {
      return InvalidArgument("{}: tokenizer.ggml.token_type: has {}, expected 0 to 255", gguf.file(), type);
    }
    out.types.push_back(static_cast<int32_t>(type));
  }
  const auto same_length = [&](std::string_view key, size_t size) {
    if (size == 0 || size == out.tokens.size()) return absl::OkStatus();
    return InvalidArgument("{}: {}: has {} entries for {} tokens", gguf.file(), key, size, out.tokens.size());
  };
  XJIT_RETURN_IF_ERROR(same_length("tokenizer.ggml.scores", out.scores.size()));
  XJIT_RETURN_IF_ERROR(same_length("tokenizer.ggml.token_type", out.types.size()));

  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &out.bos},     {"tokenizer.ggml.eos_token_id", &out.eos},
      {"tokenizer.ggml.eot_token_id", &out.eot},     {"tokenizer.ggml.eom_token_id", &out.eom},
      {"tokenizer.ggml.unknown_token_id", &out.unk}, {"tokenizer.ggml.seperator_token_id", &out.sep},
      {"tokenizer.ggml.padding_token_id", &out.pad}, {"tokenizer.ggml.mask_token_id", &out.mask}};
  for (const auto& [key, id] : ids) {
    XJIT_ASSIGN_OR_RETURN(*id, GgufTokenId(gguf, key));
    if (*id && static_cast<size_t>(**id) >= out.tokens.size()) {
      return InvalidArgument("{}: {}: is {}, but there are {} tokens", gguf.file(), key, **id, out.tokens.size());
    }
  }
  const std::pair<std::string_view, std::optional<bool>*> flags[] = {
      {"tokenizer.ggml.add_bos_token", &out.add_bos},
      {"tokenizer.ggml.add_eos_token", &out.add_eos},
      {"tokenizer.ggml.add_space_prefix", &out.add_space_prefix},
      {"tokenizer.ggml.remove_extra_whitespaces", &out.remove_extra_whitespaces}};
  for (const auto& [key, flag] : flags) {
    XJIT_ASSIGN_OR_RETURN(*flag, gguf.Bool(key));
  }
  return out;
}

}  // namespace xjit
