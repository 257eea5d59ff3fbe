#include "frontend/tensor_view.h"

#include <algorithm>

#include "frontend/printable.h"
#include "ir/support/status.h"

namespace xjit {

std::optional<int64_t> CountElements(std::span<const int64_t> shape) {
  constexpr int64_t kMax = int64_t{1} << 62;
  // A zero makes the product zero whatever stands beside it.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || count > kMax / dim) return std::nullopt;
    count *= dim;
  }
  return count;
}

absl::Status CheckNoOverlap(std::span<const TensorView> tensors, std::string_view file) {
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    if (!tensor.data.empty()) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const TensorView &before = *order[i - 1], &after = *order[i];
    if (before.offset + before.data.size() > after.offset) {
      return InvalidArgument("{}: byte {}: tensor {} overlaps tensor {}, which ends at byte {} (the file is corrupt)",
                             file, after.offset, Printable(after.name), Printable(before.name),
                             before.offset + before.data.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
