#include "frontend/hf_rope.h"

#include <cmath>
#include <optional>
#include <string>

#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"
#include "models/rope.h"

namespace xjit {
namespace {

using Scaling = RopeSpec::Scaling;

// What the configuration classes say where the file has no rope_theta.
double DefaultTheta(std::string_view arch) {
  if (arch == "gemma3" || arch == "mixtral") return 1e6;
  if (arch == "gpt_oss") return 150000;
  return 10000;
}

absl::Status ReadYarn(const JsonObject& from, RopeSpec& rope) {
  XJIT_ASSIGN_OR_RETURN(rope.beta_fast, from.NumberOr("beta_fast", 32, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.beta_slow, from.NumberOr("beta_slow", 1, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.attention_factor, from.Number("attention_factor", kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.mscale, from.Number("mscale", 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.mscale_all_dim, from.Number("mscale_all_dim", 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.truncate, from.BoolOr("truncate", true));
  return absl::OkStatus();
}

absl::Status ReadLlama3(const JsonObject& from, RopeSpec& rope) {
  for (const std::string_view key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (!from.Has(key)) return InvalidArgument("{}: missing", from.Place(key));
  }
  XJIT_ASSIGN_OR_RETURN(rope.low_freq_factor, from.NumberOr("low_freq_factor", 1, kMinReal, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(rope.high_freq_factor, from.NumberOr("high_freq_factor", 4, kMinReal, kMaxReal));
  // The ramp between them divides by their difference.
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    return InvalidArgument("{}: is {}, expected above low_freq_factor = {}", from.Place("high_freq_factor"),
                           rope.high_freq_factor, rope.low_freq_factor);
  }
  return absl::OkStatus();
}

absl::Status ReadLongRope(const JsonObject& from, int64_t rotary, RopeSpec& rope) {
  // Phi-3.5-MoE's form, which scales by fixed numbers instead.
  for (const std::string_view key : {"short_mscale", "long_mscale"}) {
    if (from.Has(key)) return Unimplemented("{}: is not supported", from.Place(key));
  }
  for (const auto& [key, to] : {std::pair("short_factor", &rope.short_factors), {"long_factor", &rope.long_factors}}) {
    XJIT_ASSIGN_OR_RETURN(*to, from.Numbers(key, kMinReal, kMaxReal));
    if (static_cast<int64_t>(to->size()) != rotary / 2) {
      return InvalidArgument("{}: has {} entries, expected one for each of the {} rotated pairs", from.Place(key),
                             to->size(), rotary / 2);
    }
  }
  XJIT_ASSIGN_OR_RETURN(rope.attention_factor, from.Number("attention_factor", kMinReal, kMaxReal));
  if (!rope.attention_factor) {
    const double original = static_cast<double>(rope.original_max_positions);
    rope.attention_factor = rope.factor <= 1 ? 1 : std::sqrt(1 + std::log(rope.factor) / std::log(original));
  }
  if (!std::isfinite(*rope.attention_factor)) {
    return InvalidArgument("{}: is {}, too small", from.Place("original_max_position_embeddings"),
                           rope.original_max_positions);
  }
  return absl::OkStatus();
}

absl::StatusOr<Scaling> ScalingType(const JsonObject& from, std::string_view arch) {
  XJIT_ASSIGN_OR_RETURN(const std::string older, from.StringOr("type", "default"));
  XJIT_ASSIGN_OR_RETURN(const std::string type, from.StringOr("rope_type", older));
  if (from.Has("factor") && !from.Has("type") && !from.Has("rope_type")) {
    return InvalidArgument("{}: missing, but there is a factor", from.Place("rope_type"));
  }
  if (type == "none" || type == "default") return Scaling::kNone;
  if (type == "linear") return Scaling::kLinear;
  if (type == "llama3") return Scaling::kLlama3;
  // Phi-3's first files call longrope "su" or "yarn" (Phi3Config.convert_rope_params_to_dict).
  if (type == "longrope" || type == "su" || (type == "yarn" && arch == "phi3")) return Scaling::kLongRope;
  if (type == "yarn") return Scaling::kYarn;
  return Unimplemented("{}: is \"{}\", expected default, linear, llama3, yarn or longrope",
                       from.Place(from.Has("rope_type") ? "rope_type" : "type"), Printable(type));
}

absl::Status ReadScaling(const JsonObject& config, const JsonObject& from, const ModelSpec& spec, RopeSpec& rope) {
  XJIT_ASSIGN_OR_RETURN(rope.scaling, ScalingType(from, spec.arch));
  if (rope.scaling == Scaling::kNone) return absl::OkStatus();
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, from.Number("factor", kMinReal, kMaxReal));
  if (rope.scaling != Scaling::kLinear) {
    XJIT_ASSIGN_OR_RETURN(const int64_t outer,
                          config.IntOr("original_max_position_embeddings", spec.max_positions, 1, kMaxDim));
    XJIT_ASSIGN_OR_RETURN(rope.original_max_positions,
                          from.IntOr("original_max_position_embeddings", outer, 1, kMaxDim));
  }
  const bool longrope = rope.scaling == Scaling::kLongRope;
  if (factor) {
    rope.factor = *factor;
  } else if (longrope || (rope.scaling == Scaling::kYarn && rope.original_max_positions < spec.max_positions)) {
    rope.factor = static_cast<double>(spec.max_positions) / static_cast<double>(rope.original_max_positions);
  } else {
    return InvalidArgument("{}: missing", from.Place("factor"));
  }
  if (longrope) return ReadLongRope(from, RotaryDim(spec), rope);
  if (rope.scaling == Scaling::kYarn) return ReadYarn(from, rope);
  if (rope.scaling == Scaling::kLlama3) return ReadLlama3(from, rope);
  return absl::OkStatus();
}

// partial_rotary_factor, which may stand in either place.
absl::Status ReadRotaryDim(const JsonObject& config, const std::optional<JsonObject>& newer, ModelSpec& spec) {
  for (const JsonObject* from : {newer ? &*newer : nullptr, &config}) {
    if (from == nullptr) continue;
    XJIT_ASSIGN_OR_RETURN(const double part, from->NumberOr("partial_rotary_factor", 1, 0, 1));
    if (part == 1) continue;
    if (spec.arch != "phi3") {
      return Unimplemented("{}: is {}, expected 1 (partial rotary embedding)", from->Place("partial_rotary_factor"),
                           part);
    }
    spec.rotary_dim = static_cast<int64_t>(static_cast<double>(spec.head_dim) * part);
    if (spec.rotary_dim == 0 || spec.rotary_dim % 2 != 0) {
      return InvalidArgument("{}: rotates {} of a head's {} values, expected an even number above 0",
                             from->Place("partial_rotary_factor"), spec.rotary_dim, spec.head_dim);
    }
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// rope_parameters with an object for each kind of layer.
absl::Status ReadByLayerKind(const JsonObject& config, const JsonObject& newer, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const auto full, newer.Object("full_attention"));
  XJIT_ASSIGN_OR_RETURN(const auto sliding, newer.Object("sliding_attention"));
  if (full) {
    XJIT_ASSIGN_OR_RETURN(spec.rope.theta, full->NumberOr("rope_theta", spec.rope.theta, kMinReal, kMaxReal));
    XJIT_RETURN_IF_ERROR(ReadScaling(config, *full, spec, spec.rope));
  }
  if (!sliding) return absl::OkStatus();
  RopeSpec local;
  local.theta = spec.local_rope ? spec.local_rope->theta : spec.rope.theta;
  XJIT_ASSIGN_OR_RETURN(local.theta, sliding->NumberOr("rope_theta", local.theta, kMinReal, kMaxReal));
  XJIT_RETURN_IF_ERROR(ReadScaling(config, *sliding, spec, local));
  if (spec.arch == "gemma3" && local.scaling != Scaling::kNone) {
    return Unimplemented("{}: scales the layers with a window, expected default", sliding->Place("rope_type"));
  }
  spec.local_rope = local;
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadHfRope(const JsonObject& config, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const auto newer, config.Object("rope_parameters"));
  XJIT_ASSIGN_OR_RETURN(const auto older, config.Object("rope_scaling"));
  RopeSpec& rope = spec.rope;
  XJIT_ASSIGN_OR_RETURN(rope.theta, config.NumberOr("rope_theta", DefaultTheta(spec.arch), kMinReal, kMaxReal));
  XJIT_RETURN_IF_ERROR(ReadRotaryDim(config, newer, spec));
  if (spec.arch == "gemma3") {
    XJIT_ASSIGN_OR_RETURN(const double theta, config.NumberOr("rope_local_base_freq", 10000, kMinReal, kMaxReal));
    spec.local_rope.emplace();
    spec.local_rope->theta = theta;
  }
  if (newer && (newer->Has("full_attention") || newer->Has("sliding_attention"))) {
    XJIT_RETURN_IF_ERROR(ReadByLayerKind(config, *newer, spec));
  } else if (newer) {
    XJIT_ASSIGN_OR_RETURN(rope.theta, newer->NumberOr("rope_theta", rope.theta, kMinReal, kMaxReal));
    XJIT_RETURN_IF_ERROR(ReadScaling(config, *newer, spec, rope));
  } else if (older) {
    XJIT_RETURN_IF_ERROR(ReadScaling(config, *older, spec, rope));
  } else if (spec.arch == "gpt_oss") {
    rope.scaling = Scaling::kYarn;  // GptOssConfig's default
    rope.factor = 32;
    rope.original_max_positions = 4096;
    rope.truncate = false;
  }
  if (spec.local_rope == rope) spec.local_rope.reset();
  if (spec.local_rope && spec.arch != "gemma3") {
    return Unimplemented("{}: differs between kinds of layers", config.Place("rope_parameters"));
  }
  return absl::OkStatus();
}

void WriteHfRope(const ModelSpec& spec, nlohmann::ordered_json& out) {
  const RopeSpec& rope = spec.rope;
  out["rope_theta"] = rope.theta;
  if (spec.arch == "gemma3") out["rope_local_base_freq"] = (spec.local_rope ? *spec.local_rope : rope).theta;
  if (spec.rotary_dim > 0) {
    const double head = static_cast<double>(spec.head_dim);
    double part = static_cast<double>(spec.rotary_dim) / head;
    // The product must round down to the same number.
    if (static_cast<int64_t>(head * part) != spec.rotary_dim) part += 0.5 / head;
    out["partial_rotary_factor"] = part;
  }
  auto& scaling = out["rope_scaling"];
  switch (rope.scaling) {
    case Scaling::kNone:
      if (spec.arch == "gpt_oss") scaling["rope_type"] = "default";
      return;
    case Scaling::kLinear:
      scaling["rope_type"] = "linear";
      scaling["factor"] = rope.factor;
      return;
    case Scaling::kLlama3:
      scaling["rope_type"] = "llama3";
      scaling["factor"] = rope.factor;
      scaling["low_freq_factor"] = rope.low_freq_factor;
      scaling["high_freq_factor"] = rope.high_freq_factor;
      scaling["original_max_position_embeddings"] = rope.original_max_positions;
      return;
    case Scaling::kYarn:
      scaling["rope_type"] = "yarn";
      scaling["factor"] = rope.factor;
      scaling["original_max_position_embeddings"] = rope.original_max_positions;
      scaling["beta_fast"] = rope.beta_fast;
      scaling["beta_slow"] = rope.beta_slow;
      if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
      if (rope.mscale) scaling["mscale"] = *rope.mscale;
      if (rope.mscale_all_dim) scaling["mscale_all_dim"] = *rope.mscale_all_dim;
      scaling["truncate"] = rope.truncate;
      return;
    case Scaling::kLongRope:
      scaling["rope_type"] = "longrope";
      scaling["factor"] = rope.factor;
      scaling["original_max_position_embeddings"] = rope.original_max_positions;
      if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
      scaling["short_factor"] = rope.short_factors;
      scaling["long_factor"] = rope.long_factors;
      return;
  }
}

}  // namespace xjit
