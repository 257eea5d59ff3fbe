// What layers are made of: attention with grouped queries, dense feed-forward, mixtures of experts. Which parts of them
// a model has (biases, norms of q and k, sinks, soft caps, shared experts) is the spec's to say.
#pragma once

#include <string>
#include <string_view>

#include "models/transformer.h"

namespace xjit {

// A weight and the value that is made with it: the same symbol, or a slice of one that holds several.
struct Projection {
  Projection(const char* symbol) : value(symbol), weight(symbol) {}
  Projection(std::string_view value, std::string weight) : value(value), weight(std::move(weight)) {}
  std::string value;   // q
  std::string weight;  // q, or qkv[0:64,:]
};

// The symbol's rows [begin, end), as the weight of a projection.
std::string RowsOf(std::string_view symbol, int64_t begin, int64_t end);

// x w^T, then + @<symbol>_bias where `bias` says so.
Value* Project(const LayerContext& c, Value* x, const Projection& p, int64_t n, int64_t k, bool bias = false);
// The norm of values as wide as the residual stream.
Value* Norm(const LayerContext& c, Value* x, std::string_view gain);
double AttentionScale(const ModelSpec& spec);

struct AttentionNames {
  Projection q = "q", k = "k", v = "v";
};
// Of the normed x; up to the output matrix.
Value* GroupedAttention(const LayerContext& c, Value* n, const AttentionNames& names);

struct MlpNames {
  Projection gate = "gate", up = "up", down = "down";
};
// down(activation(gate, up)), `width` values wide in between.
Value* Mlp(const LayerContext& c, Value* n, const MlpNames& names, int64_t width);
// The chosen experts' feed-forwards, weighed and added, and the shared expert's.
Value* Experts(const LayerContext& c, Value* n, const MlpNames& names);

// One half of a layer: from the normed x to what is added to x.
using Block = Value* (*)(const LayerContext& c, Value* n);
// The usual ones, with a symbol for each matrix; FeedForward is dense or of experts, as this kind of layer.
Value* Attention(const LayerContext& c, Value* n);
Value* FeedForward(const LayerContext& c, Value* n);

// h = x + attention(norm(x)); h + ffn(norm(h)). With post_norms what is added is normed too.
Value* PreNormLayer(const LayerContext& c, Block attention, Block ffn);

// The decoder of such layers: a family's `build`.
template <Block attention = Attention, Block ffn = FeedForward>
absl::StatusOr<std::unique_ptr<Module>> BuildPreNorm(const ModelSpec& spec, const ModelWeights& weights) {
  return BuildDecoder(spec, weights, [](const LayerContext& c) { return PreNormLayer(c, attention, ffn); });
}

}  // namespace xjit
