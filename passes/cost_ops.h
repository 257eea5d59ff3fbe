// What one op does: bytes, arithmetic, what goes over the link. An op that is not known here is a row op: it reads and
// writes activations.
#pragma once

#include "ir/graph.h"
#include "passes/cost.h"
#include "passes/cost_rates.h"

namespace xjit {

// Of one call on one rank.
struct OpWork {
  bool stage = true;        // false: a view, or control: costs nothing
  bool replicated = false;  // every thread does all of it: no barrier behind it
  double bytes = 0;         // from memory
  double stream_share = 1;  // of the node's bandwidth that reading them reaches
  double flops = 0;         // of products
  double timed_flops = 0;   // with rows filled up to whole tiles
  ProductRate rate;         // of the products
  double touched = 0;       // bytes of activations that a row op reads and writes
  bool collective = false;  // all ranks meet
  double link_bytes = 0;    // that this rank takes in from others
  const Weight* weight = nullptr;
};

absl::StatusOr<OpWork> WorkOf(const Op& op, const PassContext& context);

// Bytes of a weight as encoded, all experts.
double EncodedWeightBytes(const Weight& weight);
// Sequences that a rank attends for where each has its own: of the rank that has most.
int64_t OwnSequences(const PassContext& context);
// Bytes of a row of `cols` values in the KV cache; int8 and fp8 with one f32 scale a head.
double KvRowBytes(DType type, double cols, double heads);
// Bytes that the op leaves in a rank's KV cache for one token of each of the step's sequences; 0 where it stores
// nothing.
double KvBytesStored(const Op& op, const PassContext& context);

}  // namespace xjit
