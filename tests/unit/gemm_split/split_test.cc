// Products cut over depth: every row of kernels.inc that takes few rows, with every encoding that can be cut.
#include "codegen/gemm/split.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/blocking.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/pack.h"
#include "codegen/kernel_rows.h"
#include "ir/support/encoding.h"
#include "tests/unit/gemm_split/split_product.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;
using testing::SplitProduct;

struct Operands {
  Encoding w;
  DType a;
  int64_t block;  // of depth
};

Encoding Grouped(DType type, int32_t group) {
  return {type, {.kind = Scales::Kind::kGroup, .cols = group, .weight_only = type == DType::kI8}};
}

std::vector<Operands> Cuttable() {
  std::vector<Operands> list;
  const auto floats = [&list](const Encoding& w, int64_t block) {
    list.push_back({w, DType::kF32, block});
    list.push_back({w, DType::kBF16, block});
  };
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    if (HasScalesOutside(type) || !HasPanels(type)) continue;
    const int64_t block = std::max(32, PackedBlockElems(type));
    floats(type, block);
    if (IsQuantized(type)) list.push_back({type, DType::kQ8Act, block});
  }
  floats(Encoding::Fp8Blocks(), 128);
  floats(Grouped(DType::kF8E4M3, 64), 64);
  floats(Grouped(DType::kI8, 128), 128);
  for (const bool zeros : {false, true}) {
    for (const int32_t group : {32, 128, 512}) {
      floats(Encoding::Int4(group, zeros), group);
      list.push_back({Encoding::Int4(group, zeros), DType::kQ8Act, group});
    }
  }
  list.push_back({Encoding::Int8(), DType::kI8Act, 64});
  return list;
}

// ISA rows of kernels.inc that this machine runs or emulates.
class EveryRow : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const TypedRow<GemmDesc>& row : RowsOf<GemmDesc>()) {
      if (row.name == GetParam()) row_ = &row;
    }
    ASSERT_NE(row_, nullptr);
    const absl::Status runs = SplitProduct::Runs(*row_);
    if (!runs.ok()) GTEST_SKIP() << runs;
  }
  bool amx() const { return row_->isa >= Isa::kAmx; }
  const TypedRow<GemmDesc>* row_ = nullptr;
};
std::vector<std::string> RowNames() {
  std::vector<std::string> names;
  for (const TypedRow<GemmDesc>& row : RowsOf<GemmDesc>()) names.emplace_back(row.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Kernels, EveryRow, ::testing::ValuesIn(RowNames()),
                         [](const auto& info) { return info.param; });

// Units in orders that no schedule forbids: the last part of a panel may be any, panels may interleave.
std::vector<std::vector<int64_t>> Orders(const SplitProduct& product) {
  const std::vector<int64_t> in_order = product.InOrder();
  std::vector<std::vector<int64_t>> orders = {in_order, {in_order.rbegin(), in_order.rend()}, {}};
  for (int64_t part = 0; part < product.parts(); ++part) {
    for (int64_t panel = 0; panel < product.desc().panels(); ++panel) {
      orders.back().push_back(panel * product.parts() + part);
    }
  }
  std::mt19937 random(5);
  for (int i = 0; i < 2; ++i) {
    orders.push_back(in_order);
    std::shuffle(orders.back().begin(), orders.back().end(), random);
  }
  return orders;
}

TEST_P(EveryRow, GivesTheSumOfItsPartsInOrder) {
  constexpr Epilogue kPlain = {}, kAll = {.bias = true, .residual = true};
  int taken = 0;
  for (const Operands& o : Cuttable()) {
    for (const auto& [parts, rows, epilogue] :
         {std::tuple(2, 1, kPlain), std::tuple(2, 8, kAll), std::tuple(4, 3, kAll), std::tuple(7, 1, kAll),
          std::tuple(7, 6, kPlain)}) {
      const int64_t k = parts * o.block * (o.block < 256 && parts == 4 ? 3 : 1);
      SplitProduct product(o.w, o.a, rows, 96, k, parts, epilogue);
      const std::string name = GemmName(product.desc(), row_->name);
      SCOPED_TRACE(name);
      if (!row_->plan(product.desc(), HostCpu(row_->isa)).ok()) continue;
      const absl::Status compiled = product.Compile(*row_, /*whole=*/o.a == DType::kI8Act);
      if (GetParam() == "amx_int8") {
        EXPECT_THAT(compiled.ToString(), HasSubstr("tiles take whole rows of i8act"));
        continue;
      }
      ASSERT_TRUE(compiled.ok()) << compiled;
      ++taken;
      const auto c = product.Run(product.InOrder());
      EXPECT_EQ(product.FarFrom(*c, *product.Reference()), "");
      const auto want = o.a == DType::kI8Act ? product.Unsplit() : product.PartByPart();
      EXPECT_EQ(product.Differs(*c, *want), "");
      for (const auto& order : Orders(product)) {
        EXPECT_EQ(product.Differs(*product.Run(order), *want), "");
        if (amx()) break;  // a second run; emulated tiles are slow
      }
      if (HasFailure()) return;
    }
  }
  // amx_fp16 takes f16 alone.
  if (GetParam() != "amx_int8" && GetParam() != "amx_fp16") {
    EXPECT_GT(taken, 0);
  }
}

// Tasks of several units, by as many threads as there are, each unit whenever a thread comes to it.
TEST_P(EveryRow, ThreadsChangeNoBit) {
  if (amx()) GTEST_SKIP() << "parts are called by threads as by one: vectors show it";
  int taken = 0;
  for (const Operands& o :
       {Operands{DType::kBF16, DType::kF32, 32}, Operands{DType::kBF16, DType::kBF16, 32},
        Operands{DType::kQ6_K, DType::kQ8Act, 256}, Operands{Encoding::Int8(), DType::kI8Act, 64}}) {
    SplitProduct product(o.w, o.a, 2, 320, 4 * o.block, 4, {.bias = true});
    if (!product.Compile(*row_).ok()) continue;
    ++taken;
    const auto want = product.Run(product.InOrder());
    for (int threads = 1; threads <= 5; ++threads) {
      for (const int64_t chunk : {1, 3}) {
        const auto c = product.NewC();
        std::atomic<int64_t> next = 0;
        std::vector<std::thread> workers;
        for (int t = 0; t < threads; ++t) {
          workers.emplace_back([&] {
            const auto scratch = product.NewScratch();
            const SplitGemmArgs args = product.Split(product.Args(*c, *scratch));
            for (int64_t u = next.fetch_add(chunk); u < product.units(); u = next.fetch_add(chunk)) {
              SplitGemmKernel(&args, u, std::min(u + chunk, product.units()), 0, 2);
            }
          });
        }
        for (std::thread& worker : workers) worker.join();
        EXPECT_EQ(product.Differs(*c, *want), "") << threads << " threads";
        EXPECT_TRUE(product.CountersAreZero());
      }
    }
  }
  EXPECT_GT(taken, 0);
}

TEST_P(EveryRow, WhatIsNoNumberReachesTheRow) {
  int taken = 0;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Operands& o :
       {Operands{DType::kF16, DType::kF32, 32}, Operands{DType::kBF16, DType::kBF16, 32},
        Operands{DType::kQ5_K, DType::kQ8Act, 256}, Operands{Encoding::Int8(), DType::kI8Act, 64}}) {
    const int rows = amx() ? 8 : 3;
    SplitProduct product(o.w, o.a, rows, 64, 4 * o.block, 4, {});
    if (!product.Compile(*row_, /*whole=*/true).ok()) continue;
    ++taken;
    product.SetA(0, o.block + 3, nan);
    product.SetA(1, 3 * o.block + 5, inf);
    const auto c = product.Run(product.InOrder()), want = product.Unsplit();
    for (int64_t n = 0; n < 64; ++n) {
      EXPECT_TRUE(std::isnan(product.At(*c, 0, n))) << n;
      const float got = product.At(*c, 1, n), whole = product.At(*want, 1, n);
      EXPECT_TRUE(std::isnan(whole) ? std::isnan(got) : got == whole) << got << " instead of " << whole;
      EXPECT_TRUE(std::isfinite(product.At(*c, 2, n))) << n;
    }
  }
  // amx_fp16 takes f16 alone, and amx_int8 whole rows.
  if (GetParam() != "amx_int8" && GetParam() != "amx_fp16") {
    EXPECT_GT(taken, 0);
  }
}

GemmDesc Desc(const Encoding& w, DType a, int64_t n, int64_t k, int rows = 1) {
  return {.n = n, .k = k, .a = a, .w = w, .rows = rows, .lda_bytes = 4 * k, .ldc_bytes = 4 * n};
}

TEST(DepthParts, FollowTheShapeAlone) {
  const Encoding fp8 = Encoding::Fp8Blocks(), i8 = Encoding::Int8();
  // 18 panels; ceil(128 / 18) = 8 parts, of at least 32 KiB.
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 576, 7168)), 8);  // of 56 KiB
  EXPECT_EQ(DepthParts(Desc(DType::kF32, DType::kF32, 576, 7168)), 8);
  EXPECT_EQ(DepthParts(Desc(i8, DType::kI8Act, 576, 7168)), 7);  // of 32 KiB
  EXPECT_EQ(DepthParts(Desc(fp8, DType::kBF16, 576, 7168)), 7);  // of 32 KiB and scales
  EXPECT_EQ(DepthParts(Desc(DType::kQ8_0, DType::kQ8Act, 576, 7168)), 7);
  EXPECT_EQ(DepthParts(Desc(DType::kQ4_K, DType::kQ8Act, 576, 7168)), 2);  // 4 would have 31.5 KiB
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 32, 7168)), 14);   // 112 blocks of 64
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 2048, 7168)), 2);
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 4064, 8192)), 2);  // 127 panels
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 4096, 8192)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 151936, 4096)), 1);
  // The row count does not matter while rows are few.
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 576, 7168, rows)), 8);
  }
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 576, 7168, 0)), 1);
}

TEST(DepthParts, SmallModelsKeepTheirPanels) {
  // SmolLM2-135M: 576 columns, 1536 between them; in bf16 what is deep is cut.
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 576, 576)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kQ8_0, DType::kQ8Act, 576, 1536)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kQ4_0, DType::kQ8Act, 576, 1536)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 576, 1536)), 3);
  // Qwen2.5-0.5B: 896, 4864.
  EXPECT_EQ(DepthParts(Desc(DType::kBF16, DType::kBF16, 896, 896)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kQ4_K, DType::kQ8Act, 896, 4864)), 1);
  EXPECT_EQ(DepthParts(Desc(DType::kQ8_0, DType::kQ8Act, 896, 4864)), 2);  // 38 times 128
}

TEST(DepthParts, AreWholeBlocksAndLargeEnough) {
  for (const Operands& o : Cuttable()) {
    int cut = 0;
    for (int64_t n = 32; n <= 4096; n += 96) {
      for (int64_t k : {512, 1536, 4864, 7168, 14336}) {
        if (IsQuantized(o.w.type) && k % o.block != 0) continue;
        const GemmDesc desc = Desc(o.w, o.a, n, k);
        const int64_t parts = DepthParts(desc);
        ASSERT_GE(parts, 1);
        if (parts == 1) continue;
        ++cut;
        EXPECT_EQ(k % (parts * o.block), 0) << GemmName(desc, "*");
        EXPECT_LE(parts, (128 + n / 32 - 1) / (n / 32));
        EXPECT_GE(PanelBytes(o.w, k) / parts, kMinTaskBytes);
        EXPECT_TRUE(CheckParts(desc, parts).ok());
      }
    }
    EXPECT_GT(cut, 0) << ToString(o.w) << " by " << Name(o.a);
  }
}

TEST(CheckParts, SaysWhatIsNotCut) {
  const auto check = [](GemmDesc desc, int64_t parts) { return CheckParts(desc, parts).ToString(); };
  const GemmDesc bf16 = Desc(DType::kBF16, DType::kBF16, 64, 1024);
  EXPECT_EQ(check(bf16, 4), "OK");
  EXPECT_EQ(check(bf16, 1), "OK");
  for (const int64_t parts : {-1, 0, 3}) {
    EXPECT_EQ(check(bf16, parts), fmt::format("INVALID_ARGUMENT: a depth of 1024 cannot be cut into {} parts", parts));
  }
  EXPECT_EQ(check(bf16, 64), "INVALID_ARGUMENT: 64 parts of 1024 are no whole blocks of 32");
  GemmDesc silu = bf16;
  silu.epilogue.silu_mul = true;
  EXPECT_THAT(check(silu, 4), HasSubstr("UNIMPLEMENTED: products with silu_mul"));
  EXPECT_THAT(check(Desc(DType::kBF16, DType::kBF16, 64, 1024, 0), 4), HasSubstr("only products of 1 to 8 rows"));
  const Encoding weight_only{DType::kI8, {.kind = Scales::Kind::kChannel, .weight_only = true}};
  EXPECT_THAT(check(Desc(weight_only, DType::kBF16, 64, 1024), 4), HasSubstr("a scale of all k is not cut"));
  EXPECT_EQ(check(Desc(Encoding::Int8(), DType::kI8Act, 64, 1024), 16), "OK");
  EXPECT_THAT(check(Desc(Encoding::Int8(), DType::kI8Act, 64, 1024), 32), HasSubstr("no whole blocks of 64"));
  EXPECT_THAT(check(Desc(Encoding::Fp8Blocks(), DType::kBF16, 64, 1024), 16), HasSubstr("no whole blocks of 128"));
}

TEST(PartOf, IsAProductOfItsOwnOrNamesTheWhole) {
  const GemmDesc bf16 = PartOf(Desc(DType::kBF16, DType::kBF16, 576, 7168, 2), 8);
  EXPECT_EQ(GemmName(bf16, "*"), "gemm.*.bf16_bf16_f32.m2n32k896");
  const GemmDesc q8 = PartOf(Desc(DType::kQ4_K, DType::kQ8Act, 576, 7168), 4);
  EXPECT_EQ(GemmName(q8, "*"), "gemm.*.q8act_q4_k_f32.m1n32k1792of7168");
  EXPECT_TRUE(CheckSizes(bf16).ok());
  EXPECT_TRUE(CheckSizes(q8).ok());
  const auto refused = [](GemmDesc desc, const std::function<void(GemmDesc&)>& change) {
    change(desc);
    return CheckSizes(desc).ToString();
  };
  EXPECT_THAT(refused(bf16, [](GemmDesc& d) { d.depth = 7168; }), HasSubstr("a product of its own"));
  EXPECT_THAT(refused(q8, [](GemmDesc& d) { d.rows = 0; }), HasSubstr("few rows of one panel"));
  EXPECT_THAT(refused(q8, [](GemmDesc& d) { d.n = 64; }), HasSubstr("few rows of one panel"));
  EXPECT_THAT(refused(q8, [](GemmDesc& d) { d.epilogue.bias = true; }), HasSubstr("without epilogue"));
  EXPECT_THAT(refused(q8, [](GemmDesc& d) { d.k = 16; }), HasSubstr("no part of blocks of 32"));
  EXPECT_THAT(refused(q8, [](GemmDesc& d) { d.depth = 1024; }), HasSubstr("no part of blocks of 32"));
}

}  // namespace
}  // namespace xjit
