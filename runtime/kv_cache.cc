#include "runtime/kv_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "ir/support/align.h"

namespace xjit {

absl::StatusOr<KvCache> KvCache::Create(const KvConfig& config) {
  if (config.kv != DType::kBF16 && config.kv != DType::kF32) {
    return InvalidArgument("KV cache type {} is not supported (bf16, f32)", Name(config.kv));
  }
  // The bounds keep every product below within 63 bits.
  const auto sane = [](int64_t value, int64_t most) { return value >= 1 && value <= most; };
  if (!sane(config.layers, 1 << 12) || !sane(config.kv_heads, 1 << 12) || !sane(config.head_dim, 1 << 12) ||
      !sane(config.pages, INT32_MAX / config.run())) {
    return InvalidArgument("KV cache of {} layers, {} KV heads of {}, {} pages cannot be", config.layers,
                           config.kv_heads, config.head_dim, config.pages);
  }
  KvCache cache;
  cache.config_ = config;
  XJIT_ASSIGN_OR_RETURN(cache.memory_, HugeBuffer::Allocate(config.bytes()));
  const size_t words = static_cast<size_t>(CeilDiv(config.pages, 64));
  cache.free_bits_.assign(words, ~uint64_t{0});
  if (config.pages % 64 != 0) cache.free_bits_.back() = (uint64_t{1} << (config.pages % 64)) - 1;
  cache.used_bits_.assign(words, 0);
  cache.free_ = config.pages;
  return cache;
}

Sequence KvCache::NewSequence(int32_t context) const {
  Sequence seq;
  seq.context = std::max(context, 0);
  seq.pages.reserve(std::min(KvPages(seq.context), config_.pages));
  return seq;
}

absl::Status KvCache::Extend(Sequence& seq, int32_t tokens) {
  if (tokens < 0) return Internal("KV cache: extend by {} tokens", tokens);
  const int64_t length = int64_t{seq.length} + tokens;
  if (length > seq.context) {
    return FailedPrecondition(
        "context full: {} tokens do not fit in a context of {} (a larger --ctx, or a shorter text)", length,
        seq.context);
  }
  const int64_t have = static_cast<int64_t>(seq.pages.size());
  const int64_t more = std::max<int64_t>(KvPages(length) - have, 0);
  if (more > free_) {
    return FailedPrecondition(
        "KV cache full: {} tokens need {} more pages of {} tokens, {} of {} are free (a larger --ctx or fewer "
        "sequences)",
        length, more, kPageTokens, free_, config_.pages);
  }
  for (int64_t i = 0; i < more; ++i) {
    seq.pages.push_back(static_cast<int32_t>(TakeLowest() * config_.run()));
  }
  return absl::OkStatus();
}

void KvCache::Truncate(Sequence& seq, int32_t length) {
  seq.length = std::clamp(length, 0, seq.length);
  const auto keep = static_cast<size_t>(KvPages(seq.length));
  while (seq.pages.size() > keep) {
    const auto page = static_cast<size_t>(seq.pages.back() / config_.run());
    seq.pages.pop_back();
    free_bits_[page / 64] |= uint64_t{1} << (page % 64);
    lowest_word_ = std::min(lowest_word_, page / 64);
    ++free_;
  }
}

int32_t KvCache::TakeLowest() {
  while (free_bits_[lowest_word_] == 0) ++lowest_word_;
  uint64_t& word = free_bits_[lowest_word_];
  const auto page = static_cast<int32_t>(lowest_word_ * 64 + std::countr_zero(word));
  const uint64_t bit = word & (~word + 1);
  word &= ~bit;
  --free_;
  if ((used_bits_[lowest_word_] & bit) != 0) Zero(page);
  used_bits_[lowest_word_] |= bit;
  return page;
}

void KvCache::Zero(int32_t page) {
  const int64_t bytes = config_.run() * config_.page_bytes();
  std::memset(memory_.data() + page * bytes, 0, static_cast<size_t>(bytes));
}

}  // namespace xjit
