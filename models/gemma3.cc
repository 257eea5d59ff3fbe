// Gemma 3: norms before and behind both halves of a layer, norms of q and k, scaled embeddings, GELU; most layers have
// a window and a rotary embedding of their own. Gemma Team 2025, arXiv:2503.19786.
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

constexpr auto kGain = TensorName::kGain;
constexpr auto kGains = std::to_array<TensorName>({
    {"embed", "model.embed_tokens.weight", "token_embd.weight"},
    {"final_norm", "model.norm.weight", "output_norm.weight", kGain},
    {"lm_head", "lm_head.weight", "output.weight"},
    {"attn_norm", "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight", kGain},
    {"q_norm", "model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight", kGain},
    {"k_norm", "model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight", kGain},
    {"post_attn_norm", "model.layers.{}.post_attention_layernorm.weight", "blk.{}.post_attention_norm.weight", kGain},
    {"ffn_norm", "model.layers.{}.pre_feedforward_layernorm.weight", "blk.{}.ffn_norm.weight", kGain},
    {"post_ffn_norm", "model.layers.{}.post_feedforward_layernorm.weight", "blk.{}.post_ffw_norm.weight", kGain},
});
constexpr auto kTensors = names::Join(kGains, names::kAttention, names::kMlp);

}  // namespace

const ModelFamily kGemma3 = {"gemma3", BuildPreNorm<>, kTensors};

}  // namespace xjit
