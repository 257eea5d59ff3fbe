// Packing: all weights of a fused module in the order in which kernels read them.
#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

#include "codegen/gemm/pack.h"
#include "frontend/pack_matrix.h"
#include "frontend/weights.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Row of each packed column (codegen/gemm/pack.h), as (part, row), -1 where a column is padding.
std::vector<std::pair<int, int64_t>> PackedOrder(const Weight& w) {
  std::vector<std::pair<int, int64_t>> order(static_cast<size_t>(PackedColumns(w)), {0, -1});
  const auto parts = w.parts();
  if (w.interleaved()) {
    for (size_t n = 0; n < order.size(); ++n) {
      const int part = static_cast<int>(n / kGroupColumns % 2);
      const int64_t row =
          static_cast<int64_t>(n) / kPanelColumns * kGroupColumns + static_cast<int64_t>(n) % kGroupColumns;
      if (row < parts[static_cast<size_t>(part)].rows) order[n] = {part, row};
    }
    return order;
  }
  size_t n = 0;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (int64_t row = 0; row < parts[part].rows; ++row) order[n++] = {static_cast<int>(part), row};
  }
  return order;
}

// Matrices of a weight, whose panels lie one after the other.
int64_t Experts(const Weight& w) { return w.type.is_experts() ? w.type.dims[0].size : 1; }

// That the weight can be packed. Before anything is allocated: a model that cannot run costs no memory.
absl::Status CheckPackable(int64_t layer, const Weight& w) {
  if (w.type.dims.size() == 1) return absl::OkStatus();
  const auto refuse = [&](std::string_view why) {
    const std::string place = layer < 0 ? "" : fmt::format(" of layer {}", layer);
    return Unimplemented("weights: '@{}'{} is {} and {} (--backend interp runs it)", w.name, place,
                         ToString(w.type.encoding()), why);
  };
  if (!HasPanels(w.type.encoding())) return refuse("has no packed layout yet");
  XJIT_ASSIGN_OR_RETURN(const WeightRows rows, WeightRows::Of(w));
  for (const WeightRef& ref : rows.refs()) {
    if (!ref.columns().whole()) return refuse("a slice of columns, which is not packed yet");
  }
  return absl::OkStatus();
}

// CheckBlocks() of rows that are packed next, which it leaves in cache.
absl::Status CheckRows(std::span<const WeightNames::Source> sources, std::span<const StoredRow> rows) {
  for (const auto& [matrix, row] : rows) {
    if (matrix == nullptr) continue;
    for (const WeightNames::Source& source : sources) {
      const StoredMatrix* first = source.stored.matrices.data();
      const std::less<> before;  // of pointers into other arrays too
      if (before(matrix, first) || !before(matrix, first + source.stored.matrices.size())) continue;
      XJIT_RETURN_IF_ERROR(CheckBlocks(source.stored, *matrix, row));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Pack(const WeightNames& names, const Module& fused,
                                                               WorkerPool& pool, HugeBuffer::Options options) {
  auto store = std::make_unique<WeightStore>();
  std::vector<Entry> entries;
  int64_t total = 0;
  XJIT_RETURN_IF_ERROR(ForEachWeight(fused, [&](int64_t layer, const Weight& w) -> absl::Status {
    XJIT_RETURN_IF_ERROR(CheckPackable(layer, w));
    entries.push_back({layer, &w, total});
    store->offsets_[{layer, w.name}] = total;
    const int64_t bytes = w.type.dims.size() == 1 ? PackedColumns(w) * 4
                                                  : Experts(w) * PackedColumns(w) / kPanelColumns *
                                                        PanelBytes(w.type.encoding(), w.type.cols());
    total += AlignUp(bytes, 64);
    return absl::OkStatus();
  }));
  // Kernels may prefetch, and read a row up to its next 64 bytes, past the last weight.
  XJIT_ASSIGN_OR_RETURN(store->memory_, HugeBuffer::Allocate(total + 4096, options));
  CheckpointRows rows(names);
  for (const Entry& entry : entries) {
    XJIT_RETURN_IF_ERROR(entry.weight->type.dims.size() == 1 ? store->PackVector(rows, entry)
                                                             : store->Pack(names, entry, pool));
  }
  // Reading one tensor maps pages around it too, of tensors that were given back before.
  for (const TensorView& tensor : names.checkpoint().tensors()) names.checkpoint().Discard(tensor);
  return store;
}

absl::Status WeightStore::Pack(const WeightNames& names, const Entry& entry, WorkerPool& pool) {
  const Weight& w = *entry.weight;
  const Encoding encoding = w.type.encoding();
  const auto place = [&](const absl::Status& status) {
    return Prefix(status, fmt::format("weights: '@{}'{}", w.name,
                                      entry.layer < 0 ? "" : fmt::format(" of layer {}", entry.layer)));
  };
  XJIT_ASSIGN_OR_RETURN(const WeightRows refs, WeightRows::Of(w));
  XJIT_ASSIGN_OR_RETURN(const auto sources, names.Sources(entry.layer, w, refs));
  // A matrix has one ref a part.
  for (const auto& source : sources) {
    if (source.stored.encoding != encoding || source.stored.columns != w.type.cols() || source.add != 0 ||
        !source.keys.empty()) {
      return Internal("weights: '@{}' is not stored as {}", w.name, ToString(encoding));
    }
  }
  const std::vector<int32_t>* order = nullptr;
  if (encoding.scales.act_order) {
    if (sources.size() != 1) return Internal("weights: '@{}' joins matrices with orders of their own", w.name);
    auto own = ActOrder(sources[0].stored.matrices[0]);
    if (!own.ok()) return place(own.status());
    order = &(orders_[{entry.layer, w.name}] = *std::move(own));
  }
  std::vector<StoredRow> rows;
  const auto parts = w.parts();
  std::vector<int64_t> part_row0(1);
  for (const auto& part : parts) part_row0.push_back(part_row0.back() + part.rows);
  const auto columns = PackedOrder(w);
  for (int64_t e = 0; e < Experts(w); ++e) {
    for (const auto& [part, row] : columns) {
      if (row < 0) {
        rows.emplace_back();
        continue;
      }
      const WeightRows::Source at = refs.At(e * w.type.rows() + part_row0[static_cast<size_t>(part)] + row);
      const auto& source = sources[static_cast<size_t>(at.ref - refs.refs().data())];
      rows.push_back({&source.stored.matrices[static_cast<size_t>(at.expert)], source.order.Row(at.row)});
    }
  }
  const int64_t panels = static_cast<int64_t>(rows.size()) / kPanelColumns;
  // Panels of a quarter MiB are taken at a time.
  const int64_t chunk = std::max<int64_t>(1, (int64_t{256} << 10) / PanelBytes(encoding, w.type.cols()));
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  absl::Status status;
  std::byte* out = memory_.data() + entry.offset;
  const auto pack = [&](int64_t begin, int64_t end) -> absl::Status {
    const auto own = std::span(rows).subspan(static_cast<size_t>(begin * kPanelColumns),
                                             static_cast<size_t>((end - begin) * kPanelColumns));
    XJIT_RETURN_IF_ERROR(Prefix(CheckRows(sources, own), names.checkpoint().path()));
    const auto in_order = order == nullptr ? std::span<const int32_t>() : *order;
    return place(PackMatrix(encoding, w.type.cols(), rows, in_order, begin, end, out));
  };
  pool.Run([&](int) {
    for (int64_t p = next.fetch_add(chunk); p < panels; p = next.fetch_add(chunk)) {
      const absl::Status packed = pack(p, std::min(panels, p + chunk));
      if (packed.ok()) continue;
      const std::lock_guard lock(mutex);
      status.Update(packed);
      return;
    }
  });
  XJIT_RETURN_IF_ERROR(status);
  for (const auto& source : sources) {
    for (const TensorView* tensor : source.stored.tensors) names.checkpoint().Discard(*tensor);
  }
  return absl::OkStatus();
}

absl::Status WeightStore::PackVector(CheckpointRows& rows, const Entry& entry) {
  const Weight& w = *entry.weight;
  std::vector<float> plain(static_cast<size_t>(w.type.cols()));
  XJIT_RETURN_IF_ERROR(rows.Row(entry.layer, w, 0, plain));
  std::vector<int64_t> first;
  int64_t at = 0;
  for (const Weight::Part& part : w.parts()) {
    first.push_back(at);
    at += part.rows;
  }
  auto* out = reinterpret_cast<float*>(memory_.data() + entry.offset);
  const auto order = PackedOrder(w);
  for (size_t n = 0; n < order.size(); ++n) {
    const auto [part, row] = order[n];
    out[n] = row < 0 ? 0.0f : plain[static_cast<size_t>(first[static_cast<size_t>(part)] + row)];
  }
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> WeightStore::Matrix(int64_t layer, const Weight& weight) const {
  const auto it = offsets_.find({layer, weight.name});
  if (it == offsets_.end()) return Internal("weights: '@{}' of layer {} was not packed", weight.name, layer);
  return memory_.data() + it->second;
}

absl::StatusOr<const int32_t*> WeightStore::Order(int64_t layer, const Weight& weight) const {
  const auto it = orders_.find({layer, weight.name});
  if (it == orders_.end()) return Internal("weights: '@{}' of layer {} has no order of columns", weight.name, layer);
  return it->second.data();
}

absl::StatusOr<const float*> WeightStore::Vector(int64_t layer, const Weight& weight) const {
  XJIT_ASSIGN_OR_RETURN(const std::byte* at, Matrix(layer, weight));
  return reinterpret_cast<const float*>(at);
}

}  // namespace xjit
