// Checked access to a GGUF file's keys for its architecture.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "frontend/gguf.h"

namespace xjit {

// The keys of one architecture: "block_count" is read as "llama.block_count".
class ArchKeys {
 public:
  ArchKeys(const GgufFile& gguf, std::string_view arch) : gguf_(gguf), arch_(arch) {}

  std::string Key(std::string_view name) const;
  std::string Place(std::string_view name) const;  // "FILE: KEY"
  bool Has(std::string_view name) const { return gguf_.Find(Key(name)) != nullptr; }

  // `fallback` when absent; InvalidArgument outside [min, max]. One number a layer counts as one where all are equal.
  absl::StatusOr<int64_t> IntOr(std::string_view name, int64_t fallback, int64_t min, int64_t max) const;
  // Required.
  absl::StatusOr<int64_t> Int(std::string_view name, int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view name, double min, double max) const;
  // The shortest decimal that is the same f32: what the file's maker wrote.
  absl::StatusOr<std::optional<double>> Decimal(std::string_view name, double min, double max) const;
  absl::StatusOr<bool> BoolOr(std::string_view name, bool fallback) const;
  absl::StatusOr<std::string> StringOr(std::string_view name, std::string_view fallback) const;

 private:
  const GgufFile& gguf_;
  std::string_view arch_;
};

// The token id of a key such as tokenizer.ggml.bos_token_id; nullopt where there is none.
absl::StatusOr<std::optional<int32_t>> GgufTokenId(const GgufFile& gguf, std::string_view key);

}  // namespace xjit
