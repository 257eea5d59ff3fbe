// Safetensors files and their shard index, over bytes that somebody else keeps mapped.
// Format: https://huggingface.co/docs/safetensors, "Format".
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/tensor_view.h"

namespace xjit {

// The tensors of a file, in header order; their data lie inside `bytes` and do not overlap. `file` is the name for
// messages. A dtype that xjit has no element type for (U8, I64, ...) is listed without `type`.
absl::StatusOr<std::vector<TensorView>> ParseSafetensors(std::span<const std::byte> bytes, std::string_view file);

// weight_map of a *.safetensors.index.json: (tensor, shard) pairs. Shards are plain file names: a path that leaves
// the folder is InvalidArgument.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseSafetensorsIndex(std::string_view text,
                                                                                       std::string_view file);

}  // namespace xjit
