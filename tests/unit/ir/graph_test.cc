// Functions, names, joined weights, chains, schedules and the builder.
#include "ir/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parse;

Type Rows(int64_t cols) { return Type::Rows(Dim::Symbol('T'), cols); }
Type Vector(int64_t n) { return Type::Tensor({{n, 0}}, DType::kF32); }

TEST(Graph, NamesStayUnique) {
  Module module;
  Builder b(&module);
  b.Begin("f");
  Value* x = b.Arg("x", Rows(8));
  Value* y = b.Silu(x);
  Value* y1 = b.Silu(y);
  Value* x1 = b.Add(y1, y, "x");
  b.Return(x1);
  EXPECT_EQ(y->name, "y");
  EXPECT_EQ(y1->name, "y1");
  EXPECT_EQ(x1->name, "x1");
  EXPECT_EQ(module.functions[0]->FreeName("y"), "y2");
  EXPECT_EQ(module.functions[0]->FreeName("z"), "z");
  EXPECT_TRUE(VerifyModule(module).ok());
}

TEST(Graph, UsersAndReplacement) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> {
    %a = silu %x
    %b = mul %a, %a
    %c = add %a, %b
    return %c
  }
})");
  Function& f = *module->functions[0];
  Value* a = f.ops[0]->result();
  EXPECT_THAT(f.Users(a), ElementsAre(f.ops[1].get(), f.ops[2].get()));
  EXPECT_EQ(f.IndexOf(f.ops[2].get()), 2);
  f.ReplaceUses(a, f.args[0].get());
  EXPECT_TRUE(f.Users(a).empty());
  f.Erase(f.ops[0].get());
  EXPECT_EQ(f.ops.size(), 3u);
  EXPECT_EQ(f.FreeName("a"), "a");
  EXPECT_TRUE(VerifyModule(*module).ok());
  EXPECT_EQ(PrintOp(*f.ops[0]), "%b = mul %x, %x : tensor<T x 8 x f32>");
}

TEST(Graph, WeightsAreOnePerName) {
  Function f("f");
  Weight* w = f.AddWeight("w", Vector(8));
  EXPECT_EQ(f.AddWeight("w", Vector(8)), w);
  EXPECT_EQ(f.FindWeight("w"), w);
  EXPECT_EQ(f.FindWeight("v"), nullptr);
  f.DropUnusedWeights();
  EXPECT_EQ(f.FindWeight("w"), nullptr);
}

TEST(Graph, PartsOfAWeight) {
  Weight one{"w", Type::Tensor({{8, 0}, {4, 0}}, DType::kF32), {}};
  EXPECT_THAT(one.parts(), ElementsAre(Weight::Part{"w", 8}));
  EXPECT_FALSE(one.interleaved());
  Weight joined{"q+k+v", Type::Tensor({{8, 0}, {4, 0}}, DType::kF32), {4, 3, 1}};
  EXPECT_THAT(joined.parts(), ElementsAre(Weight::Part{"q", 4}, Weight::Part{"k", 3}, Weight::Part{"v", 1}));
  EXPECT_FALSE(joined.interleaved());
  Weight pair{"gate|up", Type::Tensor({{8, 0}, {4, 0}}, DType::kF32), {4, 4}};
  EXPECT_THAT(pair.parts(), ElementsAre(Weight::Part{"gate", 4}, Weight::Part{"up", 4}));
  EXPECT_TRUE(pair.interleaved());
}

TEST(Graph, AddItemAppendsOperands) {
  Function f("f");
  Value* x = f.AddArg("x", Rows(8));
  Operand bias{nullptr, f.AddWeight("b", Vector(8))}, gain{nullptr, f.AddWeight("g", Vector(8))};
  Op op(OpCode::kGemm);
  op.operands = {{x, nullptr}, {nullptr, f.AddWeight("w", Type::Tensor({{8, 0}, {8, 0}}, DType::kF32))}};
  op.AddItem("epilogue", "bias", {bias});
  op.AddItem("epilogue", "residual", {{x, nullptr}});
  op.AddItem("prologue", "rms_norm", {gain}, {1e-6});
  ASSERT_EQ(op.operands.size(), 5u);
  EXPECT_THAT(op.ChainAttr("epilogue"), ElementsAre(ChainItem{"bias", {2}}, ChainItem{"residual", {3}}));
  EXPECT_THAT(op.ChainAttr("prologue"), ElementsAre(ChainItem{"rms_norm", {4, 1e-6}}));
  EXPECT_EQ(op.operands[2], bias);
  EXPECT_EQ(op.operands[4], gain);
  EXPECT_EQ(op.Item("epilogue", "silu_mul"), nullptr);
  ASSERT_NE(op.Item("epilogue", "residual"), nullptr);
}

TEST(Schedule, RoundTrip) {
  const std::vector<ScheduleRun> runs = {{"layer", 0, 2}, {"last", 3, 3}, {"layer", 4, 27}};
  EXPECT_EQ(ScheduleText(runs), "@layer:0-2, @last:3, @layer:4-27");
  const auto parsed = ParseSchedule(ScheduleText(runs));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, runs);
  const auto tight = ParseSchedule("@a:0,@b:1-1");
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_THAT(*tight, ElementsAre(ScheduleRun{"a", 0, 0}, ScheduleRun{"b", 1, 1}));
  EXPECT_TRUE(ParseSchedule("")->empty());
}

TEST(Schedule, Errors) {
  for (const char* text : {"layer:0-2", "@layer", "@layer:", "@layer:x", "@layer:0-", "@layer:-1", "@layer:0-2x",
                           "@layer:0 -2", "@layer:0-2-3", " ", "@a:0,, @b:1", "@a:99999999999999999999", "@a:0x1"}) {
    const auto runs = ParseSchedule(text);
    EXPECT_FALSE(runs.ok()) << text;
    EXPECT_THAT(std::string(Message(runs.status())), HasSubstr("is not '@function:first-last'"));
  }
}

TEST(Builder, KeepsTheFirstError) {
  Module module;
  Builder b(&module);
  b.Begin("f");
  Value* x = b.Arg("x", Rows(8));
  Value* y = b.Linear(x, b.W("w", Type::Tensor({{4, 0}, {9, 0}}, DType::kF32)), "y");
  EXPECT_EQ(y, nullptr);
  Value* z = b.Add(y, x, "z");
  EXPECT_EQ(z, nullptr);
  b.Return(z);
  EXPECT_THAT(std::string(Message(b.status())), HasSubstr("@f: linear: x has k = 8 but @w has k = 9"));
  EXPECT_TRUE(module.functions[0]->ops.empty());
}

TEST(Module, CloneIsEqualAndIndependent) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const auto module = testing::RandomGraph(seed).Build();
    module->attrs["rows"] = int64_t{4};
    auto copy = module->Clone();
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(testing::Difference(*module, *copy), "");
    const std::string before = PrintModule(*module);
    copy->functions[0]->ops[0]->result()->name = "renamed";
    copy->functions[0]->weights[0]->name = "other";
    copy->attrs.clear();
    EXPECT_EQ(PrintModule(*module), before);
  }
}

}  // namespace
}  // namespace xjit
