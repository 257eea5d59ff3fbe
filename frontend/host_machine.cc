#include "frontend/host_machine.h"

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "codegen/cpu.h"
#include "codegen/measure.h"
#include "ir/support/clock.h"
#include "runtime/cgroup.h"
#include "runtime/memory.h"

namespace xjit {
namespace {

double Middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

int CountSockets(const CpuTopology& topology) {
  std::set<std::string> packages;
  for (const CpuTopology::Core& core : topology.cores) {
    const auto id =
        ReadSystemFile(fmt::format("/sys/devices/system/cpu/cpu{}/topology/physical_package_id", core.pus.front()));
    packages.insert(id.value_or(""));
  }
  return std::max<int>(1, static_cast<int>(packages.size()));
}

// The threads' processing units, node by node.
std::vector<std::vector<int>> CpusOfNodes(const HostMachine& host) {
  std::vector<std::vector<int>> nodes(std::max<size_t>(1, host.topology.nodes.size()));
  for (const int cpu : host.threads.cpus) {
    size_t node = 0;
    for (const CpuTopology::Core& core : host.topology.cores) {
      if (std::find(core.pus.begin(), core.pus.end(), cpu) != core.pus.end()) node = static_cast<size_t>(core.node);
    }
    nodes[node].push_back(cpu);
  }
  std::erase_if(nodes, [](const auto& cpus) { return cpus.empty(); });
  return nodes;
}

// Threads of one node read what lies on another.
absl::StatusOr<double> MeasureLink(const std::vector<int>& from, const std::vector<int>& to) {
  XJIT_ASSIGN_OR_RETURN(const ReadBytesFn read, ReadBytesFunction());
  const auto on_node = [&from]() -> absl::StatusOr<StreamBuffer> {
    // Pages belong to the node of the thread that writes them first: the pool pins this one.
    XJIT_ASSIGN_OR_RETURN(const auto pool, WorkerPool::Create({.cpus = {from.front()}}));
    return StreamBuffer::Create(int64_t{1} << 30);
  };
  XJIT_ASSIGN_OR_RETURN(const StreamBuffer buffer, on_node());
  XJIT_ASSIGN_OR_RETURN(const auto pool, WorkerPool::Create({.cpus = to}));
  std::vector<double> rates;
  for (int round = 0; round < 5; ++round) {
    const double start = NowMs();
    pool->Run([&](int t) {
      const auto part = buffer.Part(t, pool->threads());
      read(part.data(), part.size());
    });
    rates.push_back(static_cast<double>(buffer.bytes()) / 1e6 / (NowMs() - start));
  }
  return Middle(rates);
}

absl::Status Measure(HostMachine* host) {
  TargetInfo& target = host->target;
  const auto nodes = CpusOfNodes(*host);
  if (nodes.empty()) return FailedPrecondition("there is no thread to measure with");
  ReadBandwidthOptions options;
  options.cpus = host->threads.cpus;
  XJIT_ASSIGN_OR_RETURN(const ReadBandwidth all, MeasureReadBandwidth(host->threads.threads(), options));
  host->read_gb_s = all.median;
  host->read_gb_s_best = all.best;
  target.node_read_gb_s = all.median;
  if (nodes.size() > 1) {
    options.cpus = nodes[0];
    XJIT_ASSIGN_OR_RETURN(const ReadBandwidth node, MeasureReadBandwidth(static_cast<int>(nodes[0].size()), options));
    target.node_read_gb_s = node.median;
    XJIT_ASSIGN_OR_RETURN(target.link_gb_s, MeasureLink(nodes[0], nodes[1]));
  }
  options.cpus = std::span(nodes[0]).first(1);
  XJIT_ASSIGN_OR_RETURN(const ReadBandwidth core, MeasureReadBandwidth(1, options));
  target.core_read_gb_s = core.median;
  {
    XJIT_ASSIGN_OR_RETURN(const auto pool, WorkerPool::Create({.cpus = nodes[0]}));
    target.barrier_us = MeasureBarrierUs(*pool);
  }
  if (nodes.size() > 1) {
    XJIT_ASSIGN_OR_RETURN(const auto pool, WorkerPool::Create({.cpus = host->threads.cpus}));
    // A sum over ranks is published and read behind one barrier each.
    target.all_reduce_us = 2 * MeasureBarrierUs(*pool);
  }
  return MeasurePeaks(host->threads.threads(), &target);
}

}  // namespace

double MeasureBarrierUs(WorkerPool& pool) {
  constexpr int kBarriers = 1000;
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    double took_ms = 0;
    pool.Run([&](int t) {
      pool.Barrier(t);
      const double start = NowMs();
      for (int i = 0; i < kBarriers; ++i) pool.Barrier(t);
      if (t == 0) took_ms = NowMs() - start;
    });
    rounds.push_back(took_ms * 1e3 / kBarriers);
  }
  return Middle(rounds);
}

absl::Status MeasurePeaks(int threads, TargetInfo* target) {
  struct Peak {
    PeakKind kind;
    Isa least;
    double TargetInfo::* field;
  };
  for (const auto& [kind, least, field] : {Peak{PeakKind::kF32Fma, Isa::kAvx2, &TargetInfo::f32_gflops},
                                           Peak{PeakKind::kInt8Dot, Isa::kAvx2, &TargetInfo::int8_gops},
                                           Peak{PeakKind::kBf16Dot, Isa::kAvx512Bf16, &TargetInfo::bf16_gflops}}) {
    if (target->isa < least) continue;
    std::vector<absl::StatusOr<double>> peaks(static_cast<size_t>(threads), 0.0);
    std::vector<std::thread> busy;
    for (auto& peak : peaks) {
      busy.emplace_back([&peak, kind = kind, isa = target->isa] { peak = MeasurePeak(kind, isa); });
    }
    for (std::thread& thread : busy) thread.join();
    std::vector<double> rates;
    for (const auto& peak : peaks) {
      XJIT_RETURN_IF_ERROR(peak.status());
      rates.push_back(*peak);
    }
    target->*field = Middle(rates);
  }
  return absl::OkStatus();
}

absl::StatusOr<HostMachine> ReadHostMachine(bool measure) {
  HostMachine host;
  XJIT_ASSIGN_OR_RETURN(host.topology, HostTopology());
  XJIT_ASSIGN_OR_RETURN(host.threads, ChooseThreads(std::nullopt));
  TargetInfo& target = host.target;
  target = HostCpu();
  target.sockets = CountSockets(host.topology);
  target.cores = static_cast<int>(host.topology.cores.size());
  target.node_cores.assign(std::max<size_t>(1, host.topology.nodes.size()), 0);
  for (const CpuTopology::Core& core : host.topology.cores) ++target.node_cores[static_cast<size_t>(core.node)];
  const int largest = *std::max_element(target.node_cores.begin(), target.node_cores.end());
  target.threads = std::min(largest, host.threads.threads());
  if (const auto memory = MemoryAvailable(); memory.ok()) target.node_memory_bytes = *memory / target.nodes();
  if (measure) XJIT_RETURN_IF_ERROR(Measure(&host));
  return host;
}

}  // namespace xjit
