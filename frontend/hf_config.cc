#include "frontend/hf_config.h"

#include <optional>
#include <string>
#include <vector>

#include "frontend/architectures.h"
#include "frontend/hf_families.h"
#include "frontend/hf_rope.h"
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

// A size that must be there unless the family has a default.
absl::StatusOr<int64_t> Size(const JsonObject& config, std::string_view key, int64_t fallback) {
  return fallback > 0 ? config.IntOr(key, fallback, 1, kMaxDim) : config.Int(key, 1, kMaxDim);
}

absl::Status ReadHeads(const JsonObject& config, const SizeDefaults& defaults, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(spec.heads, Size(config, "num_attention_heads", defaults.heads));
  if (defaults.latent) return absl::OkStatus();
  const int64_t kv_heads = defaults.kv_heads > 0 ? defaults.kv_heads : spec.heads;
  XJIT_ASSIGN_OR_RETURN(spec.kv_heads, config.IntOr("num_key_value_heads", kv_heads, 1, kMaxDim));
  if (spec.heads % spec.kv_heads != 0) {
    return InvalidArgument("{}: {} does not divide num_attention_heads = {}", config.Place("num_key_value_heads"),
                           spec.kv_heads, spec.heads);
  }
  int64_t head_dim = defaults.head_dim;
  if (!config.Has("head_dim") && head_dim == 0) {
    if (spec.hidden_size % spec.heads != 0) {
      return InvalidArgument("{}: {} does not divide hidden_size = {} (is head_dim missing?)",
                             config.Place("num_attention_heads"), spec.heads, spec.hidden_size);
    }
    head_dim = spec.hidden_size / spec.heads;
  }
  XJIT_ASSIGN_OR_RETURN(spec.head_dim, config.IntOr("head_dim", head_dim, 1, kMaxDim));
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("{}: is {}, expected an even number (rotary embedding turns pairs)",
                           config.Place("head_dim"), spec.head_dim);
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const JsonObject& config, ModelSpec& spec) {
  const SizeDefaults defaults = DefaultSizes(spec.arch);
  XJIT_ASSIGN_OR_RETURN(spec.vocab_size, Size(config, "vocab_size", defaults.vocab_size));
  XJIT_ASSIGN_OR_RETURN(spec.hidden_size, Size(config, "hidden_size", 0));
  XJIT_ASSIGN_OR_RETURN(spec.intermediate_size, Size(config, "intermediate_size", 0));
  XJIT_ASSIGN_OR_RETURN(spec.layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  XJIT_ASSIGN_OR_RETURN(spec.max_positions, Size(config, "max_position_embeddings", defaults.max_positions));
  XJIT_RETURN_IF_ERROR(ReadHeads(config, defaults, spec));
  XJIT_ASSIGN_OR_RETURN(spec.rms_norm_eps, config.NumberOr("rms_norm_eps", 1e-6, 0, 1));
  XJIT_ASSIGN_OR_RETURN(spec.tie_word_embeddings, config.BoolOr("tie_word_embeddings", defaults.tied));
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
  // Gemma 3's multimodal files have the language model's keys one level down.
  XJIT_ASSIGN_OR_RETURN(const std::optional<JsonObject> text, config.Object("text_config"));
  if (text && spec.arch != "gemma3") {
    return Unimplemented("{}: {} with other modalities is not supported", config.Place("text_config"), spec.arch);
  }
  const JsonObject& from = text ? *text : config;
  XJIT_RETURN_IF_ERROR(ReadSizes(from, spec));
  XJIT_RETURN_IF_ERROR(ReadHfFamily(from, spec));
  XJIT_RETURN_IF_ERROR(ReadHfRope(from, spec));
  SetMlaScale(spec);
  if (text) XJIT_RETURN_IF_ERROR(ReadTokenIds(*text, spec));
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
  if (spec.mla.kv_lora_rank == 0) out["head_dim"] = spec.head_dim;
  out["max_position_embeddings"] = spec.max_positions;
  out["rms_norm_eps"] = spec.rms_norm_eps;
  WriteHfRope(spec, out);
  out["tie_word_embeddings"] = spec.tie_word_embeddings;
  WriteHfFamily(spec, out);
  out["bos_token_id"] = spec.bos_ids;
  out["eos_token_id"] = spec.eos_ids;
  return out;
}

}  // namespace xjit
