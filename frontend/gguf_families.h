// What each family's GGUF keys say beyond the sizes that all have. Source: llama.cpp, conversion/*.py (what is written)
// and src/models/*.cpp (what it means).
#pragma once

#include "absl/status/status.h"
#include "frontend/gguf_config.h"
#include "frontend/gguf_keys.h"
#include "models/spec.h"

namespace xjit {

// The sizes of multi-head latent attention, head_dim and kv_heads with them.
absl::Status ReadGgufMla(const ArchKeys& keys, ModelSpec& spec);

// Windows, experts, norms, constants; the sizes must be set.
absl::Status ReadGgufFamily(const ArchKeys& keys, ModelSpec& spec);

// Sets rotary_dim, rope and local_rope.
absl::Status ReadGgufRope(const ArchKeys& keys, const GgufModelTensors& tensors, ModelSpec& spec);

}  // namespace xjit
