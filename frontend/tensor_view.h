// A tensor as a checkpoint stores it, and the checks of where it may lie that every format shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/support/dtype.h"

namespace xjit {

struct TensorView {
  std::string name;            // as the checkpoint spells it
  std::optional<DType> type;   // absent: an encoding that xjit does not read
  std::string type_name;       // the format's own spelling: "Q4_K", "BF16", "F8_E4M3", "ggml type 99"
  std::vector<int64_t> shape;  // row-major, outermost first: [n, k] for a linear; [] for a scalar
  // Into the mapped file; no alignment is promised. Empty where the encoding's size is not known.
  std::span<const std::byte> data;
  std::string file;     // path of the file that holds it
  uint64_t offset = 0;  // of `data` in that file
};

// The number of elements of a shape, or nullopt where it passes 2^62. Dimensions must not be negative.
std::optional<int64_t> CountElements(std::span<const int64_t> shape);

// InvalidArgument, with names and offsets, when two tensors of the file share bytes.
absl::Status CheckNoOverlap(std::span<const TensorView> tensors, std::string_view file);

}  // namespace xjit
