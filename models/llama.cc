// Llama: pre-norm decoder with grouped-query attention, rotary embedding and a SwiGLU feed-forward.
// Touvron et al. 2023, arXiv:2302.13971; grouped queries: Ainslie et al. 2023, arXiv:2305.13245. Mistral is the same
// with a sliding window (Jiang et al. 2023, arXiv:2310.06825).
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

constexpr auto kTensors = names::Join(names::kOuter, names::kNorms, names::kAttention, names::kAttentionBiases,
                                      names::kMlp, names::kMlpBiases);

}  // namespace

const ModelFamily kLlama = {"llama", BuildPreNorm<>, kTensors};
const ModelFamily kMistral = {"mistral", BuildPreNorm<>, kTensors};

}  // namespace xjit
