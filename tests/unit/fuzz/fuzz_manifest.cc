// libFuzzer entry: any bytes as a model.json manifest. No file is opened.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "frontend/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  xjit::ParseManifest(text, "model.json").status().IgnoreError();
  return 0;
}
