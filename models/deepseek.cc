// DeepSeek V2 and V3: multi-head latent attention; a few dense layers, then experts, chosen in groups, beside a shared
// one. DeepSeek-AI 2024, arXiv:2405.04434 and arXiv:2412.19437. Layers for predicting several tokens, which follow the
// last, take no part.
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

Value* Query(const LayerContext& c, Value* n, int64_t size) {
  const MlaSpec& mla = c.spec.mla;
  if (mla.q_lora_rank == 0) return Project(c, n, "q", size, c.spec.hidden_size);
  Value* a = Project(c, n, "q_a", mla.q_lora_rank, c.spec.hidden_size);
  a = c.b.RmsNorm(a, c.V("q_a_norm", mla.q_lora_rank), mla.norm_eps);
  return Project(c, a, {"q", "q_b"}, size, mla.q_lora_rank);
}

Value* LatentAttention(const LayerContext& c, Value* n) {
  Builder& b = c.b;
  const ModelSpec& s = c.spec;
  const MlaSpec& mla = s.mla;
  const int64_t r = mla.kv_lora_rank, row = r + mla.rope_dim;
  Value* q = Query(c, n, s.heads * (mla.nope_dim + mla.rope_dim));
  Value* kv = Project(c, n, "kv_a", row, s.hidden_size);
  Value* latent = b.RmsNorm(b.Slice(kv, 0, r, "c"), c.V("kv_a_norm", r), mla.norm_eps);
  Value* k_pe = b.Rope(b.Slice(kv, r, row, "k_pe"), c.rope, 1, "kr");
  q = b.Rope(q, c.rope, s.heads, "qr", mla.nope_dim);
  b.KvStoreLatent(latent, k_pe, c.step);
  Value* a = b.MlaAttention(q, c.step, c.M("kv_b", s.heads * (mla.nope_dim + mla.v_dim), r), s.heads, mla.nope_dim,
                            mla.v_dim, AttentionScale(s));
  return Project(c, a, "o", s.hidden_size, s.heads * mla.v_dim);
}

constexpr auto kLatent = std::to_array<TensorName>({
    {"q", "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", TensorName::kRopeTail},
    {"q_a", "model.layers.{}.self_attn.q_a_proj.weight", "blk.{}.attn_q_a.weight"},
    {"q_a_norm", "model.layers.{}.self_attn.q_a_layernorm.weight", "blk.{}.attn_q_a_norm.weight"},
    {"q_b", "model.layers.{}.self_attn.q_b_proj.weight", "blk.{}.attn_q_b.weight", TensorName::kRopeTail},
    {"kv_a", "model.layers.{}.self_attn.kv_a_proj_with_mqa.weight", "blk.{}.attn_kv_a_mqa.weight",
     TensorName::kRopeSingle},
    {"kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm.weight", "blk.{}.attn_kv_a_norm.weight"},
    {"kv_b", "model.layers.{}.self_attn.kv_b_proj.weight", "blk.{}.attn_kv_b.weight"},
    // What kv_b is made of in newer GGUF files: of each head the keys' rows, transposed, and the values'.
    {"kv_b_keys", "", "blk.{}.attn_k_b.weight"},
    {"kv_b_values", "", "blk.{}.attn_v_b.weight"},
    {"o", "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {"correction", "model.layers.{}.mlp.gate.e_score_correction_bias", "blk.{}.exp_probs_b.bias"},
    {"shared_gate", "model.layers.{}.mlp.shared_experts.gate_proj.weight", "blk.{}.ffn_gate_shexp.weight"},
    {"shared_up", "model.layers.{}.mlp.shared_experts.up_proj.weight", "blk.{}.ffn_up_shexp.weight"},
    {"shared_down", "model.layers.{}.mlp.shared_experts.down_proj.weight", "blk.{}.ffn_down_shexp.weight"},
});
constexpr auto kTensors = names::Join(names::kOuter, names::kNorms, kLatent, names::kMlp, names::kExperts);

}  // namespace

const ModelFamily kDeepSeekV2 = {"deepseek_v2", BuildPreNorm<LatentAttention>, kTensors};
const ModelFamily kDeepSeekV3 = {"deepseek_v3", BuildPreNorm<LatentAttention>, kTensors};

}  // namespace xjit
