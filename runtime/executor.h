// Runs a program's stages on a pool: the whole step is one Run(), inside which every thread walks the list of stages,
// takes its own tasks, then other threads' left ones, and waits at the barriers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/program.h"
#include "runtime/worker_pool.h"

namespace xjit {

// Runs one step, whose views are filled with at most program.max_rows() rows (exactly as many where its
// kernels are for few rows). The pool must have program.threads()
// threads, and Finish() been called.
// Allocates nothing.
void Execute(Program& program, WorkerPool& pool);

// Where the time of steps went. Accumulates over steps until Clear().
class Profile {
 public:
  // Allocates for `program`; other programs may not be recorded into it.
  explicit Profile(const Program& program);
  void Clear();
  const Program& program() const { return program_; }
  int64_t steps() const { return steps_; }

  // Times of one thread in one stage, nanoseconds, summed over the steps.
  struct StageTime {
    double kernel = 0;   // in the kernel
    double barrier = 0;  // waiting at the barrier after it
    double other = 0;    // taking tasks
  };
  StageTime Time(int stage, int thread) const;

  // Of one step, mean over steps and threads, nanoseconds. kernel + barrier + other + wake + join = step, but for what
  // is lost between the measurements.
  struct Totals {
    double step = 0;  // by the system's steady clock, from outside
    double kernel = 0;
    double barrier = 0;
    double other = 0;  // taking tasks
    double wake = 0;   // until the thread's first stage
    double join = 0;   // from the end of its last stage to the end of the step
    double sum() const { return kernel + barrier + other + wake + join; }
  };
  Totals Total() const;

  // Stages of all layers together: runs of digits in labels become '*'. Of one step, nanoseconds, mean over threads; in
  // order of first appearance.
  struct Row {
    std::string label;
    std::string kernel;
    int stages = 0;
    double kernel_ns = 0, barrier_ns = 0, other_ns = 0;
    int64_t weight_bytes = 0;
  };
  std::vector<Row> Rows() const;

 private:
  friend class StageRunner;
  friend void ExecuteProfiled(Program& program, WorkerPool& pool, Profile& profile);
  struct Ticks {
    uint64_t kernel = 0, barrier = 0, other = 0;
  };
  struct alignas(64) ThreadTicks {
    uint64_t first = 0, last = 0;  // of this step
    uint64_t wake = 0, join = 0;
  };
  double NsPerTick() const;

  const Program& program_;
  std::vector<std::vector<Ticks>> ticks_;  // [thread][stage]
  std::vector<ThreadTicks> threads_;
  int64_t steps_ = 0;
  uint64_t step_ns_ = 0;
  uint64_t start_ticks_ = 0;  // when the profile was made, by both clocks
  uint64_t start_ns_ = 0;
};

// The same step, recorded; a few tens of nanoseconds slower a task.
void ExecuteProfiled(Program& program, WorkerPool& pool, Profile& profile);

}  // namespace xjit
