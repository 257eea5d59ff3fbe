#include "ir/support/ref/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace xjit::ref {

void AttendOne(const AttendArgs& a, float* out) {
  std::vector<double> score(static_cast<size_t>(std::max<int64_t>(a.end - a.begin, 0)));
  double top = a.sink != nullptr ? static_cast<double>(*a.sink) : -std::numeric_limits<double>::infinity();
  for (int64_t t = a.begin; t < a.end; ++t) {
    double dot = 0;
    for (int64_t d = 0; d < a.head_dim; ++d) {
      dot += static_cast<double>(a.q[d]) * static_cast<double>(a.k[t * a.k_stride + d]);
    }
    dot *= a.scale;
    if (a.soft_cap != 0) dot = a.soft_cap * std::tanh(dot / a.soft_cap);
    score[static_cast<size_t>(t - a.begin)] = dot;
    top = std::max(top, dot);
  }
  double sum = a.sink != nullptr ? std::exp(static_cast<double>(*a.sink) - top) : 0;
  for (double& s : score) sum += s = std::exp(s - top);
  for (int64_t d = 0; d < a.v_dim; ++d) {
    double value = 0;
    for (int64_t t = a.begin; t < a.end; ++t) {
      value += score[static_cast<size_t>(t - a.begin)] * static_cast<double>(a.v[t * a.v_stride + d]);
    }
    out[d] = static_cast<float>(value / sum);
  }
}

}  // namespace xjit::ref
