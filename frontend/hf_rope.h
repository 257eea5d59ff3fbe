// The rotary embedding in config.json: rope_theta and rope_scaling, or the newer rope_parameters.
// Source: transformers, modeling_rope_utils.py and the families' configuration_*.py.
#pragma once

#include "absl/status/status.h"
#include "frontend/json.h"
#include "models/spec.h"

namespace xjit {

// Sets rotary_dim, rope and local_rope. The sizes, and mla.rope_dim where there is MLA, must be set.
absl::Status ReadHfRope(const JsonObject& config, ModelSpec& spec);

// Adds the keys that ReadHfRope reads.
void WriteHfRope(const ModelSpec& spec, nlohmann::ordered_json& out);

}  // namespace xjit
