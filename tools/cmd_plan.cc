// xjit plan: what a model will need and cost on a machine, from its configuration alone. Predictions, never
// measurements.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "frontend/host_machine.h"
#include "frontend/machine_file.h"
#include "frontend/planner.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

using nlohmann::ordered_json;

struct PlanFlags {
  std::string model, machine, quantize, kv_dtype;
  int tp = 0, sockets = 0;
  int64_t prompt = 1024, gen = 1024, batch = 1, chunk = Engine::kMaxStepRows;
  bool json = false;
};

// All stages of one kind: op and matrix, whatever the layer.
struct Kind {
  std::string op, weight;
  int64_t calls = 0;
  double bytes = 0, flops = 0, us = 0;
  std::map<CostLimit, double> by_limit;  // microseconds
  CostLimit limit() const {
    return std::max_element(by_limit.begin(), by_limit.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }
};

std::vector<Kind> Kinds(const ModelCost& cost) {
  std::vector<Kind> kinds;
  for (const StageCost& stage : cost.stages) {
    auto it = std::find_if(kinds.begin(), kinds.end(),
                           [&stage](const Kind& k) { return k.op == stage.op && k.weight == stage.weight; });
    if (it == kinds.end()) it = kinds.insert(kinds.end(), Kind{.op = stage.op, .weight = stage.weight});
    const double n = static_cast<double>(stage.count);
    it->calls += stage.count;
    it->bytes += n * stage.bytes;
    it->flops += n * stage.flops;
    it->us += n * stage.us;
    it->by_limit[stage.limit] += n * stage.us;
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.us > b.us; });
  return kinds;
}

ordered_json ToJson(const ModelCost& cost) {
  ordered_json out = {{"ms", cost.us / 1e3},
                      {"bytes", cost.bytes},
                      {"flops", cost.flops},
                      {"bandwidth_limit_ms", cost.bandwidth_limit_us / 1e3},
                      {"flops_limit_ms", cost.flops_limit_us / 1e3},
                      {"stages", ordered_json::array()}};
  for (const Kind& kind : Kinds(cost)) {
    ordered_json stage = {{"op", kind.op}};
    if (!kind.weight.empty()) stage["weight"] = kind.weight;
    stage["calls"] = kind.calls;
    stage["bytes"] = kind.bytes;
    stage["flops"] = kind.flops;
    stage["us"] = kind.us;
    stage["share"] = cost.us > 0 ? kind.us / cost.us : 0;
    stage["limit"] = std::string(Name(kind.limit()));
    out["stages"].push_back(std::move(stage));
  }
  return out;
}

double Gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

void PrintCost(std::string_view title, const ModelCost& cost) {
  fmt::print("\n{}: {:.2f} ms, of which memory alone {:.2f}, arithmetic alone {:.2f}\n", title, cost.us / 1e3,
             cost.bandwidth_limit_us / 1e3, cost.flops_limit_us / 1e3);
  fmt::print("  {:<34} {:>6} {:>10} {:>10} {:>10} {:>6}  {}\n", "stage", "calls", "MB", "GFLOP", "us", "share",
             "limit");
  for (const Kind& kind : Kinds(cost)) {
    std::string name = kind.weight.empty() ? kind.op : fmt::format("{} @{}", kind.op, kind.weight);
    if (name.size() > 34) name = name.substr(0, 31) + "...";
    fmt::print("  {:<34} {:>6} {:>10.1f} {:>10.2f} {:>10.1f} {:>5.1f}%  {}\n", name, kind.calls, kind.bytes / 1e6,
               kind.flops / 1e9, kind.us, cost.us > 0 ? 100 * kind.us / cost.us : 0, Name(kind.limit()));
  }
}

void PrintPlain(const PlanFlags& f, const PlanOptions& o, const ModelPlan& plan) {
  fmt::print("{} | {} | {} rank{} | {}{} | prompt {}, gen {}, batch {}\n", f.model, o.target.name, o.tp,
             o.tp == 1 ? "" : "s", f.quantize.empty() ? "as configured" : f.quantize,
             o.kv_dtype == DType::kBF16 ? "" : fmt::format(", KV {}", Name(o.kv_dtype)), o.prompt, o.gen, o.batch);
  fmt::print("\n  {:<6} {:>12} {:>10} {:>12} {:>10} {:>12}\n", "node", "weights GB", "KV GB", "work GB", "sum GB",
             "memory GB");
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    fmt::print("  {:<6} {:>12.2f} {:>10.2f} {:>12.3f} {:>10.2f} {:>12}{}\n", i, Gb(node.weight_bytes),
               Gb(node.kv_bytes), Gb(node.arena_bytes), Gb(node.total()),
               node.memory_bytes > 0 ? fmt::format("{:.2f}", Gb(node.memory_bytes)) : "unknown",
               node.fits() ? "" : "  does not fit");
  }
  fmt::print(
      "\npredicted: time to first token {:.2f} ms, {:.2f} ms a token; a token reads {:.2f} GB and takes {:.2f} "
      "GFLOP\n",
      plan.ttft_us() / 1e3, plan.tpot_us() / 1e3, plan.bytes_per_token / 1e9, plan.flops_per_token / 1e9);
  if (o.prompt > 0) PrintCost("prefill of a prompt", plan.prefill);
  PrintCost("a decode step", plan.decode);
}

ordered_json ToJson(const PlanFlags& f, const PlanOptions& o, const ModelPlan& plan) {
  ordered_json out = {{"model", f.model},
                      {"machine", o.target.name},
                      {"isa", std::string(Name(o.target.isa))},
                      {"sockets", o.target.sockets},
                      {"tp", o.tp},
                      {"quantize", f.quantize},
                      {"kv_dtype", std::string(Name(o.kv_dtype))},
                      {"prompt_tokens", o.prompt},
                      {"gen_tokens", o.gen},
                      {"batch", o.batch},
                      {"chunk", o.chunk},
                      {"fits", plan.fits()}};
  out["nodes"] = ordered_json::array();
  for (const NodePlan& node : plan.nodes) {
    out["nodes"].push_back({{"weight_bytes", node.weight_bytes},
                            {"kv_bytes", node.kv_bytes},
                            {"arena_bytes", node.arena_bytes},
                            {"memory_bytes", node.memory_bytes},
                            {"fits", node.fits()}});
  }
  out["bytes_per_token"] = plan.bytes_per_token;
  out["flops_per_token"] = plan.flops_per_token;
  out["ttft_ms"] = plan.ttft_us() / 1e3;
  out["tpot_ms"] = plan.tpot_us() / 1e3;
  out["prefill"] = ToJson(plan.prefill);
  out["decode"] = ToJson(plan.decode);
  return out;
}

// What is missing, where a plan does not fit.
absl::Status CheckFits(const PlanOptions& o, const ModelPlan& plan) {
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const NodePlan& node = plan.nodes[i];
    if (node.fits()) continue;
    // Beyond one rank a node each node holds the shares of several.
    return FailedPrecondition(
        "the plan does not fit: node {} of {} needs {:.2f} GB (weights {:.2f}, KV {:.2f}, work "
        "{:.2f}) and has {:.2f} GB ({}--quantize or a shorter --gen need less)",
        i, o.target.name, Gb(node.total()), Gb(node.weight_bytes), Gb(node.kv_bytes), Gb(node.arena_bytes),
        Gb(node.memory_bytes), o.tp < o.target.nodes() ? "more ranks, " : "");
  }
  return absl::OkStatus();
}

absl::Status Run(const PlanFlags& f) {
  OpenOptions open;
  open.require_weights = false;
  XJIT_ASSIGN_OR_RETURN(const auto checkpoint, OpenCheckpoint(f.model, open));
  PlanOptions o;
  if (f.machine.empty()) {
    XJIT_ASSIGN_OR_RETURN(const HostMachine host, ReadHostMachine(true));
    o.target = host.target;
  } else {
    XJIT_ASSIGN_OR_RETURN(o.target, ReadMachine(f.machine));
  }
  if (f.sockets > 0) {
    XJIT_ASSIGN_OR_RETURN(o.target, FirstSockets(o.target, f.sockets));
  }
  o.tp = f.tp > 0 ? f.tp : checkpoint->defaults().tp.value_or(o.target.nodes());
  XJIT_ASSIGN_OR_RETURN(o.kv_dtype, ParseKvDtype(f.kv_dtype, *checkpoint));
  o.quantize = f.quantize;
  o.prompt = f.prompt;
  o.gen = f.gen;
  o.batch = f.batch;
  o.chunk = f.chunk;
  XJIT_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(*checkpoint, o));
  if (f.json) {
    fmt::print("{}\n", ToJson(f, o, plan).dump(2, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    PrintPlain(f, o, plan);
  }
  return CheckFits(o, plan);
}

}  // namespace

Command AddPlan(CLI::App& app) {
  auto f = std::make_shared<PlanFlags>();
  CLI::App* sub =
      app.add_subcommand("plan", "predict memory and speed of a model on a machine, from its configuration");
  sub->add_option("model", f->model, "a .gguf file, a checkpoint folder (config.json suffices), or a model.json")
      ->required()
      ->type_name("MODEL");
  sub->add_option("--machine", f->machine,
                  "a machine file, or a name such as xeon6980p-2s (default: this machine, measured)");
  sub->add_option("--tp", f->tp, "ranks that share the model (default: the manifest's, else one a NUMA node)")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--sockets", f->sockets, "use the nodes of the first N sockets only")->check(CLI::Range(1, 1024));
  sub->add_option("--quantize", f->quantize, "weights in int8, fp8, int4 or bf16 (default: as they are)");
  sub->add_option("--kv-dtype", f->kv_dtype, "bf16, f32, int8, fp8 or q4_0 (default: the manifest's, else bf16)");
  const CLI::Range tokens(int64_t{0}, int64_t{1} << 24);
  sub->add_option("--prompt", f->prompt, "tokens of the prompt")->check(tokens)->capture_default_str();
  sub->add_option("--gen", f->gen, "tokens generated after it")->check(tokens)->capture_default_str();
  sub->add_option("--batch", f->batch, "sequences that decode together")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  sub->add_option("--chunk", f->chunk, "most tokens of a prefill step")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_flag("--json", f->json, "as one JSON document");
  Example(sub, "xjit plan deepseek-r1/ --machine xeon6980p-2s --tp 6 --quantize int8 --prompt 1024 --gen 1024");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace xjit::tools
