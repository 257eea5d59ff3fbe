// The step around a decoder's layers, and grouping layers into functions.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "ir/builder.h"
#include "models/registry.h"

namespace xjit {

// The state that a layer function is built with.
struct LayerContext {
  Builder& b;
  const ModelSpec& spec;
  const Encodings& encodings;
  Value* x;     // [T, hidden]
  Value* rope;  // rope table of this kind of layer
  Value* step;
  int64_t window;  // of this kind of layer; 0: none
  bool experts;    // whether this kind of layer has them

  Type Vector(int64_t n) const { return Type::Tensor({{n, 0}}, DType::kF32); }
  // The checkpoint's encoding of a symbol, whatever slice of it is named.
  Encoding Find(std::string_view symbol) const;
  // The symbol as a matrix [n, k] in the checkpoint's encoding, or as an f32 vector.
  Operand M(std::string_view symbol, int64_t n, int64_t k) const;
  // The matrices of experts [experts, n, k].
  Operand E(std::string_view symbol, int64_t experts, int64_t n, int64_t k) const;
  Operand V(std::string_view symbol, int64_t n) const { return b.W(symbol, Vector(n)); }
};

// Embedding, rope tables, all layers, final norm, output matrix. `layer` builds one layer and returns the new x. Layers
// share a function where all that tells them apart is their number: encodings, window, rope table and experts are
// equal.
absl::StatusOr<std::unique_ptr<Module>> BuildDecoder(const ModelSpec& spec, const ModelWeights& weights,
                                                     const std::function<Value*(const LayerContext&)>& layer);

}  // namespace xjit
