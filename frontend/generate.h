// Generating text: prefill, then sample and decode until something says stop.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/engine.h"
#include "frontend/text/text.h"
#include "runtime/sampler.h"

namespace xjit {

// Finds stop strings in text that comes in pieces. What may still become a stop string is held back.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // Adds a piece and returns what is now sure to stand before any stop string; sets stopped().
  std::string Push(std::string_view piece);
  // What was held back, at the end of the text.
  std::string Finish() { return std::exchange(held_, {}); }
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

struct GenerateParams {
  SamplerParams sampler;
  int64_t max_tokens = -1;  // -1: until the context is full
  std::vector<std::string> stop;
  bool ignore_eos = false;
  std::vector<int32_t> end_ids;  // tokens that end a generation; they are not part of the text
};

struct Generated {
  std::vector<int32_t> ids;
  std::string text;                   // empty without a tokenizer
  std::string finish_reason;          // "stop": an end token or a stop string; "length"; "cancelled"
  double ttft_ms = 0, decode_ms = 0;  // to the first token; from it to the last
  int64_t decode_steps = 0;
};

// Continues sequence `seq` with the prompt's ids, which are fed first. `history` is what the sequence already holds,
// for penalties. `on_text` is called with each piece of text (valid UTF-8); false cancels. `tokenizer` may be nullptr.
absl::StatusOr<Generated> Generate(Engine& engine, int seq, std::span<const int32_t> history,
                                   std::span<const int32_t> prompt, const GenerateParams& params,
                                   const text::Tokenizer* tokenizer,
                                   const std::function<bool(std::string_view)>& on_text);

}  // namespace xjit
