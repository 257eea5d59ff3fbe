// Where ranks' sums are added up: as late as nothing but sums has been done to them, once for all that are added.
#pragma once

#include <set>

#include "passes/pass.h"

namespace xjit {

// `partial`: ops whose result is a sum that each rank has a part of; all else is the same on all ranks. Moves what
// follows (bias, scale, residual) behind the sum and puts all_reduce where a reader needs it. The number of all_reduce
// ops.
absl::StatusOr<int> PlaceAllReduces(Module& module, Function& f, const std::set<const Op*>& partial,
                                    PassContext& context);

// The item of a chain as an op's attribute and operands, gone from both.
void RemoveItem(Op* op, std::string_view chain, std::string_view name);

}  // namespace xjit
