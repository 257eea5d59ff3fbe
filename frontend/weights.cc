#include "frontend/weights.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "codegen/gemm/pack.h"
#include "ir/ops.h"
#include "ir/support/ref/dequant.h"
#include "models/rope.h"

namespace xjit {
namespace {

// Symbols that the engine computes instead of reading.
bool IsComputed(std::string_view symbol) { return symbol == "inv_freq"; }

// Tensors that may be left over: what the graph does not need by design.
bool MayBeSurplus(std::string_view name, bool tied) {
  return name == "rope_freqs.weight" || name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
}

std::string ShapeText(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// Calls f(layer, weight) for each weight of each layer of the graph, those outside layers first.
template <class F>
absl::Status ForEachWeight(const Module& module, F f) {
  const Function* step = module.Find("step");
  if (step == nullptr) return InvalidArgument("module @{} has no @step", module.name);
  for (const auto& w : step->weights) XJIT_RETURN_IF_ERROR(f(int64_t{-1}, *w));
  for (const auto& op : step->ops) {
    if (op->code != OpCode::kRepeat) continue;
    XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(op->Str("schedule")));
    for (const ScheduleRun& run : runs) {
      for (int64_t layer = run.first; layer <= run.last; ++layer) {
        for (const auto& w : module.Find(run.function)->weights) XJIT_RETURN_IF_ERROR(f(layer, *w));
      }
    }
  }
  return absl::OkStatus();
}

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

}  // namespace

int64_t WeightNames::Source::Row(int64_t r) const {
  if (!pairs_to_halves) return r;
  const int64_t head = r / head_dim, i = r % head_dim, half = head_dim / 2;
  return head * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1);
}

const TensorName* WeightNames::Find(std::string_view symbol) const {
  for (const TensorName& t : family_.tensors) {
    if (t.symbol == symbol) return &t;
  }
  return nullptr;
}

std::string WeightNames::TensorNameOf(std::string_view symbol, int64_t layer) const {
  const TensorName* t = Find(symbol);
  if (t == nullptr) return fmt::format("@{}", symbol);
  std::string name(checkpoint_.gguf() != nullptr ? t->gguf : t->hf);
  if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, fmt::format("{}", layer));
  return name;
}

ModelWeights WeightNames::Encodings() const {
  ModelWeights weights;
  weights.layers.resize(static_cast<size_t>(checkpoint_.spec().layers));
  for (const TensorName& t : family_.tensors) {
    const bool in_layers = t.hf.find("{}") != std::string_view::npos;
    for (int64_t layer = 0; layer < (in_layers ? checkpoint_.spec().layers : 1); ++layer) {
      const TensorView* view = checkpoint_.Find(TensorNameOf(t.symbol, layer));
      if (view == nullptr || view->shape.size() != 2) continue;
      auto& encodings = in_layers ? weights.layers[static_cast<size_t>(layer)] : weights.outer;
      encodings[std::string(t.symbol)] = view->type.value_or(DType::kF32);
    }
  }
  return weights;
}

absl::Status WeightNames::Check(const Module& graph) const {
  std::vector<std::string> wrong;
  std::set<std::string, std::less<>> used;
  XJIT_RETURN_IF_ERROR(ForEachWeight(graph, [&](int64_t layer, const Weight& w) -> absl::Status {
    if (IsComputed(w.name)) return absl::OkStatus();
    const std::string name = TensorNameOf(w.name, layer);
    used.insert(name);
    const TensorView* view = checkpoint_.Find(name);
    std::vector<int64_t> shape;
    for (const Dim& d : w.type.dims) shape.push_back(d.size);
    if (view == nullptr) {
      wrong.push_back(fmt::format("{} is missing", name));
    } else if (view->shape != shape) {
      wrong.push_back(fmt::format("{} is {} instead of {}", name, ShapeText(view->shape), ShapeText(shape)));
    } else if (!view->type.has_value()) {
      wrong.push_back(fmt::format("{} is {}, an encoding that xjit does not read", name, view->type_name));
    } else if (w.type.dims.size() == 1 && IsQuantized(*view->type)) {
      wrong.push_back(fmt::format("{} is a vector in {}", name, view->type_name));
    }
    return absl::OkStatus();
  }));
  for (const TensorView& view : checkpoint_.tensors()) {
    if (!used.contains(view.name) && !MayBeSurplus(view.name, checkpoint_.spec().tie_word_embeddings)) {
      wrong.push_back(fmt::format("{} is surplus", view.name));
    }
  }
  if (wrong.empty()) return absl::OkStatus();
  const size_t count = wrong.size();
  wrong.resize(std::min<size_t>(count, 5));
  return InvalidArgument(
      "{}: {} tensor{} not fit the {} graph: {}{} (is it another architecture, or are config and weights of different "
      "models?)",
      checkpoint_.path(), count, count == 1 ? " does" : "s do", checkpoint_.spec().arch, fmt::join(wrong, "; "),
      count > 5 ? fmt::format("; and {} more", count - 5) : "");
}

absl::StatusOr<std::vector<WeightNames::Source>> WeightNames::Sources(int64_t layer, const Weight& weight) const {
  std::vector<Source> sources;
  for (const Weight::Part& part : weight.parts()) {
    XJIT_ASSIGN_OR_RETURN(const TensorView* view, checkpoint_.Tensor(TensorNameOf(part.name, layer)));
    const TensorName* t = Find(part.name);
    const ModelSpec& spec = checkpoint_.spec();
    sources.push_back(
        {view, t != nullptr && (t->flags & TensorName::kRopeRows) != 0 && spec.rope_pairs_adjacent, spec.head_dim});
  }
  return sources;
}

CheckpointRows::CheckpointRows(const WeightNames& names)
    : names_(names), inv_freq_(RopeInvFreq(names.checkpoint().spec().rope, names.checkpoint().spec().head_dim)) {}

absl::StatusOr<std::span<const WeightNames::Source>> CheckpointRows::SourcesOf(int64_t layer, const Weight& w) {
  if (last_.first != layer || last_.second != w.name) {
    XJIT_ASSIGN_OR_RETURN(sources_, names_.Sources(layer, w));
    last_ = {layer, w.name};
  }
  return std::span<const WeightNames::Source>(sources_);
}

absl::Status CheckpointRows::Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) {
  if (IsComputed(w.name)) {
    std::copy_n(inv_freq_.begin(), out.size(), out.begin());
    return absl::OkStatus();
  }
  XJIT_ASSIGN_OR_RETURN(const auto sources, SourcesOf(layer, w));
  const auto parts = w.parts();
  if (w.type.dims.size() == 1) {
    size_t at = 0;
    std::vector<float> values;
    for (size_t p = 0; p < parts.size(); ++p) {
      values.resize(static_cast<size_t>(parts[p].rows));
      DequantizeRow(*sources[p].tensor->type, sources[p].tensor->data.data(), parts[p].rows, values.data());
      for (int64_t r = 0; r < parts[p].rows; ++r) out[at++] = values[static_cast<size_t>(sources[p].Row(r))];
    }
    return absl::OkStatus();
  }
  size_t p = 0;
  while (p + 1 < parts.size() && n >= parts[p].rows) n -= parts[p++].rows;
  const int64_t k = w.type.cols();
  const DType type = *sources[p].tensor->type;
  DequantizeRow(type, sources[p].tensor->data.data() + sources[p].Row(n) * RowBytes(type, k), k, out.data());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Pack(const WeightNames& names, const Module& fused,
                                                               WorkerPool& pool, HugeBuffer::Options options) {
  auto store = std::make_unique<WeightStore>();
  std::vector<Entry> entries;
  int64_t total = 0;
  XJIT_RETURN_IF_ERROR(ForEachWeight(fused, [&](int64_t layer, const Weight& w) -> absl::Status {
    entries.push_back({layer, &w, total});
    store->offsets_[{layer, w.name}] = total;
    const int64_t bytes = w.type.dims.size() == 1
                              ? PackedColumns(w) * 4
                              : PackedColumns(w) / kPanelColumns * PanelBytes(w.type.elem, w.type.cols());
    total += (bytes + 63) / 64 * 64;
    return absl::OkStatus();
  }));
  // Kernels may prefetch, and read a row up to its next 64 bytes, past the last weight.
  XJIT_ASSIGN_OR_RETURN(store->memory_, HugeBuffer::Allocate(total + 4096, options));
  CheckpointRows rows(names);
  for (const Entry& entry : entries) {
    XJIT_RETURN_IF_ERROR(entry.weight->type.dims.size() == 1 ? store->PackVector(rows, entry)
                                                             : store->PackMatrix(names, entry, pool));
  }
  // Reading one tensor maps pages around it too, of tensors that were given back before.
  for (const TensorView& tensor : names.checkpoint().tensors()) names.checkpoint().Discard(tensor);
  return store;
}

absl::Status WeightStore::PackMatrix(const WeightNames& names, const Entry& entry, WorkerPool& pool) {
  const Weight& w = *entry.weight;
  XJIT_ASSIGN_OR_RETURN(const auto sources, names.Sources(entry.layer, w));
  const int64_t k = w.type.cols(), row_bytes = RowBytes(w.type.elem, k);
  std::vector<const std::byte*> rows;
  for (const auto& [part, row] : PackedOrder(w)) {
    const WeightNames::Source& source = sources[static_cast<size_t>(part)];
    rows.push_back(row < 0 ? nullptr : source.tensor->data.data() + source.Row(row) * row_bytes);
  }
  const int64_t panels = static_cast<int64_t>(rows.size()) / kPanelColumns;
  // Panels of a quarter MiB of source are taken at a time.
  const int64_t chunk = std::max<int64_t>(1, (int64_t{256} << 10) / (kPanelColumns * row_bytes));
  std::atomic<int64_t> next{0};
  std::byte* out = memory_.data() + entry.offset;
  pool.Run([&](int) {
    for (int64_t p = next.fetch_add(chunk); p < panels; p = next.fetch_add(chunk)) {
      PackPanels(w.type.elem, k, rows, p, std::min(panels, p + chunk), out);
    }
  });
  for (const auto& source : sources) names.checkpoint().Discard(*source.tensor);
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

absl::StatusOr<const float*> WeightStore::Vector(int64_t layer, const Weight& weight) const {
  XJIT_ASSIGN_OR_RETURN(const std::byte* at, Matrix(layer, weight));
  return reinterpret_cast<const float*>(at);
}

}  // namespace xjit
