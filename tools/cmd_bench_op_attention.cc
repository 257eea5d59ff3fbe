// xjit bench-op attention: decode or prefill attention over a KV cache of random values, its merge included.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "codegen/attention/attention_ref.h"
#include "runtime/kv_cache.h"
#include "runtime/step.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

// Pages that differ: a prime, so that the same page of neighbouring heads and layers is another one.
constexpr int64_t kDistinctPages = 13;
constexpr double kUnit = 0x1p-24;  // half an ulp of f32

int64_t SizeOf(DType type) { return type == DType::kBF16 ? 2 : 4; }

float ValueAt(DType type, const std::byte* at) {
  if (type == DType::kBF16) return Bf16ToF32(*reinterpret_cast<const uint16_t*>(at));
  return *reinterpret_cast<const float*>(at);
}

class AttentionBench {
 public:
  AttentionBench(OpBench& bench, const AttentionShape& shape, const AttentionDesc& desc)
      : bench_(bench), shape_(shape), desc_(desc) {}

  absl::Status Prepare() {
    XJIT_ASSIGN_OR_RETURN(kernel_, bench_.library().Get(desc_));
    XJIT_ASSIGN_OR_RETURN(merge_, bench_.library().Get(AttentionMergeDesc{desc_}));
    XJIT_RETURN_IF_ERROR(bench_.library().Seal());
    XJIT_RETURN_IF_ERROR(bench_.MakeScratch(kernel_->scratch_bytes));
    XJIT_RETURN_IF_ERROR(MakeCache());
    XJIT_RETURN_IF_ERROR(MakeStep());
    return MakeRows();
  }

  OpRun Op() {
    OpRun op;
    op.copies = copies_;
    // Of each token seen: 2 head_dim for its score, as many for its value.
    op.flops = 4.0 * desc_.heads * desc_.head_dim * static_cast<double>(TokensSeen());
    op.bytes = 2.0 * desc_.kv_heads * desc_.head_dim * static_cast<double>(SizeOf(desc_.kv) * TokensRead());
    op.peak = PeakOf(desc_.q);
    op.peak_isa = ChosenIsa(bench_.library(), desc_);
    op.run = [this](int64_t calls) { bench_.pool().Run([&](int thread) { Run(thread, calls); }); };
    return op;
  }

  // One call against the reference: the first, middle and last row of the step with the first and the last KV head.
  OpError Check() {
    std::fill_n(reinterpret_cast<float*>(out_.data()), out_.size() / 4, std::numeric_limits<float>::quiet_NaN());
    bench_.pool().Run([this](int t) { Run(t, 1); });
    const int64_t rows = view_->rows, dim = desc_.head_dim;
    std::vector<float> want(static_cast<size_t>(out_.size()) / 4);
    AttentionArgs args = Args(0, 0, 0);
    args.out = want.data();
    OpError error;
    double q_norm = 0;
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1}) {
      for (const int kv_head : {0, desc_.kv_heads - 1}) {
        const int32_t position = view_->position[row];
        const AttentionItem item = {.seq = view_->row_seq[row],
                                    .kv_head = kv_head,
                                    .row0 = static_cast<int32_t>(row),
                                    .rows = 1,
                                    .kv_end = position + 1};
        StepView one = *view_;
        one.items = 1;
        one.item = &item;
        args.step = &one;
        AttentionRef(desc_, args, 0, 1, 0, 1);
        for (int64_t i = kv_head * desc_.group() * dim; i < (kv_head + 1) * desc_.group() * dim; ++i) {
          const auto at = static_cast<size_t>(row * desc_.ldo_bytes / 4 + i);
          error.Add(reinterpret_cast<const float*>(out_.data())[at], want[at], kv_max_);
        }
        for (int64_t g = kv_head * desc_.group(); g < (kv_head + 1) * desc_.group(); ++g)
          q_norm = std::max(q_norm, QNorm(row, g));
      }
    }
    // A probability is off by its score's and the maximum's error, exp2's polynomial (attention_plan.h) and, as bf16,
    // half of 2^-8; sum(p v) / sum(p) then by twice that, and by the roundings of two sums of n terms. A merge adds as
    // much again as one more exp2 and sum.
    const double k_norm = kv_max_ * std::sqrt(static_cast<double>(dim));
    const double score = 2 * std::log(2.0) * static_cast<double>(dim + 2) * kUnit * 1.02 * q_norm * k_norm;
    const double probability = score + (desc_.q == DType::kBF16 ? 0x1p-9 + 1e-4 : 4e-7) + 8 * kUnit;
    const auto n = static_cast<double>(shape_.past + shape_.tokens);
    const double merge = 2 * (4e-7 + 64 * kUnit) + 2 * (kMaxKvChunks + 4) * kUnit;
    error.rel_bound = 1.01 * (2 * probability + 2 * n * kUnit) + merge;
    return error;
  }

  std::string KernelNames() const { return view_->merges > 0 ? kernel_->name + " + " + merge_->name : kernel_->name; }
  const StepView& step() const { return *view_; }

 private:
  // KV tokens that the rows of a sequence read, and (row, token) pairs of all sequences.
  int64_t FirstSeen(int64_t position) const {
    return shape_.window > 0 ? std::max<int64_t>(0, position - shape_.window + 1) : 0;
  }
  int64_t TokensRead() const { return shape_.sequences * (shape_.past + shape_.tokens - FirstSeen(shape_.past)); }
  int64_t TokensSeen() const {
    int64_t seen = 0;
    for (int64_t p = shape_.past; p < shape_.past + shape_.tokens; ++p) seen += p + 1 - FirstSeen(p);
    return seen * shape_.sequences;
  }

  AttentionArgs Args(int thread, int64_t layer, int64_t call) const {
    return {.q = q_.data(),
            .out = reinterpret_cast<float*>(out_.data()),
            .kv = cache_->layer(layer),
            .kv_head_bytes = cache_->head_bytes(),
            .step = view_,
            .partial = partial_[call % 2].data(),
            .scratch = bench_.scratch(thread)};
  }

  // Threads take items in their order, longest first, as they become free.
  void Run(int thread, int64_t calls) {
    const int threads = bench_.threads();
    for (int64_t i = 0; i < calls; ++i) {
      const AttentionArgs args = Args(thread, i % copies_, i);
      std::atomic<int64_t>& next = next_[i % 3].value;
      for (int64_t item = next.fetch_add(1); item < view_->items; item = next.fetch_add(1))
        kernel_->fn(&args, item, item + 1, 0, 1);
      bench_.pool().Barrier(thread);
      // Nobody is in the call before any more, and nobody comes to the one after the next before the next barrier.
      if (thread == 0) next_[(i + 2) % 3].value = 0;
      const int64_t m0 = view_->merges * thread / threads, m1 = view_->merges * (thread + 1) / threads;
      // The other partial results are written meanwhile; these again only behind the next barrier.
      const AttentionMergeArgs merge = {.out = args.out, .partial = args.partial, .step = view_};
      if (m0 < m1) merge_->fn(&merge, 0, 1, m0, m1);
    }
    bench_.pool().Barrier(thread);
    if (thread == 0) {
      for (Counter& counter : next_) counter.value = 0;
    }
  }

  absl::Status MakeCache() {
    const int64_t context = shape_.past + shape_.tokens;
    KvConfig config = {.layers = 1,
                       .kv_heads = desc_.kv_heads,
                       .head_dim = desc_.head_dim,
                       .kv = desc_.kv,
                       .pages = shape_.sequences * KvPages(context)};
    XJIT_ASSIGN_OR_RETURN(copies_, bench_.Copies(config.bytes(), shape_.tokens <= kFewTokens, kMostLayers));
    config.layers = copies_;
    XJIT_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(config));
    cache_.emplace(std::move(cache));
    for (int64_t s = 0; s < shape_.sequences; ++s) {
      sequences_.push_back(cache_->NewSequence(static_cast<int32_t>(context)));
      XJIT_RETURN_IF_ERROR(cache_->Extend(sequences_.back(), static_cast<int32_t>(context)));
      sequences_.back().length = static_cast<int32_t>(context);
    }
    // Random values are a valid page whatever their order in it.
    const int64_t page_bytes = config.page_bytes();
    std::vector<std::byte> pages(static_cast<size_t>(kDistinctPages * page_bytes));
    for (int64_t at = 0; at < kDistinctPages * page_bytes; at += SizeOf(desc_.kv))
      Store(desc_.kv, pages.data() + at, normal_(random_));
    for (int64_t at = 0; at < kDistinctPages * page_bytes; at += SizeOf(desc_.kv)) {
      kv_max_ = std::max<double>(kv_max_, std::fabs(ValueAt(desc_.kv, pages.data() + at)));
    }
    const int64_t total = copies_ * desc_.kv_heads * config.pages;
    bench_.pool().Run([&](int t) {
      for (int64_t p = total * t / bench_.threads(); p < total * (t + 1) / bench_.threads(); ++p) {
        std::memcpy(cache_->layer(0) + p * page_bytes, pages.data() + p % kDistinctPages * page_bytes,
                    static_cast<size_t>(page_bytes));
      }
    });
    return absl::OkStatus();
  }

  absl::Status MakeStep() {
    const int64_t context = shape_.past + shape_.tokens;
    XJIT_ASSIGN_OR_RETURN(StepBuilder steps, StepBuilder::Create({.max_rows = shape_.sequences * shape_.tokens,
                                                                  .max_seqs = shape_.sequences,
                                                                  .max_context = context,
                                                                  .kv_heads = desc_.kv_heads,
                                                                  .windows = {desc_.window}}));
    steps_.emplace(std::move(steps));
    const std::vector<int32_t> ids(static_cast<size_t>(shape_.tokens), 0);
    std::vector<StepSequence> list;
    for (const Sequence& sequence : sequences_) {
      list.push_back({.ids = ids, .pages = sequence.pages, .past = static_cast<int32_t>(shape_.past), .logit_rows = 0});
    }
    XJIT_RETURN_IF_ERROR(steps_->Build(list));
    view_ = steps_->view();
    const int64_t slots = steps_->max_slots() * PartialSlotBytes(desc_.group(), desc_.head_dim);
    for (HugeBuffer& partial : partial_) {
      XJIT_ASSIGN_OR_RETURN(partial, HugeBuffer::Allocate(slots));
    }
    return absl::OkStatus();
  }

  absl::Status MakeRows() {
    const int64_t rows = view_->rows, width = int64_t{desc_.heads} * desc_.head_dim;
    XJIT_RETURN_IF_ERROR(
        bench_.CheckMemory(fmt::format("{} rows", rows), rows * (desc_.ldq_bytes + 2 * desc_.ldo_bytes)));
    XJIT_ASSIGN_OR_RETURN(q_, HugeBuffer::Allocate(rows * desc_.ldq_bytes));
    XJIT_ASSIGN_OR_RETURN(out_, HugeBuffer::Allocate(rows * desc_.ldo_bytes));
    // Softmax in base 2 over scores of a standard deviation of 1, as scaled by 1 / sqrt(head_dim).
    const double scale = 1 / std::log(2.0) / std::sqrt(static_cast<double>(desc_.head_dim));
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t i = 0; i < width; ++i) {
        Store(desc_.q, q_.data() + m * desc_.ldq_bytes + i * SizeOf(desc_.q),
              static_cast<float>(scale) * normal_(random_));
      }
    }
    return absl::OkStatus();
  }

  static void Store(DType type, std::byte* at, float value) {
    const uint16_t rounded = F32ToBf16(value);
    type == DType::kBF16 ? std::memcpy(at, &rounded, 2) : std::memcpy(at, &value, 4);
  }

  double QNorm(int64_t row, int64_t head) const {
    double sum = 0;
    for (int64_t d = 0; d < desc_.head_dim; ++d) {
      const double v =
          ValueAt(desc_.q, q_.data() + row * desc_.ldq_bytes + (head * desc_.head_dim + d) * SizeOf(desc_.q));
      sum += v * v;
    }
    return std::sqrt(sum);
  }

  // Up to so many new tokens a step is bound by reading KV.
  static constexpr int64_t kFewTokens = 8;
  // A copy of the cache is a layer of it, and KvCache::Create takes at most so many.
  static constexpr int64_t kMostLayers = 4096;
  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };

  OpBench& bench_;
  const AttentionShape& shape_;
  const AttentionDesc desc_;
  std::mt19937_64 random_{42};
  std::normal_distribution<float> normal_;
  const Kernel* kernel_ = nullptr;
  const Kernel* merge_ = nullptr;
  int64_t copies_ = 1;
  std::optional<KvCache> cache_;
  std::optional<StepBuilder> steps_;
  std::vector<Sequence> sequences_;
  const StepView* view_ = nullptr;
  HugeBuffer q_, out_, partial_[2];
  double kv_max_ = 0;
  Counter next_[3];
};

}  // namespace

absl::Status BenchAttention(const BenchOpFlags& flags, const AttentionShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const Isa isa, flags.Level());
  XJIT_ASSIGN_OR_RETURN(const AttentionDesc desc, shape.Desc(isa));
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  AttentionBench attention(*bench, shape, desc);
  XJIT_RETURN_IF_ERROR(attention.Prepare());
  XJIT_ASSIGN_OR_RETURN(const nlohmann::ordered_json measured, bench->Measure(attention.Op()));
  const OpError error = attention.Check();
  XJIT_RETURN_IF_ERROR(error.Check(attention.KernelNames()));
  nlohmann::ordered_json out = {{"op", "attention"},
                                {"kernel", attention.KernelNames()},
                                {"heads", shape.heads},
                                {"kv_heads", shape.kv_heads},
                                {"head_dim", shape.head_dim},
                                {"sequences", shape.sequences},
                                {"tokens", shape.tokens},
                                {"past", shape.past},
                                {"window", shape.window},
                                {"kv_dtype", shape.kv_dtype},
                                {"items", attention.step().items},
                                {"merges", attention.step().merges}};
  out.update(measured);
  out.update({{"max_abs_err", error.max_abs}, {"max_rel_err", error.max_rel}, {"rel_err_bound", error.rel_bound}});
  PrintResult(out, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
