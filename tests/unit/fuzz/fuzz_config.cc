// libFuzzer entry: any bytes as a config.json (with its quantization_config) and as a generation_config.json. What is
// accepted must come back from the keys that a manifest writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "frontend/hf_config.h"
#include "frontend/quant_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto spec = xjit::ParseHfConfig(text, "config.json");
  if (spec.ok()) {
    const xjit::Json keys = xjit::Json::parse(xjit::ToHfKeys(*spec).dump());
    const auto object = xjit::JsonObject::From(keys, "model.json");
    if (!object.ok() || !xjit::HfSpec(*object, spec->arch).ok()) std::abort();
  } else {
    spec = xjit::ModelSpec{};
  }
  if (const auto json = xjit::ParseJson(text, "config.json"); json.ok()) {
    const auto object = xjit::JsonObject::From(*json, "config.json");
    if (!object.ok()) return 0;
    const auto quant = xjit::QuantConfig::Parse(*object);
    if (quant.ok()) quant->Of("model.layers.11.mlp.experts.7.down_proj");
  }
  xjit::ApplyGenerationConfig(text, "generation_config.json", *spec).IgnoreError();
  return 0;
}
