#include "models/transformer.h"

#include <algorithm>

#include "models/rope.h"

namespace xjit {

Encoding LayerContext::Find(std::string_view symbol) const {
  auto it = encodings.find(symbol.substr(0, symbol.find('[')));
  if (it == encodings.end()) it = encodings.find("");
  return it == encodings.end() ? Encoding() : it->second;
}

Operand LayerContext::M(std::string_view symbol, int64_t n, int64_t k) const {
  return b.W(symbol, Type::Weight({{n, 0}, {k, 0}}, Find(symbol)));
}

Operand LayerContext::E(std::string_view symbol, int64_t experts, int64_t n, int64_t k) const {
  return b.W(symbol, Type::Weight({{experts, 0}, {n, 0}, {k, 0}}, Find(symbol)));
}

absl::StatusOr<std::unique_ptr<Module>> BuildDecoder(const ModelSpec& spec, const ModelWeights& weights,
                                                     const std::function<Value*(const LayerContext&)>& layer,
                                                     const std::function<int64_t(int64_t)>& window_of) {
  auto module = std::make_unique<Module>();
  module->name = spec.arch;
  Builder b(module.get());
  const Type hidden = Type::Rows(Dim::Symbol('T'), spec.hidden_size);
  const Type table = Type::Rows(Dim::Symbol('T'), spec.head_dim);

  // One function for each kind of layer, in order of appearance.
  std::vector<std::pair<std::pair<Encodings, int64_t>, std::string>> kinds;
  std::vector<ScheduleRun> runs;
  for (int64_t i = 0; i < spec.layers; ++i) {
    std::pair<Encodings, int64_t> kind(weights.layers[static_cast<size_t>(i)], window_of(i));
    auto it = std::find_if(kinds.begin(), kinds.end(), [&kind](const auto& k) { return k.first == kind; });
    if (it == kinds.end()) {
      std::string name = kinds.empty() ? "layer" : fmt::format("layer{}", kinds.size() + 1);
      b.Begin(name);
      LayerContext context{
          b, spec, kind.first, b.Arg("x", hidden), b.Arg("rope", table), b.Arg("step", Type::Step()), kind.second};
      b.Return(layer(context));
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
  LayerContext outer{b, spec, weights.outer, nullptr, nullptr, step, 0};
  Value* x = b.Embed(ids, outer.M("embed", spec.vocab_size, spec.hidden_size));
  Value* rope = b.RopeTable(step, outer.V("inv_freq", spec.head_dim / 2), RopeScale(spec.rope));
  x = b.Repeat({{x}, {rope}, {step}}, runs);
  x = b.SelectRows(x, step);
  x = b.RmsNorm(x, outer.V("final_norm", spec.hidden_size), spec.rms_norm_eps);
  b.Return(b.Linear(x, outer.M(spec.tie_word_embeddings ? "embed" : "lm_head", spec.vocab_size, spec.hidden_size),
                    "logits"));
  XJIT_RETURN_IF_ERROR(b.status());
  return module;
}

}  // namespace xjit
