// Any bytes as a chat template: an error, or a rendering that ends.
#include <cstdint>
#include <string_view>

#include "frontend/text/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using xjit::text::ChatTemplate;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto compiled = ChatTemplate::Compile(source, {.bos = "<s>", .eos = "</s>", .unk = {}, .pad = {}});
  if (!compiled.ok()) return 0;
  (void)compiled->Render({.messages = R"([{"role":"user","content":"Hello"},{"role":"assistant","content":null}])",
                          .tools = R"([{"type":"function","function":{"name":"f","parameters":{}}}])",
                          .kwargs = R"({"x":[1,2.5,"a",{"b":true}]})",
                          .add_generation_prompt = true,
                          .now = 0});
  return 0;
}
