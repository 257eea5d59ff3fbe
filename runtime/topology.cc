#include "runtime/topology.h"

#include <hwloc.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "fmt/format.h"
#include "runtime/cgroup.h"

namespace xjit {
namespace {

struct TopologyDeleter {
  void operator()(hwloc_topology_t t) const { hwloc_topology_destroy(t); }
};
using TopologyPtr = std::unique_ptr<hwloc_topology, TopologyDeleter>;

struct BitmapDeleter {
  void operator()(hwloc_bitmap_t b) const { hwloc_bitmap_free(b); }
};
using BitmapPtr = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

int64_t CacheBytes(hwloc_topology_t topology, hwloc_obj_type_t type) {
  const hwloc_obj_t cache = hwloc_get_obj_by_type(topology, type, 0);
  return cache != nullptr ? static_cast<int64_t>(cache->attr->cache.size) : 0;
}

CpuTopology Read(hwloc_topology_t topology) {
  CpuTopology out;
  out.l1d_bytes = CacheBytes(topology, HWLOC_OBJ_L1CACHE);
  out.l2_bytes = CacheBytes(topology, HWLOC_OBJ_L2CACHE);
  out.l3_bytes = CacheBytes(topology, HWLOC_OBJ_L3CACHE);
  // Some virtual machines show no cores: then every processing unit is one.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t obj = nullptr; (obj = hwloc_get_next_obj_by_type(topology, type, obj)) != nullptr;) {
    CpuTopology::Core core;
    unsigned pu = 0;
    hwloc_bitmap_foreach_begin(pu, obj->cpuset) core.pus.push_back(static_cast<int>(pu));
    hwloc_bitmap_foreach_end();
    const int node = hwloc_bitmap_first(obj->nodeset);
    const auto at = std::find(out.nodes.begin(), out.nodes.end(), std::max(node, 0));
    core.node = static_cast<int>(at - out.nodes.begin());
    if (at == out.nodes.end()) out.nodes.push_back(std::max(node, 0));
    if (!core.pus.empty()) out.cores.push_back(std::move(core));
  }
  return out;
}

absl::StatusOr<CpuTopology> Load(const char* synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return FailedPrecondition("hwloc: cannot read the machine's topology");
  TopologyPtr topology(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic) != 0) {
    return InvalidArgument("not a synthetic topology of hwloc: \"{}\" (for example \"pack:2 numa:1 core:8 pu:2\")",
                           synthetic);
  }
  if (hwloc_topology_load(raw) != 0) return FailedPrecondition("hwloc: cannot read the machine's topology");
  CpuTopology out = Read(raw);
  if (hwloc_topology_is_thissystem(raw) != 0) {
    BitmapPtr bound(hwloc_bitmap_alloc());
    if (bound != nullptr && hwloc_get_cpubind(raw, bound.get(), HWLOC_CPUBIND_PROCESS) == 0 &&
        hwloc_bitmap_weight(bound.get()) > 0) {
      std::vector<int> pus;
      unsigned pu = 0;
      hwloc_bitmap_foreach_begin(pu, bound.get()) pus.push_back(static_cast<int>(pu));
      hwloc_bitmap_foreach_end();
      out = Restrict(out, pus);
    }
  }
  if (out.cores.empty()) return FailedPrecondition("hwloc shows no processor that this process may run on");
  return out;
}

struct Usable {
  int threads;
  std::string reason;
};

Usable Default(const CpuTopology& topology, std::optional<double> quota) {
  const int cores = static_cast<int>(topology.cores.size());
  if (quota.has_value() && std::ceil(*quota) < cores) {
    const int threads = std::max(static_cast<int>(std::ceil(*quota)), 1);
    return {threads, fmt::format("cgroup quota of {:.4g} cpus, {} physical cores", *quota, cores)};
  }
  return {cores, fmt::format("{} physical core{}", cores, cores == 1 ? "" : "s")};
}

}  // namespace

int CpuTopology::pus() const {
  size_t count = 0;
  for (const Core& core : cores) count += core.pus.size();
  return static_cast<int>(count);
}

absl::StatusOr<CpuTopology> HostTopology() { return Load(nullptr); }
absl::StatusOr<CpuTopology> SyntheticTopology(const std::string& description) { return Load(description.c_str()); }

CpuTopology Restrict(const CpuTopology& topology, const std::vector<int>& pus) {
  CpuTopology out = topology;
  out.cores.clear();
  out.nodes.clear();
  for (const CpuTopology::Core& core : topology.cores) {
    CpuTopology::Core kept;
    for (int pu : core.pus) {
      if (std::find(pus.begin(), pus.end(), pu) != pus.end()) kept.pus.push_back(pu);
    }
    if (kept.pus.empty()) continue;
    const int node = topology.nodes[core.node];
    const auto at = std::find(out.nodes.begin(), out.nodes.end(), node);
    kept.node = static_cast<int>(at - out.nodes.begin());
    if (at == out.nodes.end()) out.nodes.push_back(node);
    out.cores.push_back(std::move(kept));
  }
  return out;
}

absl::StatusOr<ThreadChoice> ChooseThreads(std::optional<int> flag, const CpuTopology& topology,
                                           std::optional<double> quota_cpus) {
  const int cores = static_cast<int>(topology.cores.size());
  if (cores == 0) return FailedPrecondition("no processor that this process may run on");
  const Usable usable = Default(topology, quota_cpus);
  ThreadChoice choice;
  choice.usable = usable.threads;
  choice.reason = usable.reason;
  const int threads = flag.value_or(usable.threads);
  if (threads < 1)
    return UsageError("--threads {}: at least 1 is needed (leave it out for {})", threads, usable.threads);
  const int most = std::min(kMaxThreads, kMaxThreadsPerPu * topology.pus());
  if (threads > most) {
    return UsageError("--threads {}: more than {}, {} for each of {} processing units", threads, most, kMaxThreadsPerPu,
                      topology.pus());
  }
  if (threads > usable.threads) {
    choice.warning = fmt::format("{} threads are more than the {} usable ({}): expect them to slow each other down",
                                 threads, usable.threads, usable.reason);
  }
  if (threads < cores || threads > topology.pus()) {
    choice.cpus.assign(threads, -1);
    return choice;
  }
  // First one unit of each core, then second ones.
  for (size_t sibling = 0; choice.threads() < threads; ++sibling) {
    for (const CpuTopology::Core& core : topology.cores) {
      if (sibling < core.pus.size() && choice.threads() < threads) choice.cpus.push_back(core.pus[sibling]);
    }
  }
  return choice;
}

absl::StatusOr<ThreadChoice> ChooseThreads(std::optional<int> flag) {
  absl::StatusOr<CpuTopology> topology = HostTopology();
  if (!topology.ok()) return topology.status();
  return ChooseThreads(flag, *topology, CgroupCpus());
}

absl::StatusOr<std::vector<int>> UsableCores() {
  absl::StatusOr<CpuTopology> topology = HostTopology();
  if (!topology.ok()) return topology.status();
  std::vector<int> cpus;
  for (int i = 0; i < Default(*topology, CgroupCpus()).threads; ++i) cpus.push_back(topology->cores[i].pus[0]);
  return cpus;
}

}  // namespace xjit
