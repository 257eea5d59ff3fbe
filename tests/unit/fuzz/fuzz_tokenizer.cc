// Any bytes as tokenizer.json: an error, or a tokenizer that encodes, decodes and streams.
#include <cstdint>
#include <string_view>

#include "frontend/text/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using xjit::text::Tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::FromJson(json);
  if (!tokenizer.ok()) return 0;
  for (const bool flag : {false, true}) {
    const auto ids = tokenizer->Encode("Hello, w\u00f6rld! 123 <s>\n", flag, flag);
    if (!ids.ok()) continue;
    (void)tokenizer->Decode(*ids, flag);
    auto stream = tokenizer->Stream(flag);
    for (const uint32_t id : *ids) stream.Push(id);
    stream.Finish();
  }
  for (uint32_t id = 0; id < 16; ++id) (void)tokenizer->TokenBytes(id);
  return 0;
}
