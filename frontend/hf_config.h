// Hugging Face's config.json and generation_config.json -> ModelSpec. What is each family's own is in hf_families.h,
// the rotary embedding in hf_rope.h, quantisation in quant_config.h.
// Keys: https://github.com/huggingface/transformers, models/*/configuration_*.py.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/json.h"
#include "models/spec.h"

namespace xjit {

// The model that a config.json describes. `file` is the name for messages. InvalidArgument names a key that is
// missing, of another JSON type or absurd; Unimplemented names what is valid but not supported (architecture,
// activation, rope scaling).
absl::StatusOr<ModelSpec> ParseHfConfig(std::string_view text, std::string_view file);

// The same from a parsed object. The architecture is `arch` where not empty, else `model_type`, else `architectures`.
absl::StatusOr<ModelSpec> HfSpec(const JsonObject& config, std::string_view arch = "");

// Takes bos_token_id and eos_token_id of a generation_config.json, which win over config.json's.
absl::Status ApplyGenerationConfig(std::string_view text, std::string_view file, ModelSpec& spec);

// Writes the spec under config.json's keys (architecture as `arch`), for a manifest: HfSpec reads them back.
// `freq_factors`, `norm_offset` and (but for DeepSeek) `rope_pairs_adjacent` belong to the weights and have no key.
nlohmann::ordered_json ToHfKeys(const ModelSpec& spec);

}  // namespace xjit
