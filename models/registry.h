// The model families that xjit knows: for each a function from a spec to a graph, and a table of its tensors' names.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "models/spec.h"

namespace xjit {

// How a symbol of the graph is called in checkpoints; "{}" stands for the layer number.
struct TensorName {
  std::string_view symbol;  // @q
  std::string_view hf;      // model.layers.{}.self_attn.q_proj.weight
  std::string_view gguf;    // blk.{}.attn_q.weight
  bool rope_rows = false;   // rows are rotary pairs: reordered where the checkpoint keeps pairs adjacent
};

// The encodings of one layer's weights (or of those outside layers): symbol -> encoding, as the checkpoint has them.
// Layers with equal encodings share one function.
using Encodings = std::map<std::string, DType, std::less<>>;

struct ModelWeights {
  Encodings outer;                // embed, lm_head
  std::vector<Encodings> layers;  // matrices of each layer
};

struct ModelFamily {
  std::string_view arch;
  // Builds @step and its layer functions.
  absl::StatusOr<std::unique_ptr<Module>> (*build)(const ModelSpec& spec, const ModelWeights& weights);
  std::span<const TensorName> tensors;
};

// The family of that name, or an error that lists the known ones.
absl::StatusOr<const ModelFamily*> FindFamily(std::string_view arch);
std::string KnownFamilies();

extern const ModelFamily kLlama;
extern const ModelFamily kQwen2;

}  // namespace xjit
