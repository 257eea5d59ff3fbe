// The emitter of many rows as its two files see it: code that unpacks k blocks, and code of the register blocks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/pair_reader.h"
#include "codegen/regs.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {

inline constexpr int kPanelRowBytes = kPanelColumns * 4;  // of the tile of sums and of the unpacked block
inline constexpr int kMostFloatPanels = 2;                // side by side: as many as the frame has places for

struct FloatPanels {
  const GemmDesc& desc;
  const GemmPlan& plan;
  const FloatOps& ops;
  Emitter& e;
  Lanes lanes{e, ops.wide};
  Regs regs{lanes.registers()};

  const int64_t steps = Steps(desc, ops), block_steps = CeilDiv(plan.k_block, ops.dot ? 2 : 1);
  const int64_t panels = std::max<int64_t>(1, plan.n_block);
  const int64_t panel_bytes = PanelBytes(desc.w, desc.k);
  const bool pairs = ReadsPairs(desc, ops);
  const bool unpack = pairs || ReadAs(desc, ops).type != DType::kF32;
  const int64_t blocks = CeilDiv(steps, block_steps);
  const int64_t last_block = steps - (blocks - 1) * block_steps;
  // Steps at the end that are no whole chunk; of pairs the chunk is filled up with zeros.
  const int rest = pairs ? 0 : static_cast<int>(last_block % kTileSteps);
  // Sums of one k block go to C from the tile's own rows of scratch, which stay in L1.
  const bool one_block = blocks == 1;
  const PanelScratch scratch = PanelScratchOf(desc, plan, ops, block_steps);
  const int64_t b_stride = unpack ? scratch.block() : panel_bytes;
  // Pairs: sums of a scale block are scaled and added to the sums in scratch, if there are several.
  const ScaledBlocks scaled = pairs ? ScaledBlocksOf(desc.w, desc.k) : ScaledBlocks{};
  const bool several = pairs && scaled.count(desc.k) > 1;
  // A: from row to row, from one chunk of kTileSteps dwords to the next.
  const int64_t a_row_bytes = desc.strips ? HalfStrips(desc.k).strip_bytes() / kStripRows : desc.lda_bytes;
  const int a_row = static_cast<int>(desc.strips ? kStripChunk : desc.lda_bytes);
  const int a_chunk = desc.strips ? kStripRows * kStripChunk : kTileSteps * 4;
  // Rows that all panels side by side go over before the next rows do: they stay in L1 or L2 meanwhile.
  const int group_rows = desc.strips ? kStripRows : 2 * plan.tile_rows;

  // Loop state that lives in the frame; an entry for each panel side by side where it says [2].
  enum Slot {
    kN,
    kN1,
    kM,
    kM0,
    kM1,
    kRows,
    kBlocks,
    kChunks,
    kUnits,
    kScales,
    kScalesLeft,
    kBlockA,
    kGroupA,
    kGroupC,
    kGroupSums,
    kGroupRows,
    kLeft,
    kPanel,
    kPanelCount,
    kBias,
    kW,
    kNext = kW + 2,
    kNextEnd = kNext + 2,
    kSlots = kNextEnd + 2
  };
  static constexpr int kTable = AlignUp(kSlots * 8, 64);
  Xbyak::Address At(int slot) { return e.qword[e.rsp + slot * 8]; }
  Xbyak::Address At(int slot, const Xbyak::Reg64& panel) { return e.qword[e.rsp + panel * 8 + slot * 8]; }
  Xbyak::Address Arg(size_t offset) { return e.qword[*args + static_cast<int>(offset)]; }

  const Regs::Gpr64 args = regs.Gpr("args");

  struct Rows {  // where a tile's rows are
    Xbyak::Reg64 a, b, sums;
    Xbyak::Reg64 c;  // offset from the start of C and of the residual
  };

  absl::Status Emit();
  void RowBlock();
  void KBlock();
  void Unpack();
  WeightSink Store(const Xbyak::Reg64& b);
  void BeginPanel(const Xbyak::Reg64& panel, const Xbyak::Reg64& w, const Xbyak::Reg64& b);
  void UnpackPairs();
  void CopyScales(const Xbyak::Reg64& header, const Xbyak::Reg64& scales);
  void FindNext(int panel, int64_t packed_block);
  void Groups();
  void RowsOf(const Rows& at, const Xbyak::Reg64& left);
  void Tile(int rows, const Rows& at);
  void TileVectors(int rows, int first, const Rows& at);
  void TileScaled(int rows, const Rows& at);
  void LoadNext(const Xbyak::Reg64& next, const Xbyak::Reg64& next_step);
  void StoreNext(const Xbyak::Reg64& next, const Xbyak::Reg64& t);
  void TileSteps(int rows, int first, int count, const Xbyak::Reg64& a, const Xbyak::Reg64& b, const Regs::VecList& acc,
                 const Xbyak::Reg64* next, const Xbyak::Reg64* next_step);
  void PrefetchC(int rows, const Rows& at);
  void Finish(int rows, const Rows& at);
  bool PrefetchNext() const { return plan.prefetch_next_panel; }
  // reg += value, which fits 32 bits: planners see to that.
  void Add(const Xbyak::Reg64& reg, int64_t value) { e.add(reg, static_cast<int>(value)); }
};

}  // namespace xjit
