#include "runtime/executor.h"

#include <x86intrin.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <unordered_map>

namespace xjit {
namespace {

uint64_t NowNs() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Ticks of the time-stamp counter, which is invariant and the same on all cores of a machine that Linux takes it as a
// clock source of (Intel SDM vol. 3, 18.17); a step's threads are compared by it.
uint64_t NowTicks() { return __rdtsc(); }

}  // namespace

// One step on one thread. The profiled form is the same code with a clock around it.
class StageRunner {
 public:
  static void Plan(Program& program) { program.PlanStep(); }

  template <bool kProfiled>
  static void Walk(Program& program, WorkerPool& pool, int thread, Profile* profile);

  static void Begin(Profile& profile) {
    for (auto& t : profile.threads_) t.first = t.last = 0;
  }
  static void End(Profile& profile, uint64_t begin, uint64_t end, uint64_t ns) {
    for (auto& t : profile.threads_) {
      // Counters of two cores may be apart by less than a tick of work: never count backwards.
      t.wake += t.first > begin ? t.first - begin : 0;
      t.join += end > t.last ? end - t.last : 0;
    }
    profile.step_ns_ += ns;
    ++profile.steps_;
  }
};

template <bool kProfiled>
void StageRunner::Walk(Program& program, WorkerPool& pool, int thread, Profile* profile) {
  const int threads = program.threads_;
  const size_t stages = program.calls_.size();
  const int parity = program.parity_;
  const void* const* args = program.args_[thread].data();
  Program::Taken* const taken = program.taken_.get();
  uint64_t now = 0, in_kernels = 0;
  if constexpr (kProfiled) profile->threads_[thread].first = now = NowTicks();

  const auto call = [&](KernelFn fn, const void* a, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
    if constexpr (kProfiled) {
      const uint64_t before = NowTicks();
      fn(a, n0, n1, m0, m1);
      in_kernels += NowTicks() - before;
    } else {
      fn(a, n0, n1, m0, m1);
    }
  };

  for (size_t s = 0; s < stages; ++s) {
    const Program::Call stage = program.calls_[s];
    const Program::Grid& grid = program.grids_[stage.grid];
    if (stage.replicated) {
      if (grid.n > 0 && grid.m > 0) call(stage.fn, args[s], 0, grid.n, 0, grid.m);
    } else {
      const auto task = [&](int64_t i) {
        int64_t n = i, m = 0;
        if (grid.m_tasks != 1) {
          n = i / grid.m_tasks;
          m = i - n * grid.m_tasks;
        }
        const int64_t n0 = n * grid.n_step, m0 = m * grid.m_step;
        call(stage.fn, args[s], n0, std::min(n0 + grid.n_step, grid.n), m0, std::min(m0 + grid.m_step, grid.m));
      };
      const Program::Share* shares = &program.shares_[static_cast<size_t>(stage.grid) * threads];
      if (threads == 1) {
        for (int64_t i = shares[0].first; i < shares[0].limit; ++i) task(i);
      } else {
        taken[thread * stages + s].count[parity ^ 1].store(0, std::memory_order_relaxed);
        for (int k = 0; k < threads; ++k) {
          int owner = thread + k;
          if (owner >= threads) owner -= threads;
          const Program::Share share = shares[owner];
          std::atomic<uint32_t>& count = taken[owner * stages + s].count[parity];
          // A look before the locked addition: most lists are empty by the time a thief comes.
          for (int64_t i = share.first + count.load(std::memory_order_relaxed) * grid.stride; i < share.limit;
               i += grid.stride) {
            i = share.first + count.fetch_add(1, std::memory_order_relaxed) * grid.stride;
            if (i >= share.limit) break;
            task(i);
          }
        }
      }
    }
    uint64_t work_end = 0;
    if constexpr (kProfiled) work_end = NowTicks();
    if (stage.barrier) pool.Barrier(thread);
    if constexpr (kProfiled) {
      const uint64_t end = NowTicks();
      Profile::Ticks& ticks = profile->ticks_[thread][s];
      ticks.kernel += in_kernels;
      ticks.other += work_end - now - in_kernels;
      ticks.barrier += end - work_end;
      now = end;
      in_kernels = 0;
    }
  }
  if constexpr (kProfiled) profile->threads_[thread].last = now;
}

void Execute(Program& program, WorkerPool& pool) {
  StageRunner::Plan(program);
  pool.Run([&](int thread) { StageRunner::Walk<false>(program, pool, thread, nullptr); });
}

void ExecuteProfiled(Program& program, WorkerPool& pool, Profile& profile) {
  const uint64_t begin_ns = NowNs(), begin = NowTicks();
  StageRunner::Begin(profile);
  StageRunner::Plan(program);
  pool.Run([&](int thread) { StageRunner::Walk<true>(program, pool, thread, &profile); });
  const uint64_t end = NowTicks();
  StageRunner::End(profile, begin, end, NowNs() - begin_ns);
}

Profile::Profile(const Program& program)
    : program_(program),
      ticks_(program.threads(), std::vector<Ticks>(program.stages().size())),
      threads_(program.threads()),
      start_ticks_(NowTicks()),
      start_ns_(NowNs()) {}

void Profile::Clear() {
  for (auto& thread : ticks_) std::fill(thread.begin(), thread.end(), Ticks{});
  std::fill(threads_.begin(), threads_.end(), ThreadTicks{});
  steps_ = 0;
  step_ns_ = 0;
}

double Profile::NsPerTick() const {
  // Over the whole life of the profile: even 1 ms of it puts the clocks' reading errors below 1e-4.
  while (NowNs() - start_ns_ < 1'000'000) __builtin_ia32_pause();
  return static_cast<double>(NowNs() - start_ns_) / static_cast<double>(NowTicks() - start_ticks_);
}

Profile::StageTime Profile::Time(int stage, int thread) const {
  const double ns = NsPerTick();
  const Ticks& t = ticks_[thread][stage];
  return {.kernel = ns * static_cast<double>(t.kernel),
          .barrier = ns * static_cast<double>(t.barrier),
          .other = ns * static_cast<double>(t.other)};
}

Profile::Totals Profile::Total() const {
  Totals totals;
  if (steps_ == 0) return totals;
  Ticks sum;
  uint64_t wake = 0, join = 0;
  for (size_t t = 0; t < threads_.size(); ++t) {
    for (const Ticks& ticks : ticks_[t]) {
      sum.kernel += ticks.kernel;
      sum.barrier += ticks.barrier;
      sum.other += ticks.other;
    }
    wake += threads_[t].wake;
    join += threads_[t].join;
  }
  const double scale = NsPerTick() / static_cast<double>(threads_.size()) / static_cast<double>(steps_);
  totals.step = static_cast<double>(step_ns_) / static_cast<double>(steps_);
  totals.kernel = scale * static_cast<double>(sum.kernel);
  totals.barrier = scale * static_cast<double>(sum.barrier);
  totals.other = scale * static_cast<double>(sum.other);
  totals.wake = scale * static_cast<double>(wake);
  totals.join = scale * static_cast<double>(join);
  return totals;
}

std::vector<Profile::Row> Profile::Rows() const {
  std::vector<Row> rows;
  std::unordered_map<std::string, size_t> index;
  const double scale =
      steps_ == 0 ? 0 : NsPerTick() / static_cast<double>(threads_.size()) / static_cast<double>(steps_);
  const auto& stages = program_.stages();
  for (size_t s = 0; s < stages.size(); ++s) {
    std::string label;
    for (char c : stages[s].label) {
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
        label += c;
      } else if (label.empty() || label.back() != '*') {
        label += '*';
      }
    }
    // Layers alike in all but a kernel (another weight encoding) are rows of their own.
    const std::string& kernel = stages[s].kernel->name;
    const auto [it, added] = index.try_emplace(label + '\n' + kernel, rows.size());
    if (added) rows.push_back(Row{.label = label, .kernel = kernel});
    Row& row = rows[it->second];
    ++row.stages;
    row.weight_bytes += stages[s].weight_bytes;
    for (const auto& thread : ticks_) {
      row.kernel_ns += scale * static_cast<double>(thread[s].kernel);
      row.barrier_ns += scale * static_cast<double>(thread[s].barrier);
      row.other_ns += scale * static_cast<double>(thread[s].other);
    }
  }
  return rows;
}

}  // namespace xjit
