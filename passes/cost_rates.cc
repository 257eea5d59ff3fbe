#include "passes/cost_rates.h"

#include <algorithm>

namespace xjit {
namespace {

// kWeightStreamShare: one row of Q4_K, Q6_K, Q8_0, BF16 and INT8 weights of 600 MB, 8192 x 3072, 2 threads: 96-101% of
// an ascending reader alternated with it (Zen 4); a whole decode step of a 1.5B model 98-99% with attention.
// kKvStreamShare: decode attention over pages of 32 tokens, K and V of a page together, 1k to 32k tokens: 91-92% at 60
// GB/s, 98% at 35 GB/s (Zen 4, 2 threads).
// kRowOpsGbS: a row of 1536 floats is normed and quantised in 0.15 us (Zen 4), 6 KiB read.

// Share of the peak of many rows, kernels at work on whole matrices (512 x 4096 x 4096 and the like), two threads.
// Zen 4; Zen 5 within two points where it was measured.
constexpr double kFloatShare = 0.95;      // vdpbf16ps and vfmadd231ps: 95-96%
constexpr double kInt8Share = 0.95;       // vpdpbusd, one scale a row: 95-96% with quantisation of the activations
constexpr double kUnpackedShare = 0.92;   // FP8 unpacked to bf16 in L2: 92%; INT4 is taken to be alike
constexpr double kBlocksShare = 0.73;     // Q8_0, Q4_0 with int8 activations in blocks of 32: 70-75%
constexpr double kBlocksMinShare = 0.67;  // Q4_1, Q4_K, Q5_K, Q6_K, which have a minimum or halves: 66-69%; others
                                          // of that kind are taken to be alike
// Tiles fed from L2 with A and B compact: 75% of the slots (github.com/usstq/mm_amx, Sapphire Rapids).
constexpr double kTileShare = 0.75;
constexpr int64_t kTileRows = 16;
// Prefill attention of 1024 tokens, 12 heads of 128: 82-84% of the vdpbf16ps peak of the exact causal work (Zen 4).
constexpr double kExtendShare = 0.83;
// With tiles the products of a score take half a cycle at D = 128 and the softmax 0.6 to 1 cycle of the vector units,
// not overlapped: 0.5 / (0.5 / 0.75 + 0.8) = 34%. Derived, not measured.
constexpr double kExtendTileShare = 0.34;
// Decode attention from L2: 80-84% of the vdpbf16ps peak (Zen 4).
constexpr double kDecodeShare = 0.8;

double Bf16(const TargetInfo& target) { return target.bf16_gflops > 0 ? target.bf16_gflops : target.f32_gflops; }
double Int8(const TargetInfo& target) { return target.int8_gops > 0 ? target.int8_gops : target.f32_gflops; }

// A block of 32 has a minimum besides its scale, or a scale for each half.
bool HasMinimumOrHalves(DType weight) {
  switch (weight) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kQ2_K:
    case DType::kQ3_K:
      return true;
    default:
      return false;
  }
}

}  // namespace

ProductRate RateOfProduct(DType activation, DType weight, const TargetInfo& target) {
  const bool tiles = target.isa >= Isa::kAmx;
  switch (activation) {
    case DType::kI8Act:
      return tiles ? ProductRate{Int8(target), kTileShare, kTileRows} : ProductRate{Int8(target), kInt8Share};
    case DType::kQ8Act:
      // A block of 32 fills half of a tile row of 64 bytes.
      if (tiles) return {Int8(target) / 2, kTileShare, kTileRows};
      return {Int8(target), HasMinimumOrHalves(weight) ? kBlocksMinShare : kBlocksShare};
    case DType::kBF16:
    case DType::kF16:
      if (tiles) return {Bf16(target), kTileShare, kTileRows};
      return {Bf16(target), weight == DType::kBF16 ? kFloatShare : kUnpackedShare};
    default:
      return {target.f32_gflops, weight == DType::kF32 || weight == DType::kBF16 ? kFloatShare : kUnpackedShare};
  }
}

ProductRate RateOfAttention(DType query, bool few, const TargetInfo& target) {
  if (query != DType::kBF16) return {target.f32_gflops, few ? kDecodeShare : kExtendShare};
  if (target.isa >= Isa::kAmx && !few) return {Bf16(target), kExtendTileShare};
  return {Bf16(target), few ? kDecodeShare : kExtendShare};
}

}  // namespace xjit
