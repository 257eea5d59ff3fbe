// Scalar reference of choosing experts.
#pragma once

#include <cstdint>

namespace xjit::ref {

enum class RouterScore : uint8_t {
  kSoftmax,        // over all experts
  kSigmoid,        // of each expert on its own
  kSoftmaxChosen,  // over the chosen ones' logits
};

struct RouteParams {
  int64_t experts = 0;
  int64_t top_k = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;  // weights are divided by their sum
  double scale = 1;        // and multiplied by this
  int64_t groups = 1;      // experts / groups consecutive experts are a group
  int64_t top_groups = 1;  // groups that experts are chosen from
  int64_t group_top = 1;   // best experts of a group whose scores it is judged by
};

// Chooses top_k of the experts for one token: chosen[top_k] in order of falling score (the lower number where scores
// are equal) and weights[top_k]. bias[experts] (or nullptr) is added to the scores for choosing, not for weighing.
// Softmax with groups judged by their best: DeepSeek-V2, arXiv:2405.04434; sigmoid with bias and the sum of the two
// best: DeepSeek-V3, arXiv:2412.19437, section 2.1.2.
void Route(const RouteParams& params, const float* logits, const float* bias, int32_t* chosen, float* weights);

}  // namespace xjit::ref
