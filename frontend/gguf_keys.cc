#include "frontend/gguf_keys.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "frontend/spec_limits.h"
#include "ir/support/status.h"

namespace xjit {

std::string ArchKeys::Key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }

std::string ArchKeys::Place(std::string_view name) const { return fmt::format("{}: {}.{}", gguf_.file(), arch_, name); }

absl::StatusOr<int64_t> ArchKeys::IntOr(std::string_view name, int64_t fallback, int64_t min, int64_t max) const {
  const std::string key = Key(name);
  const GgufValue* value = gguf_.Find(key);
  if (value == nullptr) return fallback;
  int64_t number = 0;
  if (value->type == GgufType::kArray) {
    // Some converters write one number a layer.
    XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, gguf_.Ints(key));
    if (layers.empty()) return InvalidArgument("{}: {}: is an empty array", gguf_.file(), key);
    if (std::any_of(layers.begin(), layers.end(), [&](int64_t n) { return n != layers[0]; })) {
      return Unimplemented("{}: {}: differs between layers", gguf_.file(), key);
    }
    number = layers[0];
  } else {
    XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> one, gguf_.Int(key));
    number = *one;
  }
  if (number < min || number > max) {
    return InvalidArgument("{}: {}: is {}, expected {} to {}", gguf_.file(), key, number, min, max);
  }
  return number;
}

absl::StatusOr<int64_t> ArchKeys::Int(std::string_view name, int64_t min, int64_t max) const {
  if (!Has(name)) return InvalidArgument("{}: missing", Place(name));
  return IntOr(name, 0, min, max);
}

absl::StatusOr<std::optional<double>> ArchKeys::Number(std::string_view name, double min, double max) const {
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> number, gguf_.Number(Key(name)));
  if (number && !(*number >= min && *number <= max)) {
    return InvalidArgument("{}: is {}, expected {} to {}", Place(name), *number, min, max);
  }
  return number;
}

absl::StatusOr<std::optional<double>> ArchKeys::Decimal(std::string_view name, double min, double max) const {
  XJIT_ASSIGN_OR_RETURN(std::optional<double> number, Number(name, min, max));
  if (number) number = std::strtod(fmt::format("{}", static_cast<float>(*number)).c_str(), nullptr);
  return number;
}

absl::StatusOr<bool> ArchKeys::BoolOr(std::string_view name, bool fallback) const {
  XJIT_ASSIGN_OR_RETURN(const std::optional<bool> flag, gguf_.Bool(Key(name)));
  return flag.value_or(fallback);
}

absl::StatusOr<std::string> ArchKeys::StringOr(std::string_view name, std::string_view fallback) const {
  XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> text, gguf_.String(Key(name)));
  return std::string(text.value_or(fallback));
}

absl::StatusOr<std::optional<int32_t>> GgufTokenId(const GgufFile& gguf, std::string_view key) {
  XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> id, gguf.Int(key));
  if (!id) return std::optional<int32_t>();
  // llama.cpp's converter writes -1, as a u32 too, for "none".
  if (*id == -1 || *id == UINT32_MAX) return std::optional<int32_t>();
  if (*id < 0 || *id > kMaxDim) {
    return InvalidArgument("{}: {}: is {}, expected a token id", gguf.file(), key, *id);
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

}  // namespace xjit
