// libFuzzer entry: any bytes as IR text. What parses is verified, printed, and must read back as the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ir/text.h"
#include "ir/verifier.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto module = xjit::ParseModule({reinterpret_cast<const char*>(data), size}, "fuzz.xir");
  if (!module.ok()) return 0;
  xjit::VerifyModule(**module).IgnoreError();
  const std::string text = xjit::PrintModule(**module);
  const auto again = xjit::ParseModule(text, "printed.xir");
  if (!again.ok() || xjit::PrintModule(**again) != text) std::abort();
  return 0;
}
