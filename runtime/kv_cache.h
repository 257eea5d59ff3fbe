// The KV cache: a pool of pages of 32 tokens, and sequences that own some. A page of every KV head of every layer is
// given out at once, and these lie together: so memory is touched, and on 2 MiB pages filled, as texts grow, not spread
// over the whole context. What kernels call page number p is the first of such a run: head h of layer l has its page at
// base + (p + l * kv_heads + h) * KvPageBytes, and p is a multiple of layers * kv_heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codegen/attention/attention_desc.h"
#include "ir/support/align.h"
#include "ir/support/status.h"
#include "runtime/memory.h"

namespace xjit {

struct KvConfig {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  DType kv = DType::kBF16;  // kBF16 or kF32
  int64_t pages = 0;

  int64_t page_bytes() const { return KvPageBytes(kv, head_dim); }
  // Pages of one head that are given out together: all layers and heads.
  int64_t run() const { return layers * kv_heads; }
  int64_t bytes() const { return run() * page_bytes() * pages; }
};

// Pages that hold `tokens` tokens.
inline constexpr int64_t KvPages(int64_t tokens) { return CeilDiv(tokens, kPageTokens); }

// The tokens of one text in the cache. A plain value: give its pages back with KvCache::Free().
struct Sequence {
  std::vector<int32_t> pages;  // as SeqView::pages: multiples of KvConfig::run()
  int32_t length = 0;          // tokens whose K and V are stored
  int32_t context = 0;         // most tokens
};

class KvCache {
 public:
  // Reserves the address range; memory is taken when pages are first written. InvalidArgument for a configuration
  // without sense, FailedPrecondition without memory.
  static absl::StatusOr<KvCache> Create(const KvConfig& config);

  const KvConfig& config() const { return config_; }
  // For AttentionArgs::kv and RopeStoreArgs::kv.
  std::byte* layer(int64_t l) const { return memory_.data() + l * config_.kv_heads * config_.page_bytes(); }
  // For kv_head_bytes of the same.
  int64_t head_bytes() const { return config_.page_bytes(); }
  int64_t free_pages() const { return free_; }
  const HugeBuffer& memory() const { return memory_; }

  // An empty sequence of at most `context` tokens; later calls for it allocate no memory.
  Sequence NewSequence(int32_t context) const;

  // Gives `seq` pages for `tokens` more tokens than its length, the lowest free ones, and leaves its length: the owner
  // adds to it when the step that stores them has run. FailedPrecondition, with nothing changed, when that is more than
  // its context or the free pages. Pages used before are zeroed: attention multiplies what lies behind a sequence's end
  // by zero, which another sequence's infinity would survive.
  absl::Status Extend(Sequence& seq, int32_t tokens);

  // Shortens `seq` to `length` tokens (no more than it has) and frees the pages that it no longer needs.
  void Truncate(Sequence& seq, int32_t length);
  void Free(Sequence& seq) { Truncate(seq, 0); }

 private:
  KvCache() = default;
  int32_t TakeLowest();
  void Zero(int32_t page);

  KvConfig config_;
  HugeBuffer memory_;
  std::vector<uint64_t> free_bits_;  // bit p: page p is free
  std::vector<uint64_t> used_bits_;  // bit p: page p has been given out before
  size_t lowest_word_ = 0;           // no free page in the words before
  int64_t free_ = 0;
};

}  // namespace xjit
