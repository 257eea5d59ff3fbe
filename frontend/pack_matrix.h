// Panels (codegen/gemm/pack.h) of a matrix whose rows lie in stored ones, in whichever layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/support/encoding.h"
#include "ir/support/ref/stored_matrix.h"
#include "ir/support/status.h"

namespace xjit {

// What becomes a packed column.
struct StoredRow {
  const StoredMatrix* matrix = nullptr;  // nullptr: a column of zeros
  int64_t row = 0;
};

// The depth sorted by group, as activations must be for a matrix with act_order. InvalidArgument: the groups differ in
// size.
absl::StatusOr<std::vector<int32_t>> ActOrder(const StoredMatrix& matrix);

// Packs panels [begin, end) to dst + panel * PanelBytes(encoding, k); `rows` are of all panels, 32 each. `order` as
// ActOrder() gives it, or empty. May run in several threads for different panels.
absl::Status PackMatrix(const Encoding& encoding, int64_t k, std::span<const StoredRow> rows,
                        std::span<const int32_t> order, int64_t begin, int64_t end, std::byte* dst);

}  // namespace xjit
