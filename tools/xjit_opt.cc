// xjit-opt: reads IR text, runs passes, prints the result.

#include "frontend/machine_file.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/check.h"
#include "passes/pass.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

struct OptFlags {
  std::string file, passes, machine, isa, kv_dtype = "bf16";
  bool verify_each = true, print_after_all = false, check = false, explain = false, list_passes = false,
       list_ops = false;
  int threads = 2;
  int64_t rows = 1, logit_rows = 1;
  uint64_t seed = 1;
};

void ListPasses() {
  for (const PassInfo& pass : Passes()) fmt::print("{:<18} {}\n", pass.name, pass.doc);
}

void ListOps() {
  for (int i = 0; i < NumOps(); ++i) {
    const OpInfo& info = Info(static_cast<OpCode>(i));
    fmt::print("{:<16} {}\n", info.name, info.doc);
  }
}

absl::StatusOr<std::vector<const PassInfo*>> ParsePasses(std::string_view text) {
  std::vector<const PassInfo*> list;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view name = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (name == "all" || name == "fused") {
      for (const PassInfo& pass : Passes()) {
        if (name == "all" || pass.stage == PassStage::kFused) list.push_back(&pass);
      }
      continue;
    }
    XJIT_ASSIGN_OR_RETURN(const PassInfo* pass, FindPass(name));
    list.push_back(pass);
  }
  return list;
}

// The machine that passes plan for: never the host, so that the same text gives the same result anywhere.
absl::StatusOr<TargetInfo> Target(const OptFlags& flags) {
  if (!flags.machine.empty()) return ReadMachine(flags.machine);
  TargetInfo target;
  target.threads = flags.threads;
  const auto isa = ParseIsa(flags.isa);
  if (!isa.has_value()) return InvalidArgument("--isa {}: unknown (known: {})", flags.isa, IsaList(Isa::kAmx));
  target.isa = *isa;
  return target;
}

absl::Status Run(const OptFlags& flags) {
  if (flags.list_passes) {
    ListPasses();
    return absl::OkStatus();
  }
  if (flags.list_ops) {
    ListOps();
    return absl::OkStatus();
  }
  if (flags.file.empty())
    return InvalidArgument("--passes without a file (xjit-opt FILE.xir --passes=a,b,c; - is standard input)");
  XJIT_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.file == "-" ? "/dev/stdin" : flags.file));
  XJIT_ASSIGN_OR_RETURN(const auto passes, ParsePasses(flags.passes));
  XJIT_ASSIGN_OR_RETURN(auto module, ParseModule(text, flags.file));
  XJIT_RETURN_IF_ERROR(Prefix(VerifyModule(*module), flags.file));

  PassContext context;
  XJIT_ASSIGN_OR_RETURN(context.target, Target(flags));
  const auto kv = ParseDType(flags.kv_dtype);
  if (kv != DType::kBF16 && kv != DType::kF32) return InvalidArgument("--kv-dtype {}: bf16 or f32", flags.kv_dtype);
  context.kv_dtype = *kv;
  context.rows = flags.rows;
  context.logit_rows = flags.logit_rows;

  Observed before;
  if (flags.check) {
    XJIT_ASSIGN_OR_RETURN(before, Observe(*module, flags.seed));
  }
  PassRunOptions options;
  options.verify_each = flags.verify_each;
  options.after = [&](std::string_view name, int changes, const Module& m) -> absl::Status {
    if (flags.print_after_all) fmt::print("// after {} ({} changes)\n{}", name, changes, PrintModule(m));
    if (!flags.check) return absl::OkStatus();
    XJIT_ASSIGN_OR_RETURN(Observed after, Observe(m, flags.seed));
    XJIT_ASSIGN_OR_RETURN(const PassInfo* pass, FindPass(name));
    XJIT_RETURN_IF_ERROR(Prefix(CompareObserved(before, after, CheckBound(pass->stage), &m), name));
    before = std::move(after);
    return absl::OkStatus();
  };
  XJIT_RETURN_IF_ERROR(RunPasses(*module, passes, context, options));
  if (flags.explain) {
    for (const auto& note : context.notes) fmt::print(stderr, "{}\n", note);
  }
  if (!flags.print_after_all || passes.empty()) fmt::print("{}", PrintModule(*module));
  return absl::OkStatus();
}

}  // namespace
}  // namespace xjit::tools

int main(int argc, char** argv) {
  using namespace xjit::tools;
  CLI::App app("xjit-opt: parses IR text, verifies it, runs passes, prints it", "xjit-opt");
  OptFlags flags;
  flags.isa = "avx512_bf16";
  app.add_option("file", flags.file, "IR text (*.xir), - for standard input");
  app.add_option("--passes", flags.passes, "passes to run, in order: a,b,c; fused and all are the pipeline's");
  app.add_flag("--verify-each,!--no-verify-each", flags.verify_each, "verify after each pass (default)");
  app.add_flag("--print-after-all", flags.print_after_all, "print the module after each pass");
  app.add_flag("--check", flags.check, "run the interpreter on random inputs before and after each pass");
  app.add_flag("--explain", flags.explain, "say on stderr what was fused and what was not, and why");
  app.add_flag("--list-passes", flags.list_passes, "print all passes and what they do");
  app.add_flag("--list-ops", flags.list_ops, "print all ops and what they mean");
  app.add_option("--machine", flags.machine,
                 "machine that passes plan for: a name (xeon6980p-2s, ...) or a file as `xjit machine` prints it");
  app.add_option("--isa", flags.isa, "instructions of the machine that passes plan for")->capture_default_str();
  app.add_option("--threads", flags.threads, "its threads")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--kv-dtype", flags.kv_dtype, "bf16 or f32")->capture_default_str();
  app.add_option("--rows", flags.rows, "tokens of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--logit-rows", flags.logit_rows, "rows of logits of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "of --check's random inputs")->capture_default_str();
  app.footer("Example:\n  xjit-opt layer.xir --passes=canonicalize,join_linears,linear_to_gemm --check");
  // A program of one command: the app itself, which counts as parsed.
  return RunMain(app, {{&app, [&flags] { return Run(flags); }}}, argc, argv);
}
