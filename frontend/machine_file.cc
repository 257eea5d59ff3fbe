#include "frontend/machine_file.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "frontend/json.h"
#include "frontend/mapped_file.h"

namespace xjit {
namespace {

struct Preset {
  std::string_view name, text;
};
constexpr Preset kPresets[] = {
#include "machine_presets.inc"
};

constexpr int64_t kMaxCores = 4096, kMaxNodes = 1024, kMaxBytes = int64_t{1} << 60;
// More than any machine's figure by orders of magnitude; sums of a few stay exact.
constexpr double kMaxRate = 1e9;

// What a file may say. Those without a field are for people, as `xjit machine` prints them.
constexpr std::string_view kKeys[] = {
    "name",
    "cpu",
    "isa",
    "isas",
    "amx_fp16",
    "vbmi",
    "avx_vnni",
    "cores",
    "sockets",
    "processing_units",
    "threads",
    "threads_reason",
    "numa_nodes",
    "node_cores",
    "l1d_bytes",
    "l2_bytes",
    "l3_bytes",
    "memory_available_bytes",
    "read_gb_s",
    "read_gb_s_best",
    "link_gb_s",
    "node_memory_bytes",
    "node_read_gb_s",
    "core_read_gb_s",
    "barrier_us",
    "f32_gflops_per_core",
    "all_reduce_us",
    "bf16_gflops_per_core",
    "sources",
    "int8_gops_per_core",
};

absl::Status CheckKeys(const Json& json, std::string_view file) {
  for (const auto& item : json.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), item.key()) != std::end(kKeys)) continue;
    std::string known;
    for (const std::string_view key : kKeys) known += fmt::format("{}{}", known.empty() ? "" : ", ", key);
    return InvalidArgument("{}: {}: no such key in a machine file (known: {})", file, item.key(), known);
  }
  return absl::OkStatus();
}

struct Rate {
  std::string_view key;
  double TargetInfo::* field;
};
constexpr Rate kRates[] = {
    {"node_read_gb_s", &TargetInfo::node_read_gb_s},
    {"core_read_gb_s", &TargetInfo::core_read_gb_s},
    {"link_gb_s", &TargetInfo::link_gb_s},
    {"f32_gflops_per_core", &TargetInfo::f32_gflops},
    {"bf16_gflops_per_core", &TargetInfo::bf16_gflops},
    {"int8_gops_per_core", &TargetInfo::int8_gops},
    {"barrier_us", &TargetInfo::barrier_us},
    {"all_reduce_us", &TargetInfo::all_reduce_us},
};

struct Size {
  std::string_view key;
  int64_t TargetInfo::* field;
};
constexpr Size kSizes[] = {
    {"l1d_bytes", &TargetInfo::l1d_bytes},
    {"l2_bytes", &TargetInfo::l2_bytes},
    {"l3_bytes", &TargetInfo::l3_bytes},
    {"node_memory_bytes", &TargetInfo::node_memory_bytes},
};

absl::Status ReadCores(const JsonObject& json, TargetInfo* target) {
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> nodes, json.Ints("node_cores", 1, kMaxCores));
  if (nodes.size() > kMaxNodes) return InvalidArgument("{}: more than {} nodes", json.Place("node_cores"), kMaxNodes);
  XJIT_ASSIGN_OR_RETURN(const int64_t sockets, json.IntOr("sockets", 1, 1, kMaxNodes));
  target->sockets = static_cast<int>(sockets);
  target->node_cores.assign(nodes.begin(), nodes.end());
  const int64_t all = std::accumulate(nodes.begin(), nodes.end(), int64_t{0});
  XJIT_ASSIGN_OR_RETURN(const int64_t threads, json.IntOr("threads", 0, 1, kMaxCores));
  XJIT_ASSIGN_OR_RETURN(const int64_t cores, json.IntOr("cores", all > 0 ? all : threads, 1, kMaxCores));
  if (nodes.empty() && cores == 0) {
    return InvalidArgument("{}: absent (or node_cores, the cores of each NUMA node: [43, 43, 42])",
                           json.Place("cores"));
  }
  if (all > 0 && cores != all) {
    return InvalidArgument("{}: {} cores, but node_cores sum up to {}", json.Place("cores"), cores, all);
  }
  target->cores = static_cast<int>(cores);
  const int64_t largest = nodes.empty() ? cores : *std::max_element(nodes.begin(), nodes.end());
  target->threads = static_cast<int>(threads > 0 ? threads : largest);
  return absl::OkStatus();
}

absl::StatusOr<TargetInfo> ReadObject(const JsonObject& json) {
  TargetInfo target;
  XJIT_ASSIGN_OR_RETURN(target.name, json.StringOr("name", "machine"));
  XJIT_ASSIGN_OR_RETURN(const std::string isa, json.String("isa"));
  const auto parsed = ParseIsa(isa);
  if (!parsed.has_value())
    return InvalidArgument("{}: \"{}\" is no ISA (known: {})", json.Place("isa"), isa, IsaList(Isa::kAmx));
  target.isa = *parsed;
  XJIT_ASSIGN_OR_RETURN(target.amx_fp16, json.BoolOr("amx_fp16", false));
  // Every processor with AMX has both.
  XJIT_ASSIGN_OR_RETURN(target.vbmi, json.BoolOr("vbmi", target.isa == Isa::kAmx));
  XJIT_ASSIGN_OR_RETURN(target.avx_vnni, json.BoolOr("avx_vnni", target.isa == Isa::kAmx));
  XJIT_RETURN_IF_ERROR(ReadCores(json, &target));
  for (const Size& size : kSizes) {
    XJIT_ASSIGN_OR_RETURN(target.*size.field, json.IntOr(size.key, target.*size.field, 1, kMaxBytes));
  }
  for (const Rate& rate : kRates) {
    XJIT_ASSIGN_OR_RETURN(target.*rate.field, json.NumberOr(rate.key, 0, 0, kMaxRate));
  }
  return target;
}

}  // namespace

std::vector<std::string_view> MachinePresets() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

absl::StatusOr<TargetInfo> ParseMachine(std::string_view text, std::string_view file) {
  XJIT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file));
  XJIT_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, file));
  XJIT_RETURN_IF_ERROR(CheckKeys(json, file));
  return ReadObject(object);
}

absl::StatusOr<TargetInfo> ReadMachine(std::string_view name_or_path) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.name == name_or_path) return ParseMachine(preset.text, preset.name);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", preset.name);
  }
  auto file = MappedFile::Open(std::string(name_or_path));
  if (!file.ok()) {
    return UsageError(
        "--machine {}: no machine of that name and no readable file (known: {}; xjit machine > FILE writes one)",
        name_or_path, known);
  }
  return ParseMachine(file->text(), name_or_path);
}

std::string MachineText(const TargetInfo& target) {
  nlohmann::ordered_json out = {{"name", target.name}, {"isa", std::string(Name(target.isa))}};
  if (target.amx_fp16) out["amx_fp16"] = true;
  out["vbmi"] = target.vbmi;
  out["avx_vnni"] = target.avx_vnni;
  out["sockets"] = target.sockets;
  out["cores"] = target.cores;
  out["threads"] = target.threads;
  if (!target.node_cores.empty()) out["node_cores"] = target.node_cores;
  for (const Size& size : kSizes) {
    if (target.*size.field > 0) out[std::string(size.key)] = target.*size.field;
  }
  for (const Rate& rate : kRates) {
    if (target.*rate.field > 0) out[std::string(rate.key)] = target.*rate.field;
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<TargetInfo> FirstSockets(const TargetInfo& target, int sockets) {
  if (sockets < 1 || sockets > target.sockets) {
    return UsageError("--sockets {}: {} has {}", sockets, target.name, target.sockets);
  }
  if (sockets == target.sockets) return target;
  if (target.nodes() % target.sockets != 0) {
    return UsageError("--sockets {}: the {} NUMA nodes of {} are not spread evenly over {} sockets", sockets,
                      target.nodes(), target.name, target.sockets);
  }
  TargetInfo part = target;
  part.sockets = sockets;
  part.node_cores.resize(static_cast<size_t>(target.nodes() / target.sockets * sockets));
  part.cores = std::accumulate(part.node_cores.begin(), part.node_cores.end(), 0);
  part.threads = std::min(part.threads, *std::max_element(part.node_cores.begin(), part.node_cores.end()));
  return part;
}

}  // namespace xjit
