// What a GGUF file's metadata says about its model and its tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/gguf.h"
#include "models/spec.h"

namespace xjit {

// The tensors whose presence or values belong to the hyper-parameters; null where the checkpoint has none. They may
// lie in another part of a split set than the metadata.
struct GgufModelTensors {
  const TensorView* token_embd = nullptr;                        // rows: the vocabulary
  const TensorView* rope_freqs = nullptr;                        // F32 [head_dim / 2]
  const TensorView *rope_short = nullptr, *rope_long = nullptr;  // longrope's factors, F32 [rotary_dim / 2]
  bool output = false;                                           // output.weight; else the embeddings are tied
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
};

// Looks the tensors up with `find(name) -> const TensorView*`.
template <typename Find>
GgufModelTensors FindGgufModelTensors(const Find& find) {
  return {.token_embd = find("token_embd.weight"),
          .rope_freqs = find("rope_freqs.weight"),
          .rope_short = find("rope_factors_short.weight"),
          .rope_long = find("rope_factors_long.weight"),
          .output = find("output.weight") != nullptr,
          .qkv_bias = find("blk.0.attn_q.bias") != nullptr || find("blk.0.attn_qkv.bias") != nullptr,
          .o_bias = find("blk.0.attn_output.bias") != nullptr,
          .mlp_bias = find("blk.0.ffn_up.bias") != nullptr};
}

// The file's hyper-parameters. InvalidArgument names the key that is missing or absurd; Unimplemented names an
// architecture's feature that is not built. Key names as llama.cpp's gguf-py/gguf/constants.py; what they mean as
// src/models/*.cpp there. Each family's own keys are read in gguf_families.h.
absl::StatusOr<ModelSpec> GgufSpec(const GgufFile& gguf, const GgufModelTensors& tensors);

// What the tensors say better than a manifest's keys: ties, biases, the order of rotary pairs, norms with 1 added,
// frequency factors.
absl::Status ApplyGgufTensors(const GgufModelTensors& tensors, ModelSpec& spec);

// Such a tensor's values (rope_freqs.weight, RopeSpec::freq_factors); empty for null. InvalidArgument unless it is F32
// [head_dim / 2] of positive numbers.
absl::StatusOr<std::vector<float>> RopeFreqFactors(const TensorView* rope_freqs, int64_t head_dim);

// The tokenizer of a GGUF file: tokenizer.ggml.* and tokenizer.chat_template. Text points into the mapped file, is
// not checked to be UTF-8, and is empty where the key is absent.
struct GgufVocabulary {
  std::string_view model;                // "gpt2", "llama", ...
  std::string_view pre;                  // the pre-tokenizer: "qwen2", "smollm", ...
  std::vector<std::string_view> tokens;  // by id
  std::vector<float> scores;             // by id, or empty
  std::vector<int32_t> types;  // by id, or empty: 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<std::string_view> merges;  // "left right", in order of rank
  std::optional<int32_t> bos, eos, eot, eom, unk, sep, pad, mask;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string_view chat_template;
};

// InvalidArgument when a list's length is not that of `tokens`, or a special id is not below it.
absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufFile& gguf);

}  // namespace xjit
