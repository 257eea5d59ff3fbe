#include "frontend/module_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using End = ModulePattern::End;
using ::testing::HasSubstr;

bool Match(std::string_view pattern, std::string_view text, End end = End::kAny) {
  const auto parsed = ModulePattern::Parse(pattern, "p");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->Matches(text, end);
}
std::string Error(std::string_view pattern, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto parsed = ModulePattern::Parse(pattern, "p");
  EXPECT_EQ(parsed.status().code(), code) << pattern;
  return parsed.ok() ? "" : std::string(Message(parsed.status()));
}

// What Python's re.match says of the same.
TEST(ModulePattern, MatchesAsPython) {
  EXPECT_TRUE(Match(".*mlp.gate$", "model.layers.3.mlp.gate"));
  EXPECT_FALSE(Match(".*mlp.gate$", "model.layers.3.mlp.gate_proj"));
  EXPECT_TRUE(Match(R"(model\.layers\.[0-3]\.)", "model.layers.2.mlp"));
  EXPECT_FALSE(Match(R"(model\.layers\.[0-3]\.)", "model.layers.12.mlp"));
  EXPECT_FALSE(Match("mlp", "model.mlp"));  // anchored at the start
  EXPECT_TRUE(Match("mod", "model"));       // but not at the end
  EXPECT_TRUE(Match("a|bc|d*", ""));
  EXPECT_TRUE(Match("(a|bc)+d", "abcad"));
  EXPECT_FALSE(Match("(a|bc)+d", "abad"));
  EXPECT_TRUE(Match(R"(\d{2,3}$)", "123"));
  EXPECT_FALSE(Match(R"(\d{2,3}$)", "1234"));
  EXPECT_TRUE(Match("a{0,2}b", "aab"));
  EXPECT_FALSE(Match("a{0,2}b", "aaab"));
  EXPECT_TRUE(Match("a{,b", "a{,b"));  // no bounds: text
  EXPECT_TRUE(Match("(?:x?){3}y$", "xxy"));
  EXPECT_TRUE(Match("[^a-c]x", "dx"));
  EXPECT_FALSE(Match("[^a-c]x", "bx"));
  EXPECT_TRUE(Match("[]a]", "]"));
  EXPECT_TRUE(Match(R"([\d_-]+$)", "1_2-3"));
  EXPECT_TRUE(Match(R"(.*\bgate\b)", "mlp.gate"));
  EXPECT_FALSE(Match(R"(.*\bgate\b)", "mlp.gate_proj"));
  EXPECT_TRUE(Match("^(?!.*experts).*up_proj$", "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(Match("^(?!.*experts).*up_proj$", "model.layers.0.mlp.experts.1.up_proj"));
  EXPECT_TRUE(Match("a(?=b)b$", "ab"));
  EXPECT_FALSE(Match("a(?=c)b", "ab"));
  EXPECT_TRUE(Match("(a*)*b", "aaab"));
  EXPECT_TRUE(Match(".*?b+?$", "abb"));
}

TEST(ModulePattern, EndsOfModules) {
  EXPECT_TRUE(Match("layer.1", "layer.1.attn", End::kModule));
  EXPECT_FALSE(Match("layer.1", "layer.11.attn", End::kModule));
  EXPECT_TRUE(Match("model.layers.*.self_attn", "model.layers.3.self_attn.q_proj", End::kModule));
  EXPECT_FALSE(Match("mlp.gate", "mlp.gate_proj", End::kModule));
  EXPECT_TRUE(Match("a.*", "abc", End::kText));
  EXPECT_FALSE(Match("ab", "abc", End::kText));
}

TEST(ModulePattern, Errors) {
  EXPECT_EQ(Error("a("), "p: \"a(\" has a ( without )");
  EXPECT_EQ(Error("a)"), "p: \"a)\" has a ) without (");
  EXPECT_EQ(Error("[a"), "p: \"[a\" has a [ without ]");
  EXPECT_EQ(Error("*"), "p: \"*\" has nothing to repeat");
  EXPECT_EQ(Error("[z-a]"), "p: \"[z-a]\" has a range backwards");
  EXPECT_EQ(Error("a\\"), "p: \"a\\\" ends in a backslash");
  EXPECT_THAT(Error("a{3,2}"), HasSubstr("repeats out of bounds"));
  EXPECT_THAT(Error("((a{1000}){1000}){1000}"), HasSubstr("is too large"));
  EXPECT_THAT(Error(std::string(2000, 'a')), HasSubstr("is too long"));
  EXPECT_THAT(Error(std::string(100, '(')), HasSubstr("nests too deeply"));
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_THAT(Error("(?P<x>a)", unimplemented), HasSubstr("has (?P, which is not supported"));
  EXPECT_THAT(Error("(?i)a", unimplemented), HasSubstr("has (?i"));
  EXPECT_THAT(Error(R"((a)\1)", unimplemented), HasSubstr(R"(has \1)"));
  EXPECT_THAT(Error("(?=(?!a))", unimplemented), HasSubstr("a look-ahead in a look-ahead"));
}

// Backtracking engines need 2^30 steps for the first of these.
TEST(ModulePattern, NoBlowUp) {
  EXPECT_FALSE(Match("(a*)*(a*)*(a|aa)*$", std::string(200, 'a') + "b"));
  EXPECT_FALSE(Match("(?!(.*.*.*)b)(?!(.*.*.*)c).*x$", std::string(500, 'a')));
}

TEST(ModulePattern, MutationsNeverCrash) {
  testing::ForEachMutation(R"(^(?!.*(experts|gate)\.)model\.[a-z_]+\.\d{1,3}.*?(up|down)_proj$)", 3, 20000,
                           [](std::span<const std::byte> bytes) {
                             const auto pattern = ModulePattern::Parse(testing::Text(bytes), "p");
                             if (pattern.ok()) {
                               pattern->Matches("model.layers.11.mlp.up_proj");
                             } else {
                               EXPECT_EQ(Message(pattern.status()).find('\n'), std::string_view::npos);
                             }
                           });
}

}  // namespace
}  // namespace xjit
