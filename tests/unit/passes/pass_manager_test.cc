// The pipeline: its order, how passes are found and run, and how one that breaks a module is blamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "passes/pass.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parse;
using ::testing::StartsWith;

constexpr std::string_view kBias = R"(module @m {
  func @f(%x: tensor<T x 16 x f32>) -> tensor<T x 8 x f32> {
    %g = linear %x, @w<8 x 16 x f32>
    %y = add_bias %g, @b<8 x f32>
    return %y
  }
})";

TEST(Pipeline, OrderAndStages) {
  std::vector<std::string_view> names;
  std::set<std::string_view> docs;
  PassStage stage = PassStage::kGraph;
  for (const PassInfo& info : Passes()) {
    names.push_back(info.name);
    EXPECT_TRUE(docs.insert(info.doc).second) << info.name;
    EXPECT_GE(info.stage, stage);
    stage = info.stage;
    EXPECT_EQ(*FindPass(info.name), &info);
  }
  // Each after what its header says it follows.
  const auto at = [&names](std::string_view name) { return std::find(names.begin(), names.end(), name); };
  std::string_view before = "canonicalize";
  for (const std::string_view name :
       {"hoist_select_rows", "fold_shared_expert", "join_linears", "linear_to_gemm", "group_experts", "fuse_bias",
        "fuse_glu", "fuse_combine", "fuse_soft_cap", "fuse_scale", "fuse_residual", "fuse_rms_norm", "fuse_rope_store",
        "flash_attention", "plan_prologues", "plan_layout", "plan_blocking", "plan_memory"}) {
    ASSERT_NE(at(name), names.end()) << name;
    EXPECT_LT(at(before), at(name)) << name;
    before = name;
  }
  EXPECT_FALSE(docs.contains(""));
  EXPECT_EQ((*FindPass("flash_attention"))->stage, PassStage::kFused);
  EXPECT_EQ((*FindPass("plan_prologues"))->stage, PassStage::kPlanned);
}

TEST(Pipeline, UnknownPassesListTheKnown) {
  const auto pass = FindPass("fuse_everything");
  EXPECT_EQ(pass.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(pass.status())), StartsWith("unknown pass 'fuse_everything' (known: canonicalize, "));
}

TEST(Pipeline, RunsTheStagesBetween) {
  auto run = [](PassStage from, PassStage to) {
    const auto module = Parse(kBias);
    PassContext context;
    std::vector<std::string> ran;
    PassRunOptions options;
    options.after = [&ran](std::string_view pass, int changes, const Module&) {
      ran.push_back(fmt::format("{} {}", pass, changes));
      return absl::OkStatus();
    };
    EXPECT_TRUE(RunPipeline(*module, from, to, context, options).ok());
    return ran;
  };
  EXPECT_TRUE(run(PassStage::kGraph, PassStage::kGraph).empty());
  std::vector<std::string> fused;
  for (const PassInfo& info : Passes()) {
    const bool changes = info.name == "linear_to_gemm" || info.name == "fuse_bias";
    if (info.stage == PassStage::kFused) fused.push_back(fmt::format("{} {}", info.name, changes ? 1 : 0));
  }
  EXPECT_EQ(run(PassStage::kGraph, PassStage::kFused), fused);
  EXPECT_THAT(run(PassStage::kSharded, PassStage::kPlanned),
              ElementsAre(StartsWith("plan_prologues"), StartsWith("plan_layout"), StartsWith("plan_blocking"),
                          StartsWith("plan_memory")));
  EXPECT_EQ(run(PassStage::kGraph, PassStage::kPlanned).size(), Passes().size());
}

TEST(Pipeline, AFailingCallbackStopsIt) {
  const auto module = Parse(kBias);
  PassContext context;
  int calls = 0;
  PassRunOptions options;
  options.after = [&calls](std::string_view, int, const Module&) {
    return ++calls == 2 ? Internal("enough") : absl::OkStatus();
  };
  EXPECT_EQ(Message(RunPipeline(*module, PassStage::kGraph, PassStage::kPlanned, context, options)), "enough");
  EXPECT_EQ(calls, 2);
}

absl::StatusOr<PassResult> Break(Module& module, PassContext&) {
  module.functions[0]->ops[1]->result()->type = Type::Step();
  return PassResult::Changed(1);
}
absl::StatusOr<PassResult> Refuse(Module&, PassContext& context) { return Unimplemented("{} rows", context.rows); }

TEST(Pipeline, TheVerifierBlamesThePass) {
  const PassInfo bad = {"break_things", Break, PassStage::kFused, ""},
                 refuse = {"refuse", Refuse, PassStage::kFused, ""};
  PassContext context;
  auto module = Parse(kBias);
  const PassInfo* list[] = {&bad};
  const absl::Status status = RunPasses(*module, list, context);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(Message(status)),
              HasSubstr("pass break_things left a bad module: @f: 4:10: add_bias: the result is"));
  module = Parse(kBias);
  PassRunOptions trusting;
  trusting.verify_each = false;
  EXPECT_TRUE(RunPasses(*module, list, context, trusting).ok());
  module = Parse(kBias);
  const PassInfo* refusing[] = {&refuse};
  EXPECT_EQ(RunPasses(*module, refusing, context).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Message(RunPasses(*module, refusing, context)), "refuse: 1 rows");
}

TEST(Pipeline, NotesSayWhatWasAndWasNotDone) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 16 x f32>) -> tensor<T x 8 x f32> {
    %g = linear %x, @w<8 x 16 x f32>
    %y = add_bias %g, @b<8 x f32>
    %z = add_bias %y, @c<8 x f32>
    return %z
  }
})");
  PassContext context;
  const PassInfo* list[] = {*FindPass("linear_to_gemm"), *FindPass("fuse_bias")};
  ASSERT_TRUE(RunPasses(*module, list, context).ok());
  EXPECT_THAT(context.notes, ::testing::Contains(StartsWith("fuse_bias: @f %")));
}

TEST(Pipeline, UnusedWeightsAreDropped) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 16 x f32>) -> tensor<T x 16 x f32> {
    %dead = linear %x, @w<8 x 16 x f32>
    return %x
  }
})");
  PassContext context;
  const PassInfo* list[] = {*FindPass("canonicalize")};
  ASSERT_TRUE(RunPasses(*module, list, context).ok());
  EXPECT_TRUE(module->functions[0]->weights.empty());
  EXPECT_EQ(module->functions[0]->ops.size(), 1u);
}

// Bad or odd text must not bring a pass down.
TEST(Pipeline, ABiasThatIsNotJoinedKeepsSiluMulApart) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 16 x f32>) -> tensor<T x 32 x f32> {
    %gu = gemm %x, @gate+up<32+32 x 16 x f32> {epilogue = [bias(@b<64 x f32>)]}
    %gate = slice %gu {from = 0, to = 32}
    %up = slice %gu {from = 32, to = 64}
    %s = silu %gate
    %f = mul %s, %up
    return %f
  }
})");
  PassContext context;
  const PassInfo* list[] = {*FindPass("fuse_glu")};
  ASSERT_TRUE(RunPasses(*module, list, context).ok());
  EXPECT_EQ(module->functions[0]->ops.size(), 6u);
}

TEST(Pipeline, JoiningAJoinedWeightKeepsItsParts) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 16 x f32>) -> tensor<T x 32 x f32> {
    %qk = linear %x, @q+k<16+16 x 16 x f32>
    %v = linear %x, @v<32 x 16 x f32>
    %y = add %qk, %v
    return %y
  }
})");
  PassContext context;
  const PassInfo* list[] = {*FindPass("join_linears")};
  ASSERT_TRUE(RunPasses(*module, list, context).ok());
  EXPECT_NE(module->Clone(), nullptr) << PrintModule(*module);
}

// The table of 16 columns turns two heads of 16, the attention sees one of 32: odd, but well formed.
TEST(Pipeline, RotationInOtherHeadsThanAttentionIsLeftAlone) {
  const auto module = Parse(R"(module @m {
  func @f(%q: tensor<T x 32 x f32>, %k: tensor<T x 32 x f32>, %rope: tensor<T x 16 x f32>, %step: !step) -> tensor<T x 32 x f32> {
    %qr = rope %q, %rope {heads = 2}
    %kr = rope %k, %rope {heads = 2}
    kv_store %kr, %k, %step {kv_heads = 1}
    %a = attention %qr, %step {heads = 1, kv_heads = 1, scale = 0.25}
    return %a
  }
})");
  const std::string before = PrintModule(*module);
  PassContext context;
  const PassInfo* list[] = {*FindPass("fuse_rope_store")};
  EXPECT_TRUE(RunPasses(*module, list, context).ok()) << RunPasses(*module, list, context);
  EXPECT_EQ(PrintModule(*module), before);
}

}  // namespace
}  // namespace xjit
