#include "passes/cost.h"

#include <algorithm>
#include <map>

#include "ir/ops.h"
#include "passes/cost_ops.h"

namespace xjit {
namespace {

// "q[0:64,:]+k[0:64,:]" as people call it: "q+k".
std::string WithoutSlices(std::string_view name) {
  std::string plain;
  int depth = 0;
  for (const char c : name) {
    depth += c == '[' ? 1 : 0;
    if (depth == 0) plain += c;
    depth -= c == ']' ? 1 : 0;
  }
  return plain;
}

// Functions and how often a step calls each.
absl::StatusOr<std::vector<std::pair<const Function*, int64_t>>> Calls(const Module& module) {
  const Function* step = module.Find("step");
  if (step == nullptr) return InvalidArgument("module @{} has no @step", module.name);
  std::map<std::string, int64_t, std::less<>> layers;
  for (const auto& op : step->ops) {
    if (op->code != OpCode::kRepeat) continue;
    XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(op->Str("schedule")));
    for (const ScheduleRun& run : runs) layers[run.function] += run.last - run.first + 1;
  }
  std::vector<std::pair<const Function*, int64_t>> calls;
  for (const auto& f : module.functions) {
    if (f.get() == step) {
      calls.emplace_back(step, 1);
    } else if (const auto it = layers.find(f->name); it != layers.end()) {
      calls.emplace_back(f.get(), it->second);
    }
  }
  return calls;
}

struct Times {
  double us = 0, bandwidth_limit_us = 0, flops_limit_us = 0;
  CostLimit limit = CostLimit::kMemory;
};

Times TimesOf(const OpWork& work, const RankShare& share, const PassContext& context) {
  constexpr double kPerUs = 1e3;  // GB/s and GFLOP/s are so many bytes and operations a microsecond
  Times t;
  t.bandwidth_limit_us = work.bytes / (share.read_gb_s * kPerUs);
  if (work.flops > 0) t.flops_limit_us = work.flops / (share.cores * work.rate.gflops * kPerUs);
  const double memory = t.bandwidth_limit_us / work.stream_share;
  double compute = work.touched / (kRowOpsGbS * kPerUs * (work.replicated ? 1 : share.cores));
  if (work.flops > 0) compute += work.timed_flops / (share.cores * work.rate.gflops * work.rate.share * kPerUs);
  const bool together = work.collective && context.tp > 1;
  const double link = together ? context.target.all_reduce_us + work.link_bytes / (share.link_gb_s * kPerUs) : 0;
  // Collectives end in a barrier of their own.
  const double barrier = work.replicated || together ? 0 : context.target.barrier_us;
  t.us = std::max(memory, compute) + link + barrier;
  t.limit = memory >= compute ? CostLimit::kMemory : CostLimit::kCompute;
  double most = std::max(memory, compute);
  for (const auto& [us, limit] : {std::pair{link, CostLimit::kLink}, std::pair{barrier, CostLimit::kBarrier}}) {
    if (us > most) {
      most = us;
      t.limit = limit;
    }
  }
  return t;
}

}  // namespace

std::string_view Name(CostLimit limit) {
  switch (limit) {
    case CostLimit::kMemory:
      return "memory";
    case CostLimit::kCompute:
      return "compute";
    case CostLimit::kBarrier:
      return "barrier";
    case CostLimit::kLink:
      return "link";
  }
  return "?";
}

RankNode NodeOf(const TargetInfo& target, int tp, int rank) {
  const int nodes = target.nodes();
  RankNode own;
  own.node = rank % nodes;
  own.cores = target.node_cores.empty() ? target.cores : target.node_cores[static_cast<size_t>(own.node)];
  own.ranks = tp / nodes + (own.node < tp % nodes ? 1 : 0);
  return own;
}

absl::StatusOr<RankShare> ShareOf(const TargetInfo& target, int tp, int rank) {
  if (tp < 1 || rank < 0 || rank >= tp) return InvalidArgument("rank {} of {} ranks", rank, tp);
  const auto missing = [&target](std::string_view key) {
    return FailedPrecondition("machine {}: {} is not known, and a prediction needs it (xjit machine measures it)",
                              target.name, key);
  };
  if (target.node_read_gb_s <= 0) return missing("node_read_gb_s");
  if (target.f32_gflops <= 0) return missing("f32_gflops_per_core");
  const int nodes = target.nodes();
  if (tp > 1 && nodes > 1 && target.link_gb_s <= 0) return missing("link_gb_s");
  const RankNode own = NodeOf(target, tp, rank);
  const double ranks = own.ranks;
  RankShare share;
  share.node = own.node;
  share.cores = own.cores / ranks;
  share.read_gb_s = target.node_read_gb_s / ranks;
  share.memory_bytes = static_cast<double>(target.node_memory_bytes) / ranks;
  share.link_gb_s = (nodes > 1 ? target.link_gb_s : target.node_read_gb_s) / ranks;
  return share;
}

absl::StatusOr<ModelCost> EstimateStep(const Module& planned, const PassContext& context) {
  XJIT_ASSIGN_OR_RETURN(const RankShare share, ShareOf(context.target, context.tp, context.rank));
  XJIT_ASSIGN_OR_RETURN(const auto calls, Calls(planned));
  ModelCost cost;
  for (const auto& [function, count] : calls) {
    for (const auto& op : function->ops) {
      auto work = WorkOf(*op, context);
      if (!work.ok()) return AtOp(*op, work.status());
      if (!work->stage) continue;
      const Times times = TimesOf(*work, share, context);
      const double n = static_cast<double>(count);
      cost.bytes += n * work->bytes;
      cost.flops += n * work->flops;
      cost.us += n * times.us;
      cost.bandwidth_limit_us += n * times.bandwidth_limit_us;
      cost.flops_limit_us += n * times.flops_limit_us;
      cost.stages.push_back({.function = function->name,
                             .op = std::string(Name(op->code)),
                             .name = op->results.empty() ? "" : op->result()->name,
                             .weight = work->weight == nullptr ? "" : WithoutSlices(work->weight->name),
                             .count = count,
                             .bytes = work->bytes,
                             .flops = work->flops,
                             .us = times.us,
                             .limit = times.limit});
    }
  }
  return cost;
}

absl::StatusOr<int64_t> WeightBytes(const Module& module) {
  XJIT_ASSIGN_OR_RETURN(const auto calls, Calls(module));
  double bytes = 0;
  for (const auto& [function, count] : calls) {
    for (const auto& weight : function->weights) bytes += static_cast<double>(count) * EncodedWeightBytes(*weight);
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<double> KvCacheBytes(const Module& module, const PassContext& context, int64_t tokens) {
  XJIT_ASSIGN_OR_RETURN(const auto calls, Calls(module));
  double bytes = 0;
  for (const auto& [function, count] : calls) {
    for (const auto& op : function->ops) bytes += static_cast<double>(count) * KvBytesStored(*op, context);
  }
  return bytes * static_cast<double>(tokens);
}

}  // namespace xjit
