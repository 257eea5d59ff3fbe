// The KV cache against a model of it, and step views against what they must say.
#include "runtime/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/kv_cache.h"

namespace xjit {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

KvConfig SmallConfig() { return {.layers = 2, .kv_heads = 3, .head_dim = 16, .kv = DType::kBF16, .pages = 70}; }

TEST(KvCache, LiesAsAttentionReadsIt) {
  const KvConfig config = SmallConfig();
  auto cache = KvCache::Create(config);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(config.page_bytes(), KvPageBytes(DType::kBF16, 16));
  EXPECT_EQ(cache->head_bytes(), config.page_bytes());
  EXPECT_EQ(config.run(), 6);
  EXPECT_EQ(config.bytes(), cache->memory().size());
  EXPECT_EQ(cache->layer(1) - cache->layer(0), 3 * cache->head_bytes());
  EXPECT_EQ(cache->layer(0), cache->memory().data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(cache->layer(1)) % 64, 0U);
}

TEST(KvCache, RefusesConfigurationsWithoutSense) {
  for (const auto& bad : {KvConfig{.layers = 0, .kv_heads = 1, .head_dim = 16, .pages = 1},
                          KvConfig{.layers = 1, .kv_heads = -1, .head_dim = 16, .pages = 1},
                          KvConfig{.layers = 1, .kv_heads = 1, .head_dim = 16, .pages = 0},
                          KvConfig{.layers = 1, .kv_heads = 1, .head_dim = 16, .pages = int64_t{1} << 40},
                          KvConfig{.layers = 1, .kv_heads = 1, .head_dim = 16, .kv = DType::kQ8_0, .pages = 1}}) {
    EXPECT_EQ(KvCache::Create(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(KvCache, FullIsAnErrorThatChangesNothing) {
  auto cache = KvCache::Create(SmallConfig());
  ASSERT_TRUE(cache.ok());
  Sequence a = cache->NewSequence(69 * 32), b = cache->NewSequence(100);
  ASSERT_TRUE(cache->Extend(a, 68 * 32 + 1).ok());
  a.length = 68 * 32 + 1;
  EXPECT_EQ(cache->free_pages(), 1);
  EXPECT_THAT(std::string(cache->Extend(a, 32).message()), HasSubstr("context full"));
  const absl::Status full = cache->Extend(b, 33);
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(full.message()), HasSubstr("1 of 70 are free"));
  EXPECT_TRUE(b.pages.empty());
  EXPECT_EQ(cache->free_pages(), 1);
  EXPECT_TRUE(cache->Extend(b, 32).ok());
  EXPECT_THAT(b.pages, ElementsAre(69 * 6));
  EXPECT_EQ(cache->Extend(b, -1).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(cache->Extend(b, INT32_MAX).code(), absl::StatusCode::kFailedPrecondition);
  cache->Free(a);
  EXPECT_EQ(cache->free_pages(), 69);
}

TEST(KvCache, GivesOutTheLowestPages) {
  auto cache = KvCache::Create(SmallConfig());
  ASSERT_TRUE(cache.ok());
  std::mt19937 random(1);
  std::set<int32_t> free;
  for (int32_t p = 0; p < 70; ++p) free.insert(p);
  std::vector<Sequence> seqs;
  std::vector<std::vector<int32_t>> want(5);
  for (int s = 0; s < 5; ++s) seqs.push_back(cache->NewSequence(1000));
  for (int i = 0; i < 3000; ++i) {
    const size_t s = random() % seqs.size();
    Sequence& seq = seqs[s];
    if (random() % 3 != 0) {
      const auto tokens = static_cast<int32_t>(random() % 400);
      const auto need = static_cast<size_t>(KvPages(seq.length + tokens));
      const size_t more = need > want[s].size() ? need - want[s].size() : 0;
      const bool ok = seq.length + tokens <= 1000 && more <= free.size();
      ASSERT_EQ(cache->Extend(seq, tokens).ok(), ok);
      if (ok) {
        for (size_t k = 0; k < more; ++k) {
          want[s].push_back(*free.begin() * static_cast<int32_t>(cache->config().run()));
          free.erase(free.begin());
        }
        seq.length += tokens;
      }
    } else {
      const auto length = static_cast<int32_t>(random() % (seq.length + 1));
      cache->Truncate(seq, length);
      while (want[s].size() > static_cast<size_t>(KvPages(length))) {
        free.insert(want[s].back() / static_cast<int32_t>(cache->config().run()));
        want[s].pop_back();
      }
      ASSERT_EQ(seq.length, length);
    }
    ASSERT_EQ(seq.pages, want[s]);
    ASSERT_EQ(cache->free_pages(), static_cast<int64_t>(free.size()));
  }
}

TEST(KvCache, PagesAreZeroedBeforeReuse) {
  const KvConfig config = SmallConfig();
  auto cache = KvCache::Create(config);
  ASSERT_TRUE(cache.ok());
  Sequence a = cache->NewSequence(64), b = cache->NewSequence(64);
  ASSERT_TRUE(cache->Extend(a, 33).ok());
  a.length = 33;
  ASSERT_TRUE(cache->Extend(b, 1).ok());
  std::memset(cache->memory().data(), 0xff, cache->memory().size());
  cache->Free(a);
  ASSERT_TRUE(cache->Extend(a, 64).ok());
  EXPECT_THAT(a.pages, ElementsAre(0, config.run()));
  const int64_t bytes = config.run() * config.page_bytes();
  for (int64_t k = 0; k < 3 * bytes; ++k) {
    ASSERT_EQ(cache->memory().data()[k], k < 2 * bytes ? std::byte{0} : std::byte{0xff});
  }
}

// --- steps

struct Text {
  int32_t past;
  std::vector<int32_t> ids;
  std::vector<int32_t> pages;
  int32_t logit_rows;
};

Text MakeText(std::mt19937& random, int32_t past, int32_t count) {
  Text text{.past = past, .ids = {}, .pages = {}, .logit_rows = static_cast<int32_t>(random() % (count + 1))};
  for (int32_t i = 0; i < count; ++i) text.ids.push_back(static_cast<int32_t>(random() % 1000));
  text.pages.resize(KvPages(past + count));
  std::iota(text.pages.begin(), text.pages.end(), 0);
  return text;
}

std::vector<StepSequence> Refer(const std::vector<Text>& texts) {
  std::vector<StepSequence> out;
  for (const Text& t : texts) {
    out.push_back({.ids = t.ids, .pages = t.pages, .past = t.past, .logit_rows = t.logit_rows});
  }
  return out;
}

void CheckRows(const StepView& view, const std::vector<Text>& texts) {
  int64_t row = 0, logit = 0;
  ASSERT_EQ(view.seqs, static_cast<int64_t>(texts.size()));
  for (size_t s = 0; s < texts.size(); ++s) {
    const Text& t = texts[s];
    const SeqView& seq = view.seq[s];
    ASSERT_EQ(seq.pages, t.pages.data());
    ASSERT_EQ(seq.row0, row);
    ASSERT_EQ(seq.rows, static_cast<int32_t>(t.ids.size()));
    ASSERT_EQ(seq.past, t.past);
    for (size_t i = 0; i < t.ids.size(); ++i, ++row) {
      ASSERT_EQ(view.ids[row], t.ids[i]);
      ASSERT_EQ(view.position[row], t.past + static_cast<int32_t>(i));
      ASSERT_EQ(view.row_seq[row], static_cast<int32_t>(s));
      if (i + t.logit_rows >= t.ids.size()) {
        ASSERT_LT(logit, view.logit_rows);
        ASSERT_EQ(view.logit_row[logit++], row);
      }
    }
  }
  ASSERT_EQ(view.rows, row);
  ASSERT_EQ(view.logit_rows, logit);
}

// Every (row, KV head) sees each token that it must, once; all else of the contract in attention_desc.h.
void CheckItems(const StepView& view, int kv_heads, int window, int64_t max_slots) {
  std::map<std::pair<int32_t, int32_t>, std::vector<const AttentionItem*>> of;  // (row, head)
  int64_t last_cost = INT64_MAX;
  for (int64_t i = 0; i < view.items; ++i) {
    const AttentionItem& item = view.item[i];
    ASSERT_GE(item.rows, 1);
    ASSERT_LE(item.rows, kAttentionItemRows);
    ASSERT_EQ(item.kv_begin % kPageTokens, 0);
    ASSERT_GE(item.kv_begin, 0);
    ASSERT_LT(item.kv_begin, item.kv_end);
    ASSERT_GE(item.kv_head, 0);
    ASSERT_LT(item.kv_head, kv_heads);
    const SeqView& seq = view.seq[item.seq];
    ASSERT_GE(item.row0, seq.row0);
    ASSERT_LE(item.row0 + item.rows, seq.row0 + seq.rows);
    ASSERT_LE(item.kv_end, seq.past + seq.rows);
    int64_t cost = 0;
    for (int32_t r = 0; r < item.rows; ++r) {
      of[{item.row0 + r, item.kv_head}].push_back(&item);
      cost += std::min<int64_t>(view.position[item.row0 + r] + 1, item.kv_end) - item.kv_begin;
    }
    ASSERT_LE(cost, last_cost) << "longest first";
    last_cost = cost;
    if (item.slot >= 0) {
      ASSERT_EQ(item.rows, 1);
    }
  }
  std::map<std::pair<int32_t, int32_t>, const AttentionMerge*> merge_of;
  for (int64_t i = 0; i < view.merges; ++i) {
    const AttentionMerge& merge = view.merge[i];
    ASSERT_TRUE(merge_of.emplace(std::pair(merge.row, merge.kv_head), &merge).second);
  }
  std::set<int32_t> slots;
  for (int32_t row = 0; row < view.rows; ++row) {
    const int64_t position = view.position[row];
    const int64_t first = window > 0 ? std::max<int64_t>(position - window + 1, 0) : 0;
    for (int32_t head = 0; head < kv_heads; ++head) {
      auto items = of[{row, head}];
      ASSERT_FALSE(items.empty());
      std::sort(items.begin(), items.end(), [](auto* a, auto* b) { return a->kv_begin < b->kv_begin; });
      // Together one range, without gaps or overlaps, that holds all visible tokens and under a page more in front.
      for (size_t i = 0; i + 1 < items.size(); ++i) ASSERT_EQ(items[i]->kv_end, items[i + 1]->kv_begin);
      ASSERT_LE(items.front()->kv_begin, first);
      ASSERT_GE(items.back()->kv_end, position + 1);
      const auto merge = merge_of.find({row, head});
      if (items.size() == 1) {
        ASSERT_EQ(items[0]->slot, -1);
        ASSERT_EQ(merge, merge_of.end());
        const int64_t first_of_item = view.position[items[0]->row0] - (window > 0 ? window - 1 : INT32_MAX);
        ASSERT_GT(items[0]->kv_begin, first_of_item - kPageTokens);
        continue;
      }
      ASSERT_GT(items.front()->kv_begin, first - kPageTokens);
      ASSERT_EQ(items.back()->kv_end, position + 1);
      ASSERT_NE(merge, merge_of.end());
      ASSERT_EQ(merge->second->slots, static_cast<int32_t>(items.size()));
      for (size_t j = 0; j < items.size(); ++j) {
        const int32_t slot = merge->second->first_slot + static_cast<int32_t>(j) * merge->second->slot_stride;
        ASSERT_EQ(items[j]->slot, slot);
        ASSERT_LT(slot, max_slots);
        ASSERT_TRUE(slots.insert(slot).second) << "slot used twice";
      }
      merge_of.erase(merge);
    }
  }
  ASSERT_TRUE(merge_of.empty()) << "a merge of nothing";
}

TEST(StepBuilder, ItemsCoverEveryRowHeadAndToken) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 60; ++trial) {
    StepConfig config{.max_rows = 300, .max_seqs = 9, .max_context = 9000, .kv_heads = 1 + trial % 4};
    config.windows = {0, 1, 32, 500, 1024};
    auto builder = StepBuilder::Create(config);
    ASSERT_TRUE(builder.ok());
    const StepView* views[5];
    for (int w = 0; w < 5; ++w) views[w] = builder->view(config.windows[w]);
    for (int step = 0; step < 3; ++step) {
      std::vector<Text> texts;
      int32_t rows = 0;
      for (int s = 0; s < 1 + trial % 9; ++s) {
        const int32_t count = random() % 2 == 0 ? 1 : 1 + static_cast<int32_t>(random() % 100);
        if (rows + count > 300) break;
        rows += count;
        // Lengths about the edges of pages and chunks, and anything.
        const int32_t edges[] = {0, 31, 32, 255, 256, 257, 4095, 4096};
        const int32_t past = random() % 2 == 0 ? edges[random() % 8] : static_cast<int32_t>(random() % 8800);
        texts.push_back(MakeText(random, past, count));
      }
      const absl::Status built = builder->Build(Refer(texts));
      ASSERT_TRUE(built.ok()) << built;
      for (int w = 0; w < 5; ++w) {
        ASSERT_EQ(builder->view(config.windows[w]), views[w]) << "views stay where they are";
        ASSERT_NO_FATAL_FAILURE(CheckRows(*views[w], texts));
        ASSERT_NO_FATAL_FAILURE(CheckItems(*views[w], config.kv_heads, config.windows[w], builder->max_slots()));
      }
    }
  }
}

// The ranges of a sequence's items, whatever else is in the step.
using Ranges = std::multiset<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>>;
Ranges RangesOf(const StepView& view, int32_t seq) {
  Ranges ranges;
  for (int64_t i = 0; i < view.items; ++i) {
    const AttentionItem& item = view.item[i];
    if (item.seq != seq) continue;
    ranges.insert({item.kv_head, item.row0 - view.seq[seq].row0, item.rows, item.kv_begin, item.kv_end});
  }
  return ranges;
}

TEST(StepBuilder, SplitDependsOnLengthOnly) {
  std::mt19937 random(3);
  const StepConfig config{.max_rows = 64, .max_seqs = 8, .max_context = 20000, .kv_heads = 2, .windows = {0, 600}};
  auto alone = StepBuilder::Create(config), together = StepBuilder::Create(config);
  ASSERT_TRUE(alone.ok() && together.ok());
  std::vector<Text> texts;
  for (const int32_t past : {0, 255, 256, 700, 4096, 19000}) texts.push_back(MakeText(random, past, 1));
  texts.push_back(MakeText(random, 100, 40));
  ASSERT_TRUE(together->Build(Refer(texts)).ok());
  for (size_t s = 0; s < texts.size(); ++s) {
    ASSERT_TRUE(alone->Build(Refer({texts[s]})).ok());
    for (const int window : config.windows) {
      EXPECT_EQ(RangesOf(*alone->view(window), 0), RangesOf(*together->view(window), static_cast<int32_t>(s)));
    }
  }
}

TEST(StepBuilder, ChunksArePagesAndFew) {
  for (int64_t tokens = 1; tokens <= 200'000; tokens += tokens < 5000 ? 1 : 997) {
    const int64_t chunk = KvChunkTokens(tokens);
    ASSERT_EQ(chunk % kPageTokens, 0);
    const int64_t count = (tokens + chunk - 1) / chunk;
    ASSERT_LE(count, kMaxKvChunks);
    if (tokens <= int64_t{kKvChunkTokens} * kMaxKvChunks) {
      ASSERT_LE(chunk, kKvChunkTokens);
    }
    ASSERT_GT(tokens - (count - 1) * chunk, 0);
  }
  EXPECT_EQ(KvChunkTokens(256), 256);  // one chunk
  EXPECT_EQ(KvChunkTokens(257), 160);  // two: 160 + 97
}

TEST(StepBuilder, LongStepsOfManyDecodesFit) {
  // The worst case for slots: every sequence at its longest.
  const StepConfig config{.max_rows = 8, .max_seqs = 8, .max_context = 5000, .kv_heads = 3};
  auto builder = StepBuilder::Create(config);
  ASSERT_TRUE(builder.ok());
  std::mt19937 random(1);
  for (const int32_t past : {4999, 4095, 256, 257}) {
    std::vector<Text> texts;
    for (int s = 0; s < 8; ++s) texts.push_back(MakeText(random, past, 1));
    ASSERT_TRUE(builder->Build(Refer(texts)).ok());
    ASSERT_NO_FATAL_FAILURE(CheckItems(*builder->view(0), 3, 0, builder->max_slots()));
  }
}

TEST(StepBuilder, RefusesWhatDoesNotFit) {
  const StepConfig config{.max_rows = 8, .max_seqs = 2, .max_context = 100, .max_kv_tokens = 150, .kv_heads = 1};
  auto builder = StepBuilder::Create(config);
  ASSERT_TRUE(builder.ok());
  EXPECT_EQ(builder->view(7), nullptr);
  std::mt19937 random(1);
  const auto code = [&](const std::vector<Text>& texts) { return builder->Build(Refer(texts)).code(); };
  const auto text = [&](int32_t past, int32_t count) { return MakeText(random, past, count); };
  EXPECT_EQ(code({text(92, 8)}), absl::StatusCode::kOk);
  EXPECT_EQ(code({text(93, 8)}), absl::StatusCode::kFailedPrecondition);                         // context
  EXPECT_EQ(code({text(0, 9)}), absl::StatusCode::kFailedPrecondition);                          // rows
  EXPECT_EQ(code({text(0, 1), text(0, 1), text(0, 1)}), absl::StatusCode::kFailedPrecondition);  // sequences
  EXPECT_EQ(code({text(90, 1), text(90, 1)}), absl::StatusCode::kFailedPrecondition);            // KV tokens
  EXPECT_EQ(code({text(0, 0)}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({text(-1, 1)}), absl::StatusCode::kInternal);
  Text short_of_pages = text(32, 1);
  short_of_pages.pages.pop_back();
  EXPECT_EQ(code({short_of_pages}), absl::StatusCode::kInternal);
  Text greedy = text(0, 2);
  greedy.logit_rows = 3;
  EXPECT_EQ(code({greedy}), absl::StatusCode::kInternal);
  EXPECT_EQ(code({}), absl::StatusCode::kOk);
  EXPECT_EQ(builder->view()->rows, 0);
  EXPECT_EQ(StepBuilder::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace xjit
