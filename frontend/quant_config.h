// quantization_config of a Hugging Face config.json: which modules' weights are stored in which encoding.
// Formats: transformers, utils/quantization_config.py; compressed-tensors, quantization/quant_config.py and
// quant_scheme.py; AutoAWQ and AutoGPTQ/GPTQModel for what lies in their files.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/json.h"
#include "frontend/module_pattern.h"
#include "ir/support/encoding.h"
#include "models/registry.h"

namespace xjit {

struct QuantConfig {
  enum class Method : uint8_t { kNone, kFp8, kCompressedTensors, kAwq, kGptq, kMxfp4 };

  // A group of this many columns is a whole row, however long: group_size -1.
  static constexpr int32_t kWholeRow = std::numeric_limits<int32_t>::max();

  // Reads quantization_config (or compression_config) and torch_dtype (or dtype) of a config.json or manifest.
  // Unimplemented names the method or variant that xjit does not read.
  static absl::StatusOr<QuantConfig> Parse(const JsonObject& config);

  // The encoding of a module's weight ("model.layers.0.self_attn.q_proj": a tensor's name without ".weight"); nullopt:
  // it is not converted, and has the type that its tensor says.
  std::optional<Encoding> Of(std::string_view module) const;

  Method method = Method::kNone;
  DType plain = DType::kBF16;  // of matrices that are not converted, where there are no tensors to say it
  // gptq: added to the zero points in the file (checkpoint_format "gptq" stores them less one; "gptq_v2" does not).
  int zero_offset = 0;
  Json source;  // the object as it was, for manifests; null without one

  // What the methods share: a scheme for modules, and modules that are left as they are.
  struct Scheme {
    Encoding encoding;
    bool linears = false;            // every linear module ("Linear")
    std::vector<std::string> names;  // modules by name
    std::vector<ModulePattern> patterns;
  };
  std::vector<Scheme> schemes;
  std::vector<std::string> skip_names;  // whole names, or as skip_rule says
  std::vector<ModulePattern> skip_patterns;
  enum class SkipRule : uint8_t { kName, kSubstring, kSuffix };
  SkipRule skip_rule = SkipRule::kName;
  ModulePattern::End skip_end = ModulePattern::End::kAny;
  std::vector<std::string> only_suffixes;  // gptq's modules_in_block_to_quantize; empty: all
  bool head = false;                       // lm_head counts as a linear module
};

// "none", "fp8", "compressed-tensors", "awq", "gptq", "mxfp4": the values of quant_method.
std::string_view MethodName(QuantConfig::Method method);

// The module of a tensor's name in a family's table: "model.layers.{}.mlp.experts.{e}.up_proj.weight" of layer 3 is
// "model.layers.3.mlp.experts.0.up_proj".
std::string ModuleOf(std::string_view tensor, int64_t layer);

// The encodings for a graph of the configuration alone, without tensors: as the checkpoint would have them, or all
// linears as `quantize` says (bf16, int8, fp8, int4); embeddings, lm_head and routers stay plain then.
absl::StatusOr<ModelWeights> ConfigWeights(const ModelSpec& spec, const ModelFamily& family, const QuantConfig& quant,
                                           std::optional<std::string_view> quantize = std::nullopt);

}  // namespace xjit
