// Frequencies of the rotary embedding and how checkpoints stretch them for longer contexts.
#pragma once

#include <cstdint>
#include <vector>

#include "models/spec.h"

namespace xjit {

// How many values of a head are rotated: the width of a rope table.
int64_t RotaryDim(const ModelSpec& spec);

// inv_freq[head_dim / 2], in radians a position, f32 as Hugging Face keeps them.
//   none    theta^(-2i/d)
//   linear  divided by factor
//   llama3  low frequencies divided by factor, high ones kept, in between interpolated (Llama 3.1's rule)
//   yarn    a ramp between both by how often a dimension turns in the original context  [Peng et al. 2023,
//   arXiv:2309.00071]
//   longrope  divided by short_factors, for a context (tokens that a sequence may have) beyond original_max_positions
//   by
//           long_factors, which must have head_dim / 2 entries  [Ding et al. 2024, arXiv:2402.13753]
// Then divided by freq_factors where the checkpoint has them.
std::vector<float> RopeInvFreq(const RopeSpec& rope, int64_t head_dim, int64_t context = 0);

// What cosines and sines are multiplied by: 1, or the attention factor of yarn or longrope.
double RopeScale(const RopeSpec& rope);

}  // namespace xjit
