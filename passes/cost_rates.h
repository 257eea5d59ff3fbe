// How near to the machine's figures our kernels come: the one table of factors of the cost model, each with its source.
#pragma once

#include <cstdint>

#include "ir/support/dtype.h"
#include "ir/support/target.h"

namespace xjit {

// Shares of the node's read bandwidth.
inline constexpr double kWeightStreamShare = 0.97;
inline constexpr double kKvStreamShare = 0.91;
// Activations that row ops (norms, conversions, rotary embedding, sums) read and write, GB/s of one core.
inline constexpr double kRowOpsGbS = 40;

// What a product of such activations and weights runs on: the peak of one core, the share of it that the kernels reach
// with data in cache, and the rows that the hardware works on at a time.
struct ProductRate {
  double gflops = 0;
  double share = 1;
  int64_t tile_rows = 1;
};
ProductRate RateOfProduct(DType activation, DType weight, const TargetInfo& target);
// The same for the two products of attention: `few` query rows a sequence (decode), or many.
ProductRate RateOfAttention(DType query, bool few, const TargetInfo& target);

}  // namespace xjit
