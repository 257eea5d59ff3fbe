// Every attention kernel against its reference: shapes, lengths around each boundary, chunks, windows, splits.
#include <gtest/gtest.h>

#include "tests/unit/attention/attention_testing.h"

namespace xjit::testing {
namespace {

struct Built {
  AttentionPlan plan;
  Kernel kernel;
  CodeArena arena;
};

class AttentionTest : public ::testing::TestWithParam<AttentionRow> {
 protected:
  void SetUp() override {
    if (HostIsa() < GetParam().isa) GTEST_SKIP() << "this machine has no " << Name(GetParam().isa);
  }
  std::unique_ptr<Built> Build(const AttentionDesc& desc) {
    auto built = std::make_unique<Built>();
    const auto plan = GetParam().plan(desc, Target(GetParam().isa));
    if (!plan.ok()) {
      ADD_FAILURE() << Message(plan.status());
      return nullptr;
    }
    built->plan = *plan;
    Emitter e;
    const absl::Status status = GetParam().emit(desc, *plan, e);
    EXPECT_TRUE(status.ok()) << Message(status);
    auto kernel = e.Finish(AttentionName(desc, GetParam().name), built->arena, plan->scratch_bytes);
    EXPECT_TRUE(kernel.ok()) << Message(kernel.status());
    EXPECT_TRUE(built->arena.Seal().ok());
    built->kernel = *std::move(kernel);
    return built;
  }
  // The type combinations this row takes.
  std::vector<AttentionDesc> Types() const {
    AttentionDesc desc;
    if (GetParam().isa == Isa::kAvx512Bf16) return {desc};
    desc.q = DType::kF32;
    AttentionDesc f32 = desc;
    f32.kv = DType::kF32;
    return {desc, f32};
  }
  // Builds the kernel for the case's descriptor, runs all its items, compares.
  void Check(AttentionCase& c, const std::string& what) {
    const auto built = Build(c.desc);
    ASSERT_NE(built, nullptr);
    c.TakeScratch(built->plan.scratch_bytes);
    EXPECT_TRUE(CallKeepsRegisters(built->kernel.fn, &c.args, 0, c.step.items, 0, 1));
    c.ExpectNear(built->plan.product, what + " " + built->kernel.name + " " + ToString(built->plan));
  }
};

AttentionDesc Shape(AttentionDesc desc, int kv_heads, int group, int head_dim, int window = 0) {
  desc.kv_heads = kv_heads;
  desc.heads = kv_heads * group;
  desc.head_dim = head_dim;
  desc.window = window;
  // As AttentionCase lays rows out.
  desc.ldq_bytes = desc.heads * head_dim * (desc.q == DType::kBF16 ? 2 : 4) + 64;
  desc.ldo_bytes = desc.heads * head_dim * 4 + 128;
  return desc;
}

TEST_P(AttentionTest, DecodeShapes) {
  for (const AttentionDesc& type : Types()) {
    for (int head_dim : {16, 32, 48, 64, 80, 96, 128, 256}) {
      for (int group : {1, 2, 3, 5, 6, 7, 8, 12, 16}) {
        AttentionCase c(Shape(type, 2, group, head_dim), {{0, 1}, {1, 1}, {31, 1}, {99, 1}}, 1);
        c.MakeItems(1);
        Check(c, "decode");
      }
    }
  }
}

TEST_P(AttentionTest, DecodeLengths) {
  for (const AttentionDesc& type : Types()) {
    std::vector<SeqSpec> seqs;
    for (int length : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025}) {
      seqs.push_back({length - 1, 1});
    }
    for (int group : {1, 6, 7}) {
      AttentionCase c(Shape(type, 2, group, 64), seqs, 2);
      c.MakeItems(1);
      Check(c, "lengths");
    }
  }
}

TEST_P(AttentionTest, LongContext) {
  for (const AttentionDesc& type : Types()) {
    AttentionCase c(Shape(type, 1, 6, 128), {{4096, 1}, {4090, 7}, {8192, 1}}, 3);
    c.MakeItems(32);
    Check(c, "long");
  }
}

TEST_P(AttentionTest, PrefillShapes) {
  for (const AttentionDesc& type : Types()) {
    for (int head_dim : {16, 32, 64, 80, 96, 128}) {
      for (int group : {1, 2, 3, 5, 6, 7, 9}) {
        AttentionCase c(Shape(type, 1, group, head_dim), {{0, 35}, {29, 5}}, 4);
        c.MakeItems(32);
        Check(c, "prefill");
      }
    }
  }
}

TEST_P(AttentionTest, PrefillLengths) {
  for (const AttentionDesc& type : Types()) {
    for (int past : {0, 1, 31, 32, 250, 255, 256}) {
      std::vector<SeqSpec> seqs;
      for (int rows : {1, 2, 3, 7, 31, 32, 33, 64}) seqs.push_back({past, rows});
      AttentionCase c(Shape(type, 2, 3, 32), seqs, 5);
      c.MakeItems(32);
      Check(c, "chunk");
      c.MakeItems(7);
      Check(c, "chunk in sevens");
    }
    AttentionCase c(Shape(type, 1, 6, 64), {{0, 513}}, 6);
    c.MakeItems(32);
    Check(c, "prompt");
  }
}

TEST_P(AttentionTest, Windows) {
  for (const AttentionDesc& type : Types()) {
    for (int window : {1, 2, 31, 32, 33, 100, 256, 300}) {
      AttentionCase c(Shape(type, 2, 3, 32, window), {{0, 1}, {32, 1}, {700, 1}, {0, 80}, {500, 40}, {255, 33}}, 7);
      c.MakeItems(32);
      Check(c, "window");
    }
  }
}

// Scores far apart: the running maximum jumps, most probabilities vanish.
TEST_P(AttentionTest, LargeScores) {
  for (const AttentionDesc& type : Types()) {
    for (float scale : {30.0f, 300.0f, 0.0f}) {
      AttentionCase c(Shape(type, 1, 4, 64), {{600, 1}, {300, 40}}, 8, scale);
      c.MakeItems(32);
      Check(c, "large scores");
    }
  }
}

// Tokens past kv_end are invisible even to rows that causality would let see them.
TEST_P(AttentionTest, KvRange) {
  for (const AttentionDesc& type : Types()) {
    AttentionCase c(Shape(type, 1, 5, 32), {{300, 40}}, 9);
    c.MakeItems(32);
    for (AttentionItem& item : c.items) {
      item.kv_begin = 64;
      item.kv_end = 203;
    }
    Check(c, "range");
    // Some rows see nothing at all: they are 0.
    for (AttentionItem& item : c.items) {
      item.kv_begin = 320;
      item.kv_end = 340;
    }
    Check(c, "empty rows");
    for (int64_t i = 0; i < c.desc.heads * c.desc.head_dim; ++i) ASSERT_EQ(c.Out(0, i), 0);
  }
}

TEST_P(AttentionTest, SplitAndMerge) {
  for (const AttentionDesc& type : Types()) {
    for (int group : {1, 3, 6, 7, 16}) {
      for (int tokens : {32, 96, 256}) {
        for (int window : {0, 40}) {
          AttentionCase c(Shape(type, 2, group, 80, window), {{0, 1}, {333, 2}, {511, 1}}, 10);
          const auto built = Build(c.desc);
          ASSERT_NE(built, nullptr);
          c.TakeScratch(built->plan.scratch_bytes);
          c.MakeSplits(tokens);
          EXPECT_TRUE(CallKeepsRegisters(built->kernel.fn, &c.args, 0, c.step.items, 0, 1));
          const auto plan = PlanAttentionMerge(c.desc, Target(GetParam().isa));
          ASSERT_TRUE(plan.ok());
          Emitter e;
          ASSERT_TRUE(EmitAttentionMerge(c.desc, *plan, e).ok());
          CodeArena arena;
          const auto merge = e.Finish(AttentionMergeName(c.desc, GetParam().name), arena);
          ASSERT_TRUE(merge.ok() && arena.Seal().ok());
          if (GetParam().isa == Isa::kAvx2) {
            EXPECT_EQ(UsesEvex(*merge), "");
          }
          const AttentionMergeArgs merge_args{c.args.out, c.args.partial, &c.step};
          // Two calls: no merge depends on another.
          EXPECT_TRUE(CallKeepsRegisters(merge->fn, &merge_args, 0, 1, 3, c.step.merges));
          merge->fn(&merge_args, 0, 1, 0, 3);
          c.MakeItems(1);
          c.ExpectNear(built->plan.product, built->kernel.name);
        }
      }
    }
  }
}

// How items are shared out over calls and what ran before changes no bit.
TEST_P(AttentionTest, Deterministic) {
  for (const AttentionDesc& type : Types()) {
    AttentionCase c(Shape(type, 2, 6, 64), {{0, 70}, {500, 1}, {300, 33}}, 11);
    c.MakeItems(32);
    const auto built = Build(c.desc);
    ASSERT_NE(built, nullptr);
    c.TakeScratch(built->plan.scratch_bytes);
    built->kernel.fn(&c.args, 0, c.step.items, 0, 1);
    const std::vector<uint8_t> first(c.out->data(), c.out->data() + c.out->size());
    std::memset(c.out->data(), 0xff, c.out->size());
    for (int64_t i = c.step.items; i-- > 0;) built->kernel.fn(&c.args, i, i + 1, 0, 1);
    EXPECT_EQ(std::memcmp(first.data(), c.out->data(), first.size()), 0);
    built->kernel.fn(&c.args, 2, 2, 0, 1);  // nothing to do
  }
}

// With all values of V equal, rounding of P cancels: the sum is taken of the rounded values.
TEST_P(AttentionTest, WeightsAddUpToOne) {
  for (const AttentionDesc& type : Types()) {
    AttentionCase c(Shape(type, 1, 3, 32), {{400, 1}, {100, 20}}, 12);
    for (const SeqView& s : c.seq) {
      for (int t = 0; t < s.past + s.rows; ++t) {
        uint8_t* page = c.kv->data() + s.pages[t / kPageTokens] * KvPageBytes(c.desc.kv, 32);
        for (int64_t d = 0; d < 32; ++d) {
          const float v = 3;
          const uint16_t rounded = F32ToBf16(v);
          uint8_t* at = page + KvPageVOffset(c.desc.kv, 32, t % kPageTokens, d);
          if (c.desc.kv == DType::kBF16) {
            std::memcpy(at, &rounded, 2);
          } else {
            std::memcpy(at, &v, 4);
          }
        }
      }
    }
    c.MakeItems(32);
    const auto built = Build(c.desc);
    ASSERT_NE(built, nullptr);
    c.TakeScratch(built->plan.scratch_bytes);
    built->kernel.fn(&c.args, 0, c.step.items, 0, 1);
    const double bound = 3 * (2 * 401 + 64) * std::exp2(-24.0);  // two sums of 401 terms
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t i = 0; i < c.desc.heads * 32; ++i) ASSERT_NEAR(c.Out(row, i), 3, bound);
    }
  }
}

TEST_P(AttentionTest, StaysInItsInstructionSet) {
  for (const AttentionDesc& type : Types()) {
    const auto built = Build(Shape(type, 2, 6, 80, 100));
    ASSERT_NE(built, nullptr);
    EXPECT_EQ(UsesEvex(built->kernel).empty(), GetParam().isa == Isa::kAvx2) << UsesEvex(built->kernel);
  }
}

TEST(AttentionPlanTest, Refusals) {
  const TargetInfo best = Target(Isa::kAvx512Bf16);
  AttentionDesc desc = Shape({}, 2, 6, 128);
  EXPECT_TRUE(PlanAttentionBf16Dot(desc, best).ok());
  EXPECT_EQ(Message(PlanAttentionBf16Dot(desc, Target(Isa::kAvx512)).status()),
            "attention: vdpbf16ps needs avx512_bf16");
  EXPECT_EQ(Message(PlanAttentionFma512(desc, best).status()), "attention: f32 products take q in f32, not bf16");
  desc.head_dim = 24;
  EXPECT_EQ(Message(PlanAttentionBf16Dot(desc, best).status()),
            "attention: head_dim 24 is not a multiple of 16 from 16 to 256");
  desc.head_dim = 128;
  desc.heads = 7;
  EXPECT_FALSE(PlanAttentionBf16Dot(desc, best).ok());
  desc.heads = 12;
  desc.ldo_bytes = 4;
  EXPECT_FALSE(PlanAttentionBf16Dot(desc, best).ok());
}

INSTANTIATE_TEST_SUITE_P(Rows, AttentionTest, ::testing::ValuesIn(kAttentionRows),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace xjit::testing
