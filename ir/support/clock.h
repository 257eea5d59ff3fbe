// The clock that durations are measured with.
#pragma once

#include <chrono>

namespace xjit {

// Milliseconds of the steady clock.
inline double NowMs() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace xjit
