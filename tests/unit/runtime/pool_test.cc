// The pool and the executor: everything runs exactly once, in order, on any number of threads, also on more than the
// machine has.
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/program.h"
#include "runtime/topology.h"
#include "runtime/worker_pool.h"

namespace xjit {
namespace {

std::unique_ptr<WorkerPool> MakePool(int threads) {
  const auto cores = UsableCores();
  EXPECT_TRUE(cores.ok()) << cores.status();
  WorkerPoolOptions options;
  for (int t = 0; t < threads; ++t) options.cpus.push_back((*cores)[t % cores->size()]);
  auto pool = WorkerPool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

cpu_set_t Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

class PoolTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, PoolTest, testing::Values(1, 2, 3, 4, 8), testing::PrintToStringParamName());

TEST_P(PoolTest, EveryThreadRunsOnceAStep) {
  const int threads = GetParam();
  const auto pool = MakePool(threads);
  EXPECT_EQ(pool->threads(), threads);
  EXPECT_TRUE(pool->pinned());
  std::vector<int> runs(threads);  // not atomic: Run() itself must order them
  for (int step = 0; step < 300; ++step) pool->Run([&](int t) { ++runs[t]; });
  for (int t = 0; t < threads; ++t) EXPECT_EQ(runs[t], 300) << t;
}

TEST_P(PoolTest, WakesSleepers) {
  const auto pool = MakePool(GetParam());
  for (int step = 0; step < 5; ++step) {
    // Longer than workers spin.
    timespec pause = {.tv_sec = 0, .tv_nsec = 20'000'000};
    nanosleep(&pause, nullptr);
    std::atomic<int> runs = 0;
    pool->Run([&](int) { ++runs; });
    EXPECT_EQ(runs, GetParam());
  }
}

TEST_P(PoolTest, BarrierOrdersWritesBeforeReads) {
  const int threads = GetParam();
  const auto pool = MakePool(threads);
  constexpr int kRounds = 50;
  std::vector<int> value(threads);
  std::atomic<int> wrong = 0;
  for (int step = 0; step < 5; ++step) {
    pool->Run([&](int t) {
      for (int round = 0; round < kRounds; ++round) {
        value[t] = round * threads + t;
        pool->Barrier(t);
        for (int other = 0; other < threads; ++other) wrong += value[other] != round * threads + other;
        pool->Barrier(t);
      }
    });
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, CallersAffinityComesBack) {
  const cpu_set_t before = Affinity();
  {
    const auto pool = MakePool(2);
    EXPECT_EQ(pool->threads(), 2);
    const cpu_set_t during = Affinity();
    EXPECT_EQ(CPU_COUNT(&during), 1);
  }
  const cpu_set_t after = Affinity();
  EXPECT_TRUE(CPU_EQUAL(&before, &after));
}

TEST(Pool, UnpinnedThreadsKeepTheirAffinity) {
  const cpu_set_t before = Affinity();
  auto pool = WorkerPool::Create({.cpus = {-1, -1}});
  ASSERT_TRUE(pool.ok());
  EXPECT_TRUE((*pool)->pinned());
  std::vector<cpu_set_t> sets(2);
  (*pool)->Run([&](int t) { sched_getaffinity(0, sizeof(cpu_set_t), &sets[t]); });
  EXPECT_TRUE(CPU_EQUAL(&sets[0], &before));
  EXPECT_TRUE(CPU_EQUAL(&sets[1], &before));
}

TEST(Pool, RefusesAndReports) {
  EXPECT_EQ(WorkerPool::Create({}).status().code(), absl::StatusCode::kInvalidArgument);
  // A processor that no machine has: threads run, unpinned, and the pool says so.
  auto pool = WorkerPool::Create({.cpus = {-1, 8000}});
  ASSERT_TRUE(pool.ok());
  EXPECT_FALSE((*pool)->pinned());
}

// --- programs

struct CountArgs {
  std::atomic<int>* cells;  // [n][m]
  int64_t m;
  int64_t* largest;  // [2]: the most n and m of one call, of this thread
};

void Count(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const CountArgs*>(args);
  a.largest[0] = std::max(a.largest[0], n1 - n0);
  a.largest[1] = std::max(a.largest[1], m1 - m0);
  for (int64_t n = n0; n < n1; ++n) {
    for (int64_t m = m0; m < m1; ++m) a.cells[n * a.m + m].fetch_add(1, std::memory_order_relaxed);
  }
}

Kernel CxxKernel(const char* name, KernelFn fn) {
  Kernel kernel;
  kernel.name = name;
  kernel.fn = fn;
  return kernel;
}

TEST_P(PoolTest, GridsAreCoveredExactlyOnce) {
  const int threads = GetParam();
  const auto pool = MakePool(threads);
  const Kernel kernel = CxxKernel("count", &Count);
  constexpr int64_t kMax = 40;
  std::mt19937 random(threads);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  for (int trial = 0; trial < 30; ++trial) {
    constexpr int kStages = 12;
    StepView view, window_view;
    Program program(threads, kMax, &view);
    std::vector<std::vector<std::atomic<int>>> cells;
    std::vector<int64_t> largest(kStages * threads * 2);
    for (int s = 0; s < kStages; ++s) cells.emplace_back(kMax * kMax);
    for (int s = 0; s < kStages; ++s) {
      Stage stage{.label = "s", .kernel = &kernel};
      stage.mode = upto(3) == 0 ? StageMode::kReplicated : StageMode::kShared;
      stage.n_kind = upto(1) == 0 ? GridN::kConst : GridN::kItems;
      stage.n_count = upto(kMax);
      stage.n_chunk = upto(5);
      stage.m_kind = static_cast<GridM>(upto(3));
      stage.m_chunk = upto(5);
      stage.barrier_after = upto(1) == 0;
      if (upto(2) == 0) stage.step = &window_view;
      const int index = program.AddPerThread(stage, [&](int t) {
        return CountArgs{.cells = cells[s].data(), .m = kMax, .largest = &largest[(s * threads + t) * 2]};
      });
      ASSERT_EQ(index, s);
    }
    ASSERT_TRUE(program.Finish().ok());
    for (int step = 0; step < 4; ++step) {  // sizes change from step to step
      for (StepView* v : {&view, &window_view}) {
        v->rows = upto(kMax);
        v->logit_rows = upto(kMax);
        v->items = upto(kMax);
        v->merges = upto(kMax);
      }
      for (auto& stage_cells : cells) {
        for (auto& cell : stage_cells) cell = 0;
      }
      Execute(program, *pool);
      for (int s = 0; s < kStages; ++s) {
        const Stage& stage = program.stages()[s];
        const int64_t n = stage.n_kind == GridN::kItems ? stage.step->items : stage.n_count;
        const int64_t sizes[] = {1, stage.step->rows, stage.step->logit_rows, stage.step->merges};
        const int64_t m = sizes[static_cast<int>(stage.m_kind)];
        const int want = stage.mode == StageMode::kReplicated ? threads : 1;
        for (int64_t i = 0; i < kMax; ++i) {
          for (int64_t j = 0; j < kMax; ++j) {
            ASSERT_EQ(cells[s][i * kMax + j], i < n && j < m ? want : 0)
                << Print(program) << "stage " << s << " n " << i << "/" << n << " m " << j << "/" << m;
          }
        }
        if (stage.mode == StageMode::kReplicated) continue;
        for (int t = 0; t < threads; ++t) {
          if (stage.n_chunk > 0) {
            ASSERT_LE(largest[(s * threads + t) * 2], stage.n_chunk);
          }
          if (stage.m_chunk > 0) {
            ASSERT_LE(largest[(s * threads + t) * 2 + 1], stage.m_chunk);
          }
        }
      }
    }
  }
}

// out[i] = 1 + the sum of in: every task of a stage needs all tasks of the one before.
struct SumArgs {
  const int64_t* in;
  int64_t* out;
  int64_t size;
};
void SumAll(const void* args, int64_t n0, int64_t n1, int64_t, int64_t) {
  const auto& a = *static_cast<const SumArgs*>(args);
  for (int64_t n = n0; n < n1; ++n) {
    int64_t sum = 1;
    for (int64_t i = 0; i < a.size; ++i) sum += a.in[i];
    a.out[n] = sum % 1000003;
  }
}

TEST_P(PoolTest, StagesSeeTheOnesBefore) {
  const int threads = GetParam();
  const auto pool = MakePool(threads);
  const Kernel kernel = CxxKernel("sum", &SumAll);
  constexpr int64_t kSize = 24;
  constexpr int kStages = 40;
  StepView view{.rows = 1};
  std::vector<int64_t> a(kSize), b(kSize);
  Program program(threads, 1, &view);
  for (int s = 0; s < kStages; ++s) {
    Stage stage{.label = "sum", .kernel = &kernel, .n_count = kSize, .n_chunk = 1 + s % 5};
    program.Add(
        stage, SumArgs{.in = s % 2 == 0 ? a.data() : b.data(), .out = s % 2 == 0 ? b.data() : a.data(), .size = kSize});
  }
  ASSERT_TRUE(program.Finish().ok());
  int64_t want = 0;
  for (int step = 0; step < 20; ++step) {
    for (int s = 0; s < kStages; ++s) want = (want * kSize + 1) % 1000003;
    Execute(program, *pool);
    for (int64_t i = 0; i < kSize; ++i) ASSERT_EQ(a[i], want) << "step " << step;
  }
}

// The first task returns only when all others are done, or after 20 s.
struct StuckArgs {
  std::atomic<int64_t>* done;
  int64_t others;
};
void Stuck(const void* args, int64_t n0, int64_t, int64_t, int64_t) {
  const auto& a = *static_cast<const StuckArgs*>(args);
  if (n0 != 0) {
    ++*a.done;
    return;
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (*a.done < a.others && std::chrono::steady_clock::now() < limit) sched_yield();
  if (*a.done < a.others) *a.done = -1;
}

TEST_P(PoolTest, TasksOfASlowThreadAreStolen) {
  const int threads = GetParam();
  if (threads == 1) GTEST_SKIP() << "nobody to steal";
  const auto pool = MakePool(threads);
  const Kernel kernel = CxxKernel("stuck", &Stuck);
  for (const GridN kind : {GridN::kConst, GridN::kItems}) {
    constexpr int64_t kTasks = 33;
    StepView view{.rows = 1, .items = kTasks};
    std::atomic<int64_t> done = 0;
    Program program(threads, 1, &view);
    program.Add(Stage{.label = "stuck", .kernel = &kernel, .n_kind = kind, .n_count = kTasks, .n_chunk = 1},
                StuckArgs{.done = &done, .others = kTasks - 1});
    ASSERT_TRUE(program.Finish().ok());
    for (int step = 0; step < 3; ++step) {
      done = 0;
      Execute(program, *pool);
      ASSERT_EQ(done, kTasks - 1);
    }
  }
}

TEST(Program, RefusesStagesWithoutSense) {
  StepView view;
  const Kernel none;
  Program no_kernel(1, 1, &view);
  no_kernel.Add(Stage{.label = "x", .kernel = &none}, 0);
  EXPECT_EQ(no_kernel.Finish().code(), absl::StatusCode::kInternal);
  const Kernel kernel = CxxKernel("count", &Count);
  Program negative(1, 1, &view);
  negative.Add(Stage{.label = "x", .kernel = &kernel, .n_count = -1}, 0);
  EXPECT_EQ(negative.Finish().code(), absl::StatusCode::kInternal);
  Program no_view(1, 1, nullptr);
  EXPECT_EQ(no_view.Finish().code(), absl::StatusCode::kInternal);
}

TEST(Program, ArgumentsAreAlignedZeroedAndKept) {
  StepView view;
  Program program(2, 1, &view);
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  for (size_t bytes : {1, 64, 65, 100'000, 3, 70'000}) {
    auto* p = static_cast<unsigned char*>(program.AddArgs(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0U);
    for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(p[i], 0);
    std::fill(p, p + bytes, static_cast<unsigned char>(blocks.size() + 1));
    blocks.emplace_back(p, bytes);
  }
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t i = 0; i < blocks[b].second; ++i) ASSERT_EQ(blocks[b].first[i], b + 1);
  }
}

TEST(Program, Prints) {
  StepView view;
  const Kernel kernel = CxxKernel("count", &Count);
  Program program(2, 16, &view);
  program.Add(Stage{.label = "layer.0.qkv", .kernel = &kernel, .n_count = 96, .n_chunk = 8, .m_kind = GridM::kRows}, 0);
  program.Add(Stage{.label = "layer.0.attention",
                    .kernel = &kernel,
                    .n_kind = GridN::kItems,
                    .n_chunk = 1,
                    .barrier_after = false},
              0);
  EXPECT_EQ(Print(program),
            "program {threads = 2, max_rows = 16}\n"
            "   0  layer.0.qkv  count  shared  96/8 x rows  barrier\n"
            "   1  layer.0.attention  count  shared  items/1 x 1\n");
}

// Keeps a core busy for n1 - n0 = 1 piece of 20 us.
void Busy(const void*, int64_t, int64_t, int64_t, int64_t) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(20);
  while (std::chrono::steady_clock::now() < end) {
  }
}

TEST_P(PoolTest, ProfileAccountsForTheWholeStep) {
  const int threads = GetParam();
  const auto pool = MakePool(threads);
  const Kernel kernel = CxxKernel("busy", &Busy);
  StepView view{.rows = 1};
  Program program(threads, 1, &view);
  for (int layer = 0; layer < 10; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer);
    program.Add(Stage{.label = prefix + ".qkv", .kernel = &kernel, .n_count = 8, .n_chunk = 1, .weight_bytes = 100}, 0);
    program.Add(Stage{.label = prefix + ".o", .kernel = &kernel, .mode = StageMode::kReplicated}, 0);
  }
  ASSERT_TRUE(program.Finish().ok());
  Profile profile(program);
  for (int step = 0; step < 10; ++step) ExecuteProfiled(program, *pool, profile);
  const Profile::Totals total = profile.Total();
  EXPECT_EQ(profile.steps(), 10);
  EXPECT_GT(total.step, 0);
  EXPECT_NEAR(total.sum() / total.step, 1, 0.03);
  // Of each thread: a tenth of a step is 8 pieces shared out and one of its own.
  EXPECT_GE(total.kernel, 10 * (8.0 / threads + 1) * 20e3 * 0.99);
  const auto rows = profile.Rows();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].label, "layer.*.qkv");
  EXPECT_EQ(rows[0].kernel, "busy");
  EXPECT_EQ(rows[0].stages, 10);
  EXPECT_EQ(rows[0].weight_bytes, 1000);
  EXPECT_EQ(rows[1].label, "layer.*.o");
  double sum = 0;
  for (const auto& row : rows) sum += row.kernel_ns + row.barrier_ns + row.other_ns;
  EXPECT_NEAR(sum / (total.kernel + total.barrier + total.other), 1, 1e-3);  // two readings of the clocks' ratio
  profile.Clear();
  EXPECT_EQ(profile.Total().step, 0);
}

}  // namespace
}  // namespace xjit
