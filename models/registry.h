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

// How a symbol of the graph is called in checkpoints; "{}" stands for the layer number, "{e}" for an expert's, where a
// checkpoint has a tensor for each expert and the graph one weight [experts, n, k].
struct TensorName {
  enum Flags : uint8_t {
    kNone = 0,
    // Rows are rotary pairs: reordered where the checkpoint keeps pairs adjacent. Which rows of a head is rope_rows'
    // to say.
    kRopeRows = 1,
    kRopeTail = 2,     // only the last mla.rope_dim rows of each head (of nope_dim + rope_dim)
    kRopeSingle = 4,   // only the last mla.rope_dim rows of all
    kGain = 8,         // spec.norm_offset is added (Hugging Face's files only)
    kTransposed = 16,  // stored as [experts, k, n] where the elements are plain (gpt-oss)
  };
  std::string_view symbol;  // @q
  std::string_view hf;      // model.layers.{}.self_attn.q_proj.weight
  std::string_view gguf;    // blk.{}.attn_q.weight; empty: not in GGUF files
  uint8_t flags = kNone;
};

// The encodings of one layer's weights (or of those outside layers): symbol -> encoding, as the checkpoint has them.
// The key "" is for all matrices that have no entry. Layers with equal encodings share one function.
using Encodings = std::map<std::string, Encoding, std::less<>>;

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

// kLlama and so on, each defined in its own file.
#define XJIT_FAMILY(name) extern const ModelFamily k##name;
#include "models/families.inc"
#undef XJIT_FAMILY

}  // namespace xjit
