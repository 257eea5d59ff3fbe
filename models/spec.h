// The hyper-parameters of a model, whichever file they came from: what models/ builds a graph of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace xjit {

// Rotary position embedding. Frequencies are computed from it once, at load (models/rope.h).
struct RopeSpec {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn };
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  int64_t original_max_positions = 0;                // llama3, yarn
  double beta_fast = 32, beta_slow = 1;              // yarn
  std::optional<double> attention_factor;            // yarn; else from mscale, else 0.1 ln(factor) + 1
  std::optional<double> mscale, mscale_all_dim;      // yarn
  bool truncate = true;                              // yarn: round the ramp's ends
  std::vector<float> freq_factors;                   // divide the frequencies (GGUF rope_freqs.weight); may be empty
};

struct ModelSpec {
  std::string arch;  // "llama", "qwen2": the key of the model registry
  std::string name;  // for people
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // the context the model was trained for
  double rms_norm_eps = 1e-6;
  RopeSpec rope;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // of q, k, v
  bool o_bias = false;
  bool mlp_bias = false;
  int64_t sliding_window = 0;         // 0: none
  int64_t full_attention_layers = 0;  // the first so many layers ignore the window (Qwen2's max_window_layers)
  // Checkpoint's q and k rows are in pairs (2i, 2i+1), as llama.cpp writes its llama arch; the graph wants (i, i +
  // d/2).
  bool rope_pairs_adjacent = false;
  std::vector<int32_t> bos_ids, eos_ids;
};

}  // namespace xjit
