// What the verifier rejects, in functions built by code (text has its own checks), and the memory facts it shares.
#include "ir/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ir/support/act_layout.h"
#include "ir/support/q8_layout.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;
using testing::Parse;

Type Rows(int64_t cols) { return Type::Rows(Dim::Symbol('T'), cols); }

// @f: a = silu(x), b = silu(a), c = a * b, return c.
struct Chained {
  Module module;
  Value *x, *a, *b, *c;
  Function& f() { return *module.functions[0]; }
  Chained() {
    Builder builder(&module);
    builder.Begin("f");
    x = builder.Arg("x", Rows(64));
    a = builder.Silu(x);
    b = builder.Silu(a);
    c = builder.Mul(a, b, "c");
    builder.Return(c);
    EXPECT_TRUE(builder.status().ok()) << builder.status();
    EXPECT_TRUE(VerifyModule(module).ok());
  }
  std::string Error() const { return std::string(Message(VerifyModule(module))); }
};

TEST(Verifier, UseBeforeDefinition) {
  Chained m;
  std::swap(m.f().ops[0], m.f().ops[1]);
  EXPECT_THAT(m.Error(), HasSubstr("@f: %y1: silu: '%y' is used before it is defined"));
}

TEST(Verifier, ValueOfAnotherFunction) {
  Chained m, other;
  m.f().ops[0]->operands[0].value = other.x;
  EXPECT_THAT(m.Error(), HasSubstr("'%x' is used before it is defined"));
}

TEST(Verifier, WrongResultType) {
  Chained m;
  m.c->type = Rows(32);
  EXPECT_THAT(m.Error(), HasSubstr("mul: the result is tensor<T x 64 x f32>, not tensor<T x 32 x f32>"));
}

TEST(Verifier, ForeignWeight) {
  Chained m, other;
  const Type vector = Type::Tensor({{64, 0}}, DType::kF32);
  auto op = std::make_unique<Op>(OpCode::kAddBias);
  op->operands = {{m.a, nullptr}, {nullptr, other.f().AddWeight("bias", vector)}};
  op->results.push_back(std::make_unique<Value>(Value{"", Rows(64), nullptr}));
  Op* bias = m.f().Add(std::move(op), {"d"}, m.f().ops[1].get());
  EXPECT_THAT(m.Error(), HasSubstr("add_bias: '@bias' belongs to another function"));
  bias->operands[1].weight = m.f().AddWeight("bias", vector);
  EXPECT_EQ(m.Error(), "");
}

TEST(Verifier, ReturnInTheMiddle) {
  Chained m;
  std::swap(m.f().ops[2], m.f().ops[3]);
  m.f().ops[2]->operands[0].value = m.b;
  EXPECT_NE(m.Error(), "");
  auto ret = std::make_unique<Op>(OpCode::kReturn);
  ret->operands = {{m.b, nullptr}};
  m.f().ops.push_back(std::move(ret));
  EXPECT_THAT(m.Error(), HasSubstr("ops after return"));
}

TEST(Verifier, NoReturn) {
  Chained m;
  m.f().ops.pop_back();
  EXPECT_THAT(m.Error(), HasSubstr("@f: no return at the end"));
}

TEST(Verifier, DuplicateNames) {
  Chained m;
  m.b->name = "x";
  EXPECT_THAT(m.Error(), HasSubstr("'%x' is defined twice"));
  Chained twice;
  twice.module.functions.push_back(std::move(Chained().module.functions[0]));
  EXPECT_THAT(twice.Error(), HasSubstr("function '@f' is defined twice"));
}

TEST(Verifier, EmptyOperand) {
  Chained m;
  m.f().ops[2]->operands[1] = {};
  EXPECT_THAT(m.Error(), HasSubstr("mul: an empty operand"));
}

TEST(Verifier, OverlappingArenaRanges) {
  Chained m;
  m.module.attrs["rows"] = int64_t{2};
  auto place = [&](int64_t a, int64_t b, int64_t c) {
    m.a->def->attrs["at"] = a;
    m.b->def->attrs["at"] = b;
    m.c->def->attrs["at"] = c;
    return m.Error();
  };
  // Two rows of 64 f32 are 512 bytes. a lives until c is made, b as well.
  EXPECT_EQ(place(0, 512, 1024), "");
  EXPECT_THAT(place(0, 511, 1024), HasSubstr("memory: '%y' [0, 512) and '%y1' [511, 1023) live at the same time"));
  EXPECT_THAT(place(512, 1, 1024), HasSubstr("live at the same time"));
  EXPECT_THAT(place(0, 512, 0), HasSubstr("live at the same time"));  // mul does not read in place
  // Each thread's own arena is another place.
  m.a->def->attrs["private"] = true;
  EXPECT_EQ(place(0, 0, 512), "");
}

TEST(Verifier, OffsetsOutsideOfAnyArena) {
  Chained m;
  m.module.attrs["rows"] = int64_t{2};
  m.a->def->attrs["at"] = int64_t{-64};
  EXPECT_THAT(m.Error(), HasSubstr("memory: '%y'"));
  m.a->def->attrs["at"] = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(m.Error(), HasSubstr("memory: '%y'"));
  m.a->def->attrs["at"] = int64_t{0};
  EXPECT_EQ(m.Error(), "");
  m.module.attrs["rows"] = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(m.Error(), HasSubstr("memory: '%y'"));
}

// Every result of an op has its place: the first at `at`, the others at `at_rest`.
TEST(ArenaOffset, OfEachResult) {
  Op op(OpCode::kSilu);
  for (int i = 0; i < 3; ++i) op.results.push_back(std::make_unique<Value>(Value{"y", Rows(64), &op}));
  EXPECT_EQ(ArenaOffset(*op.result(0)), std::nullopt);
  op.attrs["at"] = int64_t{64};
  EXPECT_EQ(ArenaOffset(*op.result(0)), 64);
  EXPECT_EQ(ArenaOffset(*op.result(1)), std::nullopt);
  op.attrs["at_rest"] = std::vector<int64_t>{640};
  EXPECT_EQ(ArenaOffset(*op.result(1)), 640);
  EXPECT_EQ(ArenaOffset(*op.result(2)), std::nullopt);
  EXPECT_EQ(ArenaOffset(Value{"x", Rows(64), nullptr}), std::nullopt);
}

TEST(ArenaBytes, OfAnyRank) {
  const Dim t = Dim::Symbol('T'), l = Dim::Symbol('L');
  EXPECT_EQ(ArenaBytes(Type::Rows(t, 64), 3, 2), 3 * 256);
  EXPECT_EQ(ArenaBytes(Type::Rows(l, 64), 3, 2), 2 * 256);
  EXPECT_EQ(ArenaBytes(Type::Rows(t, 6, DType::kI32), 3, 2), 3 * 128);
  EXPECT_EQ(ArenaBytes(Type::Tensor({{1, 0}, {257, 0}}, DType::kI32), 3, 2), 288 * 4);
  EXPECT_EQ(ArenaBytes(Type::Tensor({t}, DType::kI32), 3, 2), 12);
  EXPECT_EQ(ArenaBytes(Type::Tensor({t, {4, 0}, {16, 0}}, DType::kF32), 3, 2), 3 * 256);
  EXPECT_EQ(ArenaBytes(Type::Step(), 3, 2), 0);
  // Strips are whole.
  Op prepare(OpCode::kPrepare);
  Value value{"p", Type::Rows(t, 100, DType::kI8Act), &prepare};
  const int64_t row = 128 + 64;
  EXPECT_EQ(ArenaBytes(value, 17, 2), 17 * row);
  prepare.attrs["strips"] = true;
  EXPECT_EQ(ArenaBytes(value, 17, 2), 32 * row);
  EXPECT_GE(ArenaBytes(value, 17, 2), I8Layout{100}.strips().bytes(17));
  value.type.dims[0] = Dim{5, 0};
  EXPECT_EQ(ArenaBytes(value, 17, 2), 16 * row);
  value.type.dims[0] = l;
  EXPECT_EQ(ArenaBytes(value, INT64_MAX, INT64_MAX), kMaxArenaBytes + 1);
  constexpr int64_t kMany = int64_t{1} << 62;
  EXPECT_GT(ArenaBytes(Type::Rows(t, 64), kMany, 1), kMaxArenaBytes);
  EXPECT_GT(ArenaBytes(Type::Tensor({t, {kMany, 0}, {kMany, 0}}, DType::kF32), 1, 1), kMaxArenaBytes);
}

TEST(Verifier, ResidualInPlaceAtTheSameOffsetOnly) {
  const auto module = Parse(R"(module @m {rows = 2} {
  func @f(%x: tensor<T x 64 x f32>) -> tensor<T x 64 x f32> {
    %a = silu %x {at = 0}
    %b = silu %x {at = 512}
    %c = add %a, %b {at = 0}
    return %c
  }
})");
  ASSERT_TRUE(VerifyModule(*module).ok()) << VerifyModule(*module);
  module->functions[0]->ops[2]->attrs["at"] = int64_t{64};
  EXPECT_FALSE(VerifyModule(*module).ok());
}

// A gemm reads all of x for each column that it writes: what it reads as x it must not write over.
TEST(Verifier, AGemmDoesNotOverwriteItsInput) {
  const auto module = Parse(R"(module @m {rows = 2} {
  func @f(%x: tensor<T x 64 x f32>) -> tensor<T x 64 x f32> {
    %a = silu %x {at = 0}
    %c = gemm %a, @w<64 x 64 x f32> {at = 0, epilogue = [residual(%a)]}
    return %c
  }
})");
  EXPECT_FALSE(VerifyModule(*module).ok());
}

TEST(Memory, RowStrideBytesPadsToPanels) {
  EXPECT_EQ(RowStrideBytes(DType::kF32, 64), 256);
  EXPECT_EQ(RowStrideBytes(DType::kF32, 65), 384);
  EXPECT_EQ(RowStrideBytes(DType::kF32, 1), 128);
  EXPECT_EQ(RowStrideBytes(DType::kBF16, 576), 1152);
  EXPECT_EQ(RowStrideBytes(DType::kBF16, 31), 64);
}

TEST(Memory, RowStrideBytesAgreesWithTheKernelsLayout) {
  static_assert(Q8Layout{.k = 64}.row_bytes() == 128, "64 values, 40 bytes of scales and sums, padded to lines");
  for (int64_t k = 32; k <= 4096; k += 32)
    EXPECT_EQ(RowStrideBytes(DType::kQ8Act, k), Q8Layout{.k = k}.row_bytes()) << k;
}

TEST(Memory, LiveRangesAndViews) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 64 x f32>) -> tensor<T x 16 x f32> {
    %a = silu %x
    %s = slice %a {from = 0, to = 32}
    %t = slice %s {from = 16, to = 32}
    %b = silu %t
    %dead = silu %a
    %c = add %t, %b
    return %c
  }
})");
  const Function& f = *module->functions[0];
  auto range = [&](const Value* v) {
    const LiveRange r = LiveRangeOf(f, v);
    return std::pair(r.first, r.last);
  };
  EXPECT_EQ(range(f.args[0].get()), std::pair(-1, 0));
  EXPECT_EQ(range(f.ops[0]->result()), std::pair(0, 5));  // through two views
  EXPECT_EQ(range(f.ops[3]->result()), std::pair(3, 5));
  EXPECT_EQ(range(f.ops[4]->result()), std::pair(4, 4));
  EXPECT_EQ(range(f.ops[5]->result()), std::pair(5, 6));
  EXPECT_EQ(ViewRoot(f.ops[2]->result()), f.ops[0]->result());
  EXPECT_EQ(ViewRoot(f.ops[0]->result()), f.ops[0]->result());
  EXPECT_EQ(ViewRoot(f.args[0].get()), f.args[0].get());
}

TEST(Memory, InPlaceOperands) {
  const auto module = Parse(R"(module @m {
  func @f(%x: tensor<T x 32 x f32>, %z: tensor<T x 32 x f32>) -> tensor<T x 32 x f32> {
    %a = add %x, %z
    %m = mul %x, %z
    %g = gemm %x, @w<32 x 32 x f32> {epilogue = [bias(@b<32 x f32>)]}
    %r = gemm %x, @w {epilogue = [bias(@b), residual(%z)]}
    return %r
  }
  func @g(%x: tensor<T x 32 x f32>, %z: tensor<T x 32 x f32>) -> tensor<T x 32 x f32> {
    %y = repeat %x, %z {schedule = "@f:0"}
    return %y
  }
})");
  const Function& f = *module->functions[0];
  EXPECT_EQ(InPlaceOperand(*f.ops[0]), f.args[0].get());
  EXPECT_EQ(InPlaceOperand(*f.ops[1]), nullptr);
  EXPECT_EQ(InPlaceOperand(*f.ops[2]), nullptr);
  EXPECT_EQ(InPlaceOperand(*f.ops[3]), f.args[1].get());
  EXPECT_EQ(InPlaceOperand(*module->functions[1]->ops[0]), module->functions[1]->args[0].get());
}

}  // namespace
}  // namespace xjit
