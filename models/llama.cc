// Llama: pre-norm decoder with grouped-query attention, rotary embedding and a SwiGLU feed-forward.
// Touvron et al. 2023, arXiv:2302.13971; grouped queries: Ainslie et al. 2023, arXiv:2305.13245. Qwen2 is the same with
// biases on q, k, v and a sliding window on its upper layers (Yang et al. 2024, arXiv:2407.10671).
#include <cmath>

#include "models/registry.h"
#include "models/transformer.h"

namespace xjit {
namespace {

Value* LinearWithBias(const LayerContext& c, Value* x, std::string_view symbol, int64_t n, int64_t k, bool bias) {
  Value* y = c.b.Linear(x, c.M(symbol, n, k), symbol);
  if (bias) y = c.b.AddBias(y, c.V(fmt::format("{}_bias", symbol), n), symbol);
  return y;
}

Value* Layer(const LayerContext& c) {
  Builder& b = c.b;
  const ModelSpec& s = c.spec;
  const int64_t d = s.hidden_size, q_size = s.heads * s.head_dim, kv_size = s.kv_heads * s.head_dim;

  Value* n = b.RmsNorm(c.x, c.V("attn_norm", d), s.rms_norm_eps);
  Value* q = LinearWithBias(c, n, "q", q_size, d, s.qkv_bias);
  Value* k = LinearWithBias(c, n, "k", kv_size, d, s.qkv_bias);
  Value* v = LinearWithBias(c, n, "v", kv_size, d, s.qkv_bias);
  q = b.Rope(q, c.rope, s.heads, "qr");
  k = b.Rope(k, c.rope, s.kv_heads, "kr");
  b.KvStore(k, v, c.step, s.kv_heads);
  Value* a = b.Attention(q, c.step, s.heads, s.kv_heads, 1.0 / std::sqrt(static_cast<double>(s.head_dim)), c.window);
  Value* o = LinearWithBias(c, a, "o", d, q_size, s.o_bias);
  Value* h = b.Add(c.x, o, "h");

  n = b.RmsNorm(h, c.V("ffn_norm", d), s.rms_norm_eps);
  Value* gate = LinearWithBias(c, n, "gate", s.intermediate_size, d, s.mlp_bias);
  Value* up = LinearWithBias(c, n, "up", s.intermediate_size, d, s.mlp_bias);
  Value* f = b.Mul(b.Silu(gate), up, "f");
  Value* down = LinearWithBias(c, f, "down", d, s.intermediate_size, s.mlp_bias);
  return b.Add(h, down, "y");
}

absl::StatusOr<std::unique_ptr<Module>> Build(const ModelSpec& spec, const ModelWeights& weights) {
  return BuildDecoder(spec, weights, Layer, [&spec](int64_t layer) { return spec.window(layer); });
}

constexpr TensorName kTensors[] = {
    {"embed", "model.embed_tokens.weight", "token_embd.weight"},
    {"final_norm", "model.norm.weight", "output_norm.weight"},
    {"lm_head", "lm_head.weight", "output.weight"},
    {"attn_norm", "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"},
    {"q", "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", TensorName::kRopeRows},
    {"k", "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", TensorName::kRopeRows},
    {"v", "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"},
    {"o", "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"},
    {"q_bias", "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias", TensorName::kRopeRows},
    {"k_bias", "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", TensorName::kRopeRows},
    {"v_bias", "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"},
    {"o_bias", "model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias"},
    {"ffn_norm", "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"},
    {"gate", "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"},
    {"up", "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"},
    {"down", "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"},
    {"gate_bias", "model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias"},
    {"up_bias", "model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias"},
    {"down_bias", "model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias"},
};

}  // namespace

const ModelFamily kLlama = {"llama", Build, kTensors};
const ModelFamily kQwen2 = {"qwen2", Build, kTensors};

}  // namespace xjit
