// Errors of xjit: absl::Status built with fmt, and the two macros that pass them on.
//
// This header is where std:: types meet Abseil's (the distribution's Abseil is the C++14 ABI, whose string_view and
// optional are not std's); elsewhere write std::string_view and std::optional.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace xjit {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view FromAbsl(absl::string_view s) { return {s.data(), s.size()}; }

// The message of a status without its code.
inline std::string_view Message(const absl::Status& status) { return FromAbsl(status.message()); }

// The user's input is wrong: a file, a flag, IR text.
template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(ToAbsl(fmt::format(format, std::forward<Args>(args)...)));
}
// This machine or the state of things does not allow it: a missing ISA, no memory, a file that does not exist.
template <typename... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return absl::FailedPreconditionError(ToAbsl(fmt::format(format, std::forward<Args>(args)...)));
}
// A known gap, by name.
template <typename... Args>
absl::Status Unimplemented(fmt::format_string<Args...> format, Args&&... args) {
  return absl::UnimplementedError(ToAbsl(fmt::format(format, std::forward<Args>(args)...)));
}
// A bug of ours.
template <typename... Args>
absl::Status Internal(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InternalError(ToAbsl(fmt::format(format, std::forward<Args>(args)...)));
}

// Errors of the command line itself, not of what it leads to, carry a mark: commands end with exit status 2 for them.
inline constexpr std::string_view kUsageMark = "xjit/usage";
inline bool IsUsage(const absl::Status& status) { return status.GetPayload(ToAbsl(kUsageMark)).has_value(); }
inline absl::Status AsUsage(absl::Status status) {
  status.SetPayload(ToAbsl(kUsageMark), absl::Cord());  // none on a status that is ok
  return status;
}
// A flag is wrong, or contradicts others: InvalidArgument with that mark.
template <typename... Args>
absl::Status UsageError(fmt::format_string<Args...> format, Args&&... args) {
  return AsUsage(InvalidArgument(format, std::forward<Args>(args)...));
}

// The same status with `place: ` in front of its message.
inline absl::Status Prefix(const absl::Status& status, std::string_view place) {
  if (status.ok()) return status;
  absl::Status prefixed(status.code(), ToAbsl(fmt::format("{}: {}", place, Message(status))));
  return IsUsage(status) ? AsUsage(std::move(prefixed)) : prefixed;
}

}  // namespace xjit

#define XJIT_CONCAT_INNER(a, b) a##b
#define XJIT_CONCAT(a, b) XJIT_CONCAT_INNER(a, b)

#define XJIT_RETURN_IF_ERROR(expr)                              \
  do {                                                          \
    if (absl::Status xjit_status = (expr); !xjit_status.ok()) { \
      return xjit_status;                                       \
    }                                                           \
  } while (false)

#define XJIT_ASSIGN_OR_RETURN(lhs, expr) XJIT_ASSIGN_OR_RETURN_INNER(XJIT_CONCAT(xjit_or_, __LINE__), lhs, expr)
#define XJIT_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = *std::move(tmp)
