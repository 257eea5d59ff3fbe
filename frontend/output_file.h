// Writing results: a whole file or none of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

// Writes a regular file beside its place first, so that a failure leaves an older one whole; links are followed, and
// what is no regular file (/dev/null, a pipe) is written to as it is. FailedPrecondition with the path.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

// InvalidArgument where `path` is one of the files that the work reads, by whatever name.
absl::Status CheckNotInput(const std::string& path, const std::vector<std::string>& inputs);

// Whether a file could be written there; leaves nothing behind. Asked before long work, so that it is not lost.
absl::Status CheckWritable(const std::string& path);

}  // namespace xjit
