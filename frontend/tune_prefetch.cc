#include "frontend/tune_prefetch.h"

#include <algorithm>
#include <map>

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/pack.h"
#include "codegen/kernels.h"
#include "frontend/prefetch_file.h"
#include "ir/support/clock.h"
#include "ir/support/median.h"
#include "ir/verifier.h"

namespace xjit {
namespace {

// What a planner would choose is measured beside them, as the first.
constexpr PrefetchTuning kCandidates[] = {
    {.hint = PrefetchHint::kNone},
    {.hint = PrefetchHint::kT1, .distance = 8192, .every = 384},
    {.hint = PrefetchHint::kT0, .distance = 2048, .every = 64},
    {.hint = PrefetchHint::kT0, .distance = 4096, .every = 64},
    {.hint = PrefetchHint::kT0, .distance = kPrefetchT0Ahead, .every = 64},
    {.hint = PrefetchHint::kT1, .distance = 4096, .every = 64},
    {.hint = PrefetchHint::kT1, .distance = 8192, .every = 64},
};
// A measurement reads so much: 0.2 ms and more, and by the time it comes round again it has left a core's cache.
constexpr int64_t kReadBytes = int64_t{12} << 20;
constexpr int64_t kLeastBytes = int64_t{32} << 20;
// Three rounds found for one row of q5_k what reads at 89% where 95 could be had in four of eight tries, five in one of
// six (EPYC 9005, 1 thread).
constexpr int kRounds = 5;
// What is found is kept for good. Of two that differ by less, the wrong one costs next to nothing.
constexpr double kLeastGain = 0.03;
// Who takes so much longer than the first in two rounds is not asked again: measurements differ by a tenth, seldom
// more.
constexpr double kHopeless = 1.15;

// Depths of a loop's body, for activations in blocks of 32: how far a load moves from one pass to the next decides
// whether the processor's prefetchers follow. The least and the most that a body has (gemm_plan_vnni.cc: 1 to 8
// blocks), and two blocks, what one row of the encodings of four bits has where nobody measured.
constexpr int kDepths[] = {32, 64, 256};

using Tuning = std::optional<PrefetchTuning>;  // nullopt: what the planner chooses

int64_t Bytes(const PackedMatrix& m) { return m.desc.panels() * PanelBytes(m.desc.w, m.desc.k); }

// The kernels of one candidate.
class Contender {
 public:
  Contender(const TargetInfo& target, const std::vector<PackedMatrix>& matrices)
      : library_(target), matrices_(matrices) {}

  absl::Status Compile() {
    for (const PackedMatrix& m : matrices_) {
      XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, library_.Get(m.desc));
      kernels_.push_back(kernel);
    }
    return library_.Seal();
  }
  int64_t scratch_bytes() const {
    int64_t most = 0;
    for (const Kernel* kernel : kernels_) most = std::max(most, kernel->scratch_bytes);
    return most;
  }

  // Milliseconds a MB, over kReadBytes from matrix *next on, which advances.
  double Read(WorkerPool& pool, const std::byte* a, std::vector<std::vector<float>>& c,
              std::vector<HugeBuffer>& scratch, size_t* next) const {
    int64_t bytes = 0;
    const double start = NowMs();
    while (bytes < kReadBytes) {
      const size_t i = *next;
      *next = (i + 1) % matrices_.size();
      const PackedMatrix& m = matrices_[i];
      // In the order in which the threads of a program take them.
      const int64_t panels = m.desc.panels();
      const int64_t task = SharePanels(GridOf(m.desc, 0, m.desc.rows), pool.threads()).panels;
      pool.Run([&](int t) {
        const GemmArgs args{.a = a,
                            .w = m.packed,
                            .c = c[static_cast<size_t>(t)].data(),
                            .scratch = scratch[static_cast<size_t>(t)].data()};
        for (int64_t p = task * t; p < panels; p += task * pool.threads()) {
          kernels_[i]->fn(&args, p, std::min(p + task, panels), 0, m.desc.rows);
        }
      });
      bytes += Bytes(m);
    }
    return (NowMs() - start) / (static_cast<double>(bytes) * 1e-6);
  }

 private:
  KernelLibrary library_;
  const std::vector<PackedMatrix>& matrices_;
  std::vector<const Kernel*> kernels_;
};

// The fastest of the candidates for these matrices, all of one type and row count: the first, if none gains enough.
// Nullopt where no kernel takes them: a type that no product uses (an embedding alone) has nothing to tune.
absl::StatusOr<std::optional<size_t>> Fastest(const std::vector<Tuning>& candidates,
                                              const std::vector<PackedMatrix>& matrices, WorkerPool& pool,
                                              const TargetInfo& target) {
  std::vector<std::unique_ptr<Contender>> contenders;
  int64_t scratch_bytes = 64, a_bytes = 64, c_bytes = 64;
  for (const Tuning& candidate : candidates) {
    TargetInfo tuned = target;
    if (candidate) tuned.prefetch.push_back(*candidate);
    contenders.push_back(std::make_unique<Contender>(tuned, matrices));
    if (!contenders.back()->Compile().ok()) return std::nullopt;
    scratch_bytes = std::max(scratch_bytes, contenders.back()->scratch_bytes());
  }
  for (const PackedMatrix& m : matrices) {
    a_bytes = std::max(a_bytes, m.desc.rows * m.desc.lda_bytes + 64);
    c_bytes = std::max(c_bytes, m.desc.rows * m.desc.ldc_bytes);
  }
  const std::vector<std::byte> a_memory(static_cast<size_t>(a_bytes) + 64);
  const std::byte* a = a_memory.data() + (64 - reinterpret_cast<uintptr_t>(a_memory.data()) % 64) % 64;
  std::vector<std::vector<float>> c(static_cast<size_t>(pool.threads()),
                                    std::vector<float>(static_cast<size_t>(c_bytes / 4)));
  std::vector<HugeBuffer> scratch;
  for (int t = 0; t < pool.threads(); ++t) {
    XJIT_ASSIGN_OR_RETURN(HugeBuffer buffer, HugeBuffer::Allocate(scratch_bytes));
    scratch.push_back(std::move(buffer));
  }
  size_t next = 0;
  contenders[0]->Read(pool, a, c, scratch, &next);  // wakes the threads, maps the pages
  // In turns with the first: the speed of memory changes from one moment to the next.
  std::vector<std::vector<double>> times(contenders.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 1; i < contenders.size(); ++i) {
      if (round >= 2 && Median(times[i]) > kHopeless) continue;
      const double first = contenders[0]->Read(pool, a, c, scratch, &next);
      times[i].push_back(contenders[i]->Read(pool, a, c, scratch, &next) / first);
    }
  }
  size_t best = 0;
  double best_time = 1 - kLeastGain;
  for (size_t i = 1; i < times.size(); ++i) {
    const double time = Median(times[i]);
    if (time >= best_time) continue;
    best = i;
    best_time = time;
  }
  return best;
}

}  // namespace

absl::StatusOr<std::optional<PrefetchTuning>> MeasurePrefetch(const std::vector<PackedMatrix>& matrices,
                                                              WorkerPool& pool, const TargetInfo& target) {
  const GemmDesc& first = matrices.front().desc;
  std::vector<Tuning> candidates = {std::nullopt};
  for (PrefetchTuning candidate : kCandidates) {
    candidate.w = first.w.type;
    candidate.one_row = first.rows == 1;
    candidates.push_back(candidate);
  }
  XJIT_ASSIGN_OR_RETURN(const auto hint, Fastest(candidates, matrices, pool, target));
  if (!hint) return std::nullopt;
  Tuning best = candidates[*hint];
  if (first.a != DType::kQ8Act) return best;
  PrefetchTuning other = best.value_or(PrefetchTuning{.w = first.w.type, .one_row = first.rows == 1});
  if (!best) {
    const auto plan = PlanGemmVnni(first, target);
    if (!plan.ok()) return best;  // another kernel's product
    other.hint = plan->prefetch;
    other.distance = plan->prefetch_distance;
    other.every = plan->prefetch_every;
  }
  candidates = {best};
  for (const int depth : kDepths) {
    other.k_block = depth;
    candidates.push_back(other);
  }
  XJIT_ASSIGN_OR_RETURN(const auto depth, Fastest(candidates, matrices, pool, target));
  return candidates[depth.value_or(0)];
}

void TunePrefetch(const Module& fused, const WeightStore& weights, WorkerPool& pool, TargetInfo* target) {
  std::map<DType, std::vector<PackedMatrix>> types;
  std::map<DType, int64_t> bytes;
  ForEachWeight(fused, [&](int64_t layer, const Weight& w) -> absl::Status {
    const auto packed = weights.Matrix(layer, w);
    if (w.type.dims.size() != 2 || !packed.ok()) return absl::OkStatus();
    PackedMatrix m;
    m.desc.n = PackedColumns(w);
    m.desc.k = w.type.cols();
    m.desc.w = w.type.encoding();
    m.desc.a = ActivationFor(m.desc.w, *target, false);
    m.desc.lda_bytes = RowStrideBytes(m.desc.a, m.desc.k);
    m.desc.ldc_bytes = RowStrideBytes(DType::kF32, m.desc.n);
    m.packed = *packed;
    bytes[w.type.elem] += Bytes(m);
    types[w.type.elem].push_back(m);
    return absl::OkStatus();
  }).IgnoreError();  // what it finds wrong with a module, lowering says
  PrefetchFile file(*target);
  std::vector<PrefetchTuning> tunings;
  for (auto& [type, matrices] : types) {
    if (bytes[type] < kLeastBytes) continue;
    for (const int rows : {1, kSeveralRows}) {
      Tuning found;
      if (!file.Find(type, rows == 1, &found)) {
        for (PackedMatrix& m : matrices) m.desc.rows = rows;
        const auto measured = MeasurePrefetch(matrices, pool, *target);
        if (!measured.ok()) continue;  // no memory to measure in: the planner's choice, this time
        found = *measured;
        file.Keep({.w = type, .one_row = rows == 1, .found = found});
      }
      if (found) tunings.push_back(*found);
    }
  }
  target->prefetch = std::move(tunings);
}

}  // namespace xjit
