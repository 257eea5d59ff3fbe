#include "frontend/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using ::testing::StartsWith;

std::string ParseError(std::string_view text) {
  const auto json = ParseJson(text, "f.json");
  return json.ok() ? "" : std::string(Message(json.status()));
}

TEST(Json, KeepsValues) {
  const auto json = ParseJson(R"({"a": [1, -2, 3.5, true, null, "x"], "b": {"c": {}}, "d": []})", "f");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*json, Json::parse(R"({"a": [1, -2, 3.5, true, null, "x"], "b": {"c": {}}, "d": []})"));
  EXPECT_EQ(*ParseJson("[[[1],[2]],3]", "f"), Json::parse("[[[1],[2]],3]"));
  EXPECT_EQ(*ParseJson("7", "f"), Json(7));
}

TEST(Json, SyntaxErrorsHaveLineAndColumn) {
  EXPECT_THAT(ParseError("{\n  \"a\": 1,\n  \"b\": }\n}"), StartsWith("f.json:3:8: "));
  EXPECT_THAT(ParseError("{\"a\": 1e999}"), StartsWith("f.json"));
  EXPECT_THAT(ParseError("{\"a\": NaN}"), StartsWith("f.json:1:"));
  EXPECT_THAT(ParseError(""), StartsWith("f.json:1:1: "));
  EXPECT_THAT(ParseError("{} x"), StartsWith("f.json:1:4: "));
  EXPECT_THAT(ParseError("\"\xff\""), StartsWith("f.json:1:2: "));
  // One line whatever the text.
  EXPECT_EQ(ParseError("{\"a\n\x01").find('\n'), std::string::npos);
}

TEST(Json, RefusesDuplicatesAndDepth) {
  EXPECT_EQ(ParseError(R"({"a": 1, "a": 2})"), "f.json: duplicate key \"a\"");
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ParseError(nested(kMaxJsonDepth)), "");
  EXPECT_EQ(ParseError(nested(kMaxJsonDepth + 1)), "f.json: nested more than 64 deep");
  EXPECT_EQ(ParseError(std::string(1'000'000, '[')), "f.json: nested more than 64 deep");
}

TEST(JsonObject, ChecksTypesAndRanges) {
  const Json json = Json::parse(
      R"({"i": 5, "f": 8192.0, "half": 0.5, "big": 18446744073709551615, "n": null, "s": "x", "l": [1, "y"], "o": {"k": 1}})");
  const auto object = JsonObject::From(json, "f.json");
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(*object->Int("i", 0, 10), 5);
  EXPECT_EQ(*object->Int("f", 0, 10000), 8192);
  EXPECT_EQ(Message(object->Int("i", 6, 10).status()), "f.json: i: is 5, expected 6 to 10");
  EXPECT_EQ(Message(object->Int("half", 0, 10).status()), "f.json: half: is 0.5, expected an integer");
  EXPECT_EQ(Message(object->Int("big", 0, 10).status()), "f.json: big: is 18446744073709551615, expected 0 to 10");
  EXPECT_EQ(Message(object->Int("n", 0, 10).status()), "f.json: n: missing");
  EXPECT_EQ(*object->IntOr("n", 3, 0, 10), 3);
  EXPECT_EQ(Message(object->String("i").status()), "f.json: i: is 5, expected a string");
  EXPECT_EQ(Message(object->BoolOr("s", true).status()), "f.json: s: is \"x\", expected true or false");
  EXPECT_EQ(Message(object->Ints("l", 0, 10).status()), "f.json: l[1]: is \"y\", expected an integer");
  EXPECT_EQ(*object->Strings("s"), std::vector<std::string>{"x"});
  const auto inner = object->Object("o");
  ASSERT_TRUE(inner.ok() && inner->has_value());
  EXPECT_EQ(Message((*inner)->Int("k", 2, 3).status()), "f.json: o.k: is 1, expected 2 to 3");
  EXPECT_EQ(Message(object->Object("l").status()), "f.json: l: is a list, expected an object");
}

}  // namespace
}  // namespace xjit
