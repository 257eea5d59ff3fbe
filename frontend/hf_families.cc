#include "frontend/hf_families.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

using Score = MoeSpec::Score;

bool IsDeepSeek(const ModelSpec& spec) { return spec.arch == "deepseek_v2" || spec.arch == "deepseek_v3"; }
// Every layer has a window where sliding_window is not null.
bool HasOneWindow(const ModelSpec& spec) {
  return spec.arch == "mistral" || spec.arch == "mixtral" || spec.arch == "phi3" || spec.arch == "qwen3_moe";
}

absl::Status CheckActivation(const JsonObject& config, ModelSpec& spec) {
  if (spec.arch == "gemma3") {
    spec.activation = Activation::kGeluTanh;
    for (const std::string_view key : {"hidden_activation", "hidden_act"}) {
      XJIT_ASSIGN_OR_RETURN(const std::string act, config.StringOr(key, "gelu_pytorch_tanh"));
      if (act != "gelu_pytorch_tanh") {
        return Unimplemented("{}: is \"{}\", expected gelu_pytorch_tanh", config.Place(key), Printable(act));
      }
    }
    return absl::OkStatus();
  }
  XJIT_ASSIGN_OR_RETURN(const std::string act, config.StringOr("hidden_act", "silu"));
  if (act != "silu" && act != "swish") {
    return Unimplemented("{}: is \"{}\", expected silu", config.Place("hidden_act"), Printable(act));
  }
  return absl::OkStatus();
}

// Which layers have a window by `layer_types`; nullopt where the config has none.
absl::StatusOr<std::optional<std::vector<bool>>> LayerTypes(const JsonObject& config, int64_t layers) {
  std::optional<std::vector<bool>> out;
  if (!config.Has("layer_types")) return out;
  XJIT_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (static_cast<int64_t>(types.size()) != layers) {
    return InvalidArgument("{}: has {} entries for {} layers", config.Place("layer_types"), types.size(), layers);
  }
  out.emplace();
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full_attention" && types[i] != "sliding_attention") {
      return Unimplemented("{}[{}]: is \"{}\", expected full_attention or sliding_attention",
                           config.Place("layer_types"), i, Printable(types[i]));
    }
    out->push_back(types[i] == "sliding_attention");
  }
  return out;
}

// `sliding` says which layers have the window.
void SetWindows(const std::vector<bool>& sliding, int64_t window, ModelSpec& spec) {
  if (window == 0 || std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return;
  for (const bool has : sliding) spec.windows.push_back(has ? window : 0);
}

absl::Status ReadWindows(const JsonObject& config, ModelSpec& spec) {
  const size_t layers = static_cast<size_t>(spec.layers);
  const bool gemma = spec.arch == "gemma3";
  const bool optional = spec.arch == "qwen2" || spec.arch == "qwen3" || spec.arch == "qwen3_moe";
  const int64_t fallback = gemma || optional ? 4096 : spec.arch == "gpt_oss" ? 128 : 0;
  XJIT_ASSIGN_OR_RETURN(int64_t window, config.IntOr("sliding_window", fallback, 0, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(const bool use, config.BoolOr("use_sliding_window", false));
  if (optional && !use) window = 0;
  XJIT_ASSIGN_OR_RETURN(const auto types, LayerTypes(config, spec.layers));
  if (gemma || spec.arch == "gpt_oss") {
    XJIT_ASSIGN_OR_RETURN(const int64_t pattern, config.IntOr("sliding_window_pattern", gemma ? 6 : 2, 1, kMaxLayers));
    std::vector<bool> sliding;
    for (int64_t i = 0; i < spec.layers; ++i) sliding.push_back((i + 1) % pattern != 0);
    SetWindows(types.value_or(sliding), window, spec);
    return absl::OkStatus();
  }
  if (spec.arch == "qwen2" || spec.arch == "qwen3") {
    XJIT_ASSIGN_OR_RETURN(const int64_t full, config.IntOr("max_window_layers", 28, 0, kMaxDim));
    std::vector<bool> sliding(layers, true);
    std::fill_n(sliding.begin(), std::min(full, spec.layers), false);
    SetWindows(types.value_or(sliding), window, spec);
    return absl::OkStatus();
  }
  const bool all = HasOneWindow(spec) && window > 0;
  if (types) {
    const auto odd = std::find(types->begin(), types->end(), !all);
    if (odd != types->end()) {
      return Unimplemented("{}[{}]: is \"{}_attention\"; {} has {} layers", config.Place("layer_types"),
                           odd - types->begin(), *odd ? "sliding" : "full", spec.arch,
                           all ? "sliding_attention" : "full_attention");
    }
  }
  if (all) spec.windows.assign(layers, window);
  return absl::OkStatus();
}

// Experts and how many of them a token visits.
absl::Status ReadExperts(const JsonObject& config, std::string_view experts_key, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(spec.moe.experts, config.Int(experts_key, 1, kMaxExperts));
  XJIT_ASSIGN_OR_RETURN(spec.moe.experts_per_token, config.Int("num_experts_per_tok", 1, kMaxExperts));
  spec.moe.layers.assign(static_cast<size_t>(spec.layers), true);
  return absl::OkStatus();
}

absl::Status ReadQwenMoe(const JsonObject& config, ModelSpec& spec) {
  XJIT_RETURN_IF_ERROR(ReadExperts(config, "num_experts", spec));
  MoeSpec& moe = spec.moe;
  XJIT_ASSIGN_OR_RETURN(moe.intermediate_size, config.Int("moe_intermediate_size", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(moe.normalize, config.BoolOr("norm_topk_prob", false));
  XJIT_ASSIGN_OR_RETURN(const int64_t step, config.IntOr("decoder_sparse_step", 1, 1, kMaxLayers));
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> dense, config.Ints("mlp_only_layers", 0, spec.layers - 1));
  for (int64_t i = 0; i < spec.layers; ++i) moe.layers[static_cast<size_t>(i)] = (i + 1) % step == 0;
  for (const int64_t i : dense) moe.layers[static_cast<size_t>(i)] = false;
  if (std::find(moe.layers.begin(), moe.layers.end(), true) == moe.layers.end()) {
    return InvalidArgument("{}: leaves no layer with experts", config.Place("decoder_sparse_step"));
  }
  return absl::OkStatus();
}

absl::Status ReadGptOss(const JsonObject& config, ModelSpec& spec) {
  XJIT_RETURN_IF_ERROR(ReadExperts(config, "num_local_experts", spec));
  MoeSpec& moe = spec.moe;
  moe.intermediate_size = spec.intermediate_size;
  moe.score = Score::kSoftmaxOfChosen;
  moe.router_bias = moe.expert_bias = true;
  spec.sinks = true;
  spec.activation = Activation::kClampedSwiglu;
  XJIT_ASSIGN_OR_RETURN(spec.swiglu_limit, config.NumberOr("swiglu_limit", 7, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(spec.swiglu_alpha, config.NumberOr("swiglu_alpha", 1.702, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(spec.qkv_bias, config.BoolOr("attention_bias", true));
  spec.o_bias = spec.qkv_bias;
  return absl::OkStatus();
}

absl::Status ReadGemma(const JsonObject& config, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const double scalar, config.NumberOr("query_pre_attn_scalar", 256, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(spec.attention_soft_cap, config.NumberOr("attn_logit_softcapping", 0, 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(spec.final_soft_cap, config.NumberOr("final_logit_softcapping", 0, 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const bool both_ways, config.BoolOr("use_bidirectional_attention", false));
  if (both_ways) return Unimplemented("{}: is true, expected false", config.Place("use_bidirectional_attention"));
  spec.norm_offset = 1;
  spec.attention_scale = 1 / std::sqrt(scalar);
  spec.embed_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  spec.qk_norm = spec.post_norms = true;
  return absl::OkStatus();
}

absl::Status ReadMla(const JsonObject& config, ModelSpec& spec) {
  MlaSpec& mla = spec.mla;
  XJIT_ASSIGN_OR_RETURN(mla.q_lora_rank, config.IntOr("q_lora_rank", 0, 0, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(mla.kv_lora_rank, config.Int("kv_lora_rank", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(mla.nope_dim, config.Int("qk_nope_head_dim", 1, kMaxDim / 2));
  XJIT_ASSIGN_OR_RETURN(mla.rope_dim, config.Int("qk_rope_head_dim", 2, kMaxDim / 2));
  XJIT_ASSIGN_OR_RETURN(mla.v_dim, config.Int("v_head_dim", 1, kMaxDim));
  if (mla.rope_dim % 2 != 0) {
    return InvalidArgument("{}: is {}, expected an even number (rotary embedding turns pairs)",
                           config.Place("qk_rope_head_dim"), mla.rope_dim);
  }
  spec.head_dim = mla.nope_dim + mla.rope_dim;
  spec.kv_heads = spec.heads;
  // V2 turns adjacent pairs in any case; V3's class has a switch.
  XJIT_ASSIGN_OR_RETURN(spec.rope_pairs_adjacent, config.BoolOr("rope_interleave", true));
  if (spec.arch == "deepseek_v2" && !spec.rope_pairs_adjacent) {
    return Unimplemented("{}: is false, expected true", config.Place("rope_interleave"));
  }
  return absl::OkStatus();
}

absl::Status Expect(const JsonObject& config, std::string_view key, std::string_view value) {
  XJIT_ASSIGN_OR_RETURN(const std::string is, config.StringOr(key, std::string(value)));
  if (is == value) return absl::OkStatus();
  return Unimplemented("{}: is \"{}\", expected {}", config.Place(key), Printable(is), value);
}

absl::Status ReadDeepSeekRouter(const JsonObject& config, ModelSpec& spec) {
  MoeSpec& moe = spec.moe;
  if (!config.Has("routed_scaling_factor"))
    return InvalidArgument("{}: missing", config.Place("routed_scaling_factor"));
  XJIT_ASSIGN_OR_RETURN(moe.scale, config.NumberOr("routed_scaling_factor", 1, kMinReal, kMaxReal));
  if (spec.arch == "deepseek_v3") {
    XJIT_RETURN_IF_ERROR(Expect(config, "topk_method", "noaux_tc"));
    XJIT_RETURN_IF_ERROR(Expect(config, "scoring_func", "sigmoid"));
    moe.score = Score::kSigmoid;
    moe.correction_bias = true;
    XJIT_ASSIGN_OR_RETURN(moe.normalize, config.BoolOr("norm_topk_prob", true));
    XJIT_ASSIGN_OR_RETURN(moe.groups, config.Int("n_group", 1, kMaxExperts));
    XJIT_ASSIGN_OR_RETURN(moe.top_groups, config.Int("topk_group", 1, kMaxExperts));
    if (moe.groups > 1) moe.group_top = 2;
    return absl::OkStatus();
  }
  XJIT_RETURN_IF_ERROR(Expect(config, "scoring_func", "softmax"));
  XJIT_ASSIGN_OR_RETURN(moe.normalize, config.BoolOr("norm_topk_prob", false));
  if (moe.normalize) {
    // DeepSeek's own code then leaves routed_scaling_factor out, transformers ignores the key, others do both.
    return Unimplemented("{}: is true, expected false (implementations of DeepSeek V2 differ in what it means)",
                         config.Place("norm_topk_prob"));
  }
  XJIT_ASSIGN_OR_RETURN(const std::string method, config.StringOr("topk_method", "greedy"));
  if (method == "greedy") return absl::OkStatus();
  if (method != "group_limited_greedy") {
    return Unimplemented("{}: is \"{}\", expected greedy or group_limited_greedy", config.Place("topk_method"),
                         Printable(method));
  }
  XJIT_ASSIGN_OR_RETURN(moe.groups, config.Int("n_group", 1, kMaxExperts));
  XJIT_ASSIGN_OR_RETURN(moe.top_groups, config.Int("topk_group", 1, kMaxExperts));
  return absl::OkStatus();
}

absl::Status ReadDeepSeek(const JsonObject& config, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const bool bias, config.BoolOr("attention_bias", false));
  if (bias) return Unimplemented("{}: is true, expected false", config.Place("attention_bias"));
  XJIT_RETURN_IF_ERROR(ReadMla(config, spec));
  XJIT_RETURN_IF_ERROR(ReadExperts(config, "n_routed_experts", spec));
  MoeSpec& moe = spec.moe;
  XJIT_ASSIGN_OR_RETURN(moe.intermediate_size, config.Int("moe_intermediate_size", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(const int64_t shared, config.IntOr("n_shared_experts", 0, 0, kMaxExperts));
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  if (moe.shared_intermediate_size > kMaxDim) {
    return InvalidArgument("{}: {} experts of {} are too wide", config.Place("n_shared_experts"), shared,
                           moe.intermediate_size);
  }
  XJIT_ASSIGN_OR_RETURN(const int64_t dense, config.Int("first_k_dense_replace", 0, spec.layers - 1));
  XJIT_ASSIGN_OR_RETURN(const int64_t every, config.IntOr("moe_layer_freq", 1, 1, kMaxLayers));
  for (int64_t i = 0; i < spec.layers; ++i) {
    moe.layers[static_cast<size_t>(i)] = i >= dense && i % every == 0;
  }
  if (std::find(moe.layers.begin(), moe.layers.end(), true) == moe.layers.end()) {
    return InvalidArgument("{}: leaves no layer with experts", config.Place("moe_layer_freq"));
  }
  return ReadDeepSeekRouter(config, spec);
}

void WriteWindows(const ModelSpec& spec, nlohmann::ordered_json& out) {
  const auto first = std::find_if(spec.windows.begin(), spec.windows.end(), [](int64_t w) { return w != 0; });
  const bool any = first != spec.windows.end();
  if (spec.arch == "qwen2" || spec.arch == "qwen3" || spec.arch == "qwen3_moe") {
    out["use_sliding_window"] = any;
    out["sliding_window"] = any ? *first : 0;
  } else if (HasOneWindow(spec) || spec.arch == "gemma3" || spec.arch == "gpt_oss") {
    if (any)
      out["sliding_window"] = *first;
    else
      out["sliding_window"] = nullptr;
  }
  if (spec.arch == "qwen2" || spec.arch == "qwen3") {
    out["max_window_layers"] = any ? first - spec.windows.begin() : spec.layers;
    if (std::find(first, spec.windows.end(), 0) == spec.windows.end()) return;
  } else if (spec.arch != "gemma3" && spec.arch != "gpt_oss") {
    return;
  }
  auto& types = out["layer_types"] = nlohmann::ordered_json::array();
  for (int64_t i = 0; i < spec.layers; ++i) {
    types.push_back(spec.window(i) != 0 ? "sliding_attention" : "full_attention");
  }
}

void WriteDeepSeek(const ModelSpec& spec, nlohmann::ordered_json& out) {
  const MlaSpec& mla = spec.mla;
  if (mla.q_lora_rank > 0)
    out["q_lora_rank"] = mla.q_lora_rank;
  else
    out["q_lora_rank"] = nullptr;
  out["kv_lora_rank"] = mla.kv_lora_rank;
  out["qk_nope_head_dim"] = mla.nope_dim;
  out["qk_rope_head_dim"] = mla.rope_dim;
  out["v_head_dim"] = mla.v_dim;
  out["rope_interleave"] = spec.rope_pairs_adjacent;
  const MoeSpec& moe = spec.moe;
  const bool v3 = spec.arch == "deepseek_v3";
  out["n_routed_experts"] = moe.experts;
  out["num_experts_per_tok"] = moe.experts_per_token;
  out["n_shared_experts"] = moe.shared_intermediate_size / moe.intermediate_size;
  out["moe_intermediate_size"] = moe.intermediate_size;
  // The first layers are dense, then every n-th has experts at a multiple of n.
  const auto first = std::find(moe.layers.begin(), moe.layers.end(), true);
  const auto second = std::find(first + 1, moe.layers.end(), true);
  out["first_k_dense_replace"] = first - moe.layers.begin();
  const int64_t only = first == moe.layers.begin() ? spec.layers : first - moe.layers.begin();
  out["moe_layer_freq"] = second == moe.layers.end() ? only : second - first;
  out["topk_method"] = v3 ? "noaux_tc" : moe.groups > 1 ? "group_limited_greedy" : "greedy";
  out["scoring_func"] = v3 ? "sigmoid" : "softmax";
  out["n_group"] = moe.groups;
  out["topk_group"] = moe.top_groups;
  out["norm_topk_prob"] = moe.normalize;
  out["routed_scaling_factor"] = moe.scale;
}

void WriteQwenMoe(const ModelSpec& spec, nlohmann::ordered_json& out) {
  const MoeSpec& moe = spec.moe;
  out["num_experts"] = moe.experts;
  out["num_experts_per_tok"] = moe.experts_per_token;
  out["moe_intermediate_size"] = moe.intermediate_size;
  out["norm_topk_prob"] = moe.normalize;
  out["decoder_sparse_step"] = 1;
  auto& dense = out["mlp_only_layers"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < moe.layers.size(); ++i) {
    if (!moe.layers[i]) dense.push_back(i);
  }
}

// The number whose inverse root is `scale`: a whole one where that is exact, as published ones are.
double AttentionScalar(double scale) {
  const double exact = 1 / (scale * scale);
  double below = exact, above = exact;
  if (1 / std::sqrt(std::round(exact)) == scale) return std::round(exact);
  // Both roundings lose little more than a bit.
  for (int i = 0; i < 8; ++i) {
    for (const double x : {below, above}) {
      if (1 / std::sqrt(x) == scale) return std::clamp(x, kMinReal, kMaxReal);
    }
    below = std::nextafter(below, 0);
    above = std::nextafter(above, kMaxReal);
  }
  return std::clamp(exact, kMinReal, kMaxReal);
}

}  // namespace

SizeDefaults DefaultSizes(std::string_view arch) {
  // Gemma 3's multimodal files leave out of text_config what its class has as default.
  if (arch == "gemma3") {
    return {.vocab_size = 262208, .heads = 8, .kv_heads = 4, .head_dim = 256, .max_positions = 131072, .tied = true};
  }
  if (arch == "qwen3") return {.head_dim = 128};
  if (arch == "gpt_oss") return {.head_dim = 64};
  if (arch == "deepseek_v2" || arch == "deepseek_v3") return {.latent = true};
  return {};
}

absl::Status CheckMoe(const MoeSpec& moe, const MoePlaces& places) {
  if (moe.experts == 0) return absl::OkStatus();
  if (moe.experts_per_token > moe.experts) {
    return InvalidArgument("{}: {} of {} experts", places.experts_per_token, moe.experts_per_token, moe.experts);
  }
  if (moe.experts % moe.groups != 0) {
    return InvalidArgument("{}: {} does not divide the {} experts", places.groups, moe.groups, moe.experts);
  }
  if (moe.top_groups > moe.groups) {
    return InvalidArgument("{}: {} of {} groups", places.top_groups, moe.top_groups, moe.groups);
  }
  const int64_t in_group = moe.experts / moe.groups;
  if (moe.group_top > in_group) {
    return InvalidArgument("{}: leaves {} experts in a group, whose best {} are summed", places.groups, in_group,
                           moe.group_top);
  }
  if (moe.experts_per_token > moe.top_groups * in_group) {
    return InvalidArgument("{}: {} of the {} experts in {} groups", places.experts_per_token, moe.experts_per_token,
                           moe.top_groups * in_group, moe.top_groups);
  }
  return absl::OkStatus();
}

void SetMlaScale(ModelSpec& spec) {
  if (spec.mla.kv_lora_rank == 0) return;
  const RopeSpec& rope = spec.rope;
  spec.attention_scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  // transformers' yarn_apply_mscale: both q and k are meant to be longer by this.
  if (rope.scaling != RopeSpec::Scaling::kYarn || rope.factor <= 1) return;
  const double mscale = 0.1 * rope.mscale_all_dim.value_or(0) * std::log(rope.factor) + 1;
  spec.attention_scale *= mscale * mscale;
}

absl::Status ReadHfFamily(const JsonObject& config, ModelSpec& spec) {
  XJIT_RETURN_IF_ERROR(CheckActivation(config, spec));
  XJIT_RETURN_IF_ERROR(ReadWindows(config, spec));
  if (spec.arch == "llama" || spec.arch == "qwen3" || spec.arch == "qwen3_moe" || spec.arch == "gemma3") {
    XJIT_ASSIGN_OR_RETURN(spec.qkv_bias, config.BoolOr("attention_bias", false));
    spec.o_bias = spec.qkv_bias;
  }
  if (spec.arch == "llama") {
    XJIT_ASSIGN_OR_RETURN(spec.mlp_bias, config.BoolOr("mlp_bias", false));
  } else if (spec.arch == "qwen2") {
    spec.qkv_bias = true;
  } else if (spec.arch == "qwen3") {
    spec.qk_norm = true;
  } else if (spec.arch == "qwen3_moe") {
    spec.qk_norm = true;
    XJIT_RETURN_IF_ERROR(ReadQwenMoe(config, spec));
  } else if (spec.arch == "mixtral") {
    XJIT_RETURN_IF_ERROR(ReadExperts(config, "num_local_experts", spec));
    spec.moe.intermediate_size = spec.intermediate_size;
    spec.moe.score = Score::kSoftmaxOfChosen;
  } else if (spec.arch == "gemma3") {
    XJIT_RETURN_IF_ERROR(ReadGemma(config, spec));
  } else if (spec.arch == "gpt_oss") {
    XJIT_RETURN_IF_ERROR(ReadGptOss(config, spec));
  } else if (IsDeepSeek(spec)) {
    XJIT_RETURN_IF_ERROR(ReadDeepSeek(config, spec));
  }
  return CheckMoe(spec.moe, {config.Place("num_experts_per_tok"), config.Place("n_group"), config.Place("topk_group")});
}

void WriteHfFamily(const ModelSpec& spec, nlohmann::ordered_json& out) {
  if (spec.arch == "gemma3")
    out["hidden_activation"] = "gelu_pytorch_tanh";
  else
    out["hidden_act"] = "silu";
  out["attention_bias"] = IsDeepSeek(spec) ? false : spec.qkv_bias;
  out["mlp_bias"] = spec.mlp_bias;
  WriteWindows(spec, out);
  if (spec.arch == "mixtral" || spec.arch == "gpt_oss") {
    out["num_local_experts"] = spec.moe.experts;
    out["num_experts_per_tok"] = spec.moe.experts_per_token;
  }
  if (spec.arch == "gpt_oss") {
    out["swiglu_limit"] = spec.swiglu_limit;
    out["swiglu_alpha"] = spec.swiglu_alpha;
  }
  if (spec.arch == "gemma3") {
    out["query_pre_attn_scalar"] = AttentionScalar(spec.attention_scale);
    if (spec.attention_soft_cap != 0) out["attn_logit_softcapping"] = spec.attention_soft_cap;
    if (spec.final_soft_cap != 0) out["final_logit_softcapping"] = spec.final_soft_cap;
  }
  if (spec.arch == "qwen3_moe") WriteQwenMoe(spec, out);
  if (IsDeepSeek(spec)) WriteDeepSeek(spec, out);
}

}  // namespace xjit
