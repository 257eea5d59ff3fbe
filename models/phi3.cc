// Phi-3: Llama with q, k, v in one tensor and gate, up in another; longer contexts by longrope, and in some models only
// part of a head is rotated. Abdin et al. 2024, arXiv:2404.14219.
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

Value* FusedAttention(const LayerContext& c, Value* n) {
  const int64_t q = c.spec.heads * c.spec.head_dim, kv = c.spec.kv_heads * c.spec.head_dim;
  return GroupedAttention(
      c, n, {{"q", RowsOf("qkv", 0, q)}, {"k", RowsOf("qkv", q, q + kv)}, {"v", RowsOf("qkv", q + kv, q + 2 * kv)}});
}

Value* FusedMlp(const LayerContext& c, Value* n) {
  const int64_t width = c.spec.intermediate_size;
  return Mlp(c, n, {{"gate", RowsOf("gate_up", 0, width)}, {"up", RowsOf("gate_up", width, 2 * width)}, "down"}, width);
}

constexpr auto kPhi3Layer = std::to_array<TensorName>({
    {"qkv", "model.layers.{}.self_attn.qkv_proj.weight", "blk.{}.attn_qkv.weight"},
    {"o", "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {"gate_up", "model.layers.{}.mlp.gate_up_proj.weight", "blk.{}.ffn_up.weight"},
    {"down", "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
});
constexpr auto kTensors = names::Join(names::kOuter, names::kNorms, kPhi3Layer);

}  // namespace

const ModelFamily kPhi3 = {"phi3", BuildPreNorm<FusedAttention, FusedMlp>, kTensors};

}  // namespace xjit
