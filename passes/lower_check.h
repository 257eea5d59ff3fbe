// What lowering has kernels for: nothing that an op says may be passed over in silence.
#pragma once

#include "ir/graph.h"
#include "ir/support/status.h"

namespace xjit {

// Unimplemented, naming op and feature, where an attribute, optional operand, chain item or shape of the op means
// something that lowering does not know. Every op and feature that lowering learns is a row or a word in the table of
// lower_check.cc.
absl::Status CheckLowerable(const Op& op);
// Of every op of a planned module, naming the function too.
absl::Status CheckLowerable(const Module& planned);

}  // namespace xjit
