// Cores, NUMA nodes and caches that this process may use, and how many threads to run on them.
//
// The default is one thread for each physical core in the affinity mask, but not more than a container's processor
// quota: threads beyond either make spinning threads wait for descheduled ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

struct CpuTopology {
  struct Core {
    std::vector<int> pus;  // processing units (hardware threads) that may be used, by the system's number; not empty
    int node = 0;          // index into nodes
    bool operator==(const Core&) const = default;
  };
  std::vector<Core> cores;                            // neighbours share caches and nodes
  std::vector<int> nodes;                             // the system's numbers of the NUMA nodes of these cores
  int64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // of one cache; 0 where not known

  int pus() const;
};

// This machine, restricted to what the process may run on. To be read before threads are pinned.
absl::StatusOr<CpuTopology> HostTopology();
// hwloc's synthetic description, such as "pack:2 numa:3 core:20 pu:2"; InvalidArgument if it is none.
absl::StatusOr<CpuTopology> SyntheticTopology(const std::string& description);
// Without the processing units not in `pus`, and without cores and nodes left empty.
CpuTopology Restrict(const CpuTopology& topology, const std::vector<int>& pus);

struct ThreadChoice {
  std::vector<int> cpus;  // of each thread, for WorkerPoolOptions; all -1 where threads are better left to the system
  int usable = 0;         // the default number
  std::string reason;     // "2 physical cores", "cgroup quota of 1.5 cpus"
  std::string warning;    // empty, or one line for the user
  int threads() const { return static_cast<int>(cpus.size()); }
};
// `flag` is the user's number, if any: InvalidArgument below 1, or above kMaxThreads or kMaxThreadsPerPu for each
// processing unit. More than usable is allowed with a warning, beyond the processing units unpinned. Threads are pinned
// when they take every core; fewer are not, since two processes that both pinned to the first cores would share these
// and leave the others idle.
inline constexpr int kMaxThreads = 4096;  // what the pool's barrier is made for
// At each barrier all wait for all, so that each unit must have run all of its threads: 32 time slices of Linux (some
// 3 ms, base_slice_ns) are 0.1 s, and a step has hundreds of barriers. With thousands of threads no step ends.
inline constexpr int kMaxThreadsPerPu = 32;
absl::StatusOr<ThreadChoice> ChooseThreads(std::optional<int> flag, const CpuTopology& topology,
                                           std::optional<double> quota_cpus);
// On this machine.
absl::StatusOr<ThreadChoice> ChooseThreads(std::optional<int> flag);

// The processing units to use by default on this machine, one a core.
absl::StatusOr<std::vector<int>> UsableCores();

}  // namespace xjit
