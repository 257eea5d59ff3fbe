#include "codegen/gemm/gemm_amx_layout.h"

#include <algorithm>
#include <numeric>

#include "ir/support/align.h"

namespace xjit {

AmxLayout::AmxLayout(const GemmDesc& desc, TileDot tile_dot)
    : dot(tile_dot), step_k(tile_dot == TileDot::kInt8 ? 64 : 32), panel_bytes(PanelBytes(desc.w, desc.k)) {
  const bool int8 = dot == TileDot::kInt8;
  strips = StripsOf(desc.a, desc.k);
  a_row_bytes = int8 ? AlignUp(desc.k, 64) : CeilDiv(desc.k, 2) * 4;
  unpack = !int8 && desc.w.type != DType::kBF16;
  k_unit = step_k;
  if (!HasScalesOutside(desc.w.type)) {
    packed_k = PackedBlockElems(desc.w.type);
    packed_bytes = 2 * PackedGroupBytes(desc.w.type);
    k_unit = std::lcm(k_unit, packed_k);
    return;
  }
  blocks = ScaledBlocksOf(desc.w, desc.k);
  if (blocks.count(desc.k) == 1) {
    scale = Scale::kOnce;
    first_bytes = blocks.header_bytes();
    packed_k = blocks.unit;
    packed_bytes = blocks.unit_bytes;
  } else {
    scale = Scale::kBlocks;
    k_unit = std::lcm(k_unit, blocks.depth);
    packed_k = blocks.depth;
    packed_bytes = blocks.block_bytes(blocks.depth);
  }
}

AmxScratch AmxScratchOf(const GemmDesc& desc, const GemmPlan& plan, const AmxLayout& layout) {
  AmxScratch s;
  s.k_blocks = CeilDiv(desc.k, plan.k_block);
  const bool waiting = s.k_blocks > 1;  // sums wait for the next k block
  s.sums_panel = (waiting ? plan.m_block : kTileRows) * kSumBytes;
  const int64_t tile = int64_t{kTileRows} * kSumBytes;
  s.stage = waiting ? s.sums_panel * plan.n_block : kMostPanels * tile;
  s.b = s.stage + (layout.scale == AmxLayout::Scale::kBlocks ? kMostPanels * tile : 0);
  s.b_panel = layout.steps(std::min(desc.k, plan.k_block)) * kStepBytes;
  s.a = s.b + (layout.unpack ? s.b_panel * plan.n_block : 0);
  s.bytes = s.a + (desc.rows > 0 ? layout.strips.strip_bytes() : 0);
  return s;
}

}  // namespace xjit
