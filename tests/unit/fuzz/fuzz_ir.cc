// libFuzzer entry: any bytes as IR text. What parses is verified, printed, and must read back as the same text. What
// verifies and is not planned yet goes through every pass for a machine and a step that the text's length picks: each
// may refuse it, none may crash or leave a module that does not verify or does not read back.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/pass.h"

namespace {

// What a person reads when the fuzzer stops.
[[noreturn]] void Fail(std::string_view what, std::string_view text) {
  std::fprintf(stderr, "%.*s\n%.*s\n", static_cast<int>(what.size()), what.data(), static_cast<int>(text.size()),
               text.data());
  std::abort();
}

void CheckReadsBack(const xjit::Module& module, std::string_view when) {
  const std::string text = xjit::PrintModule(module);
  const auto again = xjit::ParseModule(text, "printed.xir");
  if (!again.ok()) Fail(fmt::format("{}: {}", when, again.status().ToString()), text);
  if (const std::string other = xjit::PrintModule(**again); other != text) Fail(when, text + "prints as\n" + other);
}

void RunPasses(xjit::Module& module, size_t pick) {
  constexpr xjit::Isa kIsas[] = {xjit::Isa::kAvx2, xjit::Isa::kAvx512, xjit::Isa::kAvx512Vnni, xjit::Isa::kAvx512Bf16,
                                 xjit::Isa::kAmx};
  xjit::PassContext context;
  context.target.isa = kIsas[pick % std::size(kIsas)];
  context.target.threads = 2;
  context.kv_dtype = pick / 5 % 2 == 0 ? xjit::DType::kBF16 : xjit::DType::kF32;
  context.rows = pick / 10 % 2 == 0 ? 1 : 64;
  for (const xjit::PassInfo& pass : xjit::Passes()) {
    const std::string before = xjit::PrintModule(module);
    const xjit::PassInfo* list[] = {&pass};
    xjit::PassRunOptions options;
    options.verify_each = true;
    const absl::Status status = xjit::RunPasses(module, list, context, options);
    // A pass that declines is the user's problem; a bug of ours is not.
    if (absl::IsInternal(status)) Fail(xjit::Message(status), before);
    if (!status.ok()) return;
    CheckReadsBack(module, pass.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto module = xjit::ParseModule({reinterpret_cast<const char*>(data), size}, "fuzz.xir");
  if (!module.ok()) return 0;
  CheckReadsBack(**module, "as read");
  // The offsets of a plan hold for the module that was planned.
  for (const auto& function : (*module)->functions) {
    for (const auto& op : function->ops) {
      if (op->Has("at")) return 0;
    }
  }
  if (xjit::VerifyModule(**module).ok()) RunPasses(**module, size);
  return 0;
}
