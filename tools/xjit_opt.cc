// xjit-opt: reads IR text, runs passes, prints the result.

#include <optional>

#include "frontend/json.h"
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
  int64_t rows = 1, logit_rows = 1, sequences = 1, kv_length = 0;
  int tp = 1, rank = 0;
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
  TargetInfo target;
  std::string isa = flags.isa;
  target.threads = flags.threads;
  if (!flags.machine.empty()) {
    XJIT_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.machine));
    XJIT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, flags.machine));
    XJIT_ASSIGN_OR_RETURN(const JsonObject machine, JsonObject::From(json, flags.machine));
    XJIT_ASSIGN_OR_RETURN(target.name, machine.StringOr("name", "machine"));
    XJIT_ASSIGN_OR_RETURN(isa, machine.String("isa"));
    XJIT_ASSIGN_OR_RETURN(const int64_t threads, machine.Int("threads", 1, 4096));
    target.threads = static_cast<int>(threads);
    constexpr int64_t kMostCache = int64_t{1} << 40;
    XJIT_ASSIGN_OR_RETURN(target.l1d_bytes, machine.IntOr("l1d_bytes", target.l1d_bytes, 1, kMostCache));
    XJIT_ASSIGN_OR_RETURN(target.l2_bytes, machine.IntOr("l2_bytes", target.l2_bytes, 1, kMostCache));
    XJIT_ASSIGN_OR_RETURN(target.l3_bytes, machine.IntOr("l3_bytes", target.l3_bytes, 1, kMostCache));
  }
  const auto parsed = ParseIsa(isa);
  if (!parsed.has_value()) return InvalidArgument("--isa {}: unknown (known: {})", isa, IsaList(Isa::kAmx));
  target.isa = *parsed;
  return target;
}

// --check: what the module computes must stay what it was. With several ranks, the modules of all of them are kept
// beside the one that is printed, and once they are shares of the model, run together.
class Checker {
 public:
  static absl::StatusOr<Checker> Of(const Module& module, const OptFlags& flags, const PassContext& context) {
    Checker checker(flags, context);
    for (int rank = 0; flags.tp > 1 && rank < flags.tp; ++rank) {
      checker.ranks_.push_back(module.Clone());
      if (checker.ranks_.back() == nullptr) return Internal("the module does not read back");
    }
    XJIT_ASSIGN_OR_RETURN(checker.before_, Observe(module, flags.seed, flags.sequences));
    return checker;
  }

  absl::Status After(const PassInfo& pass, const Module& module) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      PassContext own = context_;
      own.rank = static_cast<int>(rank);
      const PassInfo* list[] = {&pass};
      XJIT_RETURN_IF_ERROR(Prefix(RunPasses(*ranks_[rank], list, own), fmt::format("rank {}", rank)));
    }
    std::vector<Observed> after(1);
    if (module.attrs.contains("tp") && !ranks_.empty()) {
      XJIT_ASSIGN_OR_RETURN(after, ObserveRanks(ranks_, flags_.seed, flags_.sequences));
    } else {
      XJIT_ASSIGN_OR_RETURN(after[0], Observe(module, flags_.seed, flags_.sequences));
    }
    for (size_t rank = 0; rank < after.size(); ++rank) {
      const absl::Status same = CompareObserved(before_, after[rank], CheckBound(pass.stage), &module);
      XJIT_RETURN_IF_ERROR(after.size() == 1 ? same : Prefix(same, fmt::format("rank {}", rank)));
    }
    before_ = std::move(after[0]);
    return absl::OkStatus();
  }

 private:
  Checker(const OptFlags& flags, const PassContext& context) : flags_(flags), context_(context) {}

  OptFlags flags_;
  PassContext context_;
  Observed before_;
  std::vector<std::unique_ptr<Module>> ranks_;
};

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

  context.sequences = flags.sequences;
  context.kv_length = flags.kv_length;
  context.tp = flags.tp;
  context.rank = flags.rank;
  if (flags.rank >= flags.tp) return InvalidArgument("--rank {}: there are {} (--tp)", flags.rank, flags.tp);

  std::optional<Checker> checker;
  if (flags.check) {
    XJIT_ASSIGN_OR_RETURN(checker, Checker::Of(*module, flags, context));
  }
  PassRunOptions options;
  options.verify_each = flags.verify_each;
  options.after = [&](std::string_view name, int changes, const Module& m) -> absl::Status {
    if (flags.print_after_all) fmt::print("// after {} ({} changes)\n{}", name, changes, PrintModule(m));
    if (!flags.check) return absl::OkStatus();
    XJIT_ASSIGN_OR_RETURN(const PassInfo* pass, FindPass(name));
    return Prefix(checker->After(*pass, m), name);
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
  app.add_option("--passes", flags.passes,
                 "passes to run, in order: a,b,c; fused, sharded and all are the pipeline's up to there");
  app.add_flag("--verify-each,!--no-verify-each", flags.verify_each, "verify after each pass (default)");
  app.add_flag("--print-after-all", flags.print_after_all, "print the module after each pass");
  app.add_flag("--check", flags.check, "run the interpreter on random inputs before and after each pass");
  app.add_flag("--explain", flags.explain, "say on stderr what was fused and what was not, and why");
  app.add_flag("--list-passes", flags.list_passes, "print all passes and what they do");
  app.add_flag("--list-ops", flags.list_ops, "print all ops and what they mean");
  app.add_option("--machine", flags.machine, "machine file that passes plan for, as `xjit machine` prints it");
  app.add_option("--isa", flags.isa, "instructions of the machine that passes plan for")->capture_default_str();
  app.add_option("--threads", flags.threads, "its threads")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--kv-dtype", flags.kv_dtype, "bf16 or f32")->capture_default_str();
  app.add_option("--rows", flags.rows, "tokens of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--logit-rows", flags.logit_rows, "rows of logits of a step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--sequences", flags.sequences, "sequences that they belong to")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 12))
      ->capture_default_str();
  app.add_option("--kv-length", flags.kv_length, "tokens in the cache of a sequence, 0 where that is not known")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--tp", flags.tp, "ranks that share the model")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--rank", flags.rank, "the one whose module is printed; --check runs all")
      ->check(CLI::Range(0, 1023))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "of --check's random inputs")->capture_default_str();
  app.footer("Example:\n  xjit-opt layer.xir --passes=canonicalize,join_linears,linear_to_gemm --check");
  // A program of one command: the app itself, which counts as parsed.
  return RunMain(app, {{&app, [&flags] { return Run(flags); }}}, argc, argv);
}
