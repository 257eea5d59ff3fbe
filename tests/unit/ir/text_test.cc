// parse(print(m)) == m, and what the parser says of broken text.
#include "ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <set>

#include "tests/unit/ir/ir_testing.h"
#include "tests/unit/ir/random_ops.h"

namespace xjit {
namespace {

using testing::Difference;
using ::testing::HasSubstr;
using testing::Parse;
using testing::ParseError;
using testing::RandomGraph;
using testing::RandomOps;
using ::testing::StartsWith;

// tests/lit/ir/round_trip.xir, which has every op, without its comments.
const std::string& EveryOp() {
  static const std::string kText = [] {
    std::ifstream file(XJIT_SOURCE_DIR "/tests/lit/ir/round_trip.xir");
    EXPECT_TRUE(file.good());
    std::string text;
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("//")) text += line + "\n";
    }
    return text;
  }();
  return kText;
}

TEST(Text, EveryOpPrintsAsItReads) {
  const auto module = Parse(EveryOp());
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(PrintModule(*module), EveryOp());
  std::set<OpCode> seen;
  for (const auto& f : module->functions) {
    EXPECT_THAT(EveryOp(), HasSubstr(fmt::format("func @{}(", f->name)));
    for (const auto& op : f->ops) seen.insert(op->code);
  }
  for (int i = 0; i < NumOps(); ++i) EXPECT_TRUE(seen.contains(static_cast<OpCode>(i))) << Name(static_cast<OpCode>(i));
}

TEST(Text, PlacesAreKept) {
  const auto module = Parse(EveryOp());
  const Op& op = *module->functions[0]->ops[1];
  EXPECT_EQ(op.loc.line, 4);
  EXPECT_EQ(op.loc.column, 10);
}

TEST(Text, FunctionsPrintOnTheirOwn) {
  const auto module =
      Parse("module @m { func @f(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> { %y = silu %x return %y } }");
  EXPECT_EQ(PrintFunction(*module->functions[0]),
            "func @f(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> {\n"
            "  %y = silu %x : tensor<T x 8 x f32>\n"
            "  return %y\n"
            "}\n");
}

TEST(Text, AttributesOfEveryKind) {
  const std::string text =
      R"(module @m {a = -inf, b = "q\"\\ //", c = [1, -2], d = true, e = false, f = 1e+300, g = -3, h = 0.1, i = inf} {
}
)";
  const auto module = Parse(text);
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(PrintModule(*module), text);
  EXPECT_EQ(std::get<std::string>(module->attrs["b"]), "q\"\\ //");
  EXPECT_EQ(std::get<double>(module->attrs["h"]), 0.1);
  EXPECT_EQ(std::get<int64_t>(module->attrs["g"]), -3);
}

// Any double reads back as the same bits.
TEST(Text, DoublesAreExact) {
  testing::Random random(3);
  Module module;
  module.name = "m";
  for (int i = 0; i < 2000; ++i) {
    const auto value = std::bit_cast<double>(random.Next());
    if (std::isnan(value)) continue;
    module.attrs["v"] = value;
    const auto again = ParseModule(PrintModule(module), "t");
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(std::get<double>((*again)->attrs["v"]), value) << PrintModule(module);
  }
}

TEST(Text, RandomModulesRoundTrip) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const auto module = RandomGraph(seed).Build();
    ASSERT_TRUE(VerifyModule(*module).ok()) << VerifyModule(*module);
    const std::string text = PrintModule(*module);
    const auto again = Parse(text);
    ASSERT_NE(again, nullptr);
    EXPECT_TRUE(VerifyModule(*again).ok());
    EXPECT_EQ(PrintModule(*again), text);
    EXPECT_EQ(Difference(*module, *again), "");
  }
}

// Modules of any ops, with any weights and attributes, made from the op table.
TEST(Text, RandomOpsRoundTrip) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const auto module = RandomOps(seed).Build();
    ASSERT_TRUE(VerifyModule(*module).ok()) << VerifyModule(*module) << "\n" << PrintModule(*module);
    const std::string text = PrintModule(*module);
    const auto again = Parse(text);
    ASSERT_NE(again, nullptr);
    EXPECT_TRUE(VerifyModule(*again).ok()) << VerifyModule(*again);
    EXPECT_EQ(PrintModule(*again), text);
    EXPECT_EQ(Difference(*module, *again), "");
  }
}

// What random modules must reach, or nothing is known about it.
TEST(Text, RandomOpsReachEverything) {
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto module = RandomOps(seed).Build();
    for (const auto& f : module->functions) {
      for (const auto& w : f->weights) {
        seen.insert(fmt::format("encoding {}", Name(w->type.elem)));
        seen.insert(fmt::format("scales {}", static_cast<int>(w->type.scales.kind)));
        for (char c : std::string_view("+|&[")) {
          if (w->name.find(c) != std::string::npos) seen.insert(fmt::format("weight {}", c));
        }
      }
      for (const auto& op : f->ops) {
        seen.insert(fmt::format("op {}", Name(op->code)));
        const OpInfo& info = Info(op->code);
        const size_t given = op->operands.size() - ChainOperands(*op);
        if (info.optional > 0) {
          seen.insert(fmt::format("{} {} operands", info.name, given == info.operands.size() ? "all" : "fewer"));
        }
        for (const std::string_view chain : {"prologue", "epilogue"}) {
          for (const ChainItem& item : op->ChainAttr(chain)) seen.insert(fmt::format("{} {}", chain, item.name));
        }
      }
    }
  }
  std::vector<std::string> wanted = {"weight +", "weight |", "weight ["};
  for (int i = 0; i <= static_cast<int>(Scales::Kind::kBlock); ++i) wanted.push_back(fmt::format("scales {}", i));
  for (int i = 0; i < kNumDTypes; ++i) wanted.push_back(fmt::format("encoding {}", Name(static_cast<DType>(i))));
  for (const ChainItemSpec& item : ChainItems()) wanted.push_back(fmt::format("{} {}", item.chain, item.name));
  for (int i = 0; i < NumOps(); ++i) {
    const OpInfo& info = Info(static_cast<OpCode>(i));
    wanted.push_back(fmt::format("op {}", info.name));
    for (const OperandSpec& operand : info.operands) {
      if (operand.kind == OperandKind::kExperts) wanted.push_back("weight &");
    }
    if (info.optional > 0) {
      wanted.push_back(fmt::format("{} all operands", info.name));
      wanted.push_back(fmt::format("{} fewer operands", info.name));
    }
  }
  for (const std::string& what : wanted) EXPECT_TRUE(seen.contains(what)) << what;
}

// Random graphs are worth their time only if they reach the ops.
TEST(Text, RandomModulesReachEveryOpOfModels) {
  std::set<OpCode> seen;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const auto module = RandomGraph(seed).Build();
    for (const auto& f : module->functions) {
      for (const auto& op : f->ops) seen.insert(op->code);
    }
  }
  const std::set<OpCode> made_by_passes = {
      OpCode::kGemm,        OpCode::kRopeStore, OpCode::kFlashAttention, OpCode::kPrepare,   OpCode::kMoeSort,
      OpCode::kGroupedGemm, OpCode::kMlaExtend, OpCode::kAbsorbQ,        OpCode::kAbsorbV,   OpCode::kLatentStore,
      OpCode::kAllReduce,   OpCode::kAllGather, OpCode::kOwnRows,        OpCode::kGatherRows};
  for (int i = 0; i < NumOps(); ++i) {
    const auto code = static_cast<OpCode>(i);
    EXPECT_EQ(seen.contains(code), !made_by_passes.contains(code))
        << Name(code) << ": give RandomGraph (tests/unit/ir/ir_testing.h) a case, or list it in made_by_passes";
  }
}

struct Broken {
  std::string_view text;
  std::string_view error;
};

TEST(Text, BrokenModules) {
  const Broken cases[] = {
      {"", "t.xir:1:1: expected 'module', found the end of the text"},
      {"modul @m {}", "t.xir:1:1: expected 'module', found 'modul'"},
      {"module m {}", "t.xir:1:8: expected a '@name', found 'm'"},
      {"module @m", "t.xir:1:10: expected '{', found the end of the text"},
      {"module @m {", "t.xir:1:12: expected an attribute's name, found the end of the text"},
      {"module @m {}\n}", "t.xir:2:1: text after the module's end"},
      {"module @m {a = } {}", "t.xir:1:16: expected a number, a string, true, false or a list, found '}'"},
      {"module @m {a = 1 b = 2} {}", "t.xir:1:18: expected ',', found 'b'"},
      {"module @m {a = 1, a = 2} {}", "t.xir:1:19: attribute 'a' is given twice"},
      {"module @m {a = \"x} {}\n", "t.xir:1:16: expected a number, a string, true, false or a list"},
      {"module @m {a = 1.2.3} {}", "t.xir:1:16: expected a number, found '1.2.3'"},
      {"module @m {a = 99999999999999999999} {}", "t.xir:1:16: expected a whole number"},
      {"module @m {a = [x]} {}", "t.xir:1:17: expected a chain item's name, found 'x'"},
      {"module @ {}", "t.xir:1:8: expected a '@name', found '@'"},
      {"module @m { func f() {} }", "t.xir:1:18: expected a '@name', found 'f'"},
      {"module @m { func @f() { }", "t.xir:1:25: '@f' does not end with return"},
      {"module @m { func @f() { return }", "t.xir:1:33: expected '}', found the end of the text"},
      {"module @m { func @f() { return } func @f() { return } }", "t.xir:1:39: function '@f' is defined twice"},
      {"module @m { func @f(%x) { return } }", "t.xir:1:23: expected ':', found ')'"},
      {"module @m { func @f(%x: !stop) { return } }", "t.xir:1:25: expected 'tensor', found '!stop'"},
      {"module @m { func @f(x: !step) { return } }", "t.xir:1:21: expected an argument '%name: type', found 'x'"},
      {"module @m { func @f(%x: !step, %x: !step) { return } }", "t.xir:1:32: '%x' is defined twice"},
      {"module @m { func @f(%x: tensor<8 x f31>) { return } }",
       "t.xir:1:36: unknown element type or dimension, found 'f31'"},
      {"module @m { func @f(%x: tensor<8 f32>) { return } }", "t.xir:1:34: expected 'x', found 'f32'"},
      {"module @m { func @f(%x: tensor<0 x f32>) { return } }", "t.xir:1:32: dimension 0 is out of range"},
      {"module @m { func @f(%x: tensor<-1 x f32>) { return } }", "t.xir:1:32: dimension -1 is out of range"},
      {"module @m { func @f(%x: tensor<8+8 x f32>) { return } }", "t.xir:1:33: expected 'x', found '+'"},
      {"module @m { func @f(%x: tensor<>) { return } }",
       "t.xir:1:32: expected a dimension or an element type, found '>'"},
      {"module @m { func @f() -> !step { return } }", "t.xir:1:34: '@f' returns nothing but declares !step"},
  };
  for (const Broken& c : cases) EXPECT_THAT(ParseError(c.text), StartsWith(std::string(c.error))) << c.text;
}

TEST(Text, BrokenOps) {
  // Line 3 of a function of x [T, 8].
  const Broken cases[] = {
      {"%y = silu", "t.xir:3:6: silu: takes 1 operands, 0 are given"},
      {"%y = silu %x, %x", "t.xir:3:6: silu: takes 1 operands, 2 are given"},
      {"silu %x", "t.xir:3:1: silu gives 1 results, 0 are named"},
      {"%y, %z = silu %x", "t.xir:3:10: silu gives 1 results, 2 are named"},
      {"%y silu %x", "t.xir:3:4: expected '=', found 'silu'"},
      {"%y = ", "t.xir:4:1: return gives 0 results, 1 are named"},
      {"%x = silu %x", "t.xir:3:1: '%x' is defined twice"},
      {"%y = silu @x", "t.xir:3:11: '@x' has no shape at its first use"},
      {"%y = silu @x<8 x f32>", "t.xir:3:6: silu: operand 'x' must be an f32 tensor [rows, columns]"},
      {"%y = silu %x 3", "t.xir:3:14: expected an op's name, found '3'"},
      {"%y = silu %x,", "t.xir:4:1: expected a %value or a @weight, found 'return'"},
      {"%y = silu %x, % x", "t.xir:3:15: expected a %value or a @weight, found '%'"},
      {"%y = rms_norm %x, @g<8 x f16>", "t.xir:3:6: rms_norm: operand 'gain' must be an f32 weight @[n]"},
      {"%y = rms_norm %x, @g<9 x f32>", "t.xir:3:6: rms_norm: x has 8 columns, which are not groups of @g's 9"},
      {"%y = rms_norm %x, @g<8 x f32> {eps = \"a\"}",
       "t.xir:3:6: rms_norm: attribute 'eps' has the wrong kind of value"},
      {"%y = linear %x, @w<4+4 x 8 x f32>", "t.xir:3:17: '@w' has 1 parts but 2 row counts"},
      {"%y = linear %x, @w<8 x 8 x f32> %z = linear %x, @w<8 x 8 x f16>",
       "t.xir:3:49: '@w' is 8 x 8 x f16 here but 8 x 8 x f32 before"},
      {"%y = rope %x, %x {heads = 3}", "t.xir:3:6: rope: 8 columns are not 3 heads of an even size"},
      {"%y = rope %x, %x {heads = 2}", "t.xir:3:6: rope: the table has 8 columns, a head 4"},
      {"%y = slice %x {from = 4, to = 9}", "t.xir:3:6: slice: columns [4, 9) are not inside the operand's 8"},
      {"%y = slice %x {from = 4, to = 4}", "t.xir:3:6: slice: columns [4, 4) are not inside"},
      {"%y = attention %x, %s {heads = 4, kv_heads = 3, scale = 1.0}",
       "t.xir:3:6: attention: 4 query heads do not share 3"},
      {"%y = attention %x, %s {heads = 4, kv_heads = 2, scale = 1.0, window = -1}",
       "t.xir:3:6: attention: window is negative"},
      {"%y = gemm %x, @w<8 x 8 x f32> {epilogue = [gelu]}", "t.xir:3:6: gemm: unknown epilogue item 'gelu'"},
      {"%y = gemm %x, @w<8 x 8 x f32> {prologue = [bias(@b<8 x f32>)]}",
       "t.xir:3:6: gemm: unknown prologue item 'bias'"},
      {"%y = gemm %x, @w<8 x 8 x f32> {epilogue = [bias]}",
       "t.xir:3:6: gemm: epilogue item 'bias' takes 1 operands and 0"},
      {"%y = gemm %x, @w<8 x 8 x f32> {epilogue = [bias(@b<9 x f32>)]}",
       "t.xir:3:6: gemm: bias needs an f32 weight of 8"},
      {"%y = gemm %x, @w<8 x 8 x f32> {epilogue = [silu_mul]}", "t.xir:3:6: gemm: silu_mul needs a weight interleaved"},
      {"%y = gemm %x, @w<4 x 8 x f32> {epilogue = [residual(%x)]}",
       "t.xir:3:6: gemm: residual must be tensor<T x 4 x f32>"},
      {"%y = prepare %x {out = \"f8e4m3\"}",
       "t.xir:3:6: prepare: out is f32, bf16, f16, q8act or i8act, not 'f8e4m3'"},
      {"%y = prepare %x {out = \"q8act\"}", "t.xir:3:6: prepare: q8act needs a multiple of 32 columns, there are 8"},
      {"%y = repeat %x {schedule = \"@g:0\"}", "t.xir:3:6: repeat: there is no function '@g' above"},
      {"%y = repeat %x {schedule = \"\"}", "t.xir:3:6: repeat: the schedule is empty"},
      {"%y = repeat %x {schedule = \"g\"}", "t.xir:3:6: schedule item 'g' is not '@function:first-last'"},
      {"%y = silu %x {at = 1.5}", "t.xir:3:6: silu: attribute 'at' has the wrong kind of value"},
  };
  for (const Broken& c : cases) {
    const std::string text = fmt::format(
        "module @m {{\nfunc @f(%x: tensor<T x 8 x f32>, %s: !step) -> tensor<T x 8 x f32> {{\n{}\nreturn %x\n}}\n}}\n",
        c.text);
    EXPECT_THAT(ParseError(text), StartsWith(std::string(c.error))) << c.text;
  }
}

std::string InFunction(std::string_view op) {
  return fmt::format(
      "module @m {{\nfunc @f(%x: tensor<T x 32 x f32>, %s: !step) -> tensor<T x 32 x f32> {{\n{}\nreturn %x\n}}\n}}\n",
      op);
}

// Found by fuzz_ir: these once crashed or could not be read back.
TEST(Text, TypesBehindAnOpWithoutResults) {
  EXPECT_NE(ParseError(InFunction("kv_store %x, %x, %s {kv_heads = 1} : tensor<T x 32 x f32>")), "");
  EXPECT_NE(ParseError("module @m { func @f(%x: !step) -> !step { return %x : !step } }"), "");
}
TEST(Text, ChainArgumentsInTheWrongOrder) {
  EXPECT_NE(ParseError(InFunction("%y = gemm %x, @w<32 x 32 x f32> {prologue = [rms_norm(1e-06, @g<32 x f32>)]}")), "");
}
TEST(Text, AChainItemTwice) {
  EXPECT_NE(
      ParseError(InFunction("%y = gemm %x, @w<32 x 32 x f32> {epilogue = [bias(@b<32 x f32>), bias(@c<4 x f32>)]}")),
      "");
  EXPECT_NE(
      ParseError(InFunction("%y = gemm %x, @w<32 x 32 x f32> {epilogue = [residual(%x), residual(@c<4 x f32>)]}")), "");
  EXPECT_NE(ParseError(InFunction(
                "%y = prepare %x {out = \"f32\", prologue = [rms_norm(@g<32 x f32>, 1.0), rms_norm(%x, 1.0)]}")),
            "");
}
TEST(Text, ChainVectorsAreF32) {
  EXPECT_NE(ParseError(InFunction("%y = gemm %x, @w<32 x 32 x f32> {epilogue = [bias(@b<32 x f16>)]}")), "");
}
TEST(Text, InterleavedPartsAreEqual) {
  EXPECT_NE(ParseError(InFunction("%y = gemm %x, @a|b<16|48 x 32 x f32> {epilogue = [silu_mul]}")), "");
}
TEST(Text, WeightsHaveConstantShapes) {
  EXPECT_NE(ParseError(InFunction("%y = linear %x, @w<T x 32 x f32>")), "");
  EXPECT_NE(ParseError(InFunction("%y = linear %x, @w<32 x L x f32>")), "");
}
TEST(Text, JoinedWeightsNameTheRowsOfEachPart) {
  EXPECT_NE(ParseError(InFunction("%y = linear %x, @a+b<32 x 32 x f32>")), "");
  EXPECT_NE(ParseError(InFunction("%y = linear %x, @a+b<16+16 x 32 x f32> %z = linear %x, @a+b<8+24 x 32 x f32>")), "");
}
TEST(Text, RotatedRowsAreThoseOfTheTable) {
  // A table of L rows is shorter than x of T rows.
  EXPECT_NE(ParseError("module @m { func @f(%x: tensor<T x 8 x f32>, %r: tensor<L x 8 x f32>) -> tensor<T x 8 x f32> { "
                       "%y = rope %x, %r "
                       "{heads = 1} return %y } }"),
            "");
  EXPECT_NE(ParseError("module @m { func @f(%x: tensor<T x 8 x f32>, %k: tensor<L x 8 x f32>, %r: tensor<T x 8 x f32>, "
                       "%s: !step) -> "
                       "tensor<T x 8 x f32> { %y = rope_store %x, %k, %k, %r, %s {heads = 1, kv_heads = 1, scale = "
                       "1.0} return %y } }"),
            "");
}
TEST(Text, AnInfiniteChainNumberReadsBack) {
  const auto module =
      ParseModule(InFunction("%y = gemm %x, @w<32 x 32 x f32> {prologue = [rms_norm(@g<32 x f32>, 1e999)]}"), "t");
  if (!module.ok()) return;  // refusing it is as good
  EXPECT_TRUE(ParseModule(PrintModule(**module), "t").ok()) << PrintModule(**module);
}
TEST(Text, AStringWithALineEndReadsBack) {
  const auto module = ParseModule("module @m {a = \"x\\\ny\"} {\n}\n", "t");
  if (!module.ok()) return;
  EXPECT_TRUE(ParseModule(PrintModule(**module), "t").ok()) << PrintModule(**module);
}
TEST(Text, RepeatOfTheLargestLayer) {
  const std::string error = ParseError(
      "module @m { func @f(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> { return %x } func @g(%x: tensor<T x 8 x "
      "f32>) -> "
      "tensor<T x 8 x f32> { %y = repeat %x {schedule = \"@f:0-9223372036854775807\"} return %y } }");
  EXPECT_NE(error, "");
}
TEST(Text, OnlyTensorsWithRowsAreRepeatedAndReturned) {
  EXPECT_NE(ParseError("module @m { func @f(%s: !step) -> !step { return %s } }"), "");
}

TEST(Text, AnyBytesGiveAStatus) {
  for (const char* piece :
       {"{", "module @m {a = [", "[[[[", "(", "%", "@a+|+|", "\"", "//", "-", "->", "1e", "\\", "x "}) {
    std::string text;
    while (text.size() < 100000) text += piece;
    EXPECT_FALSE(ParseModule(text, "t").ok());
    EXPECT_FALSE(ParseModule("module @m " + text, "t").ok());
    EXPECT_FALSE(ParseModule("module @m { func @f(%x: tensor<" + text, "t").ok());
    EXPECT_FALSE(ParseModule("module @m { func @f() { %y = gemm " + text, "t").ok());
  }
  testing::Random random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text(random.Below(400), ' ');
    for (char& c : text) c = static_cast<char>(random.Below(256));
    EXPECT_FALSE(ParseModule(text, "t").ok());
  }
}

// A text cut anywhere is an error with a place, never accepted.
TEST(Text, PrefixesAreErrors) {
  for (size_t n = 0; n + 2 < EveryOp().size(); n += 7) {
    EXPECT_THAT(ParseError(EveryOp().substr(0, n)), StartsWith("t.xir:")) << n;
  }
}

}  // namespace
}  // namespace xjit
