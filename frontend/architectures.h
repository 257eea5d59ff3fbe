// The model architectures that the readers know: one row each.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>

namespace xjit {

struct Architecture {
  std::string_view name;      // ModelSpec::arch, and config.json's model_type
  std::string_view hf_class;  // in config.json's `architectures`
  std::string_view gguf;      // general.architecture; several rows may share one, which the reader tells apart
  // Rows of q and k are in rotary pairs (2i, 2i+1) in GGUF files, as llama.cpp's converter writes them (or leaves them:
  // DeepSeek publishes pairs).
  bool gguf_pairs_adjacent;
};

inline constexpr std::array kArchitectures = {
    Architecture{"llama", "LlamaForCausalLM", "llama", true},
    Architecture{"mistral", "MistralForCausalLM", "llama", true},
    Architecture{"mixtral", "MixtralForCausalLM", "llama", true},
    Architecture{"phi3", "Phi3ForCausalLM", "phi3", false},
    Architecture{"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    Architecture{"qwen3", "Qwen3ForCausalLM", "qwen3", false},
    Architecture{"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3moe", false},
    Architecture{"gemma3", "Gemma3ForCausalLM", "gemma3", false},
    Architecture{"gpt_oss", "GptOssForCausalLM", "gpt-oss", false},
    Architecture{"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek2", true},
    Architecture{"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek2", true},
};

// Other names under which config.json has an architecture.
inline constexpr std::pair<std::string_view, std::string_view> kArchitectureAliases[] = {
    {"gemma3_text", "gemma3"},
    {"Gemma3ForConditionalGeneration", "gemma3"},
};

// The row whose `field` is `value`, or null.
inline const Architecture* FindArchitecture(std::string_view Architecture::* field, std::string_view value) {
  for (const Architecture& row : kArchitectures) {
    if (row.*field == value) return &row;
  }
  if (field == &Architecture::gguf) return nullptr;
  for (const auto& [alias, name] : kArchitectureAliases) {
    if (alias == value) return FindArchitecture(&Architecture::name, name);
  }
  return nullptr;
}

// The names, as an error lists them: "llama, mistral, ...".
inline std::string ArchitectureList() {
  std::string list;
  for (const Architecture& row : kArchitectures) {
    if (!list.empty()) list += ", ";
    list += row.name;
  }
  return list;
}

}  // namespace xjit
