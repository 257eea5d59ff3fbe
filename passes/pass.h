// Passes: functions that rewrite a module, run in order with the verifier after each.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/support/dtype.h"
#include "ir/support/target.h"

namespace xjit {

// Where the pipeline can stop and print.
enum class PassStage : uint8_t { kGraph, kFused, kSharded, kPlanned };

// "graph", "fused", ...
std::string_view StageName(PassStage stage);

// What a pass may know, and where it reports what it did not do.
class PassContext {
 public:
  TargetInfo target;
  DType kv_dtype = DType::kBF16;
  int64_t rows = 1;        // most tokens a step of this program has; decides what each thread computes for itself
  int64_t logit_rows = 1;  // most rows of logits
  int64_t sequences = 1;   // whose tokens the rows are
  // Tokens in a sequence's cache once the step has stored its own, as far as a choice depends on it; 0: unknown.
  int64_t kv_length = 0;
  int tp = 1;  // ranks that share the model; the module becomes that of `rank`
  int rank = 0;

  // Notes for --explain, in order: "fuse_glu: @layer %f: fused", "...: missed: gate has a second user".
  std::vector<std::string> notes;
  std::string_view pass;  // the running one

  void Fused(const Function& f, const Op& op, std::string_view what);
  void Chose(const Function& f, const Op& op, std::string_view what);
  void Missed(const Function& f, const Op& op, std::string_view why);
};

struct PassResult {
  int changes = 0;
  static PassResult Changed(int n) { return {n}; }
};

using PassFn = absl::StatusOr<PassResult> (*)(Module& module, PassContext& context);

struct PassInfo {
  std::string_view name;
  PassFn run;
  PassStage stage;
  std::string_view doc;
};
// Every pass, in pipeline order.
std::span<const PassInfo> Passes();
absl::StatusOr<const PassInfo*> FindPass(std::string_view name);

#define XJIT_PASS(Function, name, stage, doc) absl::StatusOr<PassResult> Function(Module& module, PassContext& context);
#include "passes/passes.inc"
#undef XJIT_PASS

struct PassRunOptions {
  bool verify_each = true;
  // Called after each pass with its name and the number of changes (print-after-all, timing, --check).
  std::function<absl::Status(std::string_view pass, int changes, const Module& module)> after;
};

// Runs passes in the given order. A module that does not verify afterwards is an Internal error that names the pass.
absl::Status RunPasses(Module& module, std::span<const PassInfo* const> passes, PassContext& context,
                       const PassRunOptions& options = {});
// Runs every pass after `from` up to and with `to`.
absl::Status RunPipeline(Module& module, PassStage from, PassStage to, PassContext& context,
                         const PassRunOptions& options = {});

}  // namespace xjit
