#include "runtime/worker_pool.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "codegen/amx/tiles.h"

namespace xjit {
namespace {

inline void Pause() { __builtin_ia32_pause(); }

// Between steps a worker waits for the sampler and the caller, which take well under a millisecond: 20000 pauses are
// 0.3-0.9 ms (a pause is 40-160 cycles). After that it sleeps until woken.
constexpr int kSpinsForStep = 20000;
// In a step, threads are apart by the imbalance of a stage, tens of microseconds.
constexpr int kSpinsForThread = 2000;
// With more threads than processing units the thread waited for is likely not running.
constexpr int kSpinsOversubscribed = 20;
constexpr int kYields = 1000;
constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 50'000};

// Waits until `value` has reached `target`, in modular order. Spins, then offers the core to others, then naps: a
// thread that was descheduled, or throttled by a quota, must not be waited for at its own cost.
void WaitFor(const std::atomic<uint32_t>& value, uint32_t target, int spins) {
  const auto reached = [&] { return static_cast<int32_t>(value.load(std::memory_order_acquire) - target) >= 0; };
  for (int i = 0; i < spins; ++i) {
    if (reached()) return;
    Pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (reached()) return;
    sched_yield();
  }
  while (!reached()) nanosleep(&kNap, nullptr);
}

bool PinThisThread(int cpu) {
  if (cpu < 0) return true;
  // A set of a fixed size ends at 1024 units.
  cpu_set_t* set = CPU_ALLOC(cpu + 1);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(cpu, bytes, set);
  const bool ok = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return ok;
}

constexpr int kMaxCpus = 8192;  // CONFIG_NR_CPUS of x86-64 Linux

std::vector<int> CpusOfThisThread() {
  std::vector<int> cpus;
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (set == nullptr) return cpus;
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  if (sched_getaffinity(0, bytes, set) == 0) {
    for (int cpu = 0; cpu < kMaxCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
    }
  }
  CPU_FREE(set);
  return cpus;
}

void SetCpusOfThisThread(const std::vector<int>& cpus) {
  cpu_set_t* set = CPU_ALLOC(kMaxCpus);
  if (set == nullptr) return;
  const size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  CPU_ZERO_S(bytes, set);
  for (int cpu : cpus) CPU_SET_S(cpu, bytes, set);
  sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

}  // namespace

WorkerPool::WorkerPool(int threads, bool oversubscribed)
    : threads_(threads),
      spins_(oversubscribed ? kSpinsOversubscribed : kSpinsForThread),
      state_(std::make_unique<PerThread[]>(threads)) {
  while ((1 << rounds_) < threads) ++rounds_;
}

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Create(const WorkerPoolOptions& options) {
  const int threads = static_cast<int>(options.cpus.size());
  if (threads < 1 || threads > (1 << kMaxRounds)) {
    return InvalidArgument("worker pool: {} threads, must be 1 to {}", threads, 1 << kMaxRounds);
  }
  const std::vector<int> allowed = CpusOfThisThread();
  std::vector<int> distinct = options.cpus;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  const bool unpinned = distinct.front() < 0;
  const bool oversubscribed = unpinned ? allowed.size() < options.cpus.size() : distinct.size() < options.cpus.size();
  std::unique_ptr<WorkerPool> pool(new WorkerPool(threads, oversubscribed));
  for (int t = 0; t < threads; ++t) {
    pool->state_[t].pool = pool.get();
    pool->state_[t].thread = t;
    pool->state_[t].cpu = options.cpus[t];
  }
  for (int t = 1; t < threads; ++t) {
    pthread_t worker;
    if (const int error = pthread_create(&worker, nullptr, &Main, &pool->state_[t]); error != 0) {
      return FailedPrecondition(
          "cannot start thread {} of {}: {} (is the number of processes limited? try fewer threads)", t + 1, threads,
          std::strerror(error));
    }
    pool->workers_.push_back(worker);
  }
  if (options.pin_caller) {
    pool->caller_cpus_ = allowed;
    if (!PinThisThread(options.cpus[0])) pool->pin_failed_.store(true);
  }
  pool->Run([](int) {});  // every worker has tried to pin itself by its first step
  pool->pinned_ = !pool->pin_failed_.load();
  return pool;
}

WorkerPool::~WorkerPool() {
  stop_ = true;
  step_.fetch_add(1);
  step_.notify_all();
  for (pthread_t worker : workers_) pthread_join(worker, nullptr);
  if (!caller_cpus_.empty()) SetCpusOfThisThread(caller_cpus_);
}

void* WorkerPool::Main(void* state) {
  const PerThread& self = *static_cast<const PerThread*>(state);
  self.pool->Work(self.thread, self.cpu);
  return nullptr;
}

void WorkerPool::Work(int thread, int cpu) {
  if (!PinThisThread(cpu)) pin_failed_.store(true);
  PerThread& self = state_[thread];
  const int spins = spins_ == kSpinsOversubscribed ? kSpinsOversubscribed : kSpinsForStep;
  for (uint32_t step = 1;; ++step) {
    // The caller goes on only when all have done a step, so the counter is at this step or one before it.
    for (int i = 0; i < spins && step_.load(std::memory_order_acquire) != step; ++i) Pause();
    while (step_.load(std::memory_order_acquire) != step) step_.wait(step - 1, std::memory_order_acquire);
    if (stop_) return;
    ConfigureTiles();
    fn_(context_, thread);
    self.done.value.store(step, std::memory_order_release);
  }
}

void WorkerPool::Run(Fn fn, void* context) {
  ConfigureTiles();
  if (threads_ == 1) {
    fn(context, 0);
    return;
  }
  fn_ = fn;
  context_ = context;
  // Sequentially consistent: the check for sleepers in notify_all must not pass the store.
  const uint32_t step = step_.fetch_add(1) + 1;
  step_.notify_all();
  fn(context, 0);
  for (int t = 1; t < threads_; ++t) WaitFor(state_[t].done.value, step, spins_);
}

void WorkerPool::Barrier(int thread) {
  PerThread& self = state_[thread];
  const uint32_t number = ++self.barrier;
  for (int round = 0; round < rounds_; ++round) {
    int partner = thread + (1 << round);
    if (partner >= threads_) partner -= threads_;
    state_[partner].told[round].value.store(number, std::memory_order_release);
    WaitFor(self.told[round].value, number, spins_);
  }
}

}  // namespace xjit
