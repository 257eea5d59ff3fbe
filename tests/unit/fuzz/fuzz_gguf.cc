// libFuzzer entry: any bytes as a GGUF file. What parses must be readable to the last byte.
#include <cstddef>
#include <cstdint>
#include <span>

#include "frontend/gguf.h"
#include "frontend/gguf_config.h"

namespace {

// Read through volatile, so that no load is optimised away.
void Touch(std::span<const std::byte> bytes) {
  for (const std::byte& byte : bytes) (void)*static_cast<const volatile std::byte*>(&byte);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto gguf = xjit::GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!gguf.ok()) return 0;
  for (const xjit::TensorView& tensor : gguf->tensors()) Touch(tensor.data);
  for (const auto& [key, value] : gguf->metadata()) Touch(value.bytes);
  const auto find = [&](std::string_view name) { return gguf->FindTensor(name); };
  xjit::GgufSpec(*gguf, xjit::FindGgufModelTensors(find)).status().IgnoreError();
  if (const auto vocabulary = xjit::ReadGgufVocabulary(*gguf); vocabulary.ok()) {
    for (const std::string_view token : vocabulary->tokens) Touch(std::as_bytes(std::span(token)));
    for (const std::string_view merge : vocabulary->merges) Touch(std::as_bytes(std::span(merge)));
  }
  return 0;
}
