// What a step costs on a machine: a roofline over a planned module. Every op is a stage; a stage takes as long as its
// bytes need from memory or its arithmetic on the cores, whichever is longer, and then its barrier; a collective takes
// its latency and its bytes over the link between nodes. docs/planner.md says what is counted and what is not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "passes/pass.h"

namespace xjit {

enum class CostLimit : uint8_t { kMemory, kCompute, kBarrier, kLink };
std::string_view Name(CostLimit limit);  // "memory", "compute", "barrier", "link"

// The NUMA node of a rank: ranks go to nodes in turns, so with more ranks than nodes some share one.
struct RankNode {
  int node = 0;
  int cores = 1;  // of the node
  int ranks = 1;  // that share it
};
RankNode NodeOf(const TargetInfo& target, int tp, int rank);

// What a rank may use of its node.
struct RankShare {
  int node = 0;
  double cores = 1;
  double read_gb_s = 0;
  double memory_bytes = 0;  // 0: unknown
  double link_gb_s = 0;     // to the other ranks
};
// FailedPrecondition where the machine lacks a figure that a prediction needs.
absl::StatusOr<RankShare> ShareOf(const TargetInfo& target, int tp, int rank);

// One op of one call of its function.
struct StageCost {
  std::string function;  // "layer"
  std::string op;        // "gemm"
  std::string name;      // of the op's result; empty where it has none
  std::string weight;    // the matrix it reads, symbols without their slices; empty where there is none
  int64_t count = 1;     // calls a step
  double bytes = 0;      // read from memory
  double flops = 0;      // of products, a multiplication and an addition are two
  double us = 0;
  CostLimit limit = CostLimit::kMemory;  // what most of `us` goes to
};

struct ModelCost {
  std::vector<StageCost> stages;
  // Of a step: stages times their counts.
  double bytes = 0, flops = 0, us = 0;
  // What nothing could beat: every byte at the node's full speed; every product at the full peak of its type.
  double bandwidth_limit_us = 0, flops_limit_us = 0;
};

// The step of `context`: its rows, logit rows, sequences and kv_length, on the rank's share of context.target.
absl::StatusOr<ModelCost> EstimateStep(const Module& planned, const PassContext& context);

// Bytes of all weights of a module, each layer's counted, as encoded.
absl::StatusOr<int64_t> WeightBytes(const Module& module);
// Bytes of a rank's KV cache with `tokens` tokens of each of the step's sequences. A layer whose attention is for the
// rank's own sequences (rows R) keeps only theirs: of the rank that has most.
absl::StatusOr<double> KvCacheBytes(const Module& module, const PassContext& context, int64_t tokens);

// Experts that T tokens visit, each choosing k of E: E (1 - (1 - k/E)^T).
double ExpectedExperts(double experts, double chosen, double tokens);
// Rows that a kernel works on where `tokens` tokens come with probability p each and rows go in tiles of `tile`.
double ExpectedTileRows(int64_t tokens, double p, int64_t tile);
// Sum over a sequence's `rows` last tokens of how many each attends to; the last is token kv_length - 1.
double AttendedPairs(int64_t rows, int64_t kv_length, int64_t window);

}  // namespace xjit
