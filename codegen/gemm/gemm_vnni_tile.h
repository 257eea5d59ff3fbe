// One register block of the many-rows gemm: rows x 2 groups of int32 and of f32 sums, and the code for 32 k of it.
#pragma once

#include "codegen/gemm/gemm_vnni.h"

namespace xjit {

// An unpacked block of 32 k x 32 columns in scratch: u8[8][2][16][4], then f32 scale[2][16], then (where there is one)
// that of the block's second half, then (where there are) as many minima.
int VnniUnpackedBytes(const VnniWeights& weights);
inline constexpr int kVnniScaleAt = 1024;
inline int VnniMinimumAt(const VnniWeights& weights) { return kVnniScaleAt + (weights.halves() ? 256 : 128); }

class VnniTile {
 public:
  // General registers that the code reads (and `prefetch`, which it advances).
  struct Pointers {
    Xbyak::Reg64 weights;                  // the unpacked block
    Xbyak::Reg64 a;                        // record of the tile's first row
    Xbyak::Reg64 q;                        // its int8 values of the block
    Xbyak::Reg64 block;                    // which block of 32 k
    Xbyak::Reg64 prefetch, prefetch_step;  // with plan.prefetch_next_panel
  };
  VnniTile(const GemmDesc& desc, const GemmPlan& plan, int rows, const Pointers& pointers, Emitter& e);

  const absl::Status& status() const { return regs_.status(); }
  // The f32 sum of a row and group; all of them, in that order.
  Xbyak::Zmm sum(int row, int group) const { return sums_.Z(static_cast<size_t>(2 * row + group)); }
  const Regs::VecList& sums() const { return sums_; }
  // A register that holds nothing between blocks (i < 3).
  Xbyak::Zmm temp(int i) const { return i < 2 ? b_.Z(static_cast<size_t>(i)) : dots_.Z(0); }

  // sums += the products of one block.
  void Block();

 private:
  int RowOffset(int row) const { return static_cast<int>(row * lda_bytes_); }
  Xbyak::RegExp Activation(int row, int array, int scale = 4) const;
  Xbyak::Zmm dot(int half, int row, int group) const {
    return dots_.Z(static_cast<size_t>(2 * (half * rows_ + row) + group));
  }
  Xbyak::Zmm b(int group) const { return b_.Z(static_cast<size_t>(group)); }
  void Load(int at);
  void Start();
  void Dots(int begin, int end, int half);
  void Scale();
  void ScaleFirstHalf();
  void ScaleSecondHalf();
  void MinimaOfHalves();

  const VnniWeights weights_;
  const VnniActivations act_;
  const int64_t lda_bytes_;
  const int rows_;
  const bool prefetch_, prefetch_a_;
  const Pointers p_;
  Emitter& e_;
  Regs regs_{32};
  Regs::VecList sums_, dots_, b_, broadcast_;
};

}  // namespace xjit
