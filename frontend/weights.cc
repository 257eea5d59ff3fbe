#include "frontend/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_set>

#include "frontend/printable.h"
#include "ir/ops.h"
#include "models/rope.h"

namespace xjit {
namespace {

// The layer number of "model.layers.7.x", or -1.
int64_t LayerOf(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return -1;
  name.remove_prefix(kPrefix.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc() && end != name.data() + name.size() && *end == '.' ? layer : -1;
}

// What the tensors of a module begin with: "X." of "X.weight"; all experts are one.
std::string TensorPrefix(std::string name) {
  if (const size_t expert = name.find("{e}"); expert != std::string::npos) return name.substr(0, expert);
  if (name.ends_with(".weight")) name.resize(name.size() - std::string_view("weight").size());
  return name;
}

}  // namespace

absl::Status ForEachWeight(const Module& module, const std::function<absl::Status(int64_t, const Weight&)>& f) {
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

int64_t WeightNames::RowOrder::Row(int64_t r) const {
  if (head == 0) return r;
  const int64_t i = r % head - first, half = count / 2;
  if (i < 0 || i >= count) return r;
  return r - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

void WeightNames::Source::Row(int64_t expert, int64_t row, int64_t begin, int64_t end, float* out) const {
  if (!keys.empty()) {
    const int64_t head_rows = key_rows + stored.matrices[0].n;
    const size_t head = static_cast<size_t>(row / head_rows);
    row %= head_rows;
    if (row >= key_rows) return DequantizeRow(stored.matrices[head], row - key_rows, begin, end, out);
    for (int64_t i = begin; i < end; ++i) DequantizeRow(keys[head], i, row, row + 1, out + (i - begin));
    return;
  }
  DequantizeRow(stored.matrices[static_cast<size_t>(expert)], order.Row(row), begin, end, out);
  if (add == 0) return;
  for (int64_t i = 0; i < end - begin; ++i) out[i] += add;
}

absl::Status WeightNames::Source::CheckRow(int64_t expert, int64_t row) const {
  if (keys.empty()) return CheckBlocks(stored, stored.matrices[static_cast<size_t>(expert)], order.Row(row));
  const int64_t head_rows = key_rows + stored.matrices[0].n, head = row / head_rows, own = row % head_rows;
  if (own < key_rows) return absl::OkStatus();
  return CheckBlocks(stored, stored.matrices[static_cast<size_t>(head)], own - key_rows);
}

std::vector<int64_t> WeightNames::Demand::shape() const {
  if (rank == 1) return {rows};
  if (rank == 2) return {rows, columns};
  return {experts, rows, columns};
}

bool WeightNames::IsComputed(std::string_view symbol) { return symbol == "inv_freq" || symbol == "inv_freq_local"; }

absl::StatusOr<std::vector<float>> WeightNames::Compute(std::string_view symbol) const {
  const ModelSpec& spec = checkpoint_.spec();
  const bool local = symbol == "inv_freq_local";
  if (local && !spec.local_rope) return Internal("'@{}': the model has one rotary embedding", symbol);
  const RopeSpec& rope = local ? *spec.local_rope : spec.rope;
  const int64_t dims = RotaryDim(spec);
  if (rope.scaling == RopeSpec::Scaling::kLongRope) {
    const auto want = static_cast<size_t>(dims / 2);
    if (rope.short_factors.size() != want || rope.long_factors.size() != want) {
      return InvalidArgument("{}: longrope has {} short and {} long factors instead of {}", checkpoint_.path(),
                             rope.short_factors.size(), rope.long_factors.size(), want);
    }
  }
  return RopeInvFreq(rope, dims, context_);
}

const TensorName* WeightNames::Find(std::string_view symbol) const {
  for (const TensorName& t : family_.tensors) {
    if (t.symbol == symbol) return &t;
  }
  return nullptr;
}

std::string WeightNames::TensorNameOf(const TensorName& t, int64_t layer) const {
  std::string name(checkpoint_.gguf() != nullptr ? t.gguf : t.hf);
  if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, fmt::format("{}", layer));
  return name;
}

absl::StatusOr<WeightNames::RowOrder> WeightNames::OrderOf(const TensorName& t, const StoredWeight& stored) const {
  const ModelSpec& spec = checkpoint_.spec();
  RowOrder order;
  if (!spec.rope_pairs_adjacent) return order;
  if ((t.flags & TensorName::kRopeRows) != 0) {
    order = {spec.head_dim, 0, spec.rotary_dim > 0 ? spec.rotary_dim : spec.head_dim};
  } else if ((t.flags & TensorName::kRopeTail) != 0) {
    order = {spec.mla.nope_dim + spec.mla.rope_dim, spec.mla.nope_dim, spec.mla.rope_dim};
  } else if ((t.flags & TensorName::kRopeSingle) != 0) {
    order = {stored.rows, stored.rows - spec.mla.rope_dim, spec.mla.rope_dim};
  } else {
    return order;
  }
  if (order.head < 1 || stored.rows % order.head != 0 || order.first < 0 || order.count % 2 != 0 ||
      order.first + order.count > order.head) {
    return InvalidArgument("{} has {} rows, not heads of {} with rotary pairs", Printable(stored.tensors[0]->name),
                           stored.rows, order.head);
  }
  return order;
}

absl::StatusOr<WeightNames::Source> WeightNames::SourceOf(std::string_view symbol, int64_t layer,
                                                          bool expert_vectors) const {
  const TensorName* t = Find(symbol);
  const bool gguf = checkpoint_.gguf() != nullptr;
  const std::string name = t == nullptr ? std::string() : TensorNameOf(*t, layer);
  if (name.empty()) return absl::NotFoundError(ToAbsl(fmt::format("@{} is missing", symbol)));
  StoredOptions options;
  options.transposed = (t->flags & TensorName::kTransposed) != 0 && !gguf;
  options.expert_vectors = expert_vectors;
  options.experts = checkpoint_.spec().moe.experts;
  if (const QuantConfig& quant = checkpoint_.quant(); quant.method != QuantConfig::Method::kNone) {
    options.declared = quant.Of(ModuleOf(name, layer));
    options.method = quant.method;
    if (quant.method == QuantConfig::Method::kGptq) options.gptq_zero_offset = quant.zero_offset;
  }
  Source source;
  auto stored = FindStoredWeight(checkpoint_, name, options);
  if (absl::IsNotFound(stored.status()) && symbol == "kv_b") {
    auto halves = KvHalves(layer);
    if (!absl::IsNotFound(halves.status())) return halves;
  }
  XJIT_ASSIGN_OR_RETURN(source.stored, std::move(stored));
  XJIT_ASSIGN_OR_RETURN(source.order, OrderOf(*t, source.stored));
  // llama.cpp's converter has added it already.
  if ((t->flags & TensorName::kGain) != 0 && !gguf) source.add = static_cast<float>(checkpoint_.spec().norm_offset);
  return source;
}

absl::StatusOr<WeightNames::Source> WeightNames::KvHalves(int64_t layer) const {
  XJIT_ASSIGN_OR_RETURN(Source values, SourceOf("kv_b_values", layer, false));
  XJIT_ASSIGN_OR_RETURN(const Source keys, SourceOf("kv_b_keys", layer, false));
  StoredWeight& v = values.stored;
  const StoredWeight& k = keys.stored;
  if (v.rank != 3 || k.rank != 3 || v.experts != k.experts || v.columns != k.rows) {
    return InvalidArgument("{} is {}, which does not fit {} of {}", Printable(k.tensors[0]->name), ShapeText(k.shape()),
                           Printable(v.tensors[0]->name), ShapeText(v.shape()));
  }
  values.keys = k.matrices;
  values.key_rows = k.columns;
  v.tensors.insert(v.tensors.end(), k.tensors.begin(), k.tensors.end());
  v.rows = v.experts * (k.columns + v.rows);
  v.rank = 2;
  v.experts = 1;
  return values;
}

ModelWeights WeightNames::Encodings() const {
  ModelWeights weights;
  weights.layers.resize(static_cast<size_t>(checkpoint_.spec().layers));
  for (const TensorName& t : family_.tensors) {
    // Biases are f32 to the graph, one an expert too.
    if (t.symbol.ends_with("_bias")) continue;
    const bool in_layers = TensorNameOf(t, 0) != TensorNameOf(t, 1);
    for (int64_t layer = 0; layer < (in_layers ? checkpoint_.spec().layers : 1); ++layer) {
      const auto source = SourceOf(t.symbol, layer, false);
      if (!source.ok() || source->stored.rank < 2) continue;
      auto& encodings = in_layers ? weights.layers[static_cast<size_t>(layer)] : weights.outer;
      encodings[std::string(t.symbol)] = source->stored.encoding;
    }
  }
  return weights;
}

WeightNames::Demand WeightNames::DemandOf(const Weight& weight, const WeightRows& rows, size_t ref) {
  const size_t stacked = std::max<size_t>(weight.stack_experts.size(), 1);
  const size_t part = ref / stacked, stack = ref % stacked;
  int64_t first_row = 0, first_expert = 0;
  for (size_t p = 0; p < part; ++p) first_row += weight.part_rows[p];
  for (size_t s = 0; s < stack; ++s) first_expert += weight.stack_experts[s];
  const WeightRef& r = rows.refs()[ref];
  Demand demand;
  demand.rank = static_cast<int>(weight.type.dims.size());
  if (demand.rank == 3 && rows.At(first_expert * weight.type.rows() + first_row).matrix) demand.rank = 2;
  const auto extent = [](const WeightRange& range, int64_t whole) { return range.end < 0 ? whole : range.end; };
  demand.rows = extent(r.rows(), weight.part_rows.empty() ? weight.type.rows() : weight.part_rows[part]);
  if (demand.rank > 1) demand.columns = extent(r.columns(), weight.type.cols());
  if (demand.rank == 3) {
    demand.experts =
        extent(r.experts(), weight.stack_experts.empty() ? weight.type.dims[0].size : weight.stack_experts[stack]);
  }
  return demand;
}

absl::StatusOr<std::vector<WeightNames::Source>> WeightNames::Sources(int64_t layer, const Weight& weight,
                                                                      const WeightRows& rows) const {
  std::vector<Source> sources;
  for (size_t i = 0; i < rows.refs().size(); ++i) {
    const Demand demand = DemandOf(weight, rows, i);
    auto source = SourceOf(rows.refs()[i].symbol, layer, demand.rank == 3 && demand.columns == 1);
    if (!source.ok()) return InvalidArgument("{}: {}", checkpoint_.path(), Message(source.status()));
    const StoredWeight& stored = source->stored;
    if (stored.rank != demand.rank || stored.experts < demand.experts || stored.rows < demand.rows ||
        stored.columns < demand.columns) {
      return InvalidArgument("{}: {} is {}, too small for {}", checkpoint_.path(), Printable(stored.tensors[0]->name),
                             ShapeText(stored.shape()), ShapeText(demand.shape()));
    }
    XJIT_RETURN_IF_ERROR(Prefix(CheckScales(stored), checkpoint_.path()));
    for (const StoredMatrix& keys : source->keys) {
      for (int64_t row = 0; row < keys.n; ++row) {
        XJIT_RETURN_IF_ERROR(Prefix(CheckBlocks(stored, keys, row), checkpoint_.path()));
      }
    }
    sources.push_back(*std::move(source));
  }
  return sources;
}

bool WeightNames::MayBeSurplus(const TensorView& view) const {
  const ModelSpec& spec = checkpoint_.spec();
  const std::string_view name = view.name;
  if (spec.tie_word_embeddings && name.starts_with("lm_head.")) return true;
  // Rotary tables: the engine computes its own from the same numbers.
  if (name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight" || name == "rope_factors_long.weight" ||
      name == "rope_factors_short.weight") {
    return true;
  }
  // Scales of activations and of the KV cache: the engine chooses its own.
  for (const std::string_view suffix :
       {".input_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale", ".prob_output_scale"}) {
    if (name.ends_with(suffix)) return true;
  }
  // GPTQ writers give each module a bias, zero where the model has none.
  if (constexpr std::string_view kBias = ".bias"; name.ends_with(kBias)) {
    const std::string module(name.substr(0, name.size() - kBias.size()));
    return checkpoint_.Find(module + ".qweight") != nullptr &&
           std::all_of(view.data.begin(), view.data.end(), [](std::byte b) { return b == std::byte{0}; });
  }
  // Multi-token prediction past the last layer (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2): such a layer has a
  // projection of embedding and hidden state.
  const int64_t layer = LayerOf(name);
  return layer >= spec.layers && checkpoint_.Find(fmt::format("model.layers.{}.eh_proj.weight", layer)) != nullptr;
}

absl::Status WeightNames::Check(const Module& graph) const {
  std::map<std::pair<int64_t, std::string>, Demand> demands;  // (layer, symbol): refs may each want a part
  XJIT_RETURN_IF_ERROR(ForEachWeight(graph, [&](int64_t layer, const Weight& w) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(const WeightRows rows, WeightRows::Of(w));
    for (size_t i = 0; i < rows.refs().size(); ++i) {
      const Demand own = DemandOf(w, rows, i);
      Demand& all = demands.try_emplace({layer, rows.refs()[i].symbol}, own).first->second;
      all.experts = std::max(all.experts, own.experts);
      all.rows = std::max(all.rows, own.rows);
      all.columns = std::max(all.columns, own.columns);
    }
    return absl::OkStatus();
  }));
  std::vector<std::string> wrong;
  std::unordered_set<const TensorView*> used;
  std::set<std::string, std::less<>> failed;  // modules
  for (const auto& [key, demand] : demands) {
    const auto& [layer, symbol] = key;
    if (IsComputed(symbol)) {
      XJIT_ASSIGN_OR_RETURN(const auto values, Compute(symbol));
      if (static_cast<int64_t>(values.size()) != demand.rows) {
        return Internal("'@{}' has {} values instead of {}", symbol, values.size(), demand.rows);
      }
      continue;
    }
    const auto source = SourceOf(symbol, layer, demand.rank == 3 && demand.columns == 1);
    if (!source.ok()) {
      wrong.emplace_back(Message(source.status()));
      if (const TensorName* t = Find(symbol); t != nullptr) failed.insert(TensorPrefix(TensorNameOf(*t, layer)));
      continue;
    }
    const StoredWeight& stored = source->stored;
    used.insert(stored.tensors.begin(), stored.tensors.end());
    if (stored.shape() != demand.shape()) {
      wrong.push_back(fmt::format("{} is {} instead of {}", Printable(stored.tensors[0]->name),
                                  ShapeText(stored.shape()), ShapeText(demand.shape())));
    }
  }
  for (const TensorView& view : checkpoint_.tensors()) {
    if (used.contains(&view) || MayBeSurplus(view)) continue;
    // What is wrong with a module is said already; its tensors are not surplus.
    const auto it = failed.upper_bound(view.name);
    if (it != failed.begin() && view.name.starts_with(*std::prev(it))) continue;
    wrong.push_back(fmt::format("{} is surplus", view.name));
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

}  // namespace xjit
