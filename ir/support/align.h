// Division and sizes rounded up.
#pragma once

#include <concepts>
#include <type_traits>

namespace xjit {

// Of numbers that are not negative, the divisor positive.
template <std::integral A, std::integral B>
constexpr std::common_type_t<A, B> CeilDiv(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>((static_cast<T>(a) + static_cast<T>(b) - 1) / static_cast<T>(b));
}

// The least multiple of `to` that is not below `value`.
template <std::integral A, std::integral B>
constexpr std::common_type_t<A, B> AlignUp(A value, B to) {
  return static_cast<std::common_type_t<A, B>>(CeilDiv(value, to) * static_cast<std::common_type_t<A, B>>(to));
}

}  // namespace xjit
