// libFuzzer entry: any bytes as a safetensors file and as a shard index.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "frontend/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = xjit::ParseSafetensors(std::as_bytes(std::span(data, size)), "fuzz.safetensors");
  if (tensors.ok()) {
    for (const xjit::TensorView& tensor : *tensors) {
      for (const std::byte& byte : tensor.data) (void)*static_cast<const volatile std::byte*>(&byte);
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  xjit::ParseSafetensorsIndex(text, "fuzz.index.json").status().IgnoreError();
  return 0;
}
