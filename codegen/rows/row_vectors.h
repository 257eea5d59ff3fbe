// Vector code of the row kernels written once for zmm and ymm: masked tails and the loop over columns.
#pragma once

#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/regs.h"
#include "codegen/rows/rows_plan.h"

namespace xjit {

ColumnSplit SplitColumns(int64_t cols, int lanes);

class RowVectors {
 public:
  // Emits the set-up of the tail mask (k1, or a vector register of AVX2), using `scratch`.
  RowVectors(Emitter& e, Regs& regs, const ColumnSplit& columns, const Xbyak::Reg64& scratch);

  bool wide() const { return columns_.lanes == 16; }
  int bytes() const { return columns_.lanes * 4; }
  // Register `index` at the kernel's width; Xbyak keeps the width in the operand.
  Xbyak::Xmm V(int index) const {
    return wide() ? static_cast<Xbyak::Xmm>(Xbyak::Zmm(index)) : static_cast<Xbyak::Xmm>(Xbyak::Ymm(index));
  }
  // Masked lanes load as zero, and are not written.
  void Load(int v, const Xbyak::RegExp& at, bool masked) const;
  void Store(const Xbyak::RegExp& at, int v, bool masked) const;
  void Zero(int v) const;
  // v = the tail mask of AVX2.
  void CopyMask(int v) const { e_.vmovaps(Xbyak::Ymm(v), mask_.Y()); }
  // Zeroes the lanes that masked loads leave out.
  void ZeroBeyond(int v) const;
  // All lanes of v = the dword at a rip-relative constant.
  void Broadcast(int v, float value) const;
  void BroadcastBits(int v, uint32_t bits) const;

  // Sums all lanes of v into its lowest f32; tmp is clobbered.
  void SumLanes(int v, int tmp) const;

  // Emits body(u, offset, masked) for every vector of the columns: loops of `unroll` vectors (u counts within one), the
  // rest, the tail. The column's f32 lies at index * 2 + offset bytes, its 16-bit value at index + offset / 2.
  template <class Body>
  void ForColumns(int unroll, const Xbyak::Reg64& index, Body body) const {
    const int64_t loops = columns_.whole / unroll;
    const int rest = static_cast<int>(columns_.whole % unroll);
    e_.xor_(index.cvt32(), index.cvt32());
    if (loops > 0) {
      Xbyak::Label loop;
      e_.L(loop);
      for (int u = 0; u < unroll; ++u) body(u, u * bytes(), false);
      e_.add(index, unroll * bytes() / 2);
      if (loops > 1) {
        e_.cmp(index, static_cast<uint32_t>(loops * unroll * bytes() / 2));
        e_.jb(loop);
      }
    }
    for (int u = 0; u < rest; ++u) body(u, u * bytes(), false);
    if (columns_.tail > 0) body(rest, rest * bytes(), true);
  }

 private:
  Emitter& e_;
  ColumnSplit columns_;
  Regs::VecList mask_;  // AVX2 with a tail
};

// A ymm constant of `count` (0..8) dwords of ones, the rest zero: a mask of vmaskmovps and vpmaskmovd.
Xbyak::Address DwordMask(Emitter& e, int count);

}  // namespace xjit
