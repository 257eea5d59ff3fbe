// Fills the step views that kernels read: which tokens of which sequences a step has, and the attention work in it.
//
// How a row's KV is split depends on its length only, never on the number of threads or the other sequences of the
// step, so that results do not either.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "codegen/attention/attention_desc.h"
#include "ir/support/status.h"

namespace xjit {

struct StepConfig {
  int64_t max_rows = 0;
  int64_t max_seqs = 1;
  int64_t max_context = 0;    // tokens of one sequence
  int64_t max_kv_tokens = 0;  // of all sequences of a step together; 0: max_seqs * max_context
  int kv_heads = 0;
  std::vector<int> windows = {0};  // the distinct values of AttentionDesc::window in the model
};

// The new tokens of one sequence.
struct StepSequence {
  std::span<const int32_t> ids;    // at least one
  std::span<const int32_t> pages;  // enough for past + ids.size() tokens; must stay where it is until the step has run
  int32_t past = 0;                // tokens already in the cache
  int32_t logit_rows = 1;          // how many of its last rows want logits: 0 none, 1 the last, ids.size() all
};

// A decode row's KV is split in chunks of this many tokens. 256 tokens of a bf16 KV head of 64 to 128 are 64-128 KiB,
// 2-4 us at 30 GB/s: much longer than taking a task (10-20 ns) and merging a slot, and short enough that 3 KV heads
// share out evenly over 2 threads.
inline constexpr int kKvChunkTokens = 256;
// In longer texts chunks grow instead of their number, which bounds merging: 16 slots of 3.1 KB (6 heads of 128) are 2%
// of the KV that they stand for at 4096 tokens (2 MiB in bf16), and less from there on.
inline constexpr int kMaxKvChunks = 16;

// Tokens of a chunk when a row sees `tokens` of KV; a multiple of the page.
int KvChunkTokens(int64_t tokens);

class StepBuilder {
 public:
  // Allocates everything that any step needs. InvalidArgument for a configuration without sense.
  static absl::StatusOr<StepBuilder> Create(const StepConfig& config);
  StepBuilder(StepBuilder&&) = default;
  StepBuilder& operator=(StepBuilder&&) = default;

  // The view for attention layers of this window, at the same address for the builder's life; nullptr for a window that
  // is not configured. Views differ in items and merges only.
  const StepView* view(int window) const;
  // The view of the first window: what a program is built on.
  const StepView* view() const { return &parts_[0].view; }

  // Fills all views. FailedPrecondition if it is more than the configuration allows, Internal for bad input. Allocates
  // nothing.
  absl::Status Build(std::span<const StepSequence> sequences);

  // Slots that AttentionArgs::partial needs room for (PartialSlotBytes each).
  int64_t max_slots() const { return max_slots_; }

 private:
  struct Part {
    int window = 0;
    StepView view;
    std::vector<AttentionItem> items;
    std::vector<int64_t> costs;
    std::vector<AttentionMerge> merges;
    std::vector<std::pair<int64_t, int32_t>> order;  // cost, item
    std::vector<AttentionItem> unsorted;
  };
  StepBuilder() = default;
  absl::Status AddItems(Part& part, int32_t seq, const SeqView& view, int64_t& slots);

  StepConfig config_;
  int64_t max_items_ = 0, max_slots_ = 0, max_merges_ = 0;
  std::vector<SeqView> seqs_;
  std::vector<int32_t> ids_, position_, row_seq_, logit_row_;
  std::vector<Part> parts_;  // never resized after Create: views keep their addresses
};

}  // namespace xjit
