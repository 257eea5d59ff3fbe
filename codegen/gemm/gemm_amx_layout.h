// What follows from a descriptor alone for the AMX kernels: tiles, where they lie, and how sums are scaled.
#pragma once

#include <cstdint>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"

namespace xjit {

// The instruction that multiplies.
enum class TileDot : uint8_t { kBf16, kFp16, kInt8 };

inline constexpr int kTileRows = 16, kTileBytes = 1024;
// Weights of a step of both groups, [16][2][64 bytes]: in a panel, and unpacked in scratch.
inline constexpr int kStepBytes = 2 * kTileBytes;
// A row of 32 sums.
inline constexpr int kSumBytes = kPanelColumns * 4;
// Column panels of a tile row at most: three are six sums, a tile of A and one of B.
inline constexpr int kMostPanels = 3;

struct AmxLayout {
  enum class Scale : uint8_t {
    kNone,
    kOnce,    // sums of all k are multiplied by scale[32], which the panel starts with
    kBlocks,  // those of each scale block, when they are added up
  };
  TileDot dot = TileDot::kBf16;
  int step_k = 32;          // k's of a step: the depth of a TDP
  bool unpack = false;      // tiles of B are made in scratch, else they lie in the panel
  StripLayout strips;       // of A
  int64_t a_row_bytes = 0;  // that are multiplied
  int64_t panel_bytes = 0;
  Scale scale = Scale::kNone;
  ScaledBlocks blocks;                     // not with kNone
  int64_t k_unit = 32;                     // what plan.k_block is a multiple of
  int64_t first_bytes = 0;                 // from a panel's start to the weights of the first k block
  int64_t packed_k = 1, packed_bytes = 0;  // weights of so many k's, their scale block's header included, take so much

  AmxLayout(const GemmDesc& desc, TileDot dot);
  int64_t steps(int64_t k) const { return (k + step_k - 1) / step_k; }
  int64_t BytesOf(int64_t k) const { return k / packed_k * packed_bytes; }  // of whole k_units
};

// Where things are in GemmArgs::scratch.
struct AmxScratch {
  int64_t k_blocks = 1;
  // f32 or int32 sums, [panel of the block][row of the block][32]. With a single k block they live no longer than a
  // register block, and these are its [panel][16 rows][32].
  int64_t sums_panel = 0;  // bytes from panel to panel
  int64_t stage = 0;       // a scale block's sums, [row or column tile][16][32]
  int64_t b = 0;           // unpacked steps of a k block, [panel of the block][step]
  int64_t b_panel = 0;     // bytes from panel to panel
  int64_t a = 0;           // the strip of few rows
  int64_t bytes = 0;
};
AmxScratch AmxScratchOf(const GemmDesc& desc, const GemmPlan& plan, const AmxLayout& layout);

}  // namespace xjit
