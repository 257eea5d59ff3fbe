// Planning without running: from a checkpoint, or a configuration alone, to the module after a stage of the compiler
// for any machine, and to what a model will cost on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "frontend/checkpoint.h"
#include "models/registry.h"
#include "passes/cost.h"
#include "passes/pass.h"

namespace xjit {

// A decode step, one token of each sequence: what weights are shared out among ranks for.
struct DecodeStep {
  int64_t sequences = 1;
  int64_t kv_length = 0;  // as PassContext's
};

// The module of `context.rank` after `stage`, for the machine, rows, ranks and lengths of `context`. Weights lie on
// their ranks once, whatever the program, so all programs of a model are to be planned with the same `decode`.
// Encodings are the checkpoint's, or where it has no tensors its configuration's; `quantize` ("int8", "fp8", "int4",
// "bf16"; empty: as they are) changes them as `--quantize` does. Sets the threads of context->target: those of the
// machine, or where ranks share it at most the rank's part of its node's cores.
absl::StatusOr<std::unique_ptr<Module>> PlanFromConfig(const Checkpoint& checkpoint, const std::string& quantize,
                                                       PassStage stage, const DecodeStep& decode, PassContext* context);

// "bf16", "f32", "int8", "fp8", "q4_0" as `--kv-dtype` has them; empty: the manifest's, else bf16.
absl::StatusOr<DType> ParseKvDtype(std::string_view name, const Checkpoint& checkpoint);

// Every matrix product with the kernels that could do it, their cost and the choice, from the notes of a context with
// which a module was planned.
std::string ExplainKernels(const PassContext& context);

struct PlanOptions {
  TargetInfo target;
  int tp = 1;
  DType kv_dtype = DType::kBF16;
  std::string quantize;
  int64_t depth = 0;  // tokens in each cache before the prompt
  int64_t prompt = 1024, gen = 1024, batch = 1;
  int64_t chunk = 512;   // most tokens of a prefill step
  bool sampling = true;  // a pass over a row of logits a token
};

// What lies on a NUMA node: of all ranks that are there.
struct NodePlan {
  int64_t weight_bytes = 0, kv_bytes = 0, arena_bytes = 0;
  int64_t memory_bytes = 0;  // 0: unknown
  int64_t total() const { return weight_bytes + kv_bytes + arena_bytes; }
  bool fits() const { return memory_bytes <= 0 || total() <= memory_bytes; }
};

// Predictions, never measurements.
struct ModelPlan {
  std::vector<NodePlan> nodes;
  bool fits() const;
  // Of all ranks, a generated token of one sequence.
  double bytes_per_token = 0, flops_per_token = 0;
  // Of the slowest rank: a prompt's prefill steps together, and one decode step of the batch in the middle of the
  // generation.
  ModelCost prefill, decode;
  double sample_us = 0;  // of one row of logits
  double ttft_us() const { return prefill.us + sample_us; }
  double tpot_us() const { return decode.us + sample_us * static_cast<double>(batch); }
  int64_t batch = 1;
};
absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint, const PlanOptions& options);

}  // namespace xjit
