// What the subcommands of xjit share: how they are registered, the flags of those that run a model, and errors.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "frontend/engine.h"
#include "frontend/text/text.h"
#include "ir/support/status.h"

namespace xjit::tools {

// A subcommand: parsed by CLI11, then run. A status that is not ok becomes one line on stderr and exit 1, or 2 if it is
// a usage error (ir/support/status.h).
struct Command {
  CLI::App* app = nullptr;
  std::function<absl::Status()> run;
};

// Flags of every command that executes a model.
struct ModelFlags {
  std::string model;
  int threads = 0;
  std::string isa = "auto";
  std::string kv_dtype;
  int64_t context = 0;
  std::string backend = "jit";
  bool mlock = false, hugepages = true, perf_map = false, verify_kernels = false, explain = false;

  void Register(CLI::App* app);
  absl::StatusOr<EngineOptions> Options() const;
  // Opens and compiles; prints the engine's warning, and with --explain what was decided, to stderr.
  absl::StatusOr<std::unique_ptr<Engine>> Load(int max_sequences = 1) const;
  // The same on a checkpoint that is open already.
  absl::StatusOr<std::unique_ptr<Engine>> Load(std::shared_ptr<const Checkpoint> checkpoint, int max_sequences) const;

 private:
  CLI::App* app_ = nullptr;
};

// An engine and the tokenizer of its model, loaded side by side. The tokenizer's failure is kept: raw ids need none.
struct LoadedModel {
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // nullptr where loading it failed
  absl::Status tokenizer_status;
};
absl::StatusOr<LoadedModel> LoadWithTokenizer(const ModelFlags& flags);

// IsaChoice::notice on stderr, once a process; nothing for an empty one.
void PrintIsaNotice(const std::string& notice);

// Adds `  Example: ...` to a command's help.
void Example(CLI::App* app, const std::string& text);

// Reads a whole file; FailedPrecondition with its name where that fails.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// "1,2,3" as token ids; else a usage error.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view text, std::string_view flag);

// One function a command, in tools/cmd_<name>.cc.
Command AddRun(CLI::App& app);
Command AddChat(CLI::App& app);
Command AddImport(CLI::App& app);
Command AddLogits(CLI::App& app);
Command AddBench(CLI::App& app);
Command AddBenchOp(CLI::App& app);
Command AddKernels(CLI::App& app);
Command AddShow(CLI::App& app);
Command AddIr(CLI::App& app);
Command AddPlan(CLI::App& app);
Command AddTokenize(CLI::App& app);
Command AddMachine(CLI::App& app);

// Parses and runs a program with the given commands; the exit status. Errors: one line, `NAME: error: ...`.
int RunMain(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv);

}  // namespace xjit::tools
