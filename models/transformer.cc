#include "models/transformer.h"

#include <algorithm>

#include "models/rope.h"

namespace xjit {

Encoding LayerContext::Find(std::string_view symbol) const {
  auto it = encodings.find(symbol.substr(0, symbol.find('[')));
  if (it == encodings.end()) it = encodings.find("");
  return it == encodings.end() ? Encoding() : it->second;
}

namespace {

// A group is no longer than a row: checkpoints declare "the whole row" without its length.
Encoding OfRow(Encoding encoding, int64_t k) {
  Scales& s = encoding.scales;
  if (s.kind == Scales::Kind::kGroup && s.cols > k) s.cols = static_cast<int32_t>(k);
  return encoding;
}

}  // namespace

Operand LayerContext::M(std::string_view symbol, int64_t n, int64_t k) const {
  return b.W(symbol, Type::Weight({{n, 0}, {k, 0}}, OfRow(Find(symbol), k)));
}

Operand LayerContext::E(std::string_view symbol, int64_t experts, int64_t n, int64_t k) const {
  return b.W(symbol, Type::Weight({{experts, 0}, {n, 0}, {k, 0}}, OfRow(Find(symbol), k)));
}

namespace {

// All in which layers can differ; those that do not share a function.
struct LayerKind {
  Encodings encodings;
  int64_t window = 0;
  bool local_rope = false;
  bool experts = false;
  bool operator==(const LayerKind&) const = default;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> BuildDecoder(const ModelSpec& spec, const ModelWeights& weights,
                                                     const std::function<Value*(const LayerContext&)>& layer) {
  if (static_cast<int64_t>(weights.layers.size()) != spec.layers) {
    return Internal("{}: encodings of {} layers for {}", spec.arch, weights.layers.size(), spec.layers);
  }
  auto module = std::make_unique<Module>();
  module->name = spec.arch;
  Builder b(module.get());
  const Type hidden = Type::Rows(Dim::Symbol('T'), spec.hidden_size);
  const int64_t rotary = RotaryDim(spec);
  const Type table = Type::Rows(Dim::Symbol('T'), rotary);

  // One function for each kind of layer, in order of appearance. Where there are two rope tables all take both.
  std::vector<std::pair<LayerKind, std::string>> kinds;
  std::vector<ScheduleRun> runs;
  for (int64_t i = 0; i < spec.layers; ++i) {
    LayerKind kind{weights.layers[static_cast<size_t>(i)], spec.window(i)};
    kind.local_rope = spec.local_rope.has_value() && kind.window > 0;
    kind.experts = spec.has_experts(i);
    auto it = std::find_if(kinds.begin(), kinds.end(), [&kind](const auto& k) { return k.first == kind; });
    if (it == kinds.end()) {
      std::string name = kinds.empty() ? "layer" : fmt::format("layer{}", kinds.size() + 1);
      b.Begin(name);
      Value* x = b.Arg("x", hidden);
      Value* rope = b.Arg("rope", table);
      if (spec.local_rope) {
        Value* local = b.Arg("rope_local", table);
        if (kind.local_rope) rope = local;
      }
      Value* step = b.Arg("step", Type::Step());
      b.Return(layer({b, spec, kind.encodings, x, rope, step, kind.window, kind.experts}));
      XJIT_RETURN_IF_ERROR(b.status());
      kinds.emplace_back(std::move(kind), std::move(name));
      it = kinds.end() - 1;
    }
    if (!runs.empty() && runs.back().function == it->second) {
      runs.back().last = i;
    } else {
      runs.push_back({it->second, i, i});
    }
  }

  b.Begin("step");
  Value* ids = b.Arg("ids", Type::Tensor({Dim::Symbol('T')}, DType::kI32));
  Value* step = b.Arg("step", Type::Step());
  const LayerContext outer{b, spec, weights.outer, nullptr, nullptr, step, 0, false};
  Value* x = b.Embed(ids, outer.M("embed", spec.vocab_size, spec.hidden_size));
  if (spec.embed_scale != 1) x = b.Scale(x, spec.embed_scale);
  std::vector<Operand> args = {{x}, {b.RopeTable(step, outer.V("inv_freq", rotary / 2), RopeScale(spec.rope))}};
  if (spec.local_rope) {
    args.push_back({b.RopeTable(step, outer.V("inv_freq_local", rotary / 2), RopeScale(*spec.local_rope))});
  }
  args.push_back({step});
  x = b.Repeat(std::move(args), runs);
  x = b.SelectRows(x, step);
  x = b.RmsNorm(x, outer.V("final_norm", spec.hidden_size), spec.rms_norm_eps);
  x = b.Linear(x, outer.M(spec.tie_word_embeddings ? "embed" : "lm_head", spec.vocab_size, spec.hidden_size), "logits");
  if (spec.final_soft_cap > 0) x = b.SoftCap(x, spec.final_soft_cap);
  b.Return(x);
  XJIT_RETURN_IF_ERROR(b.status());
  return module;
}

}  // namespace xjit
