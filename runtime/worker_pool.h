// Pinned threads that run one function together, once a step, and meet at barriers inside it.
//
// Thread 0 is the caller. A step costs one wake and one join (0.1-0.5 us with two threads); waiting spins first, since
// a thread put to sleep takes 5-50 us to come back, and always for a bounded time, since on an oversubscribed machine
// the thread waited for may need this core.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

struct WorkerPoolOptions {
  // Processing unit (operating system's number) of each thread, in order; its size is the number of threads. Two
  // threads on one unit are allowed. An entry of -1 leaves that thread unpinned.
  std::vector<int> cpus;
  // Also pin the caller of Create() as thread 0; its old affinity comes back with the pool's end. Threads that it makes
  // meanwhile inherit the pinning.
  bool pin_caller = true;
};

class WorkerPool {
 public:
  // FailedPrecondition when a thread cannot be made. Failure to pin is no error: see pinned().
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Create(const WorkerPoolOptions& options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return threads_; }
  // Whether every thread that was to be pinned is.
  bool pinned() const { return pinned_; }

  // Calls fn(context, thread) on every thread, the caller as thread 0; returns when all are done, and what they wrote
  // is visible. One Run at a time, always from the thread that made the pool when that is pinned. Each thread has the
  // kernels' tile configuration where AMX is used.
  using Fn = void (*)(void* context, int thread);
  void Run(Fn fn, void* context);
  template <class F>
  void Run(F&& f) {
    Run([](void* context, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); }, &f);
  }

  // Inside Run: returns when all threads have come to this barrier; every thread must pass the same barriers.
  void Barrier(int thread);

 private:
  WorkerPool(int threads, bool oversubscribed);
  static void* Main(void* state);  // of a PerThread
  void Work(int thread, int cpu);

  // A dissemination barrier [Hensgen, Finkel, Manber 1988]: in round r, thread t tells thread t + 2^r and waits to be
  // told by t - 2^r. With two threads it is one flag each way.
  static constexpr int kMaxRounds = 12;  // 4096 threads
  struct alignas(64) Flag {
    std::atomic<uint32_t> value{0};
  };
  struct alignas(64) PerThread {
    uint32_t barrier = 0;  // barriers passed
    WorkerPool* pool = nullptr;
    int thread = 0;
    int cpu = -1;
    Flag told[kMaxRounds];
    Flag done;  // last step finished
  };

  const int threads_;
  const int spins_;
  int rounds_ = 0;
  bool pinned_ = true;
  std::unique_ptr<PerThread[]> state_;
  alignas(64) std::atomic<uint32_t> step_{0};
  Fn fn_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  std::atomic<bool> pin_failed_{false};
  std::vector<int> caller_cpus_;  // to restore
  std::vector<pthread_t> workers_;
};

}  // namespace xjit
