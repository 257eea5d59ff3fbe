// GGUF files, versions 2 and 3: metadata and tensors over bytes that somebody else keeps mapped.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/tensor_view.h"

namespace xjit {

enum class GgufType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array
  uint64_t count = 0;                // elements of an array
  // A number's or string's own bytes; an array's elements, back to back as the file has them.
  std::span<const std::byte> bytes;
  uint64_t offset = 0;  // of `bytes` in the file, for messages
};

class GgufFile {
 public:
  // Parses and checks all of the header: every value, tensor record and data range lies in `bytes`. Values and names
  // point into `bytes`, which must outlive the object. `file` is the name for messages: "FILE: byte N: WHAT".
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes, std::string_view file);

  const std::string& file() const { return file_; }
  uint32_t version() const { return version_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  // Metadata keys in file order.
  const std::vector<std::pair<std::string_view, GgufValue>>& metadata() const { return metadata_; }
  const GgufValue* Find(std::string_view key) const;
  const TensorView* FindTensor(std::string_view name) const;  // linear: for the few that describe the model

  // The value of `key`; nullopt when absent, InvalidArgument when of another type. Numbers convert between integer
  // types; Number takes integers too.
  absl::StatusOr<std::optional<int64_t>> Int(std::string_view key) const;
  absl::StatusOr<std::optional<double>> Number(std::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(std::string_view key) const;
  absl::StatusOr<std::optional<std::string_view>> String(std::string_view key) const;
  // Arrays; empty when absent. Ints takes every integer type.
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(std::string_view key) const;

 private:
  GgufFile() = default;
  absl::Status WrongType(std::string_view key, const GgufValue& value, std::string_view expected) const;

  std::string file_;
  uint32_t version_ = 0;
  std::vector<std::pair<std::string_view, GgufValue>> metadata_;
  std::unordered_map<std::string_view, size_t> index_;
  std::vector<TensorView> tensors_;
};

}  // namespace xjit
