// Software prefetch of weights, found by measuring: which hint and distance stream a type of weight fastest depends on
// the processor, the number of rows and the encoding, and a wrong one costs up to half of the speed.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "frontend/weights.h"
#include "ir/graph.h"
#include "ir/support/target.h"
#include "runtime/worker_pool.h"

namespace xjit {

struct PackedMatrix {
  GemmDesc desc;  // of few rows
  const std::byte* packed = nullptr;
};
// What streams these matrices, all of one type and number of rows, fastest: reads them with each of a few candidates in
// turns, on all threads of the pool, some 50 ms. Nullopt: no candidate gains 3% on what the planner chooses. An error:
// there is no memory to measure in.
absl::StatusOr<std::optional<PrefetchTuning>> MeasurePrefetch(const std::vector<PackedMatrix>& matrices,
                                                              WorkerPool& pool, const TargetInfo& target);

// Fills target->prefetch for the types of the fused module's packed matrices, for one row and for several. A type of
// less than 32 MB is left to the planner. Only matrices are measured: experts take what was found for matrices of their
// type. What was found is kept in the user's cache folder (prefetch_file.h) for this processor and number of threads.
// No result of a product depends on it, and no model fails to load for it: what cannot be measured is left to the
// planner.
void TunePrefetch(const Module& fused, const WeightStore& weights, WorkerPool& pool, TargetInfo* target);

}  // namespace xjit
