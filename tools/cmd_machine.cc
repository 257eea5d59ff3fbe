// xjit machine: this machine as a machine file.
#include <nlohmann/json.hpp>

#include "codegen/cpu.h"
#include "frontend/host_machine.h"
#include "frontend/machine_file.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

absl::Status Run(bool measure) {
  using nlohmann::ordered_json;
  XJIT_ASSIGN_OR_RETURN(const HostMachine host, ReadHostMachine(measure));
  ordered_json out = ordered_json::parse(MachineText(host.target));
  // What people want to know besides.
  ordered_json isas = ordered_json::array();
  for (int i = 0; i <= static_cast<int>(host.target.isa); ++i) isas.push_back(std::string(Name(static_cast<Isa>(i))));
  out["cpu"] = CpuName();
  out["isas"] = isas;
  out["processing_units"] = host.topology.pus();
  out["threads_reason"] = host.threads.reason;
  out["numa_nodes"] = host.target.nodes();
  out["memory_available_bytes"] = host.target.node_memory_bytes * host.target.nodes();
  if (measure) {
    out["read_gb_s"] = host.read_gb_s;
    out["read_gb_s_best"] = host.read_gb_s_best;
  }
  fmt::print("{}\n", out.dump(2));
  return absl::OkStatus();
}

}  // namespace

Command AddMachine(CLI::App& app) {
  auto measure = std::make_shared<bool>(true);
  CLI::App* sub = app.add_subcommand("machine", "print this machine as a machine file");
  sub->add_flag("--measure,!--no-measure", *measure, "measure memory, peaks and barriers (default)");
  sub->add_flag("--json")->description("JSON is what it prints anyway");
  Example(sub, "xjit machine > machine.json");
  return {sub, [measure] { return Run(*measure); }};
}

}  // namespace xjit::tools
