// xjit machine: this machine as a machine file.
#include <nlohmann/json.hpp>

#include "codegen/cpu.h"
#include "codegen/measure.h"
#include "runtime/memory.h"
#include "runtime/topology.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

absl::Status Run(bool measure) {
  using nlohmann::ordered_json;
  XJIT_ASSIGN_OR_RETURN(const CpuTopology topology, HostTopology());
  XJIT_ASSIGN_OR_RETURN(const ThreadChoice threads, ChooseThreads(std::nullopt));
  const TargetInfo target = HostCpu();
  ordered_json isas = ordered_json::array();
  for (int i = 0; i <= static_cast<int>(target.isa); ++i) isas.push_back(std::string(Name(static_cast<Isa>(i))));
  ordered_json out = {{"name", "host"},
                      {"cpu", CpuName()},
                      {"isa", std::string(Name(target.isa))},
                      {"isas", isas},
                      {"cores", topology.cores.size()},
                      {"processing_units", topology.pus()},
                      {"threads", threads.threads()},
                      {"threads_reason", threads.reason},
                      {"numa_nodes", topology.nodes.size()},
                      {"l1d_bytes", target.l1d_bytes},
                      {"l2_bytes", target.l2_bytes},
                      {"l3_bytes", target.l3_bytes}};
  if (const auto memory = MemoryAvailable(); memory.ok()) out["memory_available_bytes"] = *memory;
  if (measure) {
    ReadBandwidthOptions options;
    options.cpus = threads.cpus;
    XJIT_ASSIGN_OR_RETURN(const ReadBandwidth read, MeasureReadBandwidth(threads.threads(), options));
    out["read_gb_s"] = read.median;
    out["read_gb_s_best"] = read.best;
    for (const auto& [key, kind, least] : {std::tuple{"f32_gflops_per_core", PeakKind::kF32Fma, Isa::kAvx2},
                                           std::tuple{"int8_gops_per_core", PeakKind::kInt8Dot, Isa::kAvx2},
                                           std::tuple{"bf16_gflops_per_core", PeakKind::kBf16Dot, Isa::kAvx512Bf16}}) {
      if (target.isa < least) continue;
      XJIT_ASSIGN_OR_RETURN(const double peak, MeasurePeak(kind, target.isa));
      out[key] = peak;
    }
  }
  fmt::print("{}\n", out.dump(2));
  return absl::OkStatus();
}

}  // namespace

Command AddMachine(CLI::App& app) {
  auto measure = std::make_shared<bool>(true);
  CLI::App* sub = app.add_subcommand("machine", "print this machine as a machine file");
  sub->add_flag("--measure,!--no-measure", *measure, "measure read bandwidth and peaks (default)");
  sub->add_flag("--json")->description("JSON is what it prints anyway");
  Example(sub, "xjit machine > machine.json");
  return {sub, [measure] { return Run(*measure); }};
}

}  // namespace xjit::tools
