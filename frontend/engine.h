// A model, compiled for this machine and ready to run: opens a checkpoint, builds and rewrites its graph, packs its
// weights, and compiles a program for each number of rows on first use.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/kernels.h"
#include "frontend/checkpoint.h"
#include "frontend/weights.h"
#include "models/registry.h"
#include "passes/pass.h"
#include "runtime/executor.h"
#include "runtime/kv_cache.h"
#include "runtime/step.h"
#include "runtime/topology.h"
#include "runtime/worker_pool.h"

namespace xjit {

enum class Backend : uint8_t { kJit, kInterp };

struct EngineOptions {
  std::optional<int> threads;      // none: what the machine grants (runtime/topology.h)
  std::optional<std::string> isa;  // none or "auto": the machine's best
  std::string kv_dtype = "bf16";   // bf16 or f32
  int64_t context = 0;             // tokens of a sequence; 0: the model's, as far as memory allows
  int max_sequences = 1;           // of one step
  Backend backend = Backend::kJit;
  bool mlock = false;
  bool hugepages = true;
  bool perf_map = false;
  bool verify_kernels = false;
};

// Which rows of a sequence's new tokens want logits.
enum class LogitRows : uint8_t { kNone, kLast, kAll };

struct EngineMemory {
  int64_t weight_bytes = 0;  // packed
  int64_t kv_bytes_per_token = 0;
  int64_t kv_reserved_bytes = 0;  // of the whole context
  int64_t arena_bytes = 0;        // work memory of all programs so far
  int64_t code_bytes = 0;
};

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Load(const std::string& path, const EngineOptions& options);
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<const Checkpoint> checkpoint,
                                                        const EngineOptions& options);
  ~Engine();

  // A sequence is an index; its tokens so far are its past.
  absl::StatusOr<int> NewSequence();
  void FreeSequence(int seq);
  // Forgets tokens from `length` on.
  void Truncate(int seq, int32_t length);
  int32_t length(int seq) const;

  struct Input {
    int seq = 0;
    std::span<const int32_t> ids;
    LogitRows logits = LogitRows::kLast;
  };
  // One step: at most max_step_rows() tokens in all, max_logit_rows() rows of logits. Logits are there until the next
  // step. FailedPrecondition where a sequence would grow past the context.
  absl::Status Step(std::span<const Input> inputs);
  // Feeds any number of tokens in chunks of at most `chunk` (0: max_step_rows()); logits of the last token.
  absl::Status Prefill(int seq, std::span<const int32_t> ids, int64_t chunk = 0);
  // Row i of the last step's logits, vocab_size values. Samplers may change them in place.
  std::span<float> logits(int64_t i);

  static constexpr int64_t kMaxStepRows = 512;
  static constexpr int64_t kMaxLogitRows = 128;
  int64_t max_step_rows() const { return std::min<int64_t>(kMaxStepRows, context_ * options_.max_sequences); }
  int64_t max_logit_rows() const { return std::min<int64_t>(kMaxLogitRows, max_step_rows()); }

  const ModelSpec& spec() const { return checkpoint_->spec(); }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const TargetInfo& target() const { return target_; }
  Backend backend() const { return options_.backend; }
  std::string_view kv_dtype() const {
    return options_.backend == Backend::kInterp ? "f32" : std::string_view(options_.kv_dtype);
  }
  // How results were computed, as logits files say it: "fp32", "bf16", "q8act", "q8act+bf16".
  std::string mode() const;
  int64_t context() const { return context_; }
  int threads() const { return target_.threads; }
  const std::string& thread_reason() const { return threads_.reason; }
  // One line for the user, or empty.
  const std::string& warning() const { return threads_.warning; }
  // The same about the ISA: IsaChoice::notice.
  const std::string& isa_notice() const { return isa_notice_; }
  double load_ms() const { return load_ms_; }
  double compile_ms() const { return compile_ms_; }  // passes, lowering and kernels of all programs so far
  double kernel_compile_ms() const { return kernels_ == nullptr ? 0 : kernels_->compile_ms(); }
  EngineMemory memory() const;
  // Weight bytes that a step of few rows reads, and KV bytes of a sequence of `tokens`.
  int64_t weight_bytes_per_step() const;
  int64_t kv_bytes(int64_t tokens) const;

  // The graph after a stage as text; kernels: the program for `rows` tokens.
  absl::StatusOr<std::string> IrText(std::string_view stage, int64_t rows);
  // What passes fused and declined, and for each kernel the candidates.
  absl::StatusOr<std::string> Explain(int64_t rows);
  absl::StatusOr<std::string> KernelAsm(std::string_view kernel, int64_t rows);

  WorkerPool& pool() { return *pool_; }
  // The program for a step of that size, compiled if need be.
  absl::StatusOr<Program*> ProgramFor(int64_t rows, int64_t logit_rows);
  // Steps that run the profile's program record into it from now on; nullptr stops.
  void set_profile(Profile* profile) { profile_ = profile; }

 private:
  class Memory;
  Engine() = default;
  absl::Status Init(std::shared_ptr<const Checkpoint> checkpoint, const EngineOptions& options);
  absl::Status InitJit();
  absl::Status ChooseContext();
  absl::StatusOr<std::unique_ptr<Module>> Planned(int64_t rows, int64_t logit_rows, PassContext* context);
  absl::Status StepJit(std::span<const Input> inputs);
  absl::Status StepInterp(std::span<const Input> inputs);

  EngineOptions options_;
  std::shared_ptr<const Checkpoint> checkpoint_;
  const ModelFamily* family_ = nullptr;
  std::unique_ptr<WeightNames> names_;
  std::unique_ptr<Module> graph_, fused_;
  std::vector<std::string> fuse_notes_;
  TargetInfo target_;
  ThreadChoice threads_;
  std::string isa_notice_;
  DType kv_dtype_ = DType::kBF16;
  int64_t context_ = 0;
  double load_ms_ = 0, compile_ms_ = 0;

  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<KernelLibrary> kernels_;
  std::unique_ptr<WeightStore> weights_;
  std::optional<KvCache> kv_;
  std::optional<StepBuilder> steps_;
  std::unique_ptr<Memory> memory_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Program>> programs_;  // by (rows, logit rows) capacity
  Profile* profile_ = nullptr;
  size_t perf_mapped_ = 0;

  struct Slot {
    bool used = false;
    int32_t length = 0;
    Sequence kv;
    InterpKv interp;
  };
  std::vector<Slot> slots_;
  LogitsView logits_;
  std::vector<StepSequence> step_sequences_;
  std::unique_ptr<CheckpointRows> rows_;
  TensorData interp_logits_;
};

}  // namespace xjit
