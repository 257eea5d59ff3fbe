// Stop strings in text that comes in pieces.
#include "frontend/generate.h"

#include <gtest/gtest.h>

#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

TEST(StopMatcher, WithoutStopsEverythingPasses) {
  StopMatcher stops({});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Push(""), "");
  EXPECT_EQ(stops.Push("def"), "def");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopMatcher, HoldsBackWhatMayStop) {
  StopMatcher stops({"END"});
  EXPECT_EQ(stops.Push("the E"), "the ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("x"), "ENx");
  EXPECT_EQ(stops.Push("EE"), "E");
  EXPECT_EQ(stops.Push("ND more"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopMatcher, FinishGivesTheRest) {
  StopMatcher stops({"\n\n"});
  EXPECT_EQ(stops.Push("a\n"), "a");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Finish(), "\n");
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopMatcher, TheFirstOfSeveralStops) {
  StopMatcher stops({"yy", "x"});
  EXPECT_EQ(stops.Push("ab x yy"), "ab ");
  EXPECT_TRUE(stops.stopped());
  StopMatcher longer({"abc", "b"});
  EXPECT_EQ(longer.Push("zab"), "za");
  EXPECT_TRUE(longer.stopped());
}

TEST(StopMatcher, TheLongestHoldCounts) {
  StopMatcher stops({"cd", "bcde"});
  EXPECT_EQ(stops.Push("abc"), "a");
  EXPECT_EQ(stops.Push("x"), "bcx");
}

TEST(StopMatcher, RepeatedPrefixes) {
  StopMatcher stops({"aab"});
  EXPECT_EQ(stops.Push("aaaa"), "aa");
  EXPECT_EQ(stops.Push("b"), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopMatcher, EmptyStopsAreNone) {
  StopMatcher stops({"", "z"});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_FALSE(stops.stopped());
  EXPECT_EQ(stops.Push("z"), "");
  EXPECT_TRUE(stops.stopped());
}

// However the text is cut, what comes out is the text before the first stop string.
TEST(StopMatcher, PiecesDoNotMatter) {
  testing::Random random(1);
  int stopped = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text(random.Below(14), 'a'), stop(1 + random.Below(4), 'a');
    for (std::string* s : {&text, &stop}) {
      for (char& c : *s) c = random.Below(2) == 0 ? 'a' : 'b';
    }
    StopMatcher stops({stop});
    std::string out;
    for (size_t at = 0; at < text.size() && !stops.stopped();) {
      const size_t n = std::min(1 + random.Below(4), text.size() - at);
      out += stops.Push(std::string_view(text).substr(at, n));
      at += n;
    }
    const size_t found = text.find(stop);
    EXPECT_EQ(stops.stopped(), found != std::string::npos) << text << " " << stop;
    EXPECT_EQ(out + stops.Finish(), text.substr(0, found)) << text << " " << stop;
    stopped += stops.stopped() ? 1 : 0;
  }
  EXPECT_GT(stopped, 500);
  EXPECT_LT(stopped, 2500);
}

}  // namespace
}  // namespace xjit
