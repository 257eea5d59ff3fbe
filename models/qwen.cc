// Qwen2 is Llama with biases on q, k, v and a sliding window on its upper layers (Yang et al. 2024, arXiv:2407.10671).
// Qwen3 has norms of q and k instead of the biases, and a form with experts (Yang et al. 2025, arXiv:2505.09388).
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

constexpr auto kQwen2Tensors =
    names::Join(names::kOuter, names::kNorms, names::kAttention, names::kAttentionBiases, names::kMlp);
constexpr auto kQwen3Tensors = names::Join(kQwen2Tensors, names::kHeadNorms);
constexpr auto kQwen3MoeTensors = names::Join(kQwen3Tensors, names::kExperts);

}  // namespace

const ModelFamily kQwen2 = {"qwen2", BuildPreNorm<>, kQwen2Tensors};
const ModelFamily kQwen3 = {"qwen3", BuildPreNorm<>, kQwen3Tensors};
const ModelFamily kQwen3Moe = {"qwen3_moe", BuildPreNorm<>, kQwen3MoeTensors};

}  // namespace xjit
