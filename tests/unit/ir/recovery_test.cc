// Several errors in one text: each is found once, at its place, and what follows from it is not reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::ParseError;
using ::testing::SizeIs;
using ::testing::StartsWith;

// "line:column: what" of every error.
std::vector<std::string> Errors(std::string_view text) {
  std::vector<Diagnostic> diagnostics;
  const auto module = ParseModuleDiagnostics(text, &diagnostics);
  EXPECT_EQ(module == nullptr, !diagnostics.empty());
  std::vector<std::string> errors;
  for (const Diagnostic& d : diagnostics) errors.push_back(fmt::format("{}:{}: {}", d.loc.line, d.loc.column, d.what));
  return errors;
}

// The first body line is line 3.
std::string InFunction(std::string_view body) {
  return fmt::format(
      "module @m {{\nfunc @f(%x: tensor<T x 8 x f32>, %s: !step) -> tensor<T x 8 x f32> {{\n{}\n}}\n}}\n", body);
}

TEST(Recovery, GoesOnAtTheNextOp) {
  EXPECT_THAT(
      Errors(InFunction("%a = sliu %x\n"
                        "%b = silu %x, %x\n"
                        "%c = slice %x {from 0, to = 4}\n"
                        "%d = silu %nothing\n"
                        "%e = mul %x %x\n"
                        "kv_store %x, %x, %s {kv_heads = 3}\n"
                        "return %x")),
      ElementsAre("3:6: unknown op 'sliu'", "4:6: silu: takes 1 operands, 2 are given", "5:21: expected '=', found '0'",
                  "6:11: '%nothing' is not defined before this use", "7:6: mul: takes 2 operands, 1 are given",
                  "8:1: kv_store: 8 columns are not 3 heads of an even size"));
}

TEST(Recovery, WhatABrokenOpDefinesIsNotMissed) {
  EXPECT_THAT(Errors(InFunction("%a, %b = sliu %x\n"
                                "%c = silu %a\n"
                                "%d = mul %b, %c\n"
                                "%e = slice %d {from = 0, to = 9999}\n"
                                "return %d")),
              ElementsAre("3:10: unknown op 'sliu'"));
  // The shape of a weight that a broken op introduced, or that is broken itself.
  EXPECT_THAT(Errors(InFunction("%a = liner %x, @w<8 x 8 x f32>\n"
                                "%b = linear %x, @w\n"
                                "%c = linear %x, @v<8 x 8 x f33>\n"
                                "%d = linear %x, @v\n"
                                "return %d")),
              ElementsAre("3:6: unknown op 'liner'", "5:28: unknown element type or dimension, found 'f33'"));
  // An undefined name and a weight without a shape are reported once.
  EXPECT_THAT(Errors(InFunction("%a = silu %z\n%b = silu %z\n%c = linear %x, @w\n%d = linear %x, @w\nreturn %x")),
              SizeIs(2));
}

TEST(Recovery, SyntaxIsCheckedBehindPoisonedOperands) {
  EXPECT_THAT(Errors(InFunction("%a = sliu %x\n%b = slice %a {from = }\nreturn %b")),
              ElementsAre("3:6: unknown op 'sliu'", StartsWith("4:23: expected a number")));
}

TEST(Recovery, ARedefinedNameKeepsItsFirstMeaning) {
  EXPECT_THAT(Errors(InFunction("%x = slice %x {from = 0, to = 4}\n%y = add %x, %x\nreturn %y")),
              ElementsAre("3:1: '%x' is defined twice"));
}

TEST(Recovery, AttributesOnSeveralLines) {
  EXPECT_THAT(
      Errors(InFunction("%y = slice %x {\n  from 0,\n  to = 8\n}\n"
                        "%z = gemm %x, @w<8 x 8 x f32> {epilogue = [\n  bias(@b<9 x f32>),\n  residual(%x)\n]}\n"
                        "return %y")),
      ElementsAre("4:8: expected '=', found '0'", "7:6: gemm: bias needs an f32 weight of 8 values"));
}

TEST(Recovery, AnAttributeListWithoutItsEnd) {
  EXPECT_THAT(Errors(InFunction("%y = slice %x {from = 0, to = 8\n%z = sliu %x\nreturn %y")),
              ElementsAre("4:1: expected ',', found '%z'", "4:6: unknown op 'sliu'"));
}

TEST(Recovery, GoesOnAtTheNextFunction) {
  EXPECT_THAT(Errors("module @m {\n"
                     "func @a(%x) -> tensor<T x 8 x f32> {\n%y = nonsense\nreturn %y\n}\n"
                     "func @b(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> {\n%y = sliu %x\nreturn %y\n}\n"
                     // Both are broken, which is said above.
                     "func @c(%x: tensor<T x 8 x f32>) -> tensor<T x 8 x f32> {\n"
                     "%y = repeat %x {schedule = \"@a:0, @b:1\"}\n%z = silu %y\nreturn %z\n}\n"
                     "func @d() -> tensor<T x 8 x f32> { return }\n"
                     "func @d() { return }\n"
                     "}\n"),
              ElementsAre("2:11: expected ':', found ')'", "7:6: unknown op 'sliu'",
                          "15:36: '@d' returns nothing but declares tensor<T x 8 x f32>",
                          "16:6: function '@d' is defined twice"));
}

TEST(Recovery, AFunctionWithoutItsEnd) {
  EXPECT_THAT(Errors("module @m {\nfunc @a() {\nreturn\nfunc @b() {\nretrun\n}\n}\n"),
              ElementsAre("4:1: expected '}' at the end of '@a', found 'func'", "5:1: unknown op 'retrun'"));
  EXPECT_THAT(Errors("module @m {\nfunc @a() {\nreturn\n"),
              ElementsAre("4:1: expected '}' at the end of '@a', found the end of the text"));
}

TEST(Recovery, TextBetweenFunctions) {
  EXPECT_THAT(Errors("module @m {\nfunc @a() {\nreturn\n}\n}\n%y = silu %x\nfunc @b() {\nsliu\n}\n"),
              ElementsAre("6:1: text after the module's end", "8:1: unknown op 'sliu'"));
}

TEST(Recovery, ABrokenModuleHeader) {
  EXPECT_THAT(Errors("modul @m {\nfunc @a() {\nsliu\nreturn\n}\n}\n"),
              ElementsAre("1:1: expected 'module', found 'modul'", "3:1: unknown op 'sliu'"));
  EXPECT_THAT(Errors("module @m {a = 1, a = 2} {\nfunc @a() { return }\n}\n"), SizeIs(1));
  // An attribute may be called like the keyword.
  EXPECT_THAT(Errors("module @m {func = 1} {\n}\n"), IsEmpty());
}

TEST(Recovery, StopsAtTwenty) {
  std::string body;
  for (int i = 0; i < 100; ++i) body += fmt::format("%y{} = sliu %x\n", i);
  EXPECT_THAT(Errors(InFunction(body)), SizeIs(kMostDiagnostics));
  EXPECT_THAT(ParseError(InFunction(body)), EndsWith(" (the first 20 errors)"));
}

TEST(Recovery, AStatusIsOneLineOfFiveErrors) {
  std::string body;
  for (int i = 0; i < 7; ++i) body += fmt::format("%y{} = sliu %x\n", i);
  const std::string error = ParseError(InFunction(body + "return %x"));
  EXPECT_THAT(error, StartsWith("t.xir:3:7: unknown op 'sliu'; t.xir:4:7: unknown op 'sliu'; "));
  EXPECT_THAT(error, EndsWith("t.xir:7:7: unknown op 'sliu' (7 errors)"));
  EXPECT_EQ(ParseError(InFunction("%y = sliu %x\nreturn %x")), "t.xir:3:6: unknown op 'sliu'");
}

TEST(Recovery, MessagesAreShortAndPrintable) {
  for (const Diagnostic& d : [] {
         std::vector<Diagnostic> list;
         ParseModuleDiagnostics("module @m {a = " + std::string(100000, 'a') + "} {}", &list);
         ParseModuleDiagnostics("module \x1b[31m\n\x01", &list);
         return list;
       }()) {
    EXPECT_LT(d.what.size(), 600u);
    for (char c : d.what) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  }
}

TEST(Limits, NumbersOutOfRange) {
  EXPECT_THAT(Errors("module @m {a = 9223372036854775807, b = -9223372036854775808} {}"), IsEmpty());
  EXPECT_THAT(Errors("module @m {a = 9223372036854775808} {}"),
              ElementsAre("1:16: expected a whole number of 64 bits, found '9223372036854775808'"));
  EXPECT_THAT(Errors("module @m {a = 1e999} {}"), ElementsAre(StartsWith("1:16: expected a number in the range of")));
  EXPECT_THAT(Errors("module @m {a = 1e-999} {}"), SizeIs(1));
  EXPECT_THAT(Errors("module @m {a = 0x10} {}"), ElementsAre(HasSubstr("whole number, found '0x10'")));
  EXPECT_THAT(Errors("module @m {a = 0x1e3} {}"), SizeIs(1));
  EXPECT_THAT(Errors("module @m {a = 4.9e-324, b = 1.7976931348623157e+308, c = -inf} {}"), IsEmpty());
  EXPECT_THAT(Errors("module @m {a = [1, 9223372036854775808]} {}"), SizeIs(1));
  EXPECT_THAT(Errors(InFunction("%y = linear %x, @w<1099511627776 x 1099511627776 x f32>\nreturn %x")),
              ElementsAre(HasSubstr("too many elements")));
  EXPECT_THAT(Errors(InFunction("%y = linear %x, @a+b<1099511627776+1 x 8 x f32>\nreturn %x")),
              ElementsAre(HasSubstr("out of range")));
}

TEST(Limits, DimensionsOpsAndFunctions) {
  std::string dims;
  for (int i = 0; i < 1000; ++i) dims += "1 x ";
  EXPECT_THAT(Errors("module @m { func @f(%x: tensor<" + dims + "f32>) { return } }"),
              ElementsAre(HasSubstr("more than 3 dimensions")));
  std::string ops, functions;
  for (int i = 0; i < 20000; ++i) ops += fmt::format("%y{} = silu %x\n", i);
  EXPECT_THAT(Errors(InFunction(ops + "return %x")), ElementsAre(HasSubstr("more than 16384 ops")));
  for (int i = 0; i < 5000; ++i) functions += fmt::format("func @f{}() {{ return }}\n", i);
  EXPECT_THAT(Errors("module @m {\n" + functions + "}"), ::testing::Contains(HasSubstr("more than 4096 functions")));
}

// Every byte is looked at a bounded number of times, however broken the text is.
TEST(Limits, HugeTextsEnd) {
  for (const std::string_view piece : {"%a, ", "%a\n, ", "func ", "func @f ", "}\n", "%y = sliu %x\n", "@w ", "a(",
                                       "\"", "kv_store %x\n", "module @m {", "return\n"}) {
    std::string text;
    while (text.size() < 400000) text += piece;
    EXPECT_FALSE(Errors(text).empty());
    EXPECT_FALSE(Errors("module @m {\n" + text).empty());
    EXPECT_FALSE(Errors("module @m {\nfunc @f(%x: tensor<T x 8 x f32>) {\n" + text).empty());
    EXPECT_FALSE(Errors("module @m {\nfunc @f(%x: tensor<T x 8 x f32>) {\n%y = gemm " + text).empty());
  }
}

TEST(Limits, NamesOfFunctionsAndModulesAreWords) {
  EXPECT_THAT(Errors("module @m { func @f+g() { return } }"), ElementsAre("1:18: '@f+g' is no name of a function"));
  EXPECT_THAT(Errors("module @m[0:1] { }"), ElementsAre("1:8: '@m[0:1]' is no name of a module"));
}

TEST(Strings, Escapes) {
  const auto module = testing::Parse("module @m {a = \"1\\n2\\\\3\\\"\"} {\n}\n");
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(std::get<std::string>(module->attrs["a"]), "1\n2\\3\"");
  EXPECT_EQ(PrintModule(*module), "module @m {a = \"1\\n2\\\\3\\\"\"} {\n}\n");
  EXPECT_THAT(Errors("module @m {a = \"\\q\"} {}"), ElementsAre(HasSubstr("an escape that is none of")));
}

}  // namespace
}  // namespace xjit
