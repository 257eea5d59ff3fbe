// xjit ir: the graph after a stage of the compiler, or a kernel's disassembly. With a machine, or of a model without
// weights, it is planned from the configuration and nothing is compiled.
#include "codegen/cpu.h"
#include "frontend/machine_file.h"
#include "frontend/planner.h"
#include "ir/text.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

struct IrFlags {
  ModelFlags model;
  std::string stage = "graph", kernel, machine, quantize;
  int64_t rows = 1, sequences = 1, kv_length = 0;
  int tp = 1, rank = 0;
};

absl::StatusOr<std::string> FromEngine(const IrFlags& flags, std::shared_ptr<const Checkpoint> checkpoint) {
  XJIT_ASSIGN_OR_RETURN(auto engine, flags.model.Load(std::move(checkpoint), 1));
  if (flags.stage != "asm") return engine->IrText(flags.stage, flags.rows);
  if (flags.kernel.empty())
    return UsageError("--stage asm needs --kernel NAME (xjit ir MODEL --stage kernels lists the names)");
  return engine->KernelAsm(flags.kernel, flags.rows);
}

absl::StatusOr<PassStage> ParseStage(std::string_view stage) {
  if (stage == "graph") return PassStage::kGraph;
  if (stage == "fused") return PassStage::kFused;
  if (stage == "sharded") return PassStage::kSharded;
  if (stage == "planned" || stage == "kernels") return PassStage::kPlanned;
  return UsageError("--stage {} needs a model with weights, on this machine", stage);
}

// A step has a token of each sequence at least, and their caches hold its tokens.
absl::Status CheckStep(const IrFlags& flags) {
  if (flags.sequences > flags.rows) {
    return UsageError("--sequences {}: a step of --rows {} has tokens of at most as many", flags.sequences, flags.rows);
  }
  const int64_t own = (flags.rows + flags.sequences - 1) / flags.sequences;
  if (flags.kv_length > 0 && flags.kv_length < own) {
    return UsageError("--kv-length {}: the step itself puts {} tokens into a cache", flags.kv_length, own);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FromConfig(const IrFlags& flags, const Checkpoint& checkpoint) {
  XJIT_ASSIGN_OR_RETURN(const PassStage stage, ParseStage(flags.stage));
  PassContext context;
  if (!flags.machine.empty()) {
    XJIT_ASSIGN_OR_RETURN(context.target, ReadMachine(flags.machine));
  } else {
    context.target = HostCpu();
    XJIT_ASSIGN_OR_RETURN(const ThreadChoice threads, ChooseThreads(std::nullopt));
    context.target.threads = threads.threads();
    context.target.cores = threads.usable;
  }
  if (flags.model.isa != "auto") {
    const auto isa = ParseIsa(flags.model.isa);
    if (!isa.has_value()) return UsageError("--isa {}: unknown (known: {})", flags.model.isa, IsaList(Isa::kAmx));
    const Isa most = flags.machine.empty() ? RunnableIsa() : context.target.isa;
    if (*isa > most) {
      return UsageError("--isa {}: {} has {}", flags.model.isa, context.target.name, IsaList(most));
    }
    context.target.isa = *isa;
    if (flags.machine.empty()) context.target.amx_fp16 = HostCpu(*isa).amx_fp16;
  }
  if (flags.model.threads > 0) context.target.threads = flags.model.threads;
  XJIT_ASSIGN_OR_RETURN(context.kv_dtype, ParseKvDtype(flags.model.kv_dtype, checkpoint));
  context.rows = flags.rows;
  context.logit_rows = context.sequences = flags.sequences;
  context.kv_length = flags.kv_length;
  context.tp = flags.tp;
  context.rank = flags.rank;
  const DecodeStep decode = {.sequences = flags.sequences, .kv_length = flags.kv_length};
  XJIT_ASSIGN_OR_RETURN(const auto module, PlanFromConfig(checkpoint, flags.quantize, stage, decode, &context));
  if (flags.model.explain) {
    for (const auto& note : context.notes) fmt::print(stderr, "{}\n", note);
  }
  return flags.stage == "kernels" ? ExplainKernels(context) : PrintModule(*module);
}

absl::Status Run(const IrFlags& flags) {
  XJIT_RETURN_IF_ERROR(CheckStep(flags));
  OpenOptions open;
  open.require_weights = false;
  XJIT_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, OpenCheckpoint(flags.model.model, open));
  // Nothing is packed or compiled for the stages in front of the plan, nor for what has no kernels yet.
  const bool planned = !flags.machine.empty() || !flags.quantize.empty() || flags.tp > 1 || flags.sequences > 1 ||
                       flags.kv_length > 0 || flags.stage == "graph" || flags.stage == "fused" ||
                       flags.stage == "sharded" || checkpoint->tensors().empty();
  auto text = planned ? FromConfig(flags, *checkpoint) : FromEngine(flags, checkpoint);
  if (!planned && flags.stage == "planned" && text.status().code() == absl::StatusCode::kUnimplemented) {
    text = FromConfig(flags, *checkpoint);
  }
  XJIT_RETURN_IF_ERROR(text.status());
  fmt::print("{}", *text);
  return absl::OkStatus();
}

}  // namespace

Command AddIr(CLI::App& app) {
  auto flags = std::make_shared<IrFlags>();
  CLI::App* sub = app.add_subcommand("ir", "print the model's graph after a stage of the compiler");
  flags->model.Register(sub);
  sub->add_option("--stage", flags->stage, "graph, fused, sharded, planned, kernels, or asm")
      ->check(CLI::IsMember({"graph", "fused", "sharded", "planned", "kernels", "asm"}))
      ->capture_default_str();
  sub->add_option("--rows", flags->rows, "tokens of a step that planned, kernels and asm are for")
      ->check(CLI::Range(int64_t{1}, Engine::kMaxStepRows))
      ->capture_default_str();
  sub->add_option("--sequences", flags->sequences, "sequences that the tokens belong to")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub->add_option("--kv-length", flags->kv_length,
                  "tokens in the cache of a sequence, the step's own included; 0: not known")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--kernel", flags->kernel, "the kernel that --stage asm disassembles");
  sub->add_option("--machine", flags->machine, "plan for this machine: a file, or a name such as xeon6980p-2s");
  sub->add_option("--tp", flags->tp, "ranks that share the model")->check(CLI::Range(1, 1024))->capture_default_str();
  sub->add_option("--rank", flags->rank, "whose module is printed")->check(CLI::Range(0, 1023))->capture_default_str();
  sub->add_option("--quantize", flags->quantize, "plan with weights in int8, fp8, int4 or bf16");
  Example(sub,
          "xjit ir model.gguf --stage fused\n"
          "  xjit ir deepseek-r1/ --stage planned --machine xeon6980p-2s --tp 6 --quantize int8");
  return {sub, [flags] { return Run(*flags); }};
}

}  // namespace xjit::tools
