// The model architectures that the readers know: one row each.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace xjit {

struct Architecture {
  std::string_view name;      // ModelSpec::arch, and config.json's model_type
  std::string_view hf_class;  // in config.json's `architectures`
  std::string_view gguf;      // general.architecture
  // Rows of q and k are interleaved for rotary pairs (2i, 2i+1) in GGUF files, as llama.cpp's converter writes them.
  bool gguf_pairs_adjacent;
};

inline constexpr std::array kArchitectures = {
    Architecture{"llama", "LlamaForCausalLM", "llama", true},
    Architecture{"qwen2", "Qwen2ForCausalLM", "qwen2", false},
};

// The row whose `field` is `value`, or null.
inline const Architecture* FindArchitecture(std::string_view Architecture::* field, std::string_view value) {
  for (const Architecture& row : kArchitectures) {
    if (row.*field == value) return &row;
  }
  return nullptr;
}

// The names, as an error lists them: "llama, qwen2".
inline std::string ArchitectureList() {
  std::string list;
  for (const Architecture& row : kArchitectures) {
    if (!list.empty()) list += ", ";
    list += row.name;
  }
  return list;
}

}  // namespace xjit
