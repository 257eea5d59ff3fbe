// A program: what lowering leaves for the running of a step. A list of stages, each a kernel over a grid with bound
// arguments for every thread; no graph, no names to look up, no allocation while it runs.
//
// Programs for different numbers of rows share one StepView (or one a window), one arena and one KV cache: they hold
// addresses and own nothing but the argument structs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "codegen/attention/attention_desc.h"
#include "codegen/kernel.h"
#include "ir/support/status.h"

namespace xjit {

enum class StageMode : uint8_t {
  kShared,      // the grid is cut into tasks that threads share out and steal from each other
  kReplicated,  // every thread computes the whole grid in one call: into outputs of its own, or the same bytes as all others
};
enum class GridN : uint8_t { kConst, kItems };                    // n_count, or step->items
enum class GridM : uint8_t { kOne, kRows, kLogitRows, kMerges };  // 1, step->rows, ->logit_rows, ->merges
inline constexpr int64_t kWholeGrid = 0;                          // as a chunk: the dimension is not cut

struct Stage {
  std::string label = {};          // "layer.3.qkv"; runs of digits are layers to the breakdown
  const Kernel* kernel = nullptr;  // must outlive the program
  StageMode mode = StageMode::kShared;
  GridN n_kind = GridN::kConst;
  int64_t n_count = 1;           // of kConst
  int64_t n_chunk = kWholeGrid;  // n of one task (the last may have less)
  GridM m_kind = GridM::kOne;
  int64_t m_chunk = kWholeGrid;
  bool barrier_after = true;       // all threads finish this stage before any starts the next
  int64_t weight_bytes = 0;        // of weights that the stage reads in a step, all threads together
  const StepView* step = nullptr;  // where the grid's sizes come from; nullptr: the program's (window layers differ)
};

// What a step leaves for sampling: f32 [step->logit_rows][vocab], rows `row_bytes` apart.
struct LogitsView {
  float* data = nullptr;
  int64_t row_bytes = 0;
  float* row(int64_t i) const { return reinterpret_cast<float*>(reinterpret_cast<char*>(data) + i * row_bytes); }
};

// Build: Add() stages in order, set_logits(), Finish(). Run: Execute() in executor.h. One Execute at a time.
class Program {
 public:
  // For `threads` threads and steps of at most `max_rows` rows, whose view is at `step`.
  Program(int threads, int64_t max_rows, const StepView* step);

  // Appends a stage whose threads all have the same arguments; returns its index. The struct is copied.
  template <class Args>
  int Add(Stage stage, const Args& args) {
    const int index = AddStage(std::move(stage));
    const void* copy = Copy(args);
    for (int t = 0; t < threads_; ++t) SetArgs(index, t, copy);
    return index;
  }

  // Appends a stage with arguments of each thread's own (scratch, replicated outputs): args_of(thread) -> Args.
  template <class ArgsOf>
  int AddPerThread(Stage stage, ArgsOf&& args_of) {
    const int index = AddStage(std::move(stage));
    for (int t = 0; t < threads_; ++t) SetArgs(index, t, Copy(args_of(t)));
    return index;
  }

  // Zeroed bytes that live as long as the program, 64-byte aligned: for tables that argument structs point to.
  void* AddArgs(size_t bytes);

  void set_logits(LogitsView logits) { logits_ = logits; }

  // Checks the stages and prepares the run. Internal error for a stage without kernel, arguments or sane grid.
  absl::Status Finish();

  int threads() const { return threads_; }
  int64_t max_rows() const { return max_rows_; }
  const StepView* step() const { return step_; }
  const LogitsView& logits() const { return logits_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const void* args(int stage, int thread) const { return args_[thread][stage]; }
  int64_t args_bytes() const { return args_bytes_; }

 private:
  friend class StageRunner;  // executor.cc

  // Stages of all layers share a few grids; their sizes are worked out once a step.
  struct Grid {
    const StepView* step;
    StageMode mode;
    GridN n_kind;
    int64_t n_count, n_chunk;
    GridM m_kind;
    int64_t m_chunk;
    // Of the current step.
    int64_t n = 0, m = 0, n_step = 0, m_step = 0, m_tasks = 0;
    int64_t stride = 1;  // from a thread's task to its next
  };
  // Thread t's own tasks in a grid: first, first + stride, ... below limit.
  struct Share {
    int64_t first = 0, limit = 0;
  };
  struct Call {
    KernelFn fn;
    int32_t grid;
    bool replicated;
    bool barrier;
  };
  // How many of its own tasks of a stage a thread and its thieves have taken. Steps alternate between the two, and
  // during a step its owner clears the other one, so that no step has to begin with clearing.
  struct alignas(64) Taken {
    std::atomic<uint32_t> count[2] = {0, 0};
  };
  struct alignas(64) ArenaLine {
    std::byte bytes[64];
  };

  int AddStage(Stage stage);
  void SetArgs(int stage, int thread, const void* args) { args_[thread][stage] = args; }
  template <class Args>
  const void* Copy(const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 64);
    void* copy = AddArgs(sizeof(Args));
    std::memcpy(copy, &args, sizeof(Args));
    return copy;
  }
  void PlanStep();  // fills the grids from the step views

  int threads_;
  int64_t max_rows_;
  const StepView* step_;
  LogitsView logits_;
  std::vector<Stage> stages_;
  std::vector<std::vector<const void*>> args_;  // [thread][stage]
  std::vector<std::unique_ptr<ArenaLine[]>> arena_;
  size_t arena_used_ = 0, arena_size_ = 0;  // lines of the last block
  int64_t args_bytes_ = 0;

  std::vector<Call> calls_;
  std::vector<Grid> grids_;
  std::vector<Share> shares_;       // [grid][thread]
  std::unique_ptr<Taken[]> taken_;  // [thread][stage]
  int parity_ = 0;
};

// One line a stage: number, label, kernel, mode, grid, barrier.
std::string Print(const Program& program);

}  // namespace xjit
