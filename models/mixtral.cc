// Mixtral: Mistral's attention, experts in every layer. Jiang et al. 2024, arXiv:2401.04088.
#include "models/blocks.h"
#include "models/names.h"

namespace xjit {
namespace {

constexpr auto kMixtralExperts = std::to_array<TensorName>({
    {"router", "model.layers.{}.block_sparse_moe.gate.weight", "blk.{}.ffn_gate_inp.weight"},
    {"gate_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w1.weight", "blk.{}.ffn_gate_exps.weight"},
    {"up_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w3.weight", "blk.{}.ffn_up_exps.weight"},
    {"down_exps", "model.layers.{}.block_sparse_moe.experts.{e}.w2.weight", "blk.{}.ffn_down_exps.weight"},
});
constexpr auto kTensors = names::Join(names::kOuter, names::kNorms, names::kAttention, kMixtralExperts);

}  // namespace

const ModelFamily kMixtral = {"mixtral", BuildPreNorm<>, kTensors};

}  // namespace xjit
