// This machine as planners see it: its topology, and figures measured on it where that is wanted.
#pragma once

#include "ir/support/status.h"
#include "ir/support/target.h"
#include "runtime/topology.h"
#include "runtime/worker_pool.h"

namespace xjit {

struct HostMachine {
  TargetInfo target;
  CpuTopology topology;
  ThreadChoice threads;
  double read_gb_s = 0, read_gb_s_best = 0;  // of all threads; 0: not measured
};

// Measuring takes seconds and wants a quiet machine: memory reads of a node, of one core and between two nodes, the
// peaks of dot products with all cores busy, barriers.
absl::StatusOr<HostMachine> ReadHostMachine(bool measure);

// Peaks of one core while `threads` cores are busy, into `target`; those that its ISA has no instruction for stay 0.
absl::Status MeasurePeaks(int threads, TargetInfo* target);
// One barrier of the pool's threads, microseconds.
double MeasureBarrierUs(WorkerPool& pool);

}  // namespace xjit
