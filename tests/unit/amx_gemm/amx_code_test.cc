// What AMX kernels are made of: inner loops by the static port model, and plans that refuse what they must.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "codegen/amx/port_model.h"
#include "codegen/gemm/gemm_bf16.h"
#include "tests/unit/amx_gemm/amx_harness.h"

namespace xjit::testing {
namespace {

using ::testing::HasSubstr;

GemmDesc Desc(const Encoding& w, DType a, int rows = 0) {
  return {.n = 1024,
          .k = 4096,
          .a = a,
          .w = w,
          .rows = rows,
          .strips = rows == 0,
          .lda_bytes = 8192 + 64,
          .ldc_bytes = 4096,
          .epilogue = {.bias = true, .silu_mul = true, .residual = true}};
}

// The loop of a kernel with so many products and tile loads; B is in the tiles from first_b on and comes from L2.
TilePortReport LoopOf(const GemmDesc& desc, int products, int loads, int first_b) {
  AmxBuilt built;
  EXPECT_EQ(Message(BuildAmx(desc, kRealCaches, &built)), "");
  const auto loops = AnalyzeTileLoops({built.kernel.code, built.kernel.text_bytes},
                                      {.from_l2 = [&](const TileLoad& load) { return load.tile >= first_b; }});
  EXPECT_TRUE(loops.ok()) << Message(loops.status());
  if (!loops.ok()) return {};
  for (const TilePortReport& loop : *loops) {
    if (loop.products == products && loop.loads == loads) return loop;
  }
  ADD_FAILURE() << "no loop of " << products << " products and " << loads << " loads";
  return {};
}

TEST(AmxCode, TwoByTwoKeepsTheMultiplierBusy) {
  for (const GemmDesc& desc :
       {Desc(DType::kBF16, DType::kBF16), Desc(Encoding::Int8(), DType::kI8Act), Desc(DType::kQ4_K, DType::kBF16),
        Desc(Encoding(DType::kF8E4M3, {.kind = Scales::Kind::kChannel}), DType::kBF16),
        Desc(DType::kF16, DType::kF16)}) {
    const TilePortReport loop = LoopOf(desc, 16, 16, 6);
    EXPECT_GE(loop.busy(), 0.9) << loop.ToString();
    EXPECT_LE(loop.l2_tiles_per_product(), 0.55) << loop.ToString();
  }
}

// The sums of the scale block before are added up in the same loop.
TEST(AmxCode, ScaleBlocksOf128KeepTheMultiplierBusy) {
  for (const Encoding& w : {Encoding::Fp8Blocks(), Encoding::Int4(128, true)}) {
    AmxBuilt built;
    ASSERT_TRUE(BuildAmx(Desc(w, DType::kBF16), kRealCaches, &built).ok());
    const auto loops = AnalyzeTileLoops({built.kernel.code, built.kernel.text_bytes},
                                        {.from_l2 = [](const TileLoad& load) { return load.tile >= 6; }});
    ASSERT_TRUE(loops.ok());
    const auto loop = std::find_if(loops->begin(), loops->end(), [](const TilePortReport& r) {
      return r.products == 16 && r.loads == 16 && r.stores == 4;
    });
    ASSERT_NE(loop, loops->end());
    EXPECT_GE(loop->vectors, 64) << loop->ToString();
    EXPECT_GE(loop->busy(), 0.9) << loop->ToString();
    EXPECT_LE(loop->l2_tiles_per_product(), 0.55) << loop->ToString();
  }
}

TEST(AmxCode, FewRowsTakeWhatL2Gives) {
  for (const int rows : {0, 8}) {
    for (const GemmDesc& desc : {Desc(DType::kBF16, DType::kBF16, rows), Desc(Encoding::Int8(), DType::kI8Act, rows)}) {
      for (const TilePortReport& loop : {LoopOf(desc, 16, 20, 5), LoopOf(desc, 24, 28, 7)}) {
        const double limit = loop.products * 1024 / 48.0;  // one tile of B a product
        EXPECT_LE(loop.cycles, 1.05 * limit) << loop.ToString();
      }
    }
  }
}

TEST(AmxCode, EmitTimes) {
  const auto time = [](const GemmDesc& desc) {
    double best = 1e9;
    for (int i = 0; i < 20; ++i) {
      TargetInfo target;
      target.isa = Isa::kAmx;
      target.vbmi = true;
      Emitter e;
      CodeArena arena;
      const auto start = std::chrono::steady_clock::now();
      if (desc.a == DType::kI8Act) {
        EXPECT_TRUE(EmitGemmAmxInt8(desc, *PlanGemmAmxInt8(desc, target), e).ok());
      } else {
        EXPECT_TRUE(EmitGemmAmxBf16(desc, *PlanGemmAmxBf16(desc, target), e).ok());
      }
      EXPECT_TRUE(e.Finish("test", arena).ok());
      best =
          std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    return static_cast<int>(best);
  };
  std::vector<std::pair<std::string, int>> times = {{"i8act_i8", time(Desc(Encoding::Int8(), DType::kI8Act))}};
  for (const Encoding& w : AmxBf16Weights()) times.emplace_back(ToString(w), time(Desc(w, DType::kBF16)));
  for (const auto& [what, us] : times) RecordProperty(what, us);
}

TEST(AmxPlan, BlocksFitTheCaches) {
  AmxBuilt built;
  ASSERT_TRUE(BuildAmx(Desc(DType::kBF16, DType::kBF16), kRealCaches, &built).ok());
  EXPECT_EQ(built.plan.k_block, 512);  // 32 KiB of A's 32 rows, two thirds of 48 KiB
  EXPECT_LE(built.plan.m_block * built.plan.n_block * 128, kRealCaches.l2 / 4);
  EXPECT_GE(built.plan.n_block, 8);
  ASSERT_TRUE(BuildAmx(Desc(Encoding::Int8(), DType::kI8Act), kRealCaches, &built).ok());
  EXPECT_EQ(built.plan.k_block, 1024);
  GemmDesc shallow = Desc(DType::kBF16, DType::kBF16);
  shallow.k = 512;
  ASSERT_TRUE(BuildAmx(shallow, kRealCaches, &built).ok());
  EXPECT_EQ(built.plan.m_block, 0) << "no sums wait";
}

// Five rows of a tile's sixteen are already cheaper than vectors while weights come from L2.
TEST(AmxPlan, FewRowsCostLessThanVectors) {
  TargetInfo target;
  target.isa = Isa::kAmx;
  for (int rows = 5; rows <= kMaxFewRows; ++rows) {
    const GemmDesc desc = Desc(DType::kBF16, DType::kBF16, rows);
    EXPECT_LT(PlanGemmAmxBf16(desc, target)->cost, PlanGemmBf16Dot(desc, target)->cost) << rows;
  }
}

TEST(AmxPlan, Refuses) {
  TargetInfo amx, avx512;
  amx.isa = Isa::kAmx;
  avx512.isa = Isa::kAvx512Bf16;
  const auto bf16 = [&](const std::function<void(GemmDesc&)>& change, const TargetInfo& target) {
    GemmDesc desc = Desc(DType::kBF16, DType::kBF16);
    change(desc);
    return std::string(Message(PlanGemmAmxBf16(desc, target).status()));
  };
  EXPECT_EQ(bf16([](GemmDesc&) {}, amx), "");
  EXPECT_THAT(bf16([](GemmDesc&) {}, avx512), HasSubstr("the target has avx512_bf16 only"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.a = DType::kF32; }, amx), HasSubstr("activations are f32"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.w = DType::kF32; }, amx), HasSubstr("would round f32 weights"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.w = DType::kF16; }, amx), HasSubstr("would round f16 weights"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.n = 1000; }, amx), HasSubstr("n = 1000 is not a positive multiple of 32"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.w = DType::kQ4_K, d.k = 4000; }, amx), HasSubstr("k = 4000 is not a positive"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.k = 0; }, amx), HasSubstr("k = 0"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.strips = false; }, amx), HasSubstr("tiles take strips"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.strips = false, d.rows = 4; }, amx), HasSubstr("4 rows"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.rows = 8; }, amx), HasSubstr("in strips"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.strips = false, d.rows = 9; }, amx), HasSubstr("not in 0..8"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.ldc_bytes = 2044; }, amx), HasSubstr("overlap"));
  EXPECT_THAT(bf16([](GemmDesc& d) { d.k = int64_t{1} << 28; }, amx), HasSubstr("32-bit offsets"));

  EXPECT_THAT(Message(PlanGemmAmxFp16(Desc(DType::kF16, DType::kF16), amx).status()), HasSubstr("no AMX-FP16"));
  amx.amx_fp16 = true;
  EXPECT_EQ(Message(PlanGemmAmxFp16(Desc(DType::kF16, DType::kF16), amx).status()), "");
  EXPECT_THAT(Message(PlanGemmAmxFp16(Desc(DType::kBF16, DType::kF16), amx).status()), HasSubstr("weights are bf16"));

  GemmDesc groups = Desc(Encoding(DType::kI8, {.kind = Scales::Kind::kGroup, .cols = 128}), DType::kI8Act);
  EXPECT_THAT(Message(PlanGemmAmxInt8(groups, amx).status()), HasSubstr("one scale a column"));
  EXPECT_THAT(Message(PlanGemmAmxInt8(Desc(DType::kQ8_0, DType::kI8Act), amx).status()), HasSubstr("q8_0"));
  GemmDesc deep = Desc(Encoding::Int8(), DType::kI8Act);
  deep.k = 131072;
  EXPECT_TRUE(PlanGemmAmxInt8(deep, amx).ok());
  ++deep.k;
  EXPECT_EQ(Message(PlanGemmAmxInt8(deep, amx).status()), "k = 131073 is more than 131072");
}

}  // namespace
}  // namespace xjit::testing
