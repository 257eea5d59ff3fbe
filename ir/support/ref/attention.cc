#include "ir/support/ref/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace xjit::ref {

void AttendOne(const float* q, const float* k, const float* v, int64_t stride, int64_t begin, int64_t end,
               int64_t head_dim, double scale, float* out) {
  std::vector<double> score(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
  double top = -std::numeric_limits<double>::infinity();
  for (int64_t t = begin; t < end; ++t) {
    double dot = 0;
    for (int64_t d = 0; d < head_dim; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[t * stride + d]);
    score[static_cast<size_t>(t - begin)] = dot * scale;
    top = std::max(top, dot * scale);
  }
  double sum = 0;
  for (double& s : score) sum += s = std::exp(s - top);
  for (int64_t d = 0; d < head_dim; ++d) {
    double value = 0;
    for (int64_t t = begin; t < end; ++t)
      value += score[static_cast<size_t>(t - begin)] * static_cast<double>(v[t * stride + d]);
    out[d] = static_cast<float>(value / sum);
  }
}

}  // namespace xjit::ref
