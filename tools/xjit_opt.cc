// xjit-opt: reads IR text, runs passes, prints the result.
#include <algorithm>
#include <optional>

#include "frontend/machine_file.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/check.h"
#include "passes/pass.h"
#include "tools/command.h"
#include "tools/opt_list.h"

namespace xjit::tools {
namespace {

struct OptFlags {
  std::string file, passes, machine, isa, kv_dtype = "bf16";
  std::vector<std::string> print_after;
  bool verify_each = true, print_after_all = false, check = false, explain = false, list_passes = false,
       list_ops = false, markdown = false;
  int tp = 1, rank = 0;
  int threads = 2;
  int64_t rows = 1, logit_rows = 1, sequences = 1, kv_length = 0;
  uint64_t seed = 1;
};

absl::StatusOr<std::vector<const PassInfo*>> ParsePasses(std::string_view text) {
  std::vector<const PassInfo*> list;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view name = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    // A stage's name stands for its passes.
    const size_t before = list.size();
    for (const PassInfo& pass : Passes()) {
      if (name == "all" || name == StageName(pass.stage)) list.push_back(&pass);
    }
    if (list.size() > before) continue;
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
  if (!isa.has_value()) return UsageError("--isa {}: unknown (known: {})", flags.isa, IsaList(Isa::kAmx));
  target.isa = *isa;
  return target;
}

// Every error of the text on a line of its own, so that an editor finds them; one alone is the program's error.
absl::StatusOr<std::unique_ptr<Module>> Read(const std::string& file) {
  XJIT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file == "-" ? "/dev/stdin" : file));
  std::vector<Diagnostic> diagnostics;
  auto module = ParseModuleDiagnostics(text, &diagnostics);
  const auto place = [&file](const Diagnostic& d) { return fmt::format("{}:{}:{}", file, d.loc.line, d.loc.column); };
  if (diagnostics.size() == 1) return InvalidArgument("{}: {}", place(diagnostics[0]), diagnostics[0].what);
  for (const Diagnostic& d : diagnostics) fmt::print(stderr, "{}: error: {}\n", place(d), d.what);
  if (module == nullptr) return InvalidArgument("{}: {}", file, CountText(diagnostics));
  XJIT_RETURN_IF_ERROR(Prefix(VerifyModule(*module), file));
  return module;
}

// --check: what the module computed before a pass is what it computes after it, up to the bound of the pass's stage.
// With several ranks, the modules of all of them are kept beside the one that is printed, and once they are shares of
// the model, run together.
class MeaningCheck {
 public:
  static absl::StatusOr<MeaningCheck> Of(const Module& module, uint64_t seed, const PassContext& context) {
    MeaningCheck check(seed, context);
    for (int rank = 0; context.tp > 1 && rank < context.tp; ++rank) {
      check.ranks_.push_back(module.Clone());
      if (check.ranks_.back() == nullptr) return Internal("the module does not read back");
    }
    XJIT_ASSIGN_OR_RETURN(check.before_, Observe(module, seed, context.sequences));
    return check;
  }
  absl::Status After(const PassInfo& pass, const Module& module) {
    XJIT_ASSIGN_OR_RETURN(std::vector<Observed> after, Run(pass, module));
    for (const Observed& own : after) {
      XJIT_RETURN_IF_ERROR(CompareObserved(before_, own, CheckBound(pass.stage), &module));
    }
    before_ = std::move(after[0]);
    return absl::OkStatus();
  }

 private:
  MeaningCheck(uint64_t seed, const PassContext& context) : seed_(seed), context_(context) {}

  absl::StatusOr<std::vector<Observed>> Run(const PassInfo& pass, const Module& module) {
    const PassInfo* list[] = {&pass};
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      PassContext own = context_;
      own.rank = static_cast<int>(rank);
      XJIT_RETURN_IF_ERROR(Prefix(RunPasses(*ranks_[rank], list, own), fmt::format("rank {}", rank)));
    }
    if (module.attrs.contains("tp") && !ranks_.empty()) return ObserveRanks(ranks_, seed_, context_.sequences);
    std::vector<Observed> one(1);
    XJIT_ASSIGN_OR_RETURN(one[0], Observe(module, seed_, context_.sequences));
    return one;
  }

  uint64_t seed_;
  PassContext context_;
  Observed before_;
  std::vector<std::unique_ptr<Module>> ranks_;
};

absl::StatusOr<PassContext> Context(const OptFlags& flags) {
  PassContext context;
  XJIT_ASSIGN_OR_RETURN(context.target, Target(flags));
  const auto kv = ParseDType(flags.kv_dtype);
  if (kv != DType::kBF16 && kv != DType::kF32) return UsageError("--kv-dtype {}: bf16 or f32", flags.kv_dtype);
  context.kv_dtype = *kv;
  context.rows = flags.rows;
  context.logit_rows = flags.logit_rows;
  context.sequences = flags.sequences;
  context.kv_length = flags.kv_length;
  context.tp = flags.tp;
  context.rank = flags.rank;
  if (flags.rank >= flags.tp) return UsageError("--rank {}: --tp {} has no such rank", flags.rank, flags.tp);
  return context;
}

absl::Status CheckPrintAfter(const OptFlags& flags, const std::vector<const PassInfo*>& passes) {
  for (const std::string& name : flags.print_after) {
    XJIT_RETURN_IF_ERROR(AsUsage(Prefix(FindPass(name).status(), "--print-after")));
    if (std::none_of(passes.begin(), passes.end(), [&name](const PassInfo* pass) { return pass->name == name; })) {
      return UsageError("--print-after {}: --passes does not run it", name);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(const OptFlags& flags) {
  if (flags.list_passes || flags.list_ops) {
    if (flags.list_passes) fmt::print("{}", PassList());
    if (flags.list_ops) fmt::print("{}", flags.markdown ? LanguageTables() : OpList());
    return absl::OkStatus();
  }
  if (flags.file.empty())
    return UsageError("--passes without a file (xjit-opt FILE.xir --passes=a,b,c; - is standard input)");
  const auto listed = ParsePasses(flags.passes);
  if (!listed.ok()) return AsUsage(listed.status());
  const std::vector<const PassInfo*>& passes = *listed;
  XJIT_RETURN_IF_ERROR(CheckPrintAfter(flags, passes));
  XJIT_ASSIGN_OR_RETURN(PassContext context, Context(flags));
  XJIT_ASSIGN_OR_RETURN(const auto module, Read(flags.file));

  std::optional<MeaningCheck> check;
  if (flags.check) {
    XJIT_ASSIGN_OR_RETURN(check, MeaningCheck::Of(*module, flags.seed, context));
  }
  bool printed = false;  // as it is now
  PassRunOptions options;
  options.verify_each = flags.verify_each;
  options.after = [&](std::string_view name, int changes, const Module& m) -> absl::Status {
    printed = flags.print_after_all ||
              std::find(flags.print_after.begin(), flags.print_after.end(), name) != flags.print_after.end();
    if (printed) fmt::print("// after {} ({} changes)\n{}", name, changes, PrintModule(m));
    if (!check.has_value()) return absl::OkStatus();
    XJIT_ASSIGN_OR_RETURN(const PassInfo* pass, FindPass(name));
    return Prefix(check->After(*pass, m), name);
  };
  const absl::Status status = RunPasses(*module, passes, context, options);
  if (flags.explain) {
    for (const auto& note : context.notes) fmt::print(stderr, "{}\n", note);
  }
  XJIT_RETURN_IF_ERROR(status);
  if (!printed) fmt::print("{}", PrintModule(*module));
  return absl::OkStatus();
}

}  // namespace
}  // namespace xjit::tools

int main(int argc, char** argv) {
  using namespace xjit::tools;
  CLI::App app("xjit-opt: parses IR text (ir/SPEC.md), verifies it, runs passes, prints it", "xjit-opt");
  OptFlags flags;
  flags.isa = "avx512_bf16";
  app.add_option("file", flags.file, "IR text (*.xir), - for standard input");
  app.add_option("--passes", flags.passes,
                 "passes to run, in order: a,b,c; fused, sharded and planned stand for a stage's passes, all for all");

  app.add_flag("--verify-each,!--no-verify-each", flags.verify_each, "verify after each pass (default)")
      ->group("Checks");
  app.add_flag("--check", flags.check, "run the interpreter on random inputs before and after each pass")
      ->group("Checks");
  app.add_option("--seed", flags.seed, "of --check's random inputs")->capture_default_str()->group("Checks");

  app.add_option("--print-after", flags.print_after, "print the module after this pass (may be given again)")
      ->type_name("PASS")
      ->allow_extra_args(false)
      ->group("Output");
  app.add_flag("--print-after-all", flags.print_after_all, "print the module after each pass")->group("Output");
  app.add_flag("--explain", flags.explain, "say on stderr what was fused and what was not, and why")->group("Output");
  app.add_flag("--list-passes", flags.list_passes, "print all passes by stage and what they do")->group("Output");
  auto* list_ops = app.add_flag("--list-ops", flags.list_ops, "print all ops and what they mean")->group("Output");
  app.add_flag("--markdown", flags.markdown, "with --list-ops: the tables of ir/SPEC.md")
      ->needs(list_ops)
      ->group("Output");

  const std::string plans = "What passes plan for";
  app.add_option("--machine", flags.machine,
                 "machine that passes plan for: a name (xeon6980p-2s, ...) or a file as `xjit machine` prints it")
      ->group(plans);
  app.add_option("--isa", flags.isa, "instructions of the machine that passes plan for")
      ->capture_default_str()
      ->group(plans);
  app.add_option("--threads", flags.threads, "its threads")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--kv-dtype", flags.kv_dtype, "bf16 or f32")->capture_default_str()->group(plans);
  app.add_option("--rows", flags.rows, "tokens of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--logit-rows", flags.logit_rows, "rows of logits of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--sequences", flags.sequences, "sequences that the tokens belong to")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 12))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--kv-length", flags.kv_length,
                 "tokens in the cache of a sequence, the step's own included; 0: not known")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--tp", flags.tp, "ranks that share the model")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(plans);
  app.add_option("--rank", flags.rank, "the rank whose module is made; --check runs all")
      ->check(CLI::Range(0, 4095))
      ->capture_default_str()
      ->group(plans);
  app.footer(
      "Examples:\n  xjit-opt layer.xir --passes=canonicalize,join_linears,linear_to_gemm --check\n"
      "  xjit-opt model.xir --passes=all --isa avx512_vnni --rows 8 --print-after fuse_rope_store");
  // A program of one command: the app itself, which counts as parsed.
  return RunMain(app, {{&app, [&flags] { return Run(flags); }}}, argc, argv);
}
