// model.json: a small file that names a model's hyper-parameters, weights and texts.
//
//   {"arch": "llama", "hidden_size": 576, ..., "weights": ["model.safetensors"], "tokenizer": "tokenizer.json",
//    "chat_template": "chat_template.jinja", "quantization": "none", "tp": 2, "bind": "0-42|43-85", "kv_dtype": "int8"}
//
// Hyper-parameters, quantization_config and torch_dtype are as in config.json. Paths are relative to the manifest's
// folder, or absolute.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/quant_config.h"
#include "models/spec.h"

namespace xjit {

class Checkpoint;

// Defaults of the flags of the same names; absent where the manifest has none.
struct PlanDefaults {
  std::optional<int> tp;                // 1 to 1024
  std::optional<std::string> bind;      // one core list a rank, "0-42|43-85"; the flag's parser checks it
  std::optional<std::string> kv_dtype;  // bf16, int8, fp8, q4_0 or f32
};

struct Manifest {
  ModelSpec spec;
  std::vector<std::string> weights;  // *.safetensors, one *.safetensors.index.json, or one *.gguf; as written
  std::string tokenizer;             // path of a tokenizer.json, or of a *.gguf that holds the vocabulary
  std::string tokenizer_config, generation_config;  // paths
  // A path (*.jinja, or a JSON file with a "chat_template" key) or, where it holds "{{" or "{%", the template itself.
  std::string chat_template;
  // "none", a method of quantization_config, or "gguf": blocks as the GGUF weights have them.
  std::string quantization = "none";
  QuantConfig quant;
  PlanDefaults defaults;
};

// InvalidArgument or Unimplemented with "FILE: KEY: WHAT"; opens no file.
absl::StatusOr<Manifest> ParseManifest(std::string_view text, std::string_view file);

// Writes the manifest of an open checkpoint to `out_path`, with paths relative to its folder. FailedPrecondition
// when the file cannot be written; InvalidArgument when it is one of the checkpoint's own files.
absl::Status WriteManifest(const Checkpoint& checkpoint, const std::string& out_path);

}  // namespace xjit
