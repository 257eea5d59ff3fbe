// The text side of a model: its tokenizer and chat template, loaded from wherever its checkpoint has them.
#pragma once

#include <future>
#include <memory>

#include "frontend/checkpoint.h"
#include "frontend/text/text.h"

namespace xjit {

// FailedPrecondition when the checkpoint has no tokenizer; InvalidArgument, with the file, when it is broken or
// unknown.
absl::StatusOr<std::shared_ptr<const text::Tokenizer>> LoadTokenizer(const Checkpoint& checkpoint);

// The same on a thread of its own, beside the loading of weights. The checkpoint must live until the result is there.
std::future<absl::StatusOr<std::shared_ptr<const text::Tokenizer>>> LoadTokenizerAsync(const Checkpoint& checkpoint);

// A failure of the text library as a status.
absl::Status ToStatus(const text::Error& error, std::string_view place);

}  // namespace xjit
