// Data-parallel latent attention: each rank attends for its own sequences with all heads.
#pragma once

#include <string>
#include <vector>

#include "passes/pass.h"

namespace xjit {

// Bytes that a rank reads in a step for one layer's attention, shared by heads or by sequences.
struct LatentCost {
  double by_heads = 0;
  double by_sequences = 0;
};
// `o` is the product behind the attention `reader`.
LatentCost CostOfLatent(const Function& f, const Op* o, const Op* reader, const PassContext& context);

// Makes everything that leads to `o` work on the rank's own rows and gathers o's result. The ops that now do, none
// where it cannot be done, with the reason.
absl::StatusOr<std::vector<Op*>> AttendOwnRows(Module& module, Function& f, Op* o, const Op* reader, std::string* why);

}  // namespace xjit
