// The hyper-parameters of a model, whichever file they came from: what models/ builds a graph of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace xjit {

// Rotary position embedding. Frequencies are computed from it once, at load (models/rope.h).
struct RopeSpec {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };
  double theta = 10000;
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  int64_t original_max_positions = 0;                // llama3, yarn
  double beta_fast = 32, beta_slow = 1;              // yarn
  std::optional<double> attention_factor;            // yarn (else from mscale, else 0.1 ln(factor) + 1), longrope
  std::optional<double> mscale, mscale_all_dim;      // yarn
  bool truncate = true;                              // yarn: round the ramp's ends
  // longrope: divisors of the frequencies for contexts up to original_max_positions and for longer ones.
  std::vector<double> short_factors, long_factors;
  std::vector<float> freq_factors;  // divide the frequencies (GGUF rope_freqs.weight); may be empty
  bool operator==(const RopeSpec&) const = default;
};

// What a gated feed-forward does between its two products.
enum class Activation : uint8_t {
  kSilu,           // silu(gate) * up
  kGeluTanh,       // gelu(gate) * up, the tanh form
  kClampedSwiglu,  // gpt-oss: min(gate, limit) * sigmoid(alpha * gate) * (clamp(up, -limit, limit) + 1)
};

// A mixture of experts; experts == 0: none.
struct MoeSpec {
  enum class Score : uint8_t {
    kSoftmax,          // over all experts, then the top k of them
    kSigmoid,          // each on its own
    kSoftmaxOfChosen,  // the top k of the logits, then softmax over those (gpt-oss, Mixtral: the same as
                       // kSoftmax with normalize)
  };
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the expert that every token visits; 0: none
  Score score = Score::kSoftmax;
  bool normalize = false;  // the chosen weights are divided by their sum
  double scale = 1;        // and multiplied by this (routed_scaling_factor)
  int64_t groups = 1;      // experts are in so many groups, of which top_groups are looked into
  int64_t top_groups = 1;
  int64_t group_top = 1;         // a group counts as the sum of its so many best experts (DeepSeek V2 1, V3 2)
  bool correction_bias = false;  // added to scores for choosing, not for weighing (DeepSeek V3)
  bool router_bias = false;      // added to the router's logits
  bool expert_bias = false;      // of gate, up and down of each expert
  std::vector<bool> layers;      // which layers have experts; the others are dense
  bool operator==(const MoeSpec&) const = default;
};

// Multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434); kv_lora_rank == 0: none.
struct MlaSpec {
  int64_t q_lora_rank = 0;  // 0: q is projected directly
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0;  // of a head's q and k, without rotation
  int64_t rope_dim = 0;  // with it
  int64_t v_dim = 0;
  double norm_eps = 1e-6;  // of q_a_layernorm and kv_a_layernorm
  bool operator==(const MlaSpec&) const = default;
};

struct ModelSpec {
  std::string arch;  // "llama", "qwen2": the key of the model registry
  std::string name;  // for people
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // of dense layers
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_positions = 0;  // the context the model was trained for
  double rms_norm_eps = 1e-6;
  RopeSpec rope;
  std::optional<RopeSpec> local_rope;  // of layers with a window, where it differs (Gemma 3)
  int64_t rotary_dim = 0;              // leading values of a head that are rotated; 0: all
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // of q, k, v
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;                               // RMSNorm of each head of q and k, before the rotation
  bool sinks = false;                                 // a learned logit a head that takes part in the softmax (gpt-oss)
  bool post_norms = false;                            // norms behind attention and feed-forward too (Gemma)
  double norm_offset = 0;                             // checkpoint's gains are used with this added (Gemma: 1)
  double embed_scale = 1;                             // of the embedded tokens
  double attention_scale = 0;                         // of scores; 0: 1 / sqrt(head_dim)
  double attention_soft_cap = 0, final_soft_cap = 0;  // cap * tanh(x / cap); 0: none
  Activation activation = Activation::kSilu;
  double swiglu_limit = 7, swiglu_alpha = 1.702;  // of kClampedSwiglu
  std::vector<int64_t> windows;                   // of each layer, 0: none; empty: none anywhere
  MoeSpec moe;
  MlaSpec mla;
  // Checkpoint's rotated rows are in pairs (2i, 2i+1), as llama.cpp writes its llama arch and DeepSeek is published;
  // the graph wants (i, i + d/2).
  bool rope_pairs_adjacent = false;
  std::vector<int32_t> bos_ids, eos_ids;

  bool operator==(const ModelSpec&) const = default;
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  // Values of a token in one layer's KV cache.
  int64_t kv_values() const { return mla.kv_lora_rank > 0 ? mla.kv_lora_rank + mla.rope_dim : 2 * kv_heads * head_dim; }
  bool has_experts(int64_t layer) const { return moe.experts > 0 && moe.layers[static_cast<size_t>(layer)]; }
};

}  // namespace xjit
