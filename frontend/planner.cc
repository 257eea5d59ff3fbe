#include "frontend/planner.h"

#include <algorithm>
#include <utility>

#include "frontend/weights.h"
#include "ir/verifier.h"
#include "passes/cost_rates.h"
#include "runtime/kv_cache.h"

namespace xjit {
namespace {

absl::StatusOr<ModelWeights> WeightsOf(const Checkpoint& checkpoint, const ModelFamily& family,
                                       const std::string& quantize) {
  if (!quantize.empty()) {
    auto weights = ConfigWeights(checkpoint.spec(), family, checkpoint.quant(), quantize);
    if (!weights.ok()) return UsageError("--{}", Message(weights.status()));
    return weights;
  }
  if (!checkpoint.tensors().empty()) return WeightNames(checkpoint, family).Encodings();
  return ConfigWeights(checkpoint.spec(), family, checkpoint.quant());
}

// A rank's program is compiled for its part of the node's cores.
absl::Status ChooseThreads(PassContext* context) {
  if (context->tp < 1 || context->rank < 0 || context->rank >= context->tp) {
    return UsageError("--rank {}: ranks are 0 to {}", context->rank, context->tp - 1);
  }
  TargetInfo& target = context->target;
  if (target.nodes() <= 1 && context->tp == 1) return absl::OkStatus();
  const RankNode own = NodeOf(target, context->tp, context->rank);
  target.threads = std::clamp(own.cores / own.ranks, 1, std::max(1, target.threads));
  return absl::OkStatus();
}

// Weights lie on their ranks once: they are shared out for decode steps, since those outnumber all others.
absl::Status Shard(Module& module, PassStage stage, const DecodeStep& decode, PassContext* context) {
  const int64_t rows = std::exchange(context->rows, decode.sequences);
  const int64_t logit_rows = std::exchange(context->logit_rows, decode.sequences);
  const int64_t sequences = std::exchange(context->sequences, decode.sequences);
  const int64_t kv_length = std::exchange(context->kv_length, decode.kv_length);
  const absl::Status status = RunPipeline(module, PassStage::kFused, std::min(stage, PassStage::kSharded), *context);
  context->rows = rows;
  context->logit_rows = logit_rows;
  context->sequences = sequences;
  context->kv_length = kv_length;
  return status;
}

int64_t ModuleInt(const Module& module, std::string_view name) {
  const auto it = module.attrs.find(name);
  const int64_t* value = it == module.attrs.end() ? nullptr : std::get_if<int64_t>(&it->second);
  return value == nullptr ? 0 : *value;
}

void Append(ModelCost* total, ModelCost step) {
  total->stages.insert(total->stages.end(), std::make_move_iterator(step.stages.begin()),
                       std::make_move_iterator(step.stages.end()));
  total->bytes += step.bytes;
  total->flops += step.flops;
  total->us += step.us;
  total->bandwidth_limit_us += step.bandwidth_limit_us;
  total->flops_limit_us += step.flops_limit_us;
}

// One rank's programs and what they cost.
struct RankPlan {
  int64_t weight_bytes = 0, kv_bytes = 0, arena_bytes = 0;
  ModelCost prefill, decode;
};

class RankPlanner {
 public:
  RankPlanner(const Checkpoint& checkpoint, const PlanOptions& options, int rank)
      : checkpoint_(checkpoint), options_(options) {
    // In the middle of the generation.
    decode_.sequences = options.batch;
    decode_.kv_length = std::max<int64_t>(1, options.depth + options.prompt + options.gen / 2);
    context_.target = options.target;
    context_.kv_dtype = options.kv_dtype;
    context_.tp = options.tp;
    context_.rank = rank;
  }

  absl::StatusOr<RankPlan> Run() {
    XJIT_RETURN_IF_ERROR(Decode());
    if (options_.prompt > 0) XJIT_RETURN_IF_ERROR(Prefill());
    return std::move(plan_);
  }

 private:
  absl::StatusOr<std::unique_ptr<Module>> PlanStep(int64_t rows, int64_t sequences, int64_t kv_length) {
    context_.rows = rows;
    context_.logit_rows = sequences;
    context_.sequences = sequences;
    context_.kv_length = kv_length;
    XJIT_ASSIGN_OR_RETURN(auto module,
                          PlanFromConfig(checkpoint_, options_.quantize, PassStage::kPlanned, decode_, &context_));
    plan_.arena_bytes = std::max(plan_.arena_bytes, ModuleInt(*module, "arena_bytes") +
                                                        context_.target.threads * ModuleInt(*module, "private_bytes"));
    return module;
  }

  absl::Status Decode() {
    XJIT_ASSIGN_OR_RETURN(const auto module, PlanStep(decode_.sequences, decode_.sequences, decode_.kv_length));
    XJIT_ASSIGN_OR_RETURN(plan_.weight_bytes, WeightBytes(*module));
    // The cache is given out by pages.
    const int64_t pages = KvPages(options_.depth + options_.prompt + options_.gen);
    XJIT_ASSIGN_OR_RETURN(const double kv, KvCacheBytes(*module, context_, pages * kPageTokens));
    plan_.kv_bytes = static_cast<int64_t>(kv);
    XJIT_ASSIGN_OR_RETURN(plan_.decode, EstimateStep(*module, context_));
    return absl::OkStatus();
  }

  absl::Status Prefill() {
    const int64_t rows = std::min(options_.chunk, options_.prompt);
    // Every step is costed on its own: a million of them would take minutes and gigabytes.
    constexpr int64_t kMostSteps = 4096;
    if (rows > 0 && options_.prompt / rows > kMostSteps) {
      return UsageError("--chunk {}: a prompt of {} tokens is more than {} steps of it", options_.chunk,
                        options_.prompt, kMostSteps);
    }
    XJIT_ASSIGN_OR_RETURN(const auto module, PlanStep(rows, 1, options_.depth + rows));
    XJIT_ASSIGN_OR_RETURN(const int64_t weight_bytes, WeightBytes(*module));
    if (weight_bytes != plan_.weight_bytes) {
      return Internal("rank {} has {} bytes of weights for prefill and {} for decoding, though they lie there once",
                      context_.rank, weight_bytes, plan_.weight_bytes);
    }
    for (int64_t done = 0; done < options_.prompt; done += rows) {
      context_.rows = std::min(rows, options_.prompt - done);
      context_.kv_length = options_.depth + done + context_.rows;
      context_.logit_rows = done + context_.rows == options_.prompt ? 1 : 0;
      XJIT_ASSIGN_OR_RETURN(ModelCost step, EstimateStep(*module, context_));
      Append(&plan_.prefill, std::move(step));
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const PlanOptions& options_;
  DecodeStep decode_;
  PassContext context_;
  RankPlan plan_;
};

}  // namespace

bool ModelPlan::fits() const {
  return std::all_of(nodes.begin(), nodes.end(), [](const NodePlan& node) { return node.fits(); });
}

absl::StatusOr<std::unique_ptr<Module>> PlanFromConfig(const Checkpoint& checkpoint, const std::string& quantize,
                                                       PassStage stage, const DecodeStep& decode,
                                                       PassContext* context) {
  const ModelSpec& spec = checkpoint.spec();
  XJIT_RETURN_IF_ERROR(ChooseThreads(context));
  XJIT_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(spec.arch));
  XJIT_ASSIGN_OR_RETURN(const ModelWeights weights, WeightsOf(checkpoint, *family, quantize));
  XJIT_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, family->build(spec, weights));
  XJIT_RETURN_IF_ERROR(Prefix(VerifyModule(*module), spec.arch));
  XJIT_RETURN_IF_ERROR(RunPipeline(*module, PassStage::kGraph, std::min(stage, PassStage::kFused), *context));
  XJIT_RETURN_IF_ERROR(Shard(*module, stage, decode, context));
  XJIT_RETURN_IF_ERROR(RunPipeline(*module, PassStage::kSharded, stage, *context));
  return module;
}

absl::StatusOr<DType> ParseKvDtype(std::string_view name, const Checkpoint& checkpoint) {
  if (name.empty() && checkpoint.defaults().kv_dtype.has_value()) name = *checkpoint.defaults().kv_dtype;
  if (name.empty()) name = "bf16";
  if (name == "int8") return DType::kI8;
  if (name == "fp8") return DType::kF8E4M3;
  if (name == "bf16" || name == "f32" || name == "q4_0") return *ParseDType(name);
  return UsageError("--kv-dtype {}: unknown (known: bf16, f32, int8, fp8, q4_0)", name);
}

std::string ExplainKernels(const PassContext& context) {
  // plan_blocking's notes: "plan_blocking: @layer %q: chose A (why), n tasks; B 12 us; C refused: why".
  constexpr std::string_view kPass = "plan_blocking: ";
  std::string text;
  for (const std::string& note : context.notes) {
    std::string_view rest = note;
    if (!rest.starts_with(kPass)) continue;
    rest.remove_prefix(kPass.size());
    const size_t colon = std::min(rest.find(": "), rest.size());
    text += fmt::format("{}\n", rest.substr(0, colon));
    rest.remove_prefix(std::min(colon + 2, rest.size()));
    while (!rest.empty()) {
      const size_t end = std::min(rest.find("; "), rest.size());
      text += fmt::format("  {}\n", rest.substr(0, end));
      rest.remove_prefix(std::min(end + 2, rest.size()));
    }
  }
  return text;
}

absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint, const PlanOptions& options) {
  ModelPlan plan;
  plan.batch = options.batch;
  plan.nodes.resize(static_cast<size_t>(std::min(options.tp, options.target.nodes())));
  double bytes = 0, flops = 0;
  for (int rank = 0; rank < options.tp; ++rank) {
    XJIT_ASSIGN_OR_RETURN(const RankShare share, ShareOf(options.target, options.tp, rank));
    XJIT_ASSIGN_OR_RETURN(RankPlan part, RankPlanner(checkpoint, options, rank).Run());
    NodePlan& node = plan.nodes[static_cast<size_t>(share.node)];
    node.weight_bytes += part.weight_bytes;
    node.kv_bytes += part.kv_bytes;
    node.arena_bytes += part.arena_bytes;
    node.memory_bytes = options.target.node_memory_bytes;
    bytes += part.decode.bytes;
    flops += part.decode.flops;
    if (part.decode.us > plan.decode.us) plan.decode = std::move(part.decode);
    if (part.prefill.us > plan.prefill.us) plan.prefill = std::move(part.prefill);
  }
  plan.bytes_per_token = bytes / static_cast<double>(options.batch);
  plan.flops_per_token = flops / static_cast<double>(options.batch);
  if (options.sampling) {
    // The sampler goes over the logits once, on one core.
    plan.sample_us = 4 * static_cast<double>(checkpoint.spec().vocab_size) / (kRowOpsGbS * 1e3);
  }
  return plan;
}

}  // namespace xjit
