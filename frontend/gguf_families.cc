#include "frontend/gguf_families.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "frontend/hf_families.h"
#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"
#include "models/rope.h"

namespace xjit {
namespace {

using Scaling = RopeSpec::Scaling;
using Score = MoeSpec::Score;

// llama.cpp multiplies yarn's 0.1 ln(factor) + 1 by this; ModelSpec's attention_factor is the product.
absl::Status ReadAttentionFactor(const ArchKeys& keys, RopeSpec& rope) {
  double product = 1;
  for (const std::string_view name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
    XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, keys.Number(name, kMinReal, kMaxReal));
    product *= factor.value_or(1);
  }
  if (rope.scaling == Scaling::kLongRope) {
    rope.attention_factor = product;
    return absl::OkStatus();
  }
  if (product == 1) return absl::OkStatus();
  if (rope.scaling != Scaling::kYarn || rope.mscale) {
    return Unimplemented("{}: is {} without yarn", keys.Place("rope.scaling.attn_factor"), product);
  }
  rope.attention_factor = product * (0.1 * std::log(rope.factor) + 1);
  return absl::OkStatus();
}

absl::Status ReadYarn(const ArchKeys& keys, const ModelSpec& spec, RopeSpec& rope) {
  XJIT_ASSIGN_OR_RETURN(rope.original_max_positions,
                        keys.IntOr("rope.scaling.original_context_length", spec.max_positions, 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(const auto fast, keys.Number("rope.scaling.yarn_beta_fast", kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const auto slow, keys.Number("rope.scaling.yarn_beta_slow", kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const auto ext, keys.Number("rope.scaling.yarn_ext_factor", -kMaxReal, kMaxReal));
  rope.beta_fast = fast.value_or(rope.beta_fast);
  rope.beta_slow = slow.value_or(rope.beta_slow);
  if (ext.value_or(1) != 1) {
    return Unimplemented("{}: is {}, expected 1", keys.Place("rope.scaling.yarn_ext_factor"), *ext);
  }
  rope.truncate = spec.arch != "gpt_oss";  // as the model was trained; the files do not say
  XJIT_ASSIGN_OR_RETURN(const auto log, keys.Decimal("rope.scaling.yarn_log_multiplier", 0, kMaxReal));
  if (spec.mla.kv_lora_rank > 0) {
    if (!log) return Unimplemented("{}: missing", keys.Place("rope.scaling.yarn_log_multiplier"));
    // The converter writes 0.1 * mscale_all_dim; mscale is the same in all models (deepseek2.cpp assumes it too).
    rope.mscale = rope.mscale_all_dim = *log / 0.1;
  } else if (log.value_or(0) != 0) {
    return Unimplemented("{}: is {} in a file of {}", keys.Place("rope.scaling.yarn_log_multiplier"), *log, spec.arch);
  }
  return absl::OkStatus();
}

absl::Status ReadLongRope(const ArchKeys& keys, const GgufModelTensors& tensors, const ModelSpec& spec,
                          RopeSpec& rope) {
  const int64_t rotary = RotaryDim(spec);
  if (tensors.rope_short == nullptr || tensors.rope_long == nullptr) {
    return InvalidArgument("{}: there are rope_factors_{} without rope_factors_{}", keys.Place("rope.scaling.type"),
                           tensors.rope_short == nullptr ? "long" : "short",
                           tensors.rope_short == nullptr ? "short" : "long");
  }
  XJIT_ASSIGN_OR_RETURN(const std::vector<float> shorter, RopeFreqFactors(tensors.rope_short, rotary));
  XJIT_ASSIGN_OR_RETURN(const std::vector<float> longer, RopeFreqFactors(tensors.rope_long, rotary));
  rope.scaling = Scaling::kLongRope;
  rope.short_factors.assign(shorter.begin(), shorter.end());
  rope.long_factors.assign(longer.begin(), longer.end());
  XJIT_ASSIGN_OR_RETURN(rope.original_max_positions, keys.Int("rope.scaling.original_context_length", 1, kMaxDim));
  rope.factor = static_cast<double>(spec.max_positions) / static_cast<double>(rope.original_max_positions);
  return absl::OkStatus();
}

absl::Status ReadScaling(const ArchKeys& keys, const GgufModelTensors& tensors, const ModelSpec& spec, RopeSpec& rope) {
  if (spec.arch == "phi3" && (tensors.rope_short != nullptr || tensors.rope_long != nullptr)) {
    XJIT_RETURN_IF_ERROR(ReadLongRope(keys, tensors, spec, rope));
    return ReadAttentionFactor(keys, rope);
  }
  // As llama.cpp: a factor without a type is linear scaling, and scale_linear is the factor's older name.
  XJIT_ASSIGN_OR_RETURN(const std::string type, keys.StringOr("rope.scaling.type", "linear"));
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, keys.Number("rope.scaling.factor", 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> older, keys.Number("rope.scale_linear", 0, kMaxReal));
  const double scale = factor.value_or(older.value_or(0));
  if (type == "linear") {
    rope.scaling = scale == 0 || scale == 1 ? Scaling::kNone : Scaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = Scaling::kYarn;
  } else if (type != "none") {
    return Unimplemented("{}: is \"{}\", expected none, linear or yarn", keys.Place("rope.scaling.type"),
                         Printable(type));
  }
  if (rope.scaling != Scaling::kNone) rope.factor = scale == 0 ? 1 : scale;
  if (rope.factor < kMinReal) {
    return InvalidArgument("{}: is {}, too small", keys.Place("rope.scaling.factor"), rope.factor);
  }
  if (rope.scaling == Scaling::kYarn) XJIT_RETURN_IF_ERROR(ReadYarn(keys, spec, rope));
  return ReadAttentionFactor(keys, rope);
}

// Layers have the window but for every `pattern`-th; 1: none has, 0: all have.
absl::Status ReadWindows(const ArchKeys& keys, int64_t pattern, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const int64_t window, keys.IntOr("attention.sliding_window", 0, 0, kMaxDim));
  if (pattern > 0) {
    XJIT_ASSIGN_OR_RETURN(pattern, keys.IntOr("attention.sliding_window_pattern", pattern, 1, kMaxLayers));
  }
  if (window == 0 || pattern == 1) return absl::OkStatus();
  for (int64_t i = 0; i < spec.layers; ++i) {
    spec.windows.push_back(pattern > 0 && (i + 1) % pattern == 0 ? 0 : window);
  }
  return absl::OkStatus();
}

absl::Status ReadExperts(const ArchKeys& keys, ModelSpec& spec) {
  MoeSpec& moe = spec.moe;
  XJIT_ASSIGN_OR_RETURN(moe.experts, keys.Int("expert_count", 1, kMaxExperts));
  XJIT_ASSIGN_OR_RETURN(moe.experts_per_token, keys.Int("expert_used_count", 1, kMaxExperts));
  XJIT_ASSIGN_OR_RETURN(moe.intermediate_size,
                        keys.IntOr("expert_feed_forward_length", spec.intermediate_size, 1, kMaxDim));
  moe.layers.assign(static_cast<size_t>(spec.layers), true);
  if (spec.arch.starts_with("deepseek")) return absl::OkStatus();
  // The others' routers are fixed: what would make them differ is refused.
  for (const std::string_view name : {"expert_shared_count", "expert_group_count", "leading_dense_block_count"}) {
    XJIT_ASSIGN_OR_RETURN(const int64_t number, keys.IntOr(name, 0, 0, kMaxDim));
    if (number > (name == "expert_group_count" ? 1 : 0)) {
      return Unimplemented("{}: is {} in a file of {}", keys.Place(name), number, spec.arch);
    }
  }
  XJIT_ASSIGN_OR_RETURN(const auto scale, keys.Number("expert_weights_scale", -kMaxReal, kMaxReal));
  if (scale.value_or(0) != 0 && *scale != 1) {
    return Unimplemented("{}: is {} in a file of {}", keys.Place("expert_weights_scale"), *scale, spec.arch);
  }
  XJIT_ASSIGN_OR_RETURN(const int64_t gating, keys.IntOr("expert_gating_func", 0, 0, kMaxDim));
  if (gating == 2 || gating > 3) {  // 1 softmax, 3 softmax of the chosen
    return Unimplemented("{}: is {} in a file of {}", keys.Place("expert_gating_func"), gating, spec.arch);
  }
  return absl::OkStatus();
}

absl::Status ReadGemma(const ArchKeys& keys, ModelSpec& spec) {
  XJIT_RETURN_IF_ERROR(ReadWindows(keys, 6, spec));
  spec.activation = Activation::kGeluTanh;
  spec.qk_norm = spec.post_norms = true;
  spec.embed_scale = std::sqrt(static_cast<double>(spec.hidden_size));
  // The files do not say; the 27B model, known by its 62 layers, scales by another width than its heads'.
  const int64_t width = spec.layers == 62 ? spec.hidden_size / spec.heads : spec.head_dim;
  if (width == 0) return InvalidArgument("{}: more heads than values", keys.Place("attention.head_count"));
  spec.attention_scale = 1 / std::sqrt(static_cast<double>(width));
  XJIT_ASSIGN_OR_RETURN(const auto attention_cap, keys.Decimal("attn_logit_softcapping", 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const auto final_cap, keys.Decimal("final_logit_softcapping", 0, kMaxReal));
  spec.attention_soft_cap = attention_cap.value_or(0);
  spec.final_soft_cap = final_cap.value_or(0);
  return absl::OkStatus();
}

absl::Status ReadDeepSeek(const ArchKeys& keys, ModelSpec& spec) {
  XJIT_RETURN_IF_ERROR(ReadExperts(keys, spec));
  MoeSpec& moe = spec.moe;
  XJIT_ASSIGN_OR_RETURN(const int64_t shared, keys.IntOr("expert_shared_count", 0, 0, kMaxExperts));
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  if (moe.shared_intermediate_size > kMaxDim) {
    return InvalidArgument("{}: {} experts of {} are too wide", keys.Place("expert_shared_count"), shared,
                           moe.intermediate_size);
  }
  XJIT_ASSIGN_OR_RETURN(const int64_t dense, keys.IntOr("leading_dense_block_count", 0, 0, spec.layers - 1));
  std::fill_n(moe.layers.begin(), dense, false);
  XJIT_ASSIGN_OR_RETURN(const auto scale, keys.Decimal("expert_weights_scale", 0, kMaxReal));
  if (scale.value_or(0) != 0) moe.scale = *scale;
  if (moe.scale < kMinReal) return InvalidArgument("{}: too small", keys.Place("expert_weights_scale"));
  XJIT_ASSIGN_OR_RETURN(moe.normalize, keys.BoolOr("expert_weights_norm", false));
  XJIT_ASSIGN_OR_RETURN(moe.groups, keys.IntOr("expert_group_count", 1, 1, kMaxExperts));
  XJIT_ASSIGN_OR_RETURN(moe.top_groups, keys.IntOr("expert_group_used_count", moe.groups, 1, kMaxExperts));
  if (spec.arch == "deepseek_v3") {
    moe.score = Score::kSigmoid;
    moe.correction_bias = true;
    if (moe.groups > 1) moe.group_top = 2;
  } else if (moe.normalize) {
    return Unimplemented("{}: is true, expected false (implementations of DeepSeek V2 differ in what it means)",
                         keys.Place("expert_weights_norm"));
  }
  XJIT_ASSIGN_OR_RETURN(const auto temperature, keys.Number("attention.temperature_scale", -kMaxReal, kMaxReal));
  if (temperature.value_or(0) != 0) {
    return Unimplemented("{}: is {}, expected 0", keys.Place("attention.temperature_scale"), *temperature);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGgufMla(const ArchKeys& keys, ModelSpec& spec) {
  MlaSpec& mla = spec.mla;
  XJIT_ASSIGN_OR_RETURN(mla.q_lora_rank, keys.IntOr("attention.q_lora_rank", 0, 0, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(mla.kv_lora_rank, keys.Int("attention.kv_lora_rank", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(mla.rope_dim, keys.Int("rope.dimension_count", 2, kMaxDim / 2));
  // Files from before llama.cpp absorbed weights (2025-04) say the sizes of heads in key_length and value_length, which
  // are the cached row's since.
  const bool absorbed = keys.Has("attention.key_length_mla");
  const std::string_view key = absorbed ? "attention.key_length_mla" : "attention.key_length";
  XJIT_ASSIGN_OR_RETURN(spec.head_dim, keys.Int(key, 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(mla.v_dim,
                        keys.Int(absorbed ? "attention.value_length_mla" : "attention.value_length", 1, kMaxDim));
  mla.nope_dim = spec.head_dim - mla.rope_dim;
  if (mla.rope_dim % 2 != 0 || mla.nope_dim < 1) {
    return InvalidArgument("{}: heads of {} with {} rotated values, expected an even number below", keys.Place(key),
                           spec.head_dim, mla.rope_dim);
  }
  spec.kv_heads = spec.heads;
  return absl::OkStatus();
}

absl::Status ReadGgufFamily(const ArchKeys& keys, ModelSpec& spec) {
  if (spec.arch == "mistral" || spec.arch == "phi3") {
    return ReadWindows(keys, 0, spec);
  }
  if (spec.arch == "mixtral") {
    XJIT_RETURN_IF_ERROR(ReadWindows(keys, 0, spec));
    XJIT_RETURN_IF_ERROR(ReadExperts(keys, spec));
    if (spec.moe.intermediate_size != spec.intermediate_size) {
      return Unimplemented("{}: is {}, expected {} as feed_forward_length", keys.Place("expert_feed_forward_length"),
                           spec.moe.intermediate_size, spec.intermediate_size);
    }
    spec.moe.score = Score::kSoftmaxOfChosen;
  } else if (spec.arch == "qwen3") {
    spec.qk_norm = true;
  } else if (spec.arch == "qwen3_moe") {
    XJIT_RETURN_IF_ERROR(ReadExperts(keys, spec));
    spec.qk_norm = true;
    spec.moe.normalize = true;  // the files do not say; all published models have it (qwen3moe.cpp)
  } else if (spec.arch == "gemma3") {
    return ReadGemma(keys, spec);
  } else if (spec.arch == "gpt_oss") {
    XJIT_RETURN_IF_ERROR(ReadWindows(keys, 2, spec));
    XJIT_RETURN_IF_ERROR(ReadExperts(keys, spec));
    spec.intermediate_size = spec.moe.intermediate_size;
    spec.moe.score = Score::kSoftmaxOfChosen;
    spec.moe.router_bias = spec.moe.expert_bias = true;
    spec.sinks = true;
    spec.activation = Activation::kClampedSwiglu;
  } else if (spec.arch.starts_with("deepseek")) {
    XJIT_RETURN_IF_ERROR(ReadDeepSeek(keys, spec));
  } else {
    XJIT_ASSIGN_OR_RETURN(const int64_t experts, keys.IntOr("expert_count", 0, 0, kMaxDim));
    if (experts != 0) {
      return Unimplemented("{}: is {} in a file of {}", keys.Place("expert_count"), experts, spec.arch);
    }
  }
  return CheckMoe(spec.moe, {keys.Place("expert_used_count"), keys.Place("expert_group_count"),
                             keys.Place("expert_group_used_count")});
}

absl::Status ReadGgufRope(const ArchKeys& keys, const GgufModelTensors& tensors, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> theta, keys.Number("rope.freq_base", kMinReal, kMaxReal));
  rope.theta = theta.value_or(10000);
  if (spec.mla.kv_lora_rank == 0) {
    XJIT_ASSIGN_OR_RETURN(const int64_t rotary, keys.IntOr("rope.dimension_count", spec.head_dim, 0, kMaxDim));
    const bool part = spec.arch == "phi3" && rotary > 0 && rotary < spec.head_dim && rotary % 2 == 0;
    if (part) {
      spec.rotary_dim = rotary;
    } else if (rotary != spec.head_dim) {
      return Unimplemented("{}: is {} of a head's {} (partial rotary embedding)", keys.Place("rope.dimension_count"),
                           rotary, spec.head_dim);
    }
  }
  if (spec.arch == "gemma3") {
    XJIT_ASSIGN_OR_RETURN(const auto local, keys.Number("rope.freq_base_swa", kMinReal, kMaxReal));
    spec.local_rope.emplace();
    spec.local_rope->theta = local.value_or(10000);
  }
  XJIT_RETURN_IF_ERROR(ReadScaling(keys, tensors, spec, rope));
  if (spec.local_rope == rope) spec.local_rope.reset();
  return absl::OkStatus();
}

}  // namespace xjit
