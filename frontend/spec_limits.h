// Bounds on hyper-parameters from untrusted files, shared by config.json and GGUF metadata.
#pragma once

#include <cstdint>

namespace xjit {

inline constexpr int64_t kMaxDim = (int64_t{1} << 31) - 1;  // sizes and token ids
inline constexpr int64_t kMaxLayers = 4096;                 // the largest published models have under 200
inline constexpr int64_t kMaxExperts = 1 << 16;             // the largest published models have under 1000
inline constexpr double kMaxReal = 1e30;                    // frequencies, factors
inline constexpr double kMinReal = 1e-30;                   // of a number that must be positive

}  // namespace xjit
