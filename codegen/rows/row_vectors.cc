#include "codegen/rows/row_vectors.h"

#include <bit>

namespace xjit {

using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

ColumnSplit SplitColumns(int64_t cols, int lanes) {
  return {.lanes = lanes, .whole = cols / lanes, .tail = static_cast<int>(cols % lanes)};
}

Xbyak::Address DwordMask(Emitter& e, int count) {
  uint32_t mask[8] = {};
  for (int i = 0; i < count; ++i) mask[i] = ~0u;
  return e.ConstYmm(mask);
}

RowVectors::RowVectors(Emitter& e, Regs& regs, const ColumnSplit& columns, const Xbyak::Reg64& scratch)
    : e_(e), columns_(columns), mask_(regs.Vecs("tail mask", columns.lanes == 8 && columns.tail > 0 ? 1 : 0)) {
  if (columns.tail == 0) return;
  if (wide()) {
    e.mov(scratch.cvt32(), (1u << columns.tail) - 1);
    e.kmovw(e.k1, scratch.cvt32());
  } else {
    e.vmovups(mask_.Y(), DwordMask(e, columns.tail));
  }
}

void RowVectors::Load(int v, const Xbyak::RegExp& at, bool masked) const {
  if (!masked) {
    e_.vmovups(V(v), e_.ptr[at]);
  } else if (wide()) {
    e_.vmovups(Zmm(v) | e_.k1 | e_.T_z, e_.ptr[at]);
  } else {
    e_.vmaskmovps(Ymm(v), mask_.Y(), e_.ptr[at]);
  }
}

void RowVectors::Store(const Xbyak::RegExp& at, int v, bool masked) const {
  if (!masked) {
    e_.vmovups(e_.ptr[at], V(v));
  } else if (wide()) {
    e_.vmovups(e_.ptr[at] | e_.k1, Zmm(v));
  } else {
    e_.vmaskmovps(e_.ptr[at], mask_.Y(), Ymm(v));
  }
}

void RowVectors::Zero(int v) const { e_.vxorps(V(v), V(v), V(v)); }

void RowVectors::ZeroBeyond(int v) const {
  wide() ? e_.vmovaps(Zmm(v) | e_.k1 | e_.T_z, Zmm(v)) : e_.vandps(Ymm(v), Ymm(v), mask_.Y());
}

void RowVectors::Broadcast(int v, float value) const { BroadcastBits(v, std::bit_cast<uint32_t>(value)); }

void RowVectors::BroadcastBits(int v, uint32_t bits) const { e_.vbroadcastss(V(v), e_.ptr[e_.ConstLabel32(bits)]); }

void RowVectors::SumLanes(int v, int tmp) const {
  if (wide()) {
    e_.vextractf64x4(Ymm(tmp), Zmm(v), 1);
    e_.vaddps(Ymm(v), Ymm(v), Ymm(tmp));
  }
  e_.vextractf128(Xmm(tmp), Ymm(v), 1);
  e_.vaddps(Xmm(v), Xmm(v), Xmm(tmp));
  e_.vmovhlps(Xmm(tmp), Xmm(v), Xmm(v));
  e_.vaddps(Xmm(v), Xmm(v), Xmm(tmp));
  e_.vmovshdup(Xmm(tmp), Xmm(v));
  e_.vaddss(Xmm(v), Xmm(v), Xmm(tmp));
}

}  // namespace xjit
