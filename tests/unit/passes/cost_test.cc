// The cost model against numbers worked out by hand, and what must hold of every prediction.
#include "passes/cost.h"

#include <gtest/gtest.h>

#include <cmath>

#include "passes/cost_rates.h"
#include "passes/shard_latent.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;

// Two bf16 products in each of 10 layers, attention of 4 query and 2 KV heads of 32, an output matrix.
constexpr std::string_view kDecoder = R"(module @llama {
  func @layer(%x: tensor<T x 128 x f32>, %rope: tensor<T x 32 x f32>, %step: !step) -> tensor<T x 128 x f32> {
    %p = prepare %x {out = "bf16", private = true} : tensor<T x 128 x bf16>
    %qkv = gemm %p, @q+k+v<128+64+64 x 128 x bf16> : tensor<T x 256 x f32>
    %q = slice %qkv {from = 0, to = 128}
    %k = slice %qkv {from = 128, to = 192}
    %v = slice %qkv {from = 192, to = 256}
    %qr = rope_store %q, %k, %v, %rope, %step {heads = 4, kv = "bf16", kv_heads = 2, q = "bf16", scale = 0.25}
    %a = flash_attention %qr, %step {heads = 4, kv = "bf16", kv_heads = 2}
    %ap = prepare %a {out = "bf16"} : tensor<T x 128 x bf16>
    %y = gemm %ap, @o<128 x 128 x bf16> {epilogue = [residual(%x)]}
    return %y
  }
  func @step(%ids: tensor<T x i32>, %step: !step) -> tensor<L x 1000 x f32> {
    %x0 = embed %ids, @embed<1000 x 128 x bf16>
    %rope = rope_table %step, @inv_freq<16 x f32>
    %x1 = repeat %x0, %rope, %step {schedule = "@layer:0-9"}
    %last = select_rows %x1, %step
    %lp = prepare %last {out = "bf16", private = true} : tensor<L x 128 x bf16>
    %logits = gemm %lp, @embed<1000 x 128 x bf16>
    return %logits
  }
}
)";

TargetInfo Machine() {
  TargetInfo target;
  target.name = "test";
  target.isa = Isa::kAvx512Bf16;
  target.cores = target.threads = 2;
  target.node_read_gb_s = 50;
  target.f32_gflops = 100;
  target.bf16_gflops = 200;
  target.int8_gops = 400;
  target.barrier_us = 0.5;
  return target;
}

PassContext Context(int64_t rows, int64_t sequences, int64_t kv_length) {
  PassContext context;
  context.target = Machine();
  context.rows = rows;
  context.logit_rows = sequences;
  context.sequences = sequences;
  context.kv_length = kv_length;
  return context;
}

ModelCost Estimate(const Module& module, const PassContext& context) {
  auto cost = EstimateStep(module, context);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return cost.ok() ? *std::move(cost) : ModelCost();
}

const StageCost& Stage(const ModelCost& cost, std::string_view name) {
  for (const StageCost& stage : cost.stages) {
    if (stage.name == name) return stage;
  }
  ADD_FAILURE() << "no stage " << name;
  static const StageCost kNone;
  return kNone;
}

TEST(Cost, DecodeByHand) {
  const auto module = Parse(kDecoder);
  const ModelCost cost = Estimate(*module, Context(1, 1, 100));
  const StageCost& qkv = Stage(cost, "qkv");
  EXPECT_EQ(qkv.function, "layer");
  EXPECT_EQ(qkv.op, "gemm");
  EXPECT_EQ(qkv.weight, "q+k+v");
  EXPECT_EQ(qkv.count, 10);
  EXPECT_EQ(qkv.bytes, 256 * 128 * 2);
  EXPECT_EQ(qkv.flops, 2 * 256 * 128);
  // 65536 bytes at 50 GB/s and the share that kernels reach; its arithmetic is 0.17 us.
  EXPECT_NEAR(qkv.us, 1.31072 / kWeightStreamShare + 0.5, 1e-9);
  EXPECT_EQ(qkv.limit, CostLimit::kMemory);
  // 100 tokens of 2 heads of K and V of 32 bf16.
  const StageCost& a = Stage(cost, "a");
  EXPECT_EQ(a.bytes, 100 * 2 * 2 * 32 * 2);
  EXPECT_EQ(a.flops, 2.0 * 4 * (32 + 32) * 100);
  EXPECT_NEAR(a.us, 25600 / 50e3 / kKvStreamShare + 0.5, 1e-9);
  // One row of the embedding; the tied output matrix is all of it.
  EXPECT_EQ(Stage(cost, "x0").bytes, 128 * 2);
  EXPECT_EQ(Stage(cost, "logits").bytes, 1000 * 128 * 2);
  // Private: no barrier, and no thread helps.
  EXPECT_NEAR(Stage(cost, "p").us, 128 * 6 / (kRowOpsGbS * 1e3), 1e-9);
  EXPECT_NEAR(Stage(cost, "ap").us, 128 * 6 / (kRowOpsGbS * 1e3 * 2) + 0.5, 1e-9);
  EXPECT_EQ(Stage(cost, "ap").limit, CostLimit::kBarrier);
  // Slices and the repeat are no stages.
  for (const StageCost& stage : cost.stages) EXPECT_TRUE(stage.op != "slice" && stage.op != "repeat") << stage.op;
  EXPECT_EQ(cost.flops, 10 * (2.0 * (256 + 128) * 128 + 2 * 4 * 64 * 100) + 2.0 * 1000 * 128);
}

TEST(Cost, PrefillByHand) {
  const auto module = Parse(kDecoder);
  const ModelCost cost = Estimate(*module, Context(512, 1, 1536));
  // 512 new tokens behind 1024: each sees those and half a triangle.
  EXPECT_EQ(Stage(cost, "a").flops, 2.0 * 4 * 64 * (512.0 * 1024 + 512.0 * 513 / 2));
  EXPECT_EQ(Stage(cost, "a").limit, CostLimit::kCompute);
  const StageCost& o = Stage(cost, "y");
  EXPECT_EQ(o.flops, 2.0 * 512 * 128 * 128);
  EXPECT_EQ(o.bytes, 128 * 128 * 2);
  EXPECT_NEAR(o.us, 2.0 * 512 * 128 * 128 / (2 * 200e3 * 0.95) + 0.5, 1e-9);
  EXPECT_EQ(o.limit, CostLimit::kCompute);
  // Logits of the last token only; without any, their matrix is not read.
  EXPECT_EQ(Stage(cost, "logits").flops, 2.0 * 1000 * 128);
  PassContext none = Context(512, 1, 512);
  none.logit_rows = 0;
  EXPECT_EQ(Stage(Estimate(*module, none), "logits").bytes, 0);
}

TEST(Cost, BatchedDecodeReadsWeightsOnceAndEachCache) {
  const auto module = Parse(kDecoder);
  const ModelCost one = Estimate(*module, Context(1, 1, 100)), four = Estimate(*module, Context(4, 4, 100));
  EXPECT_EQ(Stage(four, "qkv").bytes, Stage(one, "qkv").bytes);
  EXPECT_EQ(Stage(four, "qkv").flops, 4 * Stage(one, "qkv").flops);
  EXPECT_EQ(Stage(four, "a").bytes, 4 * Stage(one, "a").bytes);
  EXPECT_EQ(Stage(four, "a").flops, 4 * Stage(one, "a").flops);
  EXPECT_EQ(Stage(four, "x0").bytes, 4 * Stage(one, "x0").bytes);
}

TEST(Cost, NoPredictionIsBelowTheLimits) {
  const auto module = Parse(kDecoder);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    for (const int64_t rows : {1, 7, 16, 512}) {
      for (const int tp : {1, 2, 6}) {
        PassContext context = Context(rows, 1, 1024);
        context.target.isa = isa;
        context.target.node_cores = {2, 2, 1};
        context.target.link_gb_s = 10;
        context.tp = tp;
        const ModelCost cost = Estimate(*module, context);
        EXPECT_GE(cost.us, cost.bandwidth_limit_us);
        EXPECT_GE(cost.us, cost.flops_limit_us);
        EXPECT_GT(cost.bandwidth_limit_us, 0);
        EXPECT_GT(cost.flops_limit_us, 0);
        double us = 0;
        for (const StageCost& stage : cost.stages) us += stage.us * static_cast<double>(stage.count);
        EXPECT_NEAR(us, cost.us, 1e-9 * us);
      }
    }
  }
}

TEST(Cost, MoreBandwidthIsNeverSlower) {
  const auto module = Parse(kDecoder);
  for (const int64_t rows : {1, 64}) {
    double last = 1e300;
    for (double gb_s = 1; gb_s < 2000; gb_s *= 1.7) {
      PassContext context = Context(rows, 1, 1024);
      context.target.node_read_gb_s = gb_s;
      const double us = Estimate(*module, context).us;
      EXPECT_LE(us, last);
      last = us;
    }
  }
}

TEST(Cost, TilesWorkOnWholeRows) {
  const auto module = Parse(kDecoder);
  PassContext context = Context(17, 1, 17);
  context.target.isa = Isa::kAmx;
  context.target.node_read_gb_s = 1e6;
  const StageCost o = Stage(Estimate(*module, context), "y");
  EXPECT_EQ(o.flops, 2.0 * 17 * 128 * 128);
  EXPECT_NEAR(o.us, 2.0 * 32 * 128 * 128 / (2 * 200e3 * 0.75) + 0.5, 1e-9);
}

// Before the plan the model chooses the activations' type as the plan will: of logits by the rows of logits.
TEST(Cost, LogitsHaveTheTypeOfTheirOwnRows) {
  const auto module = Parse(R"(module @m {
  func @step(%x: tensor<L x 128 x f32>) -> tensor<L x 1000 x f32> {
    %logits = gemm %x, @embed<1000 x 128 x f16>
    return %logits
  }
})");
  ASSERT_NE(module, nullptr);
  PassContext context = Context(512, 1, 512);
  context.target.isa = Isa::kAmx;
  context.target.amx_fp16 = true;
  context.target.node_read_gb_s = 1e6;
  const double of_many = Stage(Estimate(*module, context), "logits").us;
  context.rows = 1;
  EXPECT_EQ(of_many, Stage(Estimate(*module, context), "logits").us);
}

TEST(Cost, TypesChooseTheirPeaks) {
  TargetInfo target = Machine();
  EXPECT_EQ(RateOfProduct(DType::kQ8Act, DType::kQ4_K, target).gflops, 400);
  EXPECT_EQ(RateOfProduct(DType::kI8Act, DType::kI8, target).gflops, 400);
  EXPECT_EQ(RateOfProduct(DType::kBF16, DType::kF8E4M3, target).gflops, 200);
  EXPECT_EQ(RateOfProduct(DType::kBF16, DType::kI4, target).gflops, 200);
  EXPECT_EQ(RateOfProduct(DType::kF32, DType::kQ4_K, target).gflops, 100);
  // A minimum, or a scale for each half of a block, costs; Q5_0 and IQ4_XS have neither.
  const double plain = RateOfProduct(DType::kQ8Act, DType::kQ8_0, target).share;
  for (const DType type : {DType::kQ4_0, DType::kQ5_0, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMxfp4}) {
    EXPECT_EQ(RateOfProduct(DType::kQ8Act, type, target).share, plain) << Name(type);
  }
  for (const DType type : {DType::kQ4_1, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    EXPECT_LT(RateOfProduct(DType::kQ8Act, type, target).share, plain) << Name(type);
  }
  // Blocks of 32 fill half a tile row.
  target.isa = Isa::kAmx;
  EXPECT_EQ(RateOfProduct(DType::kQ8Act, DType::kQ4_K, target).gflops, 200);
  for (int a = 0; a < kNumDTypes; ++a) {
    for (int w = 0; w < kNumDTypes; ++w) {
      const ProductRate rate = RateOfProduct(static_cast<DType>(a), static_cast<DType>(w), target);
      EXPECT_GT(rate.gflops, 0);
      EXPECT_GT(rate.share, 0);
      EXPECT_LE(rate.share, 1);
    }
  }
}

TEST(Cost, RanksShareNodes) {
  TargetInfo target = Machine();
  target.node_cores = {43, 43, 42};
  target.link_gb_s = 90;
  target.node_memory_bytes = 1000;
  const auto own = ShareOf(target, 3, 2);
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own->node, 2);
  EXPECT_EQ(own->cores, 42);
  EXPECT_EQ(own->read_gb_s, 50);
  // Four ranks on three nodes: the first node has two.
  const auto shared = ShareOf(target, 4, 3);
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(shared->node, 0);
  EXPECT_EQ(shared->cores, 21.5);
  EXPECT_EQ(shared->read_gb_s, 25);
  EXPECT_EQ(ShareOf(target, 4, 1)->read_gb_s, 50);
  EXPECT_FALSE(ShareOf(target, 2, 2).ok());
  target.link_gb_s = 0;
  EXPECT_EQ(Message(ShareOf(target, 2, 0).status()),
            "machine test: link_gb_s is not known, and a prediction needs it (xjit machine measures it)");
  EXPECT_TRUE(ShareOf(target, 1, 0).ok());
  target.node_read_gb_s = 0;
  EXPECT_FALSE(ShareOf(target, 1, 0).ok());
}

TEST(Cost, ExpertsThatTokensVisit) {
  // One token visits its own choice, many visit all.
  EXPECT_NEAR(ExpectedExperts(256, 8, 1), 8, 1e-9);
  EXPECT_NEAR(ExpectedExperts(256, 8, 2), 8 + 8 * 248.0 / 256, 1e-9);
  EXPECT_NEAR(ExpectedExperts(256, 8, 4096), 256, 1e-9);
  EXPECT_EQ(ExpectedExperts(4, 4, 1), 4);
  EXPECT_EQ(ExpectedExperts(8, 2, 0), 0);
}

TEST(Cost, RowsOfTiles) {
  EXPECT_EQ(ExpectedTileRows(512, 0.25, 1), 128);
  EXPECT_EQ(ExpectedTileRows(17, 1, 16), 32);
  EXPECT_EQ(ExpectedTileRows(0, 0.5, 16), 0);
  // Two tokens, one chance in two: none comes with 1/4, else a tile.
  EXPECT_NEAR(ExpectedTileRows(2, 0.5, 16), 12, 1e-9);
  // Many tokens: half a tile more than they are.
  EXPECT_NEAR(ExpectedTileRows(4096, 0.25, 16), 1024 + 7.5, 0.1);
  EXPECT_TRUE(std::isfinite(ExpectedTileRows(1 << 16, 1e-3, 16)));
}

TEST(Cost, Pairs) {
  const auto slow = [](int64_t rows, int64_t length, int64_t window) {
    double pairs = 0;
    for (int64_t p = length - rows; p < length; ++p)
      pairs += static_cast<double>(window > 0 ? std::min(p + 1, window) : p + 1);
    return pairs;
  };
  for (const int64_t rows : {1, 5, 64}) {
    for (const int64_t past : {0, 3, 100}) {
      for (const int64_t window : {0, 1, 4, 50, 1000}) {
        EXPECT_EQ(AttendedPairs(rows, past + rows, window), slow(rows, past + rows, window))
            << rows << " " << past << " " << window;
      }
    }
  }
}

// DeepSeek's layer, absorbed, with 8 + 1 experts of which 2 + 1 are visited.
constexpr std::string_view kExperts = R"(module @moe {
  func @step(%x: tensor<T x 64 x f32>, %rope: tensor<T x 16 x f32>, %step: !step) -> tensor<T x 64 x f32> {
    %q0 = gemm %x, @q<96 x 64 x bf16>
    %c = gemm %x, @kv_a<32 x 64 x bf16>
    %k = gemm %x, @k_pe<16 x 64 x bf16>
    %q = latent_store %q0, %c, %k, %rope, %step {heads = 2, kv = "bf16", nope_dim = 32, q = "f32", scale = 0.25}
    %qa = absorb_q %q, @kv_b<96 x 32 x bf16> {heads = 2, nope_dim = 32, v_dim = 16}
    %l = flash_attention %qa, %step {heads = 2, kv = "bf16", kv_heads = 1, latent = true, v_dim = 32}
    %a = absorb_v %l, @kv_b {heads = 2, nope_dim = 32, v_dim = 16}
    %o = gemm %a, @o<64 x 32 x bf16>
    %h = all_reduce %o {epilogue = [residual(%x)]}
    %logits = gemm %h, @router<8 x 64 x f32>
    %experts, %weights = route %logits {constant = 1, top_k = 2}
    %f = grouped_gemm %h, %experts, @gate_exps&shared_gate|up_exps&shared_up<8&1 x 32|32 x 64 x i8<channel>> {epilogue = [silu_mul]}
    %y = grouped_gemm %f, %experts, @down_exps&shared_down<8&1 x 64 x 32 x i8<channel>> {epilogue = [combine(%weights)]}
    %z = all_reduce %y {epilogue = [residual(%h)]}
    return %z
  }
}
)";

TEST(Cost, LatentAttentionByHand) {
  const auto module = Parse(kExperts);
  const ModelCost cost = Estimate(*module, Context(1, 1, 100));
  // A latent row of 32 + 16 bf16 is K, its first 32 values are V.
  const StageCost& l = Stage(cost, "l");
  EXPECT_EQ(l.bytes, 100 * 48 * 2);
  EXPECT_EQ(l.flops, 2.0 * 2 * (48 + 32) * 100);
  // Two of the three thirds of kv_b are keys.
  EXPECT_EQ(Stage(cost, "qa").bytes, 2 * 32 * 32 * 2);
  EXPECT_EQ(Stage(cost, "qa").flops, 2.0 * 2 * 32 * 32);
  EXPECT_EQ(Stage(cost, "a").bytes, 2 * 16 * 32 * 2);
  EXPECT_EQ(*KvCacheBytes(*module, Context(1, 1, 100), 1), 48 * 2);
}

// Ranks that attend for their own sequences keep those; the others keep all.
TEST(Cost, CachesOfOwnSequences) {
  const auto module = Parse(R"(module @m {
  func @step(%q: tensor<R x 96 x f32>, %c: tensor<R x 32 x f32>, %k: tensor<R x 16 x f32>, %rope: tensor<T x 16 x f32>,
             %x: tensor<T x 64 x f32>, %step: !step) -> tensor<T x 64 x f32> {
    kv_store_latent %c, %k, %step
    kv_store %x, %x, %step {kv_heads = 2}
    return %x
  }
})");
  PassContext context = Context(7, 7, 100);
  EXPECT_EQ(*KvCacheBytes(*module, context, 10), 10 * 7 * (48 + 128) * 2);
  context.tp = 3;
  EXPECT_EQ(*KvCacheBytes(*module, context, 10), 10 * (3 * 48 + 7 * 128) * 2);
  context.kv_dtype = DType::kI8;
  EXPECT_EQ(*KvCacheBytes(*module, context, 10), 10 * (3 * (48 + 4) + 7 * (128 + 8)));
}

// What decides whether ranks attend for sequences of their own counts a cache as the cost model does, scales included.
TEST(Cost, TheShardPassSeesTheSameCache) {
  const auto module = Parse(kExperts);
  const Function& f = *module->Find("step");
  const auto find = [&f](std::string_view name) -> const Op* {
    for (const auto& op : f.ops) {
      if (!op->results.empty() && op->result()->name == name) return op.get();
    }
    return nullptr;
  };
  PassContext context = Context(7, 7, 0);
  context.tp = 3;
  for (const auto& [type, row] : {std::pair{DType::kBF16, 96.0}, std::pair{DType::kI8, 52.0}}) {
    context.kv_dtype = type;
    context.kv_length = 0;
    const LatentCost none = CostOfLatent(f, find("o"), find("l"), context);
    context.kv_length = 100;
    const LatentCost some = CostOfLatent(f, find("o"), find("l"), context);
    EXPECT_DOUBLE_EQ(some.by_heads - none.by_heads, 7 * 100 * row);
    EXPECT_DOUBLE_EQ(some.by_sequences - none.by_sequences, 3 * 100 * row);
  }
}

TEST(Cost, ExpertsByHand) {
  const auto module = Parse(kExperts);
  const double matrix = 64 * 64 + 4 * 64;  // of one expert: gate and up, with a scale a row
  const StageCost f = Stage(Estimate(*module, Context(1, 1, 1)), "f");
  EXPECT_EQ(f.weight, "gate_exps&shared_gate|up_exps&shared_up");
  EXPECT_NEAR(f.bytes, 3 * matrix, 1e-6);
  EXPECT_EQ(f.flops, 3 * 2.0 * 64 * 64);
  // Four tokens: the constant expert, and of eight those that a token chose.
  const StageCost four = Stage(Estimate(*module, Context(4, 4, 1)), "f");
  EXPECT_NEAR(four.bytes, (1 + ExpectedExperts(8, 2, 4)) * matrix, 1e-6);
  EXPECT_EQ(four.flops, 4 * f.flops);
  EXPECT_NEAR(Stage(Estimate(*module, Context(512, 1, 512)), "f").bytes, 9 * matrix, 1e-6);
}

// A rank that holds half of the experts sees half of the tokens' choices.
TEST(Cost, ARankOfExperts) {
  const auto part = [](std::string_view weight, std::string_view first) {
    std::string text =
        "module @moe {\n  func @step(%x: tensor<T x 64 x f32>, %l: tensor<T x 8 x f32>, %step: !step) -> tensor<T x 96 "
        "x f32> {\n";
    text += "    %experts, %weights = route %l {constant = 1, top_k = 2}\n    %f = grouped_gemm %x, %experts, ";
    text += weight;
    text += " {first = ";
    text += first;
    text += "}\n    return %f\n  }\n}\n";
    return Stage(Estimate(*Parse(text), Context(4, 4, 1)), "f");
  };
  const double matrix = 32 * 64 * 2;
  const StageCost low = part("@gate_exps[0:4,:,:]<4 x 32 x 64 x bf16>", "0");
  EXPECT_NEAR(low.bytes, ExpectedExperts(8, 2, 4) / 2 * matrix, 1e-6);
  EXPECT_NEAR(low.flops, 4 * 1 * 2.0 * 32 * 64, 1e-6);
  const StageCost high = part("@gate_exps[4:8,:,:]&shared_gate<4&1 x 32 x 64 x bf16>", "4");
  EXPECT_NEAR(high.bytes, low.bytes + matrix, 1e-6);
  EXPECT_NEAR(high.flops, 2 * low.flops, 1e-6);
}

TEST(Cost, CollectivesTakeTheLink) {
  const auto module = Parse(kExperts);
  PassContext context = Context(4, 4, 100);
  const StageCost alone = Stage(Estimate(*module, context), "h");
  context.tp = 4;
  context.target.node_cores = {2, 2, 2, 2};
  context.target.link_gb_s = 10;
  context.target.all_reduce_us = 7;
  const StageCost h = Stage(Estimate(*module, context), "h");
  const double bytes = 4 * 64 * 4;
  const double row_op = 3 * bytes / (kRowOpsGbS * 1e3 * 2);
  EXPECT_NEAR(h.us, row_op + 7 + 2 * bytes * 3 / 4 / 10e3, 1e-9);
  EXPECT_EQ(h.limit, CostLimit::kLink);
  EXPECT_NEAR(alone.us, row_op + 0.5, 1e-9);
}

TEST(Cost, ExpertsAndLatentsKeepTheLimits) {
  const auto module = Parse(kExperts);
  for (const int64_t rows : {1, 4, 512}) {
    PassContext context = Context(rows, 1, 1024);
    context.target.isa = Isa::kAmx;
    const ModelCost cost = Estimate(*module, context);
    EXPECT_GE(cost.us, cost.bandwidth_limit_us);
    EXPECT_GE(cost.us, cost.flops_limit_us);
  }
}

TEST(Cost, BytesOfTheModule) {
  const auto module = Parse(kDecoder);
  const auto weights = WeightBytes(*module);
  ASSERT_TRUE(weights.ok());
  // The tied matrix counts once.
  EXPECT_EQ(*weights, 10 * (256 + 128) * 128 * 2 + 1000 * 128 * 2 + 16 * 4);
  const auto kv = KvCacheBytes(*module, Context(1, 1, 100), 1);
  ASSERT_TRUE(kv.ok());
  EXPECT_EQ(*kv, 10 * 2 * 64 * 2);
  EXPECT_FALSE(WeightBytes(*Parse("module @m {\n}\n")).ok());
}

}  // namespace
}  // namespace xjit
