// What a route op says, as numbers: for its reference and for lowering.
#pragma once

#include "ir/graph.h"
#include "ir/support/ref/moe.h"
#include "ir/support/status.h"

namespace xjit {

// InvalidArgument: an unknown score, groups that do not divide the experts, more chosen than there are.
absl::StatusOr<ref::RouteParams> RouteParamsOf(const Op& op);

}  // namespace xjit
