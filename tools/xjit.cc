// The xjit command.
#include "tools/command.h"

int main(int argc, char** argv) {
  using namespace xjit::tools;
  CLI::App app("xjit: runs large language models on CPUs with kernels compiled for the machine at hand", "xjit");
  app.set_version_flag("--version", "xjit 0.1.0");
  app.require_subcommand(1);
  app.footer("Example:\n  xjit run model.gguf --chat --prompt \"Why is the sky blue?\"");
  const std::vector<Command> commands = {AddRun(app),   AddChat(app),    AddImport(app),   AddLogits(app),
                                         AddBench(app), AddBenchOp(app), AddKernels(app),  AddShow(app),
                                         AddIr(app),    AddPlan(app),    AddTokenize(app), AddMachine(app)};
  return RunMain(app, commands, argc, argv);
}
