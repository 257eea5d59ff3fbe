// What the operations of `xjit bench-op` share: shapes given by flags, threads, the machine's roofs measured between
// runs of the kernel, and how results are printed.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/kernels.h"
#include "codegen/measure.h"
#include "codegen/moe/moe_plan.h"
#include "runtime/memory.h"
#include "runtime/worker_pool.h"
#include "tools/command.h"

namespace xjit::tools {

// A matrix product C[m, n] = A[m, k] * W[n, k]^T as flags give it.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  std::string weights, activations;
  Epilogue epilogue;

  // Not required: the caller says what its command cannot do without.
  void Register(CLI::App* app);
  // The kernel's descriptor on such a machine: columns padded to whole panels, rows of A and C with their
  // program's strides. A usage error: unknown weights, a size that is missing or does not fit them.
  absl::StatusOr<GemmDesc> Desc(const TargetInfo& target) const;
};

// Attention of `sequences` sequences with `tokens` new tokens each behind `past` in the cache.
struct AttentionShape {
  int heads = 0, kv_heads = 0, head_dim = 0, window = 0;
  int64_t tokens = 1, past = 0, sequences = 1;
  std::string kv_dtype = "bf16";

  void Register(CLI::App* app);
  absl::StatusOr<AttentionDesc> Desc(Isa isa) const;
};

// RMSNorm and conversion of rows of activations, as they enter a matrix product.
struct PrepareShape {
  int64_t rows = 1, cols = 0;
  std::string out = "q8act";
  bool norm = false;
  bool strips = false;

  void Register(CLI::App* app);
  absl::StatusOr<PrepareDesc> Desc() const;
};

// Packed panels unpacked, in cache.
struct ConvertShape {
  int64_t n = 128, k = 1024;
  std::string weights, to = "bf16";

  void Register(CLI::App* app);
  absl::StatusOr<ConvertDesc> Desc() const;
};

inline constexpr int64_t kMostCopies = int64_t{1} << 20;

// Experts' products of a step's tokens; see MoeDesc.
struct MoeShape {
  int64_t experts = 128, top_k = 8, tokens = 1, hidden = 0, intermediate = 0;
  std::string weights;

  void Register(CLI::App* app);
  absl::StatusOr<MoeDesc> Desc(const TargetInfo& target) const;
};

// Flags of every operation.
struct BenchOpFlags {
  std::string isa;  // empty: XJIT_ISA, else the host's
  int threads = 0;  // 0: the default number
  int64_t copies = 0;
  int reps = 7;
  std::string vs;         // "onednn": a peer to measure beside; empty: none
  bool prepared = false;  // many rows of gemm: activations are converted beforehand, not in each run
  bool json = false;

  void Register(CLI::App* app);
  absl::StatusOr<Isa> Level() const;
};

// One kernel with its data, ready to run.
struct OpRun {
  // `calls` calls in a row, on all threads of the pool, call i on copy i % copies.
  std::function<void(int64_t calls)> run;
  // The same work by another library, alternated with it; empty: none.
  std::function<void(int64_t calls)> peer;
  std::string peer_name;
  int64_t copies = 1;
  double flops = 0;  // of one call, all threads together
  double bytes = 0;  // of one call: what has to come from memory
  PeakKind peak = PeakKind::kF32Fma;
  Isa peak_isa = Isa::kAvx2;  // the least that grants the kernel: how wide its instructions are
  bool has_peak = true;       // whether the kernel is bound by such products at all
};

// How far results are from the reference. Relative errors are to the sum of the magnitudes that were added
// up, or to a bound of it.
struct OpError {
  double max_abs = 0, max_rel = 0;
  double rel_bound = 0;  // what rounding explains
  // A NaN is an infinite error.
  void Add(double got, double want, double magnitude);
  // Internal, naming the kernel, when it is more.
  absl::Status Check(std::string_view kernel) const;
};

class OpBench {
 public:
  static absl::StatusOr<std::unique_ptr<OpBench>> Create(const BenchOpFlags& flags);

  const TargetInfo& target() const { return library_->target(); }
  KernelLibrary& library() { return *library_; }
  WorkerPool& pool() { return *pool_; }
  int threads() const { return pool_->threads(); }

  // Copies of `bytes` bytes to rotate over: the flag, else with `from_memory` so many that they are more than four
  // times the last-level cache (or `most`), else one. A usage error when the flag says more than `most`,
  // FailedPrecondition when memory does not hold them.
  absl::StatusOr<int64_t> Copies(int64_t bytes, bool from_memory, int64_t most = kMostCopies) const;
  // From now on kernels of few rows stream weights as was measured.
  void Use(const PrefetchTuning& tuning);
  // FailedPrecondition when memory does not hold that much.
  absl::Status CheckMemory(std::string_view what, int64_t bytes) const;
  // A thread's scratch memory for a kernel, 64-byte aligned.
  absl::Status MakeScratch(int64_t bytes);
  // The processing unit of each thread.
  const std::vector<int>& cpus() const { return cpus_; }
  void* scratch(int thread) const { return scratch_[static_cast<size_t>(thread)].data(); }

  // Alternates runs of the kernel with a read of memory and with a loop of the kernel's product in registers, `reps`
  // times; medians of each, and of their ratios.
  absl::StatusOr<nlohmann::ordered_json> Measure(const OpRun& op);

 private:
  OpBench(const BenchOpFlags& flags, TargetInfo target, std::vector<int> cpus, std::unique_ptr<WorkerPool> pool)
      : flags_(flags),
        library_(std::make_unique<KernelLibrary>(std::move(target))),
        cpus_(std::move(cpus)),
        pool_(std::move(pool)) {}

  const BenchOpFlags flags_;
  std::unique_ptr<KernelLibrary> library_;
  std::vector<int> cpus_;
  std::unique_ptr<WorkerPool> pool_;
  std::vector<HugeBuffer> scratch_;
};

// The ISA of the row that selection takes for a descriptor that Get() has a kernel for.
template <typename Desc>
Isa ChosenIsa(const KernelLibrary& library, const Desc& desc) {
  for (const Candidate& candidate : library.Candidates(desc)) {
    if (candidate.chosen) return candidate.isa;
  }
  return library.target().isa;
}

// The product that multiplies such activations: f16 goes through tiles at the rate of bf16.
PeakKind PeakOf(DType activations);

// First, last and what lies evenly between of [0, count), at most `most` numbers.
std::vector<int64_t> Sample(int64_t count, int64_t most);

// How far a product of depth k is from the exact one at most, relative to its sum of magnitudes.
double ProductBound(int64_t k, bool silu_mul);

// Prints a flat JSON object as it is, or as aligned lines.
void PrintResult(const nlohmann::ordered_json& result, bool json);

absl::Status BenchGemm(const BenchOpFlags& flags, const GemmShape& shape);
absl::Status BenchAttention(const BenchOpFlags& flags, const AttentionShape& shape);
absl::Status BenchConvert(const BenchOpFlags& flags, const ConvertShape& shape);
absl::Status BenchPrepare(const BenchOpFlags& flags, const PrepareShape& shape);
absl::Status BenchMoe(const BenchOpFlags& flags, const MoeShape& shape);

}  // namespace xjit::tools
