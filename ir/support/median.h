// The middle of measurements.
#pragma once

#include <algorithm>
#include <vector>

namespace xjit {

// The middle value, or the mean of the middle two; 0 of none.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace xjit
