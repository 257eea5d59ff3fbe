#include "models/blocks.h"

#include <algorithm>
#include <cmath>

namespace xjit {
namespace {

// @<symbol>_bias, of the same slice.
std::string BiasName(std::string_view weight) {
  const size_t slice = std::min(weight.find('['), weight.size());
  return fmt::format("{}_bias{}", weight.substr(0, slice), weight.substr(slice));
}

Value* Activated(const LayerContext& c, Value* gate, Value* up) {
  switch (c.spec.activation) {
    case Activation::kGeluTanh:
      return c.b.Mul(c.b.Gelu(gate), up, "f");
    case Activation::kClampedSwiglu:
      return c.b.ClampedSwiglu(gate, up, c.spec.swiglu_limit, c.spec.swiglu_alpha, "f");
    case Activation::kSilu:
      break;
  }
  return c.b.Mul(c.b.Silu(gate), up, "f");
}

std::string_view ScoreName(MoeSpec::Score score) {
  switch (score) {
    case MoeSpec::Score::kSigmoid:
      return "sigmoid";
    case MoeSpec::Score::kSoftmaxOfChosen:
      return "softmax_chosen";
    case MoeSpec::Score::kSoftmax:
      break;
  }
  return "softmax";
}

// What differs from the op's defaults.
Builder::Attrs RouteAttrs(const MoeSpec& moe) {
  Builder::Attrs attrs = {{"top_k", moe.experts_per_token}};
  if (moe.score != MoeSpec::Score::kSoftmax) attrs.emplace_back("score", std::string(ScoreName(moe.score)));
  if (moe.normalize) attrs.emplace_back("normalize", true);
  if (moe.scale != 1) attrs.emplace_back("scale", moe.scale);
  if (moe.groups > 1) {
    attrs.emplace_back("groups", moe.groups);
    attrs.emplace_back("top_groups", moe.top_groups);
    attrs.emplace_back("group_top", moe.group_top);
  }
  return attrs;
}

Value* ProjectExperts(const LayerContext& c, Value* x, Value* experts, const Projection& p, int64_t n, int64_t k) {
  const MoeSpec& moe = c.spec.moe;
  Value* y = c.b.ExpertLinear(x, experts, c.E(p.weight, moe.experts, n, k), p.value);
  if (!moe.expert_bias) return y;
  const Type type = Type::Weight({{moe.experts, 0}, {n, 0}, {1, 0}}, DType::kF32);
  return c.b.ExpertBias(y, experts, c.b.W(BiasName(p.weight), type), p.value);
}

}  // namespace

std::string RowsOf(std::string_view symbol, int64_t begin, int64_t end) {
  return fmt::format("{}[{}:{},:]", symbol, begin, end);
}

Value* Project(const LayerContext& c, Value* x, const Projection& p, int64_t n, int64_t k, bool bias) {
  Value* y = c.b.Linear(x, c.M(p.weight, n, k), p.value);
  if (bias) y = c.b.AddBias(y, c.V(BiasName(p.weight), n), p.value);
  return y;
}

Value* Norm(const LayerContext& c, Value* x, std::string_view gain) {
  return c.b.RmsNorm(x, c.V(gain, c.spec.hidden_size), c.spec.rms_norm_eps);
}

double AttentionScale(const ModelSpec& spec) {
  return spec.attention_scale > 0 ? spec.attention_scale : 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
}

Value* GroupedAttention(const LayerContext& c, Value* n, const AttentionNames& names) {
  Builder& b = c.b;
  const ModelSpec& s = c.spec;
  const int64_t d = s.hidden_size, q_size = s.heads * s.head_dim, kv_size = s.kv_heads * s.head_dim;
  Value* q = Project(c, n, names.q, q_size, d, s.qkv_bias);
  Value* k = Project(c, n, names.k, kv_size, d, s.qkv_bias);
  Value* v = Project(c, n, names.v, kv_size, d, s.qkv_bias);
  if (s.qk_norm) {
    q = b.RmsNorm(q, c.V("q_norm", s.head_dim), s.rms_norm_eps);
    k = b.RmsNorm(k, c.V("k_norm", s.head_dim), s.rms_norm_eps);
  }
  q = b.Rope(q, c.rope, s.heads, "qr");
  k = b.Rope(k, c.rope, s.kv_heads, "kr");
  b.KvStore(k, v, c.step, s.kv_heads);
  Builder::AttentionArgs args{s.heads, s.kv_heads, AttentionScale(s), c.window, s.attention_soft_cap};
  if (s.sinks) args.sinks = c.V("sinks", s.heads);
  return Project(c, b.Attention(q, c.step, args), "o", d, q_size, s.o_bias);
}

Value* Mlp(const LayerContext& c, Value* n, const MlpNames& names, int64_t width) {
  const int64_t d = c.spec.hidden_size;
  Value* gate = Project(c, n, names.gate, width, d, c.spec.mlp_bias);
  Value* up = Project(c, n, names.up, width, d, c.spec.mlp_bias);
  return Project(c, Activated(c, gate, up), names.down, d, width, c.spec.mlp_bias);
}

Value* Experts(const LayerContext& c, Value* n, const MlpNames& names) {
  Builder& b = c.b;
  const MoeSpec& moe = c.spec.moe;
  const int64_t d = c.spec.hidden_size, width = moe.intermediate_size;
  Value* logits = Project(c, n, "router", moe.experts, d, moe.router_bias);
  std::optional<Operand> correction;
  if (moe.correction_bias) correction = c.V("correction", moe.experts);
  const auto [experts, weights] = b.Route(logits, correction, RouteAttrs(moe));
  Value* gate = ProjectExperts(c, n, experts, names.gate, width, d);
  Value* up = ProjectExperts(c, n, experts, names.up, width, d);
  Value* y = b.Combine(ProjectExperts(c, Activated(c, gate, up), experts, names.down, d, width), weights);
  if (moe.shared_intermediate_size == 0) return y;
  return b.Add(y, Mlp(c, n, {"shared_gate", "shared_up", "shared_down"}, moe.shared_intermediate_size), "y");
}

Value* Attention(const LayerContext& c, Value* n) { return GroupedAttention(c, n, {}); }

Value* FeedForward(const LayerContext& c, Value* n) {
  if (c.experts) return Experts(c, n, {"gate_exps", "up_exps", "down_exps"});
  return Mlp(c, n, {}, c.spec.intermediate_size);
}

Value* PreNormLayer(const LayerContext& c, Block attention, Block ffn) {
  Value* a = attention(c, Norm(c, c.x, "attn_norm"));
  if (c.spec.post_norms) a = Norm(c, a, "post_attn_norm");
  Value* h = c.b.Add(c.x, a, "h");
  Value* f = ffn(c, Norm(c, h, "ffn_norm"));
  if (c.spec.post_norms) f = Norm(c, f, "post_ffn_norm");
  return c.b.Add(h, f, "y");
}

}  // namespace xjit
