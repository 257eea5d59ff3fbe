#include "frontend/pack_matrix.h"

#include <algorithm>
#include <cstring>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Columns = std::span<const StoredRow>;

// Encodings whose scales lie outside: codes of a panel's rows side by side, then scales and zero points block by block.
class ScaledPanels {
 public:
  ScaledPanels(const Encoding& encoding, int64_t k, std::span<const int32_t> order)
      : encoding_(encoding),
        k_(k),
        order_(order),
        blocks_(ScaledBlocksOf(encoding, k).count(k)),
        // Rows one line apart in the cache, whatever k is.
        stride_(AlignUp(k, 64) + 64),
        codes_(static_cast<size_t>(kPanelColumns * stride_)),
        sorted_(order.empty() ? 0 : codes_.size()),
        scales_(static_cast<size_t>(kPanelColumns * blocks_)),
        zeros_(encoding.scales.zeros ? scales_.size() : 0) {}

  absl::Status Pack(Columns columns, std::byte* dst) {
    ReadCodes(columns);
    const uint8_t* codes = order_.empty() ? codes_.data() : Sort(columns);
    std::vector<ScaledColumn> panel(kPanelColumns);
    for (size_t c = 0; c < panel.size(); ++c) {
      const auto& [matrix, row] = columns[c];
      if (matrix == nullptr) continue;
      const size_t first = c * static_cast<size_t>(blocks_);
      for (size_t b = 0; b < static_cast<size_t>(blocks_); ++b) {
        scales_[first + b] = StoredScale(*matrix, row, static_cast<int64_t>(b));
        if (!zeros_.empty())
          zeros_[first + b] = static_cast<uint8_t>(StoredZero(*matrix, row, static_cast<int64_t>(b)));
      }
      panel[c] = {codes + static_cast<int64_t>(c) * stride_, scales_.data() + first,
                  zeros_.empty() ? nullptr : zeros_.data() + first};
    }
    return PackScaledPanel(encoding_, k_, panel, dst);
  }

 private:
  // Runs of columns from one matrix at once.
  void ReadCodes(Columns columns) {
    std::vector<int64_t> rows;
    for (size_t c = 0; c < columns.size(); c += rows.size()) {
      rows.clear();
      for (size_t i = c; i < columns.size() && columns[i].matrix == columns[c].matrix; ++i) {
        rows.push_back(columns[i].row);
      }
      if (columns[c].matrix != nullptr)
        StoredCodes(*columns[c].matrix, rows, stride_, codes_.data() + static_cast<int64_t>(c) * stride_);
    }
  }
  const uint8_t* Sort(Columns columns) {
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].matrix == nullptr) continue;
      const uint8_t* from = codes_.data() + static_cast<int64_t>(c) * stride_;
      uint8_t* to = sorted_.data() + static_cast<int64_t>(c) * stride_;
      for (size_t i = 0; i < order_.size(); ++i) to[i] = from[order_[i]];
    }
    return sorted_.data();
  }

  const Encoding& encoding_;
  int64_t k_;
  std::span<const int32_t> order_;
  int64_t blocks_, stride_;
  std::vector<uint8_t> codes_, sorted_;
  std::vector<float> scales_;
  std::vector<uint8_t> zeros_;
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> ActOrder(const StoredMatrix& matrix) {
  std::vector<int32_t> order = GroupOrder(matrix);
  if (matrix.group_of == nullptr) return order;
  const auto group_of = [&matrix](int32_t i) {
    int32_t group;
    std::memcpy(&group, matrix.group_of + int64_t{4} * i, sizeof(group));
    return group;
  };
  for (int64_t i = 0; i < matrix.k; ++i) {
    if (group_of(order[static_cast<size_t>(i)]) != i / matrix.scale_cols)
      return InvalidArgument("its groups are not all of {} elements", matrix.scale_cols);
  }
  return order;
}

absl::Status PackMatrix(const Encoding& encoding, int64_t k, std::span<const StoredRow> rows,
                        std::span<const int32_t> order, int64_t begin, int64_t end, std::byte* dst) {
  const int64_t panel_bytes = PanelBytes(encoding, k);
  const auto columns = [rows](int64_t p) {
    return rows.subspan(static_cast<size_t>(p * kPanelColumns), kPanelColumns);
  };
  if (HasScalesOutside(encoding.type)) {
    ScaledPanels panels(encoding, k, order);
    for (int64_t p = begin; p < end; ++p) XJIT_RETURN_IF_ERROR(panels.Pack(columns(p), dst + p * panel_bytes));
    return absl::OkStatus();
  }
  // Rows where they are; of other layouts, copies.
  const int64_t row_bytes = RowBytes(encoding.type, k);
  std::vector<std::byte> copies;
  std::vector<const std::byte*> sources(kPanelColumns);
  for (int64_t p = begin; p < end; ++p) {
    for (size_t c = 0; c < sources.size(); ++c) {
      const auto& [matrix, row] = columns(p)[c];
      if (matrix == nullptr) {
        sources[c] = nullptr;
      } else if (matrix->layout == StoredMatrix::Layout::kRows) {
        sources[c] = matrix->values + row * row_bytes;
      } else {
        copies.resize(static_cast<size_t>(kPanelColumns * row_bytes));
        std::byte* copy = copies.data() + static_cast<int64_t>(c) * row_bytes;
        StoredBlocks(*matrix, row, copy);
        sources[c] = copy;
      }
    }
    PackPanels(encoding.type, k, sources, 0, 1, dst + p * panel_bytes);
  }
  return absl::OkStatus();
}

}  // namespace xjit
