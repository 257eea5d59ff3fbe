#include "frontend/hf_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "frontend/architectures.h"
#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

absl::StatusOr<const Architecture*> FindArch(const JsonObject& config, std::string_view arch) {
  std::string name(arch), place = config.Place("arch");
  if (name.empty()) {
    place = config.Place("model_type");
    XJIT_ASSIGN_OR_RETURN(name, config.StringOr("model_type", ""));
  }
  if (!name.empty()) {
    if (const Architecture* row = FindArchitecture(&Architecture::name, name)) return row;
  } else {
    place = config.Place("architectures");
    XJIT_ASSIGN_OR_RETURN(const std::vector<std::string> classes, config.Strings("architectures"));
    if (classes.empty()) return InvalidArgument("{}: missing (and no architectures)", config.Place("model_type"));
    for (const std::string& hf_class : classes) {
      if (const Architecture* row = FindArchitecture(&Architecture::hf_class, hf_class)) return row;
    }
    name = classes[0];
  }
  return Unimplemented("{}: is \"{}\", which is not supported (known: {})", place, Printable(name), ArchitectureList());
}

absl::Status ReadSizes(const JsonObject& config, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(spec.vocab_size, config.Int("vocab_size", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.hidden_size, config.Int("hidden_size", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.intermediate_size, config.Int("intermediate_size", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  XJIT_ASSIGN_OR_RETURN(spec.heads, config.Int("num_attention_heads", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.kv_heads, config.IntOr("num_key_value_heads", spec.heads, 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.max_positions, config.Int("max_position_embeddings", 1, kMaxDim));
  if (spec.heads % spec.kv_heads != 0) {
    return InvalidArgument("{}: {} does not divide num_attention_heads = {}", config.Place("num_key_value_heads"),
                           spec.kv_heads, spec.heads);
  }
  if (!config.Has("head_dim") && spec.hidden_size % spec.heads != 0) {
    return InvalidArgument("{}: {} does not divide hidden_size = {} (is head_dim missing?)",
                           config.Place("num_attention_heads"), spec.heads, spec.hidden_size);
  }
  XJIT_ASSIGN_OR_RETURN(spec.head_dim, config.IntOr("head_dim", spec.hidden_size / spec.heads, 1, kMaxDim));
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("{}: is {}, expected an even number (rotary embedding turns pairs)",
                           config.Place("head_dim"), spec.head_dim);
  }
  XJIT_ASSIGN_OR_RETURN(spec.rms_norm_eps, config.NumberOr("rms_norm_eps", 1e-6, 0, 1));
  XJIT_ASSIGN_OR_RETURN(spec.tie_word_embeddings, config.BoolOr("tie_word_embeddings", false));
  return absl::OkStatus();
}

// Refuses what changes the results and is not built.
absl::Status CheckSupported(const JsonObject& config) {
  XJIT_ASSIGN_OR_RETURN(const std::string act, config.StringOr("hidden_act", "silu"));
  if (act != "silu" && act != "swish") {
    return Unimplemented("{}: is \"{}\", expected silu", config.Place("hidden_act"), Printable(act));
  }
  XJIT_ASSIGN_OR_RETURN(const auto quantization, config.Object("quantization_config"));
  if (quantization) {
    XJIT_ASSIGN_OR_RETURN(const std::string method, quantization->StringOr("quant_method", "unnamed"));
    return Unimplemented("{}: quantisation \"{}\" is not supported (use the unquantised checkpoint or a GGUF file)",
                         config.Place("quantization_config.quant_method"), Printable(method));
  }
  // Only the type is checked: each tensor says its own.
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    XJIT_RETURN_IF_ERROR(config.StringOr(key, "").status());
  }
  return absl::OkStatus();
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

absl::Status ReadRopeScaling(const JsonObject& config, const JsonObject& from, int64_t max_positions, RopeSpec& rope) {
  using Scaling = RopeSpec::Scaling;
  XJIT_ASSIGN_OR_RETURN(const std::string older, from.StringOr("type", "default"));
  XJIT_ASSIGN_OR_RETURN(const std::string type, from.StringOr("rope_type", older));
  if (from.Has("factor") && !from.Has("type") && !from.Has("rope_type")) {
    return InvalidArgument("{}: missing, but there is a factor", from.Place("rope_type"));
  }
  if (type == "none" || type == "default") return absl::OkStatus();
  if (type == "linear") {
    rope.scaling = Scaling::kLinear;
  } else if (type == "llama3") {
    rope.scaling = Scaling::kLlama3;
  } else if (type == "yarn") {
    rope.scaling = Scaling::kYarn;
  } else {
    return Unimplemented("{}: is \"{}\", expected default, linear, llama3 or yarn",
                         from.Place(from.Has("rope_type") ? "rope_type" : "type"), Printable(type));
  }
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, from.Number("factor", kMinReal, kMaxReal));
  if (rope.scaling != Scaling::kLinear) {
    XJIT_ASSIGN_OR_RETURN(const int64_t outer,
                          config.IntOr("original_max_position_embeddings", max_positions, 1, kMaxDim));
    XJIT_ASSIGN_OR_RETURN(rope.original_max_positions,
                          from.IntOr("original_max_position_embeddings", outer, 1, kMaxDim));
  }
  if (!factor && rope.scaling == Scaling::kYarn && rope.original_max_positions < max_positions) {
    rope.factor = static_cast<double>(max_positions) / static_cast<double>(rope.original_max_positions);
  } else if (!factor) {
    return InvalidArgument("{}: missing", from.Place("factor"));
  } else {
    rope.factor = *factor;
  }
  if (rope.scaling == Scaling::kYarn) return ReadYarn(from, rope);
  if (rope.scaling == Scaling::kLlama3) {
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
  }
  return absl::OkStatus();
}

absl::Status ReadRope(const JsonObject& config, int64_t max_positions, RopeSpec& rope) {
  XJIT_ASSIGN_OR_RETURN(const auto newer, config.Object("rope_parameters"));
  XJIT_ASSIGN_OR_RETURN(const auto older, config.Object("rope_scaling"));
  XJIT_ASSIGN_OR_RETURN(rope.theta, config.NumberOr("rope_theta", 10000, kMinReal, kMaxReal));
  for (const JsonObject* from : {newer ? &*newer : nullptr, &config}) {
    if (from == nullptr) continue;
    XJIT_ASSIGN_OR_RETURN(const double part, from->NumberOr("partial_rotary_factor", 1, 0, kMaxReal));
    if (part != 1) {
      return Unimplemented("{}: is {}, expected 1 (partial rotary embedding)", from->Place("partial_rotary_factor"),
                           part);
    }
  }
  if (newer) {
    if (newer->Has("full_attention") || newer->Has("sliding_attention")) {
      return Unimplemented("{}: differs between kinds of layers", config.Place("rope_parameters"));
    }
    XJIT_ASSIGN_OR_RETURN(rope.theta, newer->NumberOr("rope_theta", rope.theta, kMinReal, kMaxReal));
    return ReadRopeScaling(config, *newer, max_positions, rope);
  }
  if (older) return ReadRopeScaling(config, *older, max_positions, rope);
  return absl::OkStatus();
}

// Qwen2: with use_sliding_window, the layers from max_window_layers on see a window; `layer_types` says the same by
// name where the config has it.
absl::Status ReadSlidingWindow(const JsonObject& config, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const bool use, config.BoolOr("use_sliding_window", false));
  XJIT_ASSIGN_OR_RETURN(const int64_t window, config.IntOr("sliding_window", 4096, 0, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(int64_t full, config.IntOr("max_window_layers", 28, 0, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (!types.empty()) {
    if (static_cast<int64_t>(types.size()) != spec.layers) {
      return InvalidArgument("{}: has {} entries for {} layers", config.Place("layer_types"), types.size(),
                             spec.layers);
    }
    const auto first = std::find(types.begin(), types.end(), "sliding_attention");
    full = first - types.begin();
    for (auto it = types.begin(); it != types.end(); ++it) {
      if (*it != (it < first ? "full_attention" : "sliding_attention")) {
        return Unimplemented(
            "{}[{}]: is \"{}\"; only full_attention layers followed by sliding_attention ones are "
            "supported",
            config.Place("layer_types"), it - types.begin(), Printable(*it));
      }
    }
  }
  if (!use || full >= spec.layers) return absl::OkStatus();
  if (window == 0) return absl::OkStatus();
  spec.windows.assign(static_cast<size_t>(spec.layers), window);
  std::fill_n(spec.windows.begin(), full, 0);
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const JsonObject& from, ModelSpec& spec) {
  const auto read = [&](std::string_view key, std::vector<int32_t>& to) -> absl::Status {
    // -1 stands for "none" in some configs.
    XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, from.Ints(key, -1, kMaxDim));
    if (!from.Has(key)) return absl::OkStatus();
    to.clear();
    for (const int64_t id : ids) {
      if (id >= 0) to.push_back(static_cast<int32_t>(id));
    }
    return absl::OkStatus();
  };
  XJIT_RETURN_IF_ERROR(read("bos_token_id", spec.bos_ids));
  return read("eos_token_id", spec.eos_ids);
}

}  // namespace

absl::StatusOr<ModelSpec> HfSpec(const JsonObject& config, std::string_view arch) {
  XJIT_ASSIGN_OR_RETURN(const Architecture* row, FindArch(config, arch));
  ModelSpec spec;
  spec.arch = row->name;
  XJIT_RETURN_IF_ERROR(CheckSupported(config));
  XJIT_RETURN_IF_ERROR(ReadSizes(config, spec));
  XJIT_RETURN_IF_ERROR(ReadRope(config, spec.max_positions, spec.rope));
  if (spec.arch == "qwen2") {
    spec.qkv_bias = true;
    XJIT_RETURN_IF_ERROR(ReadSlidingWindow(config, spec));
  } else {
    XJIT_ASSIGN_OR_RETURN(spec.qkv_bias, config.BoolOr("attention_bias", false));
    spec.o_bias = spec.qkv_bias;
    XJIT_ASSIGN_OR_RETURN(spec.mlp_bias, config.BoolOr("mlp_bias", false));
  }
  XJIT_RETURN_IF_ERROR(ReadTokenIds(config, spec));
  return spec;
}

absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file) {
  XJIT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file));
  XJIT_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::From(json, file));
  return HfSpec(config);
}

absl::Status ApplyGenerationConfig(std::string_view text, std::string_view file, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file));
  XJIT_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::From(json, file));
  return ReadTokenIds(config, spec);
}

nlohmann::ordered_json ToHfKeys(const ModelSpec& spec) {
  nlohmann::ordered_json out;
  out["arch"] = spec.arch;
  out["vocab_size"] = spec.vocab_size;
  out["hidden_size"] = spec.hidden_size;
  out["intermediate_size"] = spec.intermediate_size;
  out["num_hidden_layers"] = spec.layers;
  out["num_attention_heads"] = spec.heads;
  out["num_key_value_heads"] = spec.kv_heads;
  out["head_dim"] = spec.head_dim;
  out["max_position_embeddings"] = spec.max_positions;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = spec.rms_norm_eps;
  out["rope_theta"] = spec.rope.theta;
  const RopeSpec& rope = spec.rope;
  if (rope.scaling == RopeSpec::Scaling::kNone) {
    out["rope_scaling"] = nullptr;
  } else {
    auto& scaling = out["rope_scaling"];
    const bool llama3 = rope.scaling == RopeSpec::Scaling::kLlama3, yarn = rope.scaling == RopeSpec::Scaling::kYarn;
    scaling["rope_type"] = llama3 ? "llama3" : yarn ? "yarn" : "linear";
    scaling["factor"] = rope.factor;
    if (llama3) {
      scaling["low_freq_factor"] = rope.low_freq_factor;
      scaling["high_freq_factor"] = rope.high_freq_factor;
    }
    if (llama3 || yarn) scaling["original_max_position_embeddings"] = rope.original_max_positions;
    if (yarn) {
      scaling["beta_fast"] = rope.beta_fast;
      scaling["beta_slow"] = rope.beta_slow;
      if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
      if (rope.mscale) scaling["mscale"] = *rope.mscale;
      if (rope.mscale_all_dim) scaling["mscale_all_dim"] = *rope.mscale_all_dim;
      scaling["truncate"] = rope.truncate;
    }
  }
  out["tie_word_embeddings"] = spec.tie_word_embeddings;
  out["attention_bias"] = spec.qkv_bias;
  out["mlp_bias"] = spec.mlp_bias;
  if (spec.arch == "qwen2") {
    const auto first = std::find_if(spec.windows.begin(), spec.windows.end(), [](int64_t w) { return w != 0; });
    out["use_sliding_window"] = !spec.windows.empty();
    out["sliding_window"] = first == spec.windows.end() ? 0 : *first;
    out["max_window_layers"] = spec.windows.empty() ? spec.layers : first - spec.windows.begin();
  }
  out["bos_token_id"] = spec.bos_ids;
  out["eos_token_id"] = spec.eos_ids;
  return out;
}

}  // namespace xjit
