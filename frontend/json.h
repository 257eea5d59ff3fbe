// JSON files of untrusted origin: a parser that returns a Status with line and column, and checked access to keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace xjit {

using Json = nlohmann::json;

inline constexpr size_t kMaxJsonBytes = 64 << 20;  // configurations are a few KB
inline constexpr int kMaxJsonDepth = 64;

// Parses `text`; duplicate keys, nesting beyond kMaxJsonDepth and invalid UTF-8 are errors. Messages start with
// "FILE:LINE:COLUMN: ".
absl::StatusOr<Json> ParseJson(std::string_view text, std::string_view file);

// The keys of one JSON object. Messages are "FILE: KEY: WHAT", with KEY a path such as "rope_scaling.factor". A key
// whose value is null counts as absent. Holds references: the Json must outlive it.
class JsonObject {
 public:
  // InvalidArgument unless `value` is an object. `path` is its place in the file ("" for the document).
  static absl::StatusOr<JsonObject> From(const Json& value, std::string_view file, std::string path = "");

  // The value of `key`; null when absent.
  const Json* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  std::string Place(std::string_view key) const;  // "FILE: PATH.KEY"

  // Required: an absent key, another JSON type or a value outside [min, max] is an error.
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<std::string> String(std::string_view key) const;
  // Optional: `fallback` when absent.
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
  absl::StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  absl::StatusOr<std::string> StringOr(std::string_view key, std::string fallback) const;
  // A finite number in [min, max].
  absl::StatusOr<std::optional<double>> Number(std::string_view key, double min, double max) const;
  absl::StatusOr<double> NumberOr(std::string_view key, double fallback, double min, double max) const;
  // One value or a list of them; empty when absent.
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<std::vector<double>> Numbers(std::string_view key, double min, double max) const;
  absl::StatusOr<std::vector<std::string>> Strings(std::string_view key) const;
  // A nested object; nullopt when absent.
  absl::StatusOr<std::optional<JsonObject>> Object(std::string_view key) const;

 private:
  JsonObject(const Json* value, std::string_view file, std::string path)
      : value_(value), file_(file), path_(std::move(path)) {}

  const Json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace xjit
