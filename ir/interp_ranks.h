// Runs the ranks of a sharded module together on the interpreter, each on a thread of its own, meeting at collectives.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ir/interpreter.h"

namespace xjit {

// Calls run(collective) once for each of `ranks` ranks, side by side; the results by rank, or the first failure that is
// not another rank's. A rank that fails or ends early makes collectives of the others fail instead of waiting.
absl::StatusOr<std::vector<std::vector<TensorData>>> RunRanks(
    int ranks, const std::function<absl::StatusOr<std::vector<TensorData>>(Collective&)>& run);

}  // namespace xjit
