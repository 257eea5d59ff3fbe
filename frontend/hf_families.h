// What each family's config.json says beyond the sizes that all have: windows, experts, latent attention, Gemma's
// constants. Source: transformers, models/<family>/configuration_<family>.py and modeling_<family>.py.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "frontend/json.h"
#include "models/spec.h"

namespace xjit {

// Sizes that a family's configuration class gives where the file has none; 0: there is none.
struct SizeDefaults {
  int64_t vocab_size = 0, heads = 0, kv_heads = 0, head_dim = 0, max_positions = 0;
  bool tied = false;
  bool latent = false;  // multi-head latent attention has sizes of its own for heads of k and v
};
SizeDefaults DefaultSizes(std::string_view arch);

// `spec` has its architecture and sizes. MLA changes head_dim and kv_heads; the rotary embedding is read afterwards.
absl::Status ReadHfFamily(const JsonObject& config, ModelSpec& spec);

// Sets attention_scale where it depends on the rotary embedding (MLA with yarn).
void SetMlaScale(ModelSpec& spec);

// Adds the keys that ReadHfFamily reads.
void WriteHfFamily(const ModelSpec& spec, nlohmann::ordered_json& out);

// Where a file says the numbers of a mixture of experts, for messages.
struct MoePlaces {
  std::string experts_per_token, groups, top_groups;
};
// The numbers fit each other.
absl::Status CheckMoe(const MoeSpec& moe, const MoePlaces& places);

}  // namespace xjit
