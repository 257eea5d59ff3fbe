#include "runtime/step.h"

#include <algorithm>
#include <cstddef>

#include "ir/support/align.h"

namespace xjit {
namespace {

// First KV token that a query at `position` sees, rounded down to a page.
int64_t FirstKv(int64_t position, int window) {
  if (window <= 0) return 0;
  const int64_t first = std::max<int64_t>(position - window + 1, 0);
  return first / kPageTokens * kPageTokens;
}

}  // namespace

int KvChunkTokens(int64_t tokens) {
  // Equal chunks: a short rest would be a task of its own that is hardly worth one.
  const int64_t chunks = std::clamp<int64_t>(CeilDiv(tokens, kKvChunkTokens), 1, kMaxKvChunks);
  return static_cast<int>(std::max<int64_t>(CeilDiv(CeilDiv(tokens, chunks), kPageTokens), 1) * kPageTokens);
}

absl::StatusOr<StepBuilder> StepBuilder::Create(const StepConfig& config) {
  if (config.max_rows < 1 || config.max_seqs < 1 || config.max_context < 1 || config.kv_heads < 1 ||
      config.max_rows > INT32_MAX || config.max_context > INT32_MAX || config.max_kv_tokens < 0 ||
      config.windows.empty()) {
    return InvalidArgument("step: {} rows, {} sequences, {} tokens of context, {} KV heads, {} windows cannot be",
                           config.max_rows, config.max_seqs, config.max_context, config.kv_heads,
                           config.windows.size());
  }
  StepBuilder b;
  b.config_ = config;
  b.config_.max_seqs = std::min(config.max_seqs, config.max_rows);  // a sequence has a row at least
  const int64_t seqs = b.config_.max_seqs;
  const int64_t all = seqs * config.max_context;
  b.config_.max_kv_tokens = config.max_kv_tokens == 0 ? all : std::min(config.max_kv_tokens, all);
  // A decode row has at most its length / kKvChunkTokens chunks, rounded up, and never more than kMaxKvChunks.
  const int64_t chunks = std::min(b.config_.max_kv_tokens / kKvChunkTokens + seqs, seqs * kMaxKvChunks);
  b.max_slots_ = chunks * config.kv_heads;
  b.max_merges_ = seqs * config.kv_heads;
  b.max_items_ = (chunks + config.max_rows / kAttentionItemRows + seqs) * config.kv_heads;
  b.seqs_.resize(seqs);
  b.ids_.resize(config.max_rows);
  b.position_.resize(config.max_rows);
  b.row_seq_.resize(config.max_rows);
  b.logit_row_.resize(config.max_rows);
  b.parts_.resize(config.windows.size());
  for (size_t i = 0; i < config.windows.size(); ++i) {
    Part& part = b.parts_[i];
    part.window = config.windows[i];
    part.items.reserve(b.max_items_);
    part.costs.reserve(b.max_items_);
    part.order.reserve(b.max_items_);
    part.unsorted.reserve(b.max_items_);
    part.merges.reserve(b.max_merges_);
    StepView& v = part.view;
    v.seq = b.seqs_.data();
    v.ids = b.ids_.data();
    v.position = b.position_.data();
    v.row_seq = b.row_seq_.data();
    v.logit_row = b.logit_row_.data();
    v.item = part.items.data();
    v.merge = part.merges.data();
  }
  return b;
}

const StepView* StepBuilder::view(int window) const {
  for (const Part& part : parts_) {
    if (part.window == window) return &part.view;
  }
  return nullptr;
}

absl::Status StepBuilder::AddItems(Part& part, int32_t seq, const SeqView& view, int64_t& slots) {
  const bool decode = view.rows == 1;
  for (int kv_head = 0; kv_head < config_.kv_heads; ++kv_head) {
    if (decode) {
      const int64_t end = int64_t{view.past} + 1, begin = FirstKv(view.past, part.window);
      const int64_t chunk = KvChunkTokens(end - begin), count = CeilDiv(end - begin, chunk);
      if (slots + count > max_slots_) return Internal("step: more than {} attention slots", max_slots_);
      if (count > 1) {
        part.merges.push_back({.kv_head = kv_head,
                               .row = view.row0,
                               .first_slot = static_cast<int32_t>(slots),
                               .slots = static_cast<int32_t>(count),
                               .slot_stride = 1});
      }
      for (int64_t j = 0; j < count; ++j) {
        const int64_t from = begin + j * chunk, to = std::min(from + chunk, end);
        part.unsorted.push_back({.seq = seq,
                                 .kv_head = kv_head,
                                 .row0 = view.row0,
                                 .rows = 1,
                                 .kv_begin = static_cast<int32_t>(from),
                                 .kv_end = static_cast<int32_t>(to),
                                 .slot = count > 1 ? static_cast<int32_t>(slots + j) : -1});
        part.costs.push_back(to - from);
      }
      if (count > 1) slots += count;
      continue;
    }
    for (int32_t r = 0; r < view.rows; r += kAttentionItemRows) {
      const int64_t rows = std::min<int64_t>(kAttentionItemRows, view.rows - r);
      const int64_t position = int64_t{view.past} + r;
      const int64_t begin = FirstKv(position, part.window), end = position + rows;
      part.unsorted.push_back({.seq = seq,
                               .kv_head = kv_head,
                               .row0 = view.row0 + r,
                               .rows = static_cast<int32_t>(rows),
                               .kv_begin = static_cast<int32_t>(begin),
                               .kv_end = static_cast<int32_t>(end),
                               .slot = -1});
      part.costs.push_back(rows * (end - begin) - rows * (rows - 1) / 2);  // the triangle is not computed
    }
  }
  return absl::OkStatus();
}

absl::Status StepBuilder::Build(std::span<const StepSequence> sequences) {
  // Everything is checked before anything is written.
  int64_t rows = 0, kv_tokens = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const StepSequence& seq = sequences[s];
    const auto count = static_cast<int64_t>(seq.ids.size());
    if (count == 0 || seq.past < 0 || seq.logit_rows < 0 || seq.logit_rows > count) {
      return Internal("step: sequence {} has {} tokens after {} and wants {} rows of logits", s, count, seq.past,
                      seq.logit_rows);
    }
    const int64_t length = seq.past + count;
    if (length > config_.max_context) {
      return FailedPrecondition("context full: {} tokens do not fit in a context of {}", length, config_.max_context);
    }
    if (static_cast<int64_t>(seq.pages.size()) * kPageTokens < length) {
      return Internal("step: sequence {} has {} pages for {} tokens", s, seq.pages.size(), length);
    }
    rows += count;
    kv_tokens += length;
  }
  if (sequences.size() > seqs_.size() || rows > config_.max_rows || kv_tokens > config_.max_kv_tokens) {
    return FailedPrecondition("step of {} sequences, {} rows, {} tokens of KV: at most {}, {}, {} are planned for",
                              sequences.size(), rows, kv_tokens, seqs_.size(), config_.max_rows, config_.max_kv_tokens);
  }

  int32_t row = 0;
  int64_t logit_rows = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const StepSequence& seq = sequences[s];
    const auto count = static_cast<int32_t>(seq.ids.size());
    seqs_[s] = {.pages = seq.pages.data(), .row0 = row, .rows = count, .past = seq.past};
    for (int32_t i = 0; i < count; ++i, ++row) {
      ids_[row] = seq.ids[i];
      position_[row] = seq.past + i;
      row_seq_[row] = static_cast<int32_t>(s);
      if (i >= count - seq.logit_rows) logit_row_[logit_rows++] = row;
    }
  }

  for (Part& part : parts_) {
    part.items.clear();
    part.unsorted.clear();
    part.costs.clear();
    part.order.clear();
    part.merges.clear();
    int64_t slots = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      XJIT_RETURN_IF_ERROR(AddItems(part, static_cast<int32_t>(s), seqs_[s], slots));
    }
    // Longest first, equal ones in the order of memory: what is left for the end of the stage is short.
    for (size_t i = 0; i < part.unsorted.size(); ++i) part.order.push_back({-part.costs[i], static_cast<int32_t>(i)});
    std::sort(part.order.begin(), part.order.end());
    for (const auto& [cost, i] : part.order) part.items.push_back(part.unsorted[i]);
    part.view.rows = rows;
    part.view.logit_rows = logit_rows;
    part.view.seqs = static_cast<int64_t>(sequences.size());
    part.view.items = static_cast<int64_t>(part.items.size());
    part.view.merges = static_cast<int64_t>(part.merges.size());
  }
  return absl::OkStatus();
}

}  // namespace xjit
