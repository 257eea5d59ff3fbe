// Names of tensors that families share, and joining them into a family's table.
#pragma once

#include <array>
#include <cstddef>

#include "models/registry.h"

namespace xjit::names {

template <size_t... N>
constexpr auto Join(const std::array<TensorName, N>&... parts) {
  std::array<TensorName, (N + ...)> all;
  size_t next = 0;
  (
      [&] {
        for (const TensorName& name : parts) all[next++] = name;
      }(),
      ...);
  return all;
}

// Embedding, final norm, output matrix.
inline constexpr auto kOuter = std::to_array<TensorName>({
    {"embed", "model.embed_tokens.weight", "token_embd.weight"},
    {"final_norm", "model.norm.weight", "output_norm.weight"},
    {"lm_head", "lm_head.weight", "output.weight"},
});

// Norms in front of attention and feed-forward.
inline constexpr auto kNorms = std::to_array<TensorName>({
    {"attn_norm", "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {"ffn_norm", "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
});

inline constexpr auto kAttention = std::to_array<TensorName>({
    {"q", "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", TensorName::kRopeRows},
    {"k", "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", TensorName::kRopeRows},
    {"v", "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"},
    {"o", "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
});
inline constexpr auto kAttentionBiases = std::to_array<TensorName>({
    {"q_bias", "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias", TensorName::kRopeRows},
    {"k_bias", "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", TensorName::kRopeRows},
    {"v_bias", "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"},
    {"o_bias", "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
});
inline constexpr auto kHeadNorms = std::to_array<TensorName>({
    {"q_norm", "model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight"},
    {"k_norm", "model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight"},
});

inline constexpr auto kMlp = std::to_array<TensorName>({
    {"gate", "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"},
    {"up", "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"},
    {"down", "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
});
inline constexpr auto kMlpBiases = std::to_array<TensorName>({
    {"gate_bias", "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias"},
    {"up_bias", "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias"},
    {"down_bias", "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
});

// Qwen's and DeepSeek's.
inline constexpr auto kExperts = std::to_array<TensorName>({
    {"router", "model.layers.{}.mlp.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {"gate_exps", "model.layers.{}.mlp.experts.{e}.gate_proj.weight", "blk.{}.ffn_gate_exps.weight"},
    {"up_exps", "model.layers.{}.mlp.experts.{e}.up_proj.weight", "blk.{}.ffn_up_exps.weight"},
    {"down_exps", "model.layers.{}.mlp.experts.{e}.down_proj.weight", "blk.{}.ffn_down_exps.weight"},
});

}  // namespace xjit::names
