// libFuzzer entry: any bytes as a config.json and as a generation_config.json. What is accepted must come back from
// the keys that a manifest writes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "frontend/hf_config.h"

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
  xjit::ApplyGenerationConfig(text, "generation_config.json", *spec).IgnoreError();
  return 0;
}
