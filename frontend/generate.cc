#include "frontend/generate.h"

#include <algorithm>
#include <utility>

#include "ir/support/clock.h"

namespace xjit {
namespace {}  // namespace

std::string StopMatcher::Push(std::string_view piece) {
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = held_.substr(0, first);
    held_.clear();
    return out;
  }
  // The longest end of the text that a stop string begins with.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - (stop.empty() ? 0 : 1), held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) {
        keep = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

absl::StatusOr<Generated> Generate(Engine& engine, int seq, std::span<const int32_t> history,
                                   std::span<const int32_t> prompt, const GenerateParams& params,
                                   const text::Tokenizer* tokenizer,
                                   const std::function<bool(std::string_view)>& on_text) {
  XJIT_ASSIGN_OR_RETURN(Sampler sampler,
                        Sampler::Create(params.sampler, static_cast<int32_t>(engine.spec().vocab_size)));
  Generated result;
  std::optional<text::StreamDecoder> stream;
  if (tokenizer != nullptr) stream = tokenizer->Stream(/*skip_special=*/true);
  StopMatcher stops(params.stop);
  std::vector<int32_t> all(history.begin(), history.end());
  all.insert(all.end(), prompt.begin(), prompt.end());
  const int64_t room = engine.context() - engine.length(seq) - static_cast<int64_t>(prompt.size());
  // The last token need not be fed, so one more than there is room for can be generated.
  const int64_t most = params.max_tokens < 0 ? room + 1 : std::min(params.max_tokens, room + 1);
  if (params.max_tokens == 0) {
    result.finish_reason = "length";
    return result;
  }

  bool cancelled = false;
  auto emit = [&](const std::string& piece) {
    if (piece.empty() || cancelled) return;
    result.text += piece;
    if (on_text && !on_text(piece)) cancelled = true;
  };
  const double start = NowMs();
  XJIT_RETURN_IF_ERROR(engine.Prefill(seq, prompt));
  double first = 0;
  result.finish_reason = "length";
  for (;;) {
    XJIT_ASSIGN_OR_RETURN(const int32_t id, sampler.Sample(engine.logits(0), all));
    if (result.ids.empty()) first = NowMs();
    const bool ends =
        !params.ignore_eos && std::find(params.end_ids.begin(), params.end_ids.end(), id) != params.end_ids.end();
    if (ends) {
      result.finish_reason = "stop";
      break;
    }
    result.ids.push_back(id);
    all.push_back(id);
    if (stream.has_value()) emit(stops.Push(stream->Push(static_cast<uint32_t>(id))));
    if (stops.stopped() || cancelled) {
      result.finish_reason = cancelled ? "cancelled" : "stop";
      break;
    }
    if (static_cast<int64_t>(result.ids.size()) >= most) break;
    const Engine::Input input{seq, {&result.ids.back(), 1}, LogitRows::kLast};
    XJIT_RETURN_IF_ERROR(engine.Step({&input, 1}));
    ++result.decode_steps;
  }
  if (stream.has_value() && !stops.stopped()) {
    emit(stops.Push(stream->Finish()));
    if (stops.stopped()) result.finish_reason = "stop";
    emit(stops.Finish());
  }
  const double end = NowMs();
  result.ttft_ms = first - start;
  result.decode_ms = end - first;
  return result;
}

}  // namespace xjit
