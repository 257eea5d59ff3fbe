// gpt-oss: experts in every layer, biases everywhere, attention sinks, every second layer with a window.
// OpenAI 2025, arXiv:2508.10925.
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

// Hugging Face's files alternate gate's and up's rows in one tensor; GGUF files have two.
Value* AlternatingExperts(const LayerContext& c, Value* n) {
  if (c.encodings.contains("gate_exps")) return FeedForward(c, n);
  const int64_t rows = 2 * c.spec.moe.intermediate_size;
  return Experts(c, n,
                 {{"gate_exps", fmt::format("gate_up_exps[:,0:{}:2,:]", rows)},
                  {"up_exps", fmt::format("gate_up_exps[:,1:{}:2,:]", rows)},
                  "down_exps"});
}

constexpr auto kTransposed = TensorName::kTransposed;
constexpr auto kGptOssLayer = std::to_array<TensorName>({
    {"attn_norm", "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {"sinks", "model.layers.{}.self_attn.sinks", "blk.{}.attn_sinks.weight"},
    {"ffn_norm", "model.layers.{}.post_attention_layernorm.weight", "blk.{}.post_attention_norm.weight"},
    {"router", "model.layers.{}.mlp.router.weight", "blk.{}.ffn_gate_inp.weight"},
    {"router_bias", "model.layers.{}.mlp.router.bias", "blk.{}.ffn_gate_inp.bias"},
    {"gate_up_exps", "model.layers.{}.mlp.experts.gate_up_proj", "", kTransposed},
    {"gate_up_exps_bias", "model.layers.{}.mlp.experts.gate_up_proj_bias", ""},
    {"gate_exps", "", "blk.{}.ffn_gate_exps.weight"},
    {"gate_exps_bias", "", "blk.{}.ffn_gate_exps.bias"},
    {"up_exps", "", "blk.{}.ffn_up_exps.weight"},
    {"up_exps_bias", "", "blk.{}.ffn_up_exps.bias"},
    {"down_exps", "model.layers.{}.mlp.experts.down_proj", "blk.{}.ffn_down_exps.weight", kTransposed},
    {"down_exps_bias", "model.layers.{}.mlp.experts.down_proj_bias", "blk.{}.ffn_down_exps.bias"},
});
constexpr auto kTensors = names::Join(names::kOuter, names::kAttention, names::kAttentionBiases, kGptOssLayer);

}  // namespace

const ModelFamily kGptOss = {"gpt_oss", BuildPreNorm<Attention, AlternatingExperts>, kTensors};

}  // namespace xjit
