#include "ir/ops.h"
#include "ir/verifier.h"
#include "passes/pass.h"

namespace xjit {
namespace {

constexpr PassInfo kPasses[] = {
#define XJIT_PASS(Function, name, stage, doc) {name, Function, PassStage::stage, doc},
#include "passes/passes.inc"
#undef XJIT_PASS
};

std::string Where(const Function& f, const Op& op) {
  return op.results.empty() ? fmt::format("@{} {}", f.name, Name(op.code))
                            : fmt::format("@{} %{}", f.name, op.result()->name);
}

}  // namespace

std::string_view StageName(PassStage stage) {
  switch (stage) {
    case PassStage::kGraph:
      return "graph";
    case PassStage::kFused:
      return "fused";
    case PassStage::kSharded:
      return "sharded";
    case PassStage::kPlanned:
      return "planned";
  }
  return "";
}

void PassContext::Fused(const Function& f, const Op& op, std::string_view what) {
  notes.push_back(fmt::format("{}: {}: {}", pass, Where(f, op), what));
}

void PassContext::Chose(const Function& f, const Op& op, std::string_view what) {
  notes.push_back(fmt::format("{}: {}: chose {}", pass, Where(f, op), what));
}

void PassContext::Missed(const Function& f, const Op& op, std::string_view why) {
  notes.push_back(fmt::format("{}: {}: missed: {}", pass, Where(f, op), why));
}

std::span<const PassInfo> Passes() { return kPasses; }

absl::StatusOr<const PassInfo*> FindPass(std::string_view name) {
  std::string known;
  for (const PassInfo& info : kPasses) {
    if (info.name == name) return &info;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  }
  return InvalidArgument("unknown pass '{}' (known: {})", name, known);
}

absl::Status RunPasses(Module& module, std::span<const PassInfo* const> passes, PassContext& context,
                       const PassRunOptions& options) {
  for (const PassInfo* info : passes) {
    context.pass = info->name;
    if (module.attrs.contains("arena_bytes")) {
      return InvalidArgument("{}: the module has been planned already (run passes on what --stage sharded prints)",
                             info->name);
    }
    auto result = info->run(module, context);
    if (!result.ok()) return Prefix(result.status(), info->name);
    for (auto& function : module.functions) function->DropUnusedWeights();
    if (options.verify_each) {
      if (const absl::Status status = VerifyModule(module); !status.ok()) {
        return Internal("pass {} left a bad module: {}", info->name, Message(status));
      }
    }
    if (options.after) XJIT_RETURN_IF_ERROR(options.after(info->name, result->changes, module));
  }
  return absl::OkStatus();
}

absl::Status RunPipeline(Module& module, PassStage from, PassStage to, PassContext& context,
                         const PassRunOptions& options) {
  std::vector<const PassInfo*> list;
  for (const PassInfo& info : kPasses) {
    if (info.stage > from && info.stage <= to) list.push_back(&info);
  }
  return RunPasses(module, list, context, options);
}

}  // namespace xjit
