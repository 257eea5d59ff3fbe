// Blocking as numbers: what must hold for every shape on every machine, and a few choices by name.
#include "codegen/gemm/blocking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/gemm/pack.h"
#include "codegen/kernel_rows.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;

TargetInfo Machine(Isa isa, int threads, int64_t l1, int64_t l2) {
  TargetInfo t;
  t.isa = isa;
  t.threads = t.cores = threads;
  t.l1d_bytes = l1;
  t.l2_bytes = l2;
  return t;
}
// A Xeon 6980P's NUMA node at 2.8 GHz: 1024 bf16 operations a cycle (github.com/usstq/mm_amx, README); SGLang reads
// 1.45 TB/s with two sockets' six nodes, 85% of what memory gives (its article on DeepSeek-R1 on Xeon 6): 280 GB/s a
// node.
TargetInfo Xeon(int threads = 43) {
  TargetInfo t = Machine(Isa::kAmx, threads, 48 << 10, 2 << 20);
  t.bf16_gflops = 2867;
  t.int8_gops = 5734;
  t.f32_gflops = 179;
  t.node_read_gb_s = 280;
  t.core_read_gb_s = 12;
  return t;
}
// Two Zen 4 cores (measured on a 2-core AMD EPYC: 3.67 GHz, one 512-bit multiplication a cycle, 60 GB/s).
TargetInfo Zen4() {
  TargetInfo t = Machine(Isa::kAvx512Bf16, 2, 32 << 10, 1 << 20);
  t.bf16_gflops = 235;
  t.int8_gops = 470;
  t.f32_gflops = 117;
  t.node_read_gb_s = 60;
  t.core_read_gb_s = 30;
  return t;
}
std::vector<TargetInfo> Machines() {
  return {Xeon(),
          Xeon(1),
          Zen4(),
          Machine(Isa::kAmx, 56, 48 << 10, 2 << 20),
          Machine(Isa::kAvx512Vnni, 4, 48 << 10, 1280 << 10),
          Machine(Isa::kAvx512, 16, 32 << 10, 1 << 20),
          Machine(Isa::kAvx2, 8, 32 << 10, 256 << 10)};
}

Encoding WeightOnly() { return {DType::kI8, {.kind = Scales::Kind::kChannel, .weight_only = true}}; }

struct Operands {
  Encoding w;
  DType a;
};
std::vector<Operands> AllOperands() {
  return {{DType::kBF16, DType::kBF16},
          {DType::kBF16, DType::kF32},
          {DType::kF32, DType::kF32},
          {DType::kQ4_K, DType::kQ8Act},
          {DType::kQ8_0, DType::kF32},
          {DType::kQ6_K, DType::kBF16},
          {Encoding::Int8(), DType::kI8Act},
          {WeightOnly(), DType::kBF16},
          {Encoding::Fp8Blocks(), DType::kBF16},
          {Encoding::Int4(128, true), DType::kBF16},
          {Encoding::Int4(128, false), DType::kF32}};
}

std::string Text(const BlockingShape& s, const TargetInfo& t, const Blocking& b) {
  return fmt::format(
      "{} {}x{}x{} experts {} w {} a {} threads {} isa {}: tile {}x{} block {} {} {} split {} {} chunk {} "
      "tasks {} cost {} ({})",
      b.family, s.m, s.n, s.k, s.experts, ToString(s.w), Name(s.a), t.threads, Name(t.isa), b.tile_m, b.tile_n,
      b.block_m, b.block_n, b.block_k, b.threads_m, b.threads_n, b.chunk, b.tasks, b.cost_us, b.reason);
}

// Calls `check(shape, target, blocking)` for every candidate of the sweep that is not refused.
template <typename Check>
void Sweep(Check check) {
  int taken = 0;
  for (const TargetInfo& target : Machines()) {
    for (const Operands& operands : AllOperands()) {
      for (int64_t m : {1, 2, 4, 8, 9, 16, 17, 33, 100, 1024, 8192}) {
        for (int64_t n : {2, 16, 34, 100, 256, 576, 1536, 8960, 151936}) {
          for (int64_t k : {256, 1536, 7168}) {
            for (int64_t experts : {1, 6, 128}) {
              BlockingShape shape{m, n, k, experts, operands.w, operands.a, n % 32 == 0 && k == 1536};
              for (const Blocking& b : BlockingCandidates(shape, target)) {
                if (b.refused) {
                  EXPECT_FALSE(b.reason.empty()) << b.family;
                  continue;
                }
                ++taken;
                check(shape, target, b);
                if (::testing::Test::HasFailure()) FAIL() << Text(shape, target, b);
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 1000);
}

TEST(Blocking, SizesAreWithinTheProduct) {
  Sweep([](const BlockingShape& s, const TargetInfo& t, const Blocking& b) {
    EXPECT_GE(b.tile_m, 1);
    EXPECT_GE(b.tile_n, 1);
    EXPECT_GE(b.block_m, 1);
    EXPECT_LE(b.block_m, s.m);
    EXPECT_GE(b.block_n, 1);
    EXPECT_LE(b.block_n, PackedColumns(s.n, s.interleaved));
    EXPECT_GE(b.block_k, 1);
    EXPECT_LE(b.block_k, s.k);
    EXPECT_GE(b.chunk, 1);
    EXPECT_LE(b.chunk, PackedColumns(s.n, s.interleaved));
    EXPECT_GE(b.threads_m * b.threads_n, 1);
    EXPECT_LE(b.threads_m * b.threads_n, t.threads);
    EXPECT_FALSE(b.loop_order.empty());
  });
}

TEST(Blocking, BlocksFitTheCaches) {
  Sweep([](const BlockingShape& s, const TargetInfo& t, const Blocking& b) {
    if (!b.family.starts_with("amx")) return;
    EXPECT_EQ(b.tile_m, s.m > kMaxFewRows ? 32 : 16);
    const int64_t bytes = s.a == DType::kBF16 ? 2 : 1;
    EXPECT_LE(b.tile_m * b.block_k * bytes, t.l1d_bytes * 2 / 3) << "the panel of A";
    EXPECT_LE(b.block_n * b.block_k * bytes, t.l2_bytes / 2) << "weights of a block";
    if (b.block_k < s.k) {
      EXPECT_LE(b.block_m * b.block_n * 4, std::max<int64_t>(t.l2_bytes / 4, 32 * b.block_n * 4)) << "sums";
    }
  });
}

TEST(Blocking, ThreadsAreNoMoreThanTasks) {
  Sweep([](const BlockingShape& s, const TargetInfo& t, const Blocking& b) {
    EXPECT_GE(b.threads_m * b.threads_n, 1);
    EXPECT_LE(b.threads_m * b.threads_n, std::min<int64_t>(t.threads, b.tasks));
    EXPECT_GE(b.tasks * b.chunk * s.m, s.experts * s.m * s.n / CeilDiv(s.m, 32)) << "tasks cover the product";
  });
}

TEST(Blocking, UnpacksOnceWhatManyRowsRead) {
  Sweep([](const BlockingShape& s, const TargetInfo&, const Blocking& b) {
    const bool as_it_is = s.w.type == s.a || s.w.type == DType::kF32 || s.a == DType::kI8Act;
    EXPECT_EQ(b.unpack_once, s.m > kMaxFewRows && !as_it_is);
  });
}

TEST(Blocking, CostsAreAboveWhatTheMachineCanDo) {
  Sweep([](const BlockingShape& s, const TargetInfo& t, const Blocking& b) {
    EXPECT_GT(b.cost_us, 0);
    EXPECT_GE(b.cost_us, b.compute_us);
    EXPECT_GE(b.cost_us, b.memory_us);
    const double bytes = static_cast<double>(s.experts * EncodedBytes(s.w, s.n, s.k));
    const double reading = t.node_read_gb_s > 0 ? bytes / (t.node_read_gb_s * 1e3) : 0;
    EXPECT_GE(b.cost_us * 1.000001, reading);
    const bool int8 = s.a == DType::kQ8Act || s.a == DType::kI8Act;
    const double peak = s.a == DType::kBF16 ? t.bf16_gflops : int8 ? t.int8_gops : t.f32_gflops;
    const double flops = 2.0 * static_cast<double>(s.m * s.experts) * static_cast<double>(s.n * s.k);
    const double dots = peak > 0 ? flops / (peak * t.threads * 1e3) : 0;
    EXPECT_GE(b.cost_us * 1.000001, dots);
  });
}

// The order of a sum may depend on the shape and the caches alone.
TEST(Blocking, DepthDoesNotDependOnThreads) {
  for (const Operands& operands : AllOperands()) {
    for (int64_t m : {1, 8, 16, 64}) {
      for (int64_t n : {16, 256, 576, 4096}) {
        for (int64_t k : {256, 7168}) {
          const BlockingShape shape{m, n, k, 1, operands.w, operands.a, false};
          const auto one = BlockingCandidates(shape, Xeon(1));
          for (int threads : {2, 7, 43, 128}) {
            const auto other = BlockingCandidates(shape, Xeon(threads));
            ASSERT_EQ(one.size(), other.size());
            for (size_t i = 0; i < one.size(); ++i) {
              EXPECT_EQ(one[i].block_k, other[i].block_k) << Text(shape, Xeon(threads), other[i]);
              EXPECT_EQ(one[i].parts, other[i].parts) << Text(shape, Xeon(threads), other[i]);
            }
          }
        }
      }
    }
  }
}

TEST(Blocking, ShowsWhatKernelsDo) {
  bool near = false, far = false;  // of products that treat tasks of few rows differently
  for (const TargetInfo& target : Machines()) {
    int taken = 0;
    for (const Operands& operands : AllOperands()) {
      // The last has few panels, so that rows are cut on machines with many threads.
      for (const auto& [m, n] : std::initializer_list<std::pair<int64_t, int64_t>>{
               {1, 8960}, {4, 8960}, {8, 8960}, {9, 8960}, {200, 8960}, {600, 8960}, {1024, 576}}) {
        const BlockingShape shape{m, n, 1536, 1, operands.w, operands.a, false};
        for (const Blocking& b : BlockingCandidates(shape, target)) {
          if (b.refused) continue;
          ++taken;
          const auto rows = RowsOf<GemmDesc>();
          const auto row = std::find_if(rows.begin(), rows.end(), [&b](const auto& r) { return r.name == b.family; });
          ASSERT_NE(row, rows.end());
          GemmDesc desc{.n = n, .k = 1536, .a = shape.a, .w = shape.w};
          desc.rows = m <= kMaxFewRows ? static_cast<int>(m) : 0;
          desc.strips = StripsFor(shape.a, desc.rows == 0);
          desc.lda_bytes = desc.ldc_bytes = 1 << 16;
          const auto plan = row->plan(desc, target);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_EQ(b.tile_m, plan->tile_rows);
          EXPECT_EQ(b.tile_n, plan->tile_vectors);
          const PanelTasks share = SharePanels(GridOf(desc, plan->n_block, m), target.threads);
          const int64_t task_rows = share.rows > 0 ? share.rows : m;
          if (b.parts > 1) continue;  // the plan is a part's
          if (plan->near_rows > 0 && task_rows <= plan->near_rows) {
            near = true;
            EXPECT_EQ(b.block_m, task_rows);
            EXPECT_EQ(b.block_k, plan->near_k_block);
          } else {
            far |= plan->near_rows > 0;
            EXPECT_EQ(b.block_m, plan->m_block > 0 ? std::min(task_rows, plan->m_block) : task_rows);
            if (desc.rows == 0) {
              EXPECT_EQ(b.block_k, std::min<int64_t>(1536, plan->k_block));
            }
          }
          EXPECT_EQ(b.tasks, CeilDiv(n / kPanelColumns, share.panels) * CeilDiv(m, task_rows));
          EXPECT_EQ(b.chunk, share.panels * kPanelColumns);
          EXPECT_EQ(b.block_n, std::min(b.chunk, std::max<int64_t>(1, plan->n_block) * kPanelColumns));
          if (row->isa == Isa::kAmx) continue;
          const int64_t lanes = row->isa == Isa::kAvx2 ? 8 : 16;
          // Sums, weights and activations in registers.
          EXPECT_TRUE(plan->scratch_bytes > 0 || b.tile_n * lanes == kPanelColumns);
          EXPECT_LT(b.tile_m * b.tile_n, row->isa == Isa::kAvx2 ? 16 : 32);
        }
      }
    }
    EXPECT_GT(taken, 0) << Name(target.isa);
  }
  EXPECT_TRUE(near && far);
}

// Tasks are as many as wanted, or as small as they get, and in whole tiles; threads' work is even.
TEST(SharePanels, TilesAreCutIntoEvenTasks) {
  double worst = 1;
  for (const int threads : {1, 2, 7, 43, 128}) {
    for (const int64_t panels : {1, 2, 3, 18, 48, 256, 280, 4748}) {
      for (const int64_t rows : {9, 16, 31, 33, 100, 512, 1000, 1024, 8192}) {
        for (const int64_t together : {3, 5, 11, 64}) {
          for (const int64_t products : {1, 8, 300}) {
            for (const bool unpack : {false, true}) {
              const PanelTasks share = SharePanels({panels, 1 << 16, rows, products, together, unpack}, threads);
              SCOPED_TRACE(fmt::format("{} threads, {} x {} panels x {} rows, {} together: {} panels x {} rows",
                                       threads, products, panels, rows, together, share.panels, share.rows));
              ASSERT_GE(share.panels, 1);
              ASSERT_LE(share.panels, std::min(together, panels));
              ASSERT_GE(share.rows, 0);
              ASSERT_LT(share.rows, rows);
              ASSERT_EQ(share.rows % 32, 0);
              const int64_t task_rows = share.rows > 0 ? share.rows : rows;
              const int64_t across = CeilDiv(panels, share.panels), down = CeilDiv(rows, task_rows);
              // No more panels a task than that many tasks ask for.
              ASSERT_EQ(share.panels, CeilDiv(panels, across));
              const bool smallest = share.panels == 1 && down == CeilDiv(rows, 32);
              const int64_t wanted = std::max<int64_t>(1, threads * kTasksPerThread / products);
              ASSERT_TRUE(smallest || across * down >= wanted);
              // Where there is work enough, the busiest thread has little more than its part.
              const int64_t blocks = panels * CeilDiv(rows, 32) * products,
                            task_blocks = share.panels * CeilDiv(task_rows, 32);
              if (blocks < 64 * threads) continue;
              const int64_t busiest = CeilDiv(products * across * down, threads) * task_blocks;
              worst = std::max(worst, static_cast<double>(busiest * threads) / static_cast<double>(blocks));
            }
          }
        }
      }
    }
  }
  EXPECT_LE(worst, 1.25);
}

// What tasks read, in panels and as many bytes of A (32 rows), and how much the busiest thread computes.
TEST(SharePanels, TilesReadLessThanPanelsOneByOne) {
  const GemmDesc desc{
      .n = 8192, .k = 3072, .a = DType::kBF16, .w = DType::kBF16, .strips = true, .ldc_bytes = 4 * 8192};
  const auto rows = RowsOf<GemmDesc>();
  const auto amx = std::find_if(rows.begin(), rows.end(), [](const auto& row) { return row.name == "amx_bf16"; });
  ASSERT_NE(amx, rows.end());
  const auto plan = amx->plan(desc, Xeon());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_GT(plan->n_block, 2);
  struct Cost {
    int64_t read, busiest;
  };
  const auto cost = [&desc](int64_t panels_together) {
    const PanelTasks share = SharePanels(GridOf(desc, panels_together, 1024), 43);
    const int64_t blocks = (share.rows > 0 ? share.rows : 1024) / 32;
    const int64_t tasks = CeilDiv(256, share.panels) * CeilDiv(32, blocks);
    EXPECT_GE(tasks, 43 * kTasksPerThread);
    return Cost{tasks * (share.panels + blocks), CeilDiv(tasks, 43) * share.panels * blocks};
  };
  const Cost one_by_one = cost(1), together = cost(plan->n_block);
  EXPECT_LT(3 * together.read, one_by_one.read);
  EXPECT_LT(together.busiest, one_by_one.busiest * 11 / 10);
  const Blocking b = BlockingOf(desc, *plan, 1024, 1, 43);
  EXPECT_GT(b.block_n, 2 * kPanelColumns);
  EXPECT_EQ(b.loop_order, "n,k,m");
}

// Vectors keep their rule: pairs of panels, rows cut where panels are too few.
TEST(SharePanels, VectorsTakePairsOfPanelsAndAllRows) {
  const auto share = [](int64_t panels, int64_t rows, int threads, int64_t together) {
    const PanelTasks s =
        SharePanels({.panels = panels, .panel_bytes = 1 << 16, .rows = rows, .panels_together = together}, threads);
    return std::pair(s.panels, s.rows);
  };
  for (const int64_t together : {0, 1, 2}) {
    EXPECT_EQ(share(256, 1024, 2, together), std::pair(int64_t{16}, int64_t{0}));
    EXPECT_EQ(share(18, 1024, 2, together), std::pair(int64_t{1}, int64_t{0}));
    EXPECT_EQ(share(18, 1024, 43, together), std::pair(int64_t{1}, int64_t{128}));
  }
}

TEST(Blocking, CandidatesAreTheRowsOfKernels) {
  for (const TargetInfo& target : Machines()) {
    std::vector<std::string_view> rows, families;
    for (const auto& row : RowsOf<GemmDesc>()) {
      if (row.isa <= target.isa) rows.push_back(row.name);
    }
    for (const Blocking& b : BlockingCandidates({4, 64, 256, 1, DType::kBF16, DType::kBF16, false}, target)) {
      families.push_back(b.family);
    }
    EXPECT_EQ(families, rows);
  }
}

// Tiles from some number of rows on, vectors below: computed, and not far from where others put it: SGLang takes tiles
// above 4 rows (sgl-kernel/csrc/cpu/gemm.h, can_use_brgemm), llama.cpp (ggml-cpu/amx/mmq.cpp) and xFasterTransformer
// (XFT_USE_AMX_M) above 1.
TEST(Blocking, TilesWinFromAFewRowsOn) {
  for (const Operands& o : {Operands{DType::kBF16, DType::kBF16}, Operands{Encoding::Fp8Blocks(), DType::kBF16}}) {
    int64_t from = 0;
    for (int64_t m = 1; m <= 1024; m = m < 32 ? m + 1 : 2 * m) {
      const Blocking b = ChooseBlocking(BlockingCandidates({m, 4096, 7168, 1, o.w, o.a, false}, Xeon()));
      if (b.family == "amx_bf16") {
        if (from == 0) from = m;
      } else {
        EXPECT_EQ(from, 0) << "vectors again at " << m << " rows: " << b.reason;
      }
    }
    // At most 9: unpacking E4M3 for up to eight rows costs more than their dots.
    EXPECT_GE(from, 2);
    EXPECT_LE(from, 9);
  }
}

// 18 panels for 43 threads.
TEST(Blocking, NarrowProductsAreCutOverDepth) {
  const auto candidate = [](std::string_view family, const BlockingShape& shape, const TargetInfo& target) {
    for (const Blocking& b : BlockingCandidates(shape, target)) {
      if (b.family == family) return b;
    }
    return Blocking();
  };
  const BlockingShape narrow{1, 576, 7168, 1, DType::kBF16, DType::kBF16, false};
  const Blocking b = candidate("avx512_bf16", narrow, Xeon());
  EXPECT_EQ(b.parts, 8);
  EXPECT_EQ(b.block_k, 896);
  EXPECT_EQ(b.chunk, 32);
  EXPECT_EQ(b.tasks, 144);
  EXPECT_EQ(b.threads_n, 43);
  // Bound by the node again, no longer by what 18 cores read.
  const double bytes = 2.0 * 576 * 7168;
  EXPECT_DOUBLE_EQ(b.memory_us, bytes / 280e3);
  BlockingShape whole = narrow;
  whole.grouped = true;
  const Blocking w = candidate("avx512_bf16", whole, Xeon());
  EXPECT_EQ(w.parts, 1);
  EXPECT_EQ(w.tasks, 18);
  EXPECT_DOUBLE_EQ(w.memory_us, bytes / (18 * 12e3));
  EXPECT_NEAR(w.compute_us / b.compute_us, (1.0 / 18) / (4.0 / 144), 0.01);
  // Many rows, experts, gate and up, wide products.
  for (const BlockingShape& shape : {BlockingShape{9, 576, 7168, 1, DType::kBF16, DType::kBF16, false},
                                     BlockingShape{1, 576, 7168, 8, DType::kBF16, DType::kBF16, false},
                                     BlockingShape{1, 576, 7168, 1, DType::kBF16, DType::kBF16, true},
                                     BlockingShape{1, 4096, 7168, 1, DType::kBF16, DType::kBF16, false}}) {
    for (const Blocking& c : BlockingCandidates(shape, Xeon())) EXPECT_EQ(c.parts, 1) << Text(shape, Xeon(), c);
  }
  // Tiles take whole rows of int8, of bf16 any.
  const BlockingShape i8{8, 576, 7168, 1, Encoding::Int8(), DType::kI8Act, false};
  EXPECT_EQ(candidate("amx_int8", i8, Xeon()).parts, 1);
  EXPECT_EQ(candidate("int8_vnni", i8, Xeon()).parts, 7);
  EXPECT_EQ(candidate("amx_bf16", {8, 576, 7168, 1, DType::kBF16, DType::kBF16, false}, Xeon()).parts, 8);
  // Two threads have work without, but the same sums.
  EXPECT_EQ(candidate("avx512_bf16", narrow, Zen4()).parts, 8);
}

TEST(Blocking, ExpertsByTheLengthOfTheirRuns) {
  const auto choose = [](int64_t m, int64_t experts) {
    return ChooseBlocking(BlockingCandidates({m, 4096, 7168, experts, DType::kBF16, DType::kBF16, true}, Xeon()));
  };
  EXPECT_EQ(choose(1, 8).family, "avx512_bf16");
  EXPECT_EQ(choose(12, 256).family, "amx_bf16");
  EXPECT_EQ(choose(40, 256).family, "amx_bf16");
  // 8 experts for 43 threads: each is cut, and few idle at the end.
  const int64_t last_round = choose(40, 8).tasks % 43;
  EXPECT_TRUE(last_round == 0 || last_round >= 38) << last_round;
}

TEST(Blocking, RefusalsSayWhy) {
  const auto refusal = [](std::string_view family, const BlockingShape& shape, const TargetInfo& target) {
    for (const Blocking& b : BlockingCandidates(shape, target)) {
      if (b.family == family) return b.refused ? b.reason : std::string("taken");
    }
    return std::string("absent");
  };
  const BlockingShape i8{40, 64, 256, 1, Encoding::Int8(), DType::kI8Act, false};
  EXPECT_THAT(refusal("avx512_vnni", i8, Xeon()), HasSubstr("activations are i8act"));
  EXPECT_EQ(refusal("amx_int8", i8, Xeon()), "taken");
  EXPECT_EQ(refusal("amx_int8", i8, Zen4()), "absent");
  EXPECT_THAT(refusal("amx_bf16", {40, 64, 256, 1, DType::kF16, DType::kBF16, false}, Xeon()), HasSubstr("round f16"));
  EXPECT_THAT(refusal("amx_bf16", {40, 64, 256, 1, DType::kQ4_K, DType::kQ8Act, false}, Xeon()),
              HasSubstr("activations are q8act"));
  EXPECT_THAT(refusal("amx_bf16", {4, 64, 256, 1, DType::kBF16, DType::kBF16, false}, Xeon()),
              HasSubstr("4 rows would use too little"));
  const Blocking none = ChooseBlocking(BlockingCandidates({4, 64, 256, 1, DType::kI32, DType::kF32, false}, Zen4()));
  EXPECT_TRUE(none.refused);
  EXPECT_THAT(none.reason, HasSubstr("avx512: "));
}

TEST(KvLayout, PairsForBf16) {
  EXPECT_EQ(KvLayout(DType::kBF16, 128, 128, false), "k: 64 x 32 x 2; v: 16 x 128 x 2");
  EXPECT_EQ(KvLayout(DType::kF32, 64, 64, false), "k: 64 x 32; v: 32 x 64");
  EXPECT_EQ(KvLayout(DType::kBF16, 576, 512, true), "k: 288 x 32 x 2; v: 8 x 16 x 64 x 2");
  EXPECT_EQ(KvLayout(DType::kI32, 64, 64, false), "");
}

}  // namespace
}  // namespace xjit
