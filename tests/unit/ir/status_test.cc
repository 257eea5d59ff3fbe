#include "ir/support/status.h"

#include <gtest/gtest.h>

namespace xjit {
namespace {

// Exit status 2 is for what is marked, whatever a message begins with.
TEST(Usage, IsAMarkThatPrefixesKeep) {
  const absl::Status usage = UsageError("--rows {}: too many", 9);
  EXPECT_TRUE(IsUsage(usage));
  EXPECT_EQ(usage.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(usage), "--rows 9: too many");
  const absl::Status prefixed = Prefix(usage, "bench-op");
  EXPECT_TRUE(IsUsage(prefixed));
  EXPECT_EQ(Message(prefixed), "bench-op: --rows 9: too many");

  const absl::Status plain = InvalidArgument("--rows: no such file");
  EXPECT_FALSE(IsUsage(plain));
  EXPECT_FALSE(IsUsage(Prefix(plain, "--rows")));
  EXPECT_TRUE(IsUsage(AsUsage(plain)));
}

TEST(Usage, IsNothingOfWhatIsOk) {
  EXPECT_TRUE(AsUsage(absl::OkStatus()).ok());
  EXPECT_FALSE(IsUsage(AsUsage(absl::OkStatus())));
  EXPECT_TRUE(Prefix(absl::OkStatus(), "place").ok());
}

TEST(Usage, PassesThroughTheMacros) {
  const auto number = [](bool fails) -> absl::StatusOr<int> {
    if (fails) return UsageError("--n is missing");
    return 1;
  };
  const auto twice = [&](bool fails) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(const int n, number(fails));
    XJIT_RETURN_IF_ERROR(n == 1 ? absl::OkStatus() : Internal("n is {}", n));
    return absl::OkStatus();
  };
  EXPECT_TRUE(IsUsage(twice(true)));
  EXPECT_TRUE(twice(false).ok());
}

}  // namespace
}  // namespace xjit
