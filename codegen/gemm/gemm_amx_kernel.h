// The loops of an AMX product. For plan.n_block panels, then plan.m_block rows, then a k block (plan.k_block):
//   unpack the panels' k block, unless tiles lie in the panels;
//   for each 32 rows, whose k block of A stays in L1, go over the panels, to and fro: 2 x 2 tiles of sums, so that each
//   TDP needs half a tile of B, which is all that comes from L2, and half a tile of A;
//   16 rows or fewer at the end take two or three panels at a time: four or six sums cover a TDP's latency, and each
//   TDP needs a tile of B.
// Sums wait for the next k block in scratch. After the last one the rows of C are finished in vectors.
#pragma once

#include <cstdint>
#include <functional>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_amx_layout.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/regs.h"
#include "ir/support/status.h"

namespace xjit {

// Sums held at a time: tiles of rows by panels of two column tiles.
struct AmxShape {
  int rows = 1, panels = 1;
  int tiles() const { return 2 * rows * panels; }
};

class AmxKernel {
 public:
  AmxKernel(const GemmDesc& desc, const GemmPlan& plan, TileDot dot, Emitter& e)
      : desc_(desc), plan_(plan), layout_(desc, dot), scratch_(AmxScratchOf(desc, plan, layout_)), e_(e) {}
  absl::Status Emit();

 private:
  // Loop state in the frame.
  enum Slot {
    kA,
    kW,
    kC,
    kResidual,
    kBias,
    kScratch,  // of GemmArgs; kA is the strip in scratch for few rows
    kN,
    kN1,
    kM0,
    kM1,
    kPanels,  // of the block of columns, which starts at panel kN
    kM,
    kMEnd,   // the block of rows
    kBlock,  // which k block
    kAOffset,
    kWOffset,      // where it starts in a strip and in a panel
    kB,            // tiles of B of the block's first panel
    kSteps,        // of the k block
    kScaleBlocks,  // whole ones in the k block
    kLeft,
    kTurn,  // panels left; 1 or -1: the walk's direction
    kTiles,
    kSlots
  };
  static constexpr int kFrame = (kSlots * 8 + 63) / 64 * 64;  // the readers' table follows
  Xbyak::Address At(Slot slot) { return e_.qword[e_.rsp + slot * 8]; }
  bool Waiting() const { return scratch_.k_blocks > 1; }
  int64_t LastK() const { return desc_.k - (scratch_.k_blocks - 1) * plan_.k_block; }
  // dst += src * factor; `t` is overwritten.
  void AddTimes(const Xbyak::Reg64& dst, const Xbyak::Reg64& src, int64_t factor, const Xbyak::Reg64& t);
  // dst = `last` in the last k block, else `full`.
  void LoadByBlock(const Xbyak::Reg64& dst, int64_t full, int64_t last);
  void SetByBlock(Slot slot, int64_t full, int64_t last);

  // gemm_amx_kernel.cc
  void SaveArguments();
  void CopyRows();
  void Rows();
  void KBlocks();
  void Units();
  // gemm_amx_tile.cc
  void Tile(const AmxShape& shape);
  void PlainSums(const AmxShape& shape, const Xbyak::Reg64& a, const Xbyak::Reg64& b, const Xbyak::Reg64& sums);
  void ScaledSums(const AmxShape& shape, const Xbyak::Reg64& a, const Xbyak::Reg64& b, const Xbyak::Reg64& sums);
  void ZeroTiles(const AmxShape& shape);
  void Dot(const Xbyak::Tmm& sum, const Xbyak::Tmm& a, const Xbyak::Tmm& b);
  void Steps(const AmxShape& shape, const Xbyak::Reg64& a, const Xbyak::Reg64& b, const Xbyak::Reg64& count);
  void Unrolled(
      const AmxShape& shape, const Xbyak::Reg64& a, const Xbyak::Reg64& b, int steps,
      const std::function<void()>& between = [] {});
  void ZeroSums(const AmxShape& shape, const Xbyak::Reg64& sums);
  void StoreStage(const AmxShape& shape, const Xbyak::Reg64& stage);
  void LoadScales(const AmxShape& shape, const Xbyak::Reg64& header, const Regs::VecList& scales);
  void Fold(const AmxShape& shape, const Xbyak::Reg64& sums, const Xbyak::Reg64& stage, const Xbyak::Reg64& header);
  // gemm_amx_finish.cc
  void Finish(const AmxShape& shape, const Xbyak::Reg64& sums);
  void FinishRows(const AmxShape& shape, const Xbyak::Reg64& sums);
  // gemm_amx_unpack.cc
  // Emits a loop over the panels, in which w is a panel's start and x that of its tiles.
  using EachPanel = std::function<void(const std::function<void()>& one)>;
  void Unpack();
  void UnpackHalves(const Xbyak::Reg64& w, const Xbyak::Reg64& x, const EachPanel& each_panel);
  void UnpackPlain(const Xbyak::Reg64& w, const Xbyak::Reg64& x, const EachPanel& each_panel);
  void UnpackScaled(const Xbyak::Reg64& w, const Xbyak::Reg64& x, const EachPanel& each_panel);
  void ZeroRest(const Xbyak::Reg64& x, int64_t k);
  void InLastBlock(const std::function<void()>& code);

  const GemmDesc desc_;
  const GemmPlan plan_;
  const AmxLayout layout_;
  const AmxScratch scratch_;
  Emitter& e_;
  Lanes lanes_{e_, true};
  Regs regs_{32};
  // 64, the stride of A; twice it that of B and of sums. The unit's first row. Its first panel, counted from kN.
  const Regs::Gpr64 stride_ = regs_.Gpr("stride"), row_ = regs_.Gpr("row"), panel_ = regs_.Gpr("panel");
};

}  // namespace xjit
