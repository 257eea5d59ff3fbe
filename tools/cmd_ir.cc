// xjit ir: the graph after a stage of the compiler, or a kernel's disassembly.
#include "tools/command.h"

namespace xjit::tools {
namespace {

struct IrFlags {
  ModelFlags model;
  std::string stage = "graph", kernel;
  int64_t rows = 1;
};

absl::Status Run(const IrFlags& flags) {
  XJIT_ASSIGN_OR_RETURN(auto engine, flags.model.Load());
  std::string text;
  if (flags.stage == "asm") {
    if (flags.kernel.empty())
      return InvalidArgument("--stage asm needs --kernel NAME (xjit ir MODEL --stage kernels lists the names)");
    XJIT_ASSIGN_OR_RETURN(text, engine->KernelAsm(flags.kernel, flags.rows));
  } else {
    XJIT_ASSIGN_OR_RETURN(text, engine->IrText(flags.stage, flags.rows));
  }
  fmt::print("{}", text);
  return absl::OkStatus();
}

}  // namespace

Command AddIr(CLI::App& app) {
  auto flags = std::make_shared<IrFlags>();
  CLI::App* sub = app.add_subcommand("ir", "print the model's graph after a stage of the compiler");
  flags->model.Register(sub);
  sub->add_option("--stage", flags->stage, "graph, fused, planned, kernels, or asm")
      ->check(CLI::IsMember({"graph", "fused", "planned", "kernels", "asm"}))
      ->capture_default_str();
  sub->add_option("--rows", flags->rows, "tokens of a step that planned, kernels and asm are for")
      ->check(CLI::Range(int64_t{1}, Engine::kMaxStepRows))
      ->capture_default_str();
  sub->add_option("--kernel", flags->kernel, "the kernel that --stage asm disassembles");
  Example(sub, "xjit ir model.gguf --stage fused");
  return {sub, [flags] { return Run(*flags); }};
}

}  // namespace xjit::tools
