#include "codegen/gemm/gemm_int8_tile.h"

#include <array>

namespace xjit {

using Xbyak::Reg64;
using Xbyak::RegExp;

namespace {

// Registers for weights of a unit: two to alternate; with pairs the even and the odd k, of all vectors where there is
// room.
int WeightRegisters(const Lanes& lanes, Int8Dot dot) {
  if (dot == Int8Dot::kPairs) return lanes.wide() ? 4 : 2;
  return lanes.wide() ? 4 : 1;
}
int ActivationRegisters(const Lanes& lanes, Int8Dot dot, int rows) {
  if (dot == Int8Dot::kPairs) return lanes.wide() ? 2 : 2 * rows;
  return lanes.wide() ? 4 : rows;
}

}  // namespace

Int8Tile::Int8Tile(const Lanes& lanes, Int8Dot dot, int rows, int chains, const Int8Rows& layout,
                   const Pointers& pointers, Emitter& e, Regs& regs)
    : lanes_(lanes),
      dot_(dot),
      rows_(rows),
      chains_(chains),
      vectors_(lanes.per_panel()),
      layout_(layout),
      p_(pointers),
      e_(e),
      regs_(regs),
      acc_(regs.Vecs("sums", rows * vectors_ * chains)) {}

Int8Tile::Operands Int8Tile::TakeOperands() {
  return {regs_.Vecs("weights", WeightRegisters(lanes_, dot_)),
          regs_.Vecs("activations", ActivationRegisters(lanes_, dot_, rows_)),
          regs_.Vecs("product", dot_ != Int8Dot::kPairs ? 0
                                : lanes_.wide()         ? 2
                                                        : 1)};
}

void Int8Tile::Start() {
  for (int row = 0; row < rows_; ++row) {
    const int first = acc(row, 0);
    e_.vpbroadcastd(lanes_(first), e_.dword[RegExp(p_.scale) + (row * layout_.scale_stride + layout_.neg_sum_at)]);
    e_.vpslld(lanes_(first), lanes_(first), 7);
    for (int v = 0; v < vectors_; ++v) {
      if (v > 0) e_.vmovaps(lanes_(acc(row, v)), lanes_(first));
      for (int chain = 1; chain < chains_; ++chain) lanes_.Zero(acc(row, v, chain));
    }
  }
}

void Int8Tile::Zero() {
  for (size_t i = 0; i < acc_.size(); ++i) lanes_.Zero(acc_[i]);
}

void Int8Tile::Load(const Reg64& from) {
  for (int row = 0; row < rows_; ++row) {
    for (int v = 0; v < vectors_; ++v) {
      e_.vmovaps(lanes_(acc(row, v)), e_.ptr[from + (row * vectors_ + v) * lanes_.bytes()]);
      for (int chain = 1; chain < chains_; ++chain) lanes_.Zero(acc(row, v, chain));
    }
  }
}

void Int8Tile::Store(const Reg64& to) {
  JoinChains();
  for (int row = 0; row < rows_; ++row) {
    for (int v = 0; v < vectors_; ++v) {
      e_.vmovaps(e_.ptr[to + (row * vectors_ + v) * lanes_.bytes()], lanes_(acc(row, v)));
    }
  }
}

Xbyak::Address Int8Tile::Weights(int unit, int v) const {
  return e_.ptr[RegExp(p_.weights) + (unit * kPanelColumns * 4 + v * lanes_.bytes())];
}

// Of int16 pairs, those of even k; those of odd k are kInt8Chunk bytes behind.
RegExp Int8Tile::Activations(int row, int unit) const { return RegExp(p_.a) + (row * layout_.stride + 4 * unit); }

void Int8Tile::Unit(int unit, const Operands& o) {
  if (dot_ != Int8Dot::kPairs) return DotUnit(unit, o);
  lanes_.wide() ? PairsUnitWide(unit, o) : PairsUnitNarrow(unit, o);
}

void Int8Tile::DotUnit(int unit, const Operands& o) {
  const int chain = unit % chains_;
  const auto encoding = dot_ == Int8Dot::kVex ? Xbyak::VexEncoding : Xbyak::EvexEncoding;
  if (lanes_.wide()) {  // both vectors of weights, then row by row
    const size_t set = unit % 2 * 2;
    for (size_t v = 0; v < 2; ++v) e_.vmovdqu32(o.w.Z(set + v), Weights(unit, static_cast<int>(v)));
    for (int row = 0; row < rows_; ++row) {
      const auto a = o.a.Z(static_cast<size_t>(turn_++ % 4));
      e_.vpbroadcastd(a, e_.dword[Activations(row, unit)]);
      for (int v = 0; v < 2; ++v)
        e_.vpdpbusd(lanes_(acc(row, v, chain)), o.w.Z(set + static_cast<size_t>(v)), a, encoding);
    }
    return;
  }
  for (int row = 0; row < rows_; ++row)
    e_.vpbroadcastd(o.a.Y(static_cast<size_t>(row)), e_.dword[Activations(row, unit)]);
  for (int v = 0; v < vectors_; ++v) {
    e_.vmovdqu(o.w.Y(), Weights(unit, v));
    for (int row = 0; row < rows_; ++row) {
      e_.vpdpbusd(lanes_(acc(row, v, chain)), o.w.Y(), o.a.Y(static_cast<size_t>(row)), encoding);
    }
  }
}

// acc += products of int16 pairs: at most 2 * 255 * 128 each.
void Int8Tile::AddPairs(int acc, int w, int a, const Operands& o) {
  const int t = o.t[static_cast<size_t>(turn_++) % o.t.size()];
  e_.vpmaddwd(lanes_(t), lanes_(w), lanes_(a));
  e_.vpaddd(lanes_(acc), lanes_(acc), lanes_(t));
}

void Int8Tile::PairsUnitWide(int unit, const Operands& o) {
  for (int v = 0; v < 2; ++v) {
    const int even = o.w[static_cast<size_t>(2 * v)], odd = o.w[static_cast<size_t>(2 * v + 1)];
    e_.vmovdqu32(lanes_(even), Weights(unit, v));
    e_.vpsrlw(lanes_(odd), lanes_(even), 8);
    e_.vpandd(lanes_(even), lanes_(even), e_.ptr_b[e_.ConstLabel32(0x00ff00ff)]);
  }
  for (int row = 0; row < rows_; ++row) {
    for (int odd = 0; odd < 2; ++odd) {
      const int a = o.a[static_cast<size_t>(odd)];
      e_.vpbroadcastd(lanes_(a), e_.dword[Activations(row, unit) + odd * kInt8Chunk]);
      for (int v = 0; v < 2; ++v) AddPairs(acc(row, v, unit % chains_), o.w[static_cast<size_t>(2 * v + odd)], a, o);
    }
  }
}

void Int8Tile::PairsUnitNarrow(int unit, const Operands& o) {
  const std::array<uint32_t, 8> low = {0xff00ff, 0xff00ff, 0xff00ff, 0xff00ff, 0xff00ff, 0xff00ff, 0xff00ff, 0xff00ff};
  for (int row = 0; row < rows_; ++row) {
    for (int odd = 0; odd < 2; ++odd) {
      e_.vpbroadcastd(lanes_(o.a[static_cast<size_t>(2 * row + odd)]),
                      e_.dword[Activations(row, unit) + odd * kInt8Chunk]);
    }
  }
  for (int v = 0; v < vectors_; ++v) {
    const int even = o.w[0], odd = o.w[1];
    e_.vmovdqu(lanes_(even), Weights(unit, v));
    e_.vpsrlw(lanes_(odd), lanes_(even), 8);
    e_.vpand(lanes_(even), lanes_(even), e_.ConstYmm(low.data()));
    for (int row = 0; row < rows_; ++row) {
      AddPairs(acc(row, v, unit % chains_), even, o.a[static_cast<size_t>(2 * row)], o);
      AddPairs(acc(row, v, unit % chains_), odd, o.a[static_cast<size_t>(2 * row + 1)], o);
    }
  }
}

void Int8Tile::JoinChains() {
  for (int step = chains_ / 2; step > 0; step /= 2) {
    for (int row = 0; row < rows_; ++row) {
      for (int v = 0; v < vectors_; ++v) {
        for (int chain = 0; chain < step; ++chain) {
          e_.vpaddd(lanes_(acc(row, v, chain)), lanes_(acc(row, v, chain)), lanes_(acc(row, v, chain + step)));
        }
      }
    }
  }
}

std::vector<int> Int8Tile::Sums(int row) const {
  std::vector<int> sums;
  for (int v = 0; v < vectors_; ++v) sums.push_back(acc(row, v));
  return sums;
}

std::vector<int> Int8Tile::Scaled(int row, const RegExp& scales) {
  const auto scale = regs_.Vecs("scale");
  const int sa = scale[0];
  const std::vector<int> sums = Sums(row);
  e_.vbroadcastss(lanes_(sa), e_.dword[RegExp(p_.scale) + row * layout_.scale_stride]);
  for (int v = 0; v < vectors_; ++v) {
    const int sum = sums[static_cast<size_t>(v)];
    e_.vcvtdq2ps(lanes_(sum), lanes_(sum));
    e_.vmulps(lanes_(sum), lanes_(sum), lanes_(sa));
    e_.vmulps(lanes_(sum), lanes_(sum), e_.ptr[scales + v * lanes_.bytes()]);
  }
  return sums;
}

void EmitInt8Pairs(const Lanes& lanes, const RegExp& from, const RegExp& to, Emitter& e, Regs& regs) {
  const auto t = regs.Vecs("pairs", 2);
  for (int at = 0; at < kInt8Chunk; at += lanes.bytes()) {
    const Xbyak::Xmm odd = lanes(t[0]), even = lanes(t[1]);
    e.vmovups(odd, e.ptr[from + at]);
    e.vpsllw(even, odd, 8);
    e.vpsraw(even, even, 8);
    e.vpsraw(odd, odd, 8);
    e.vmovups(e.ptr[to + at], even);
    e.vmovups(e.ptr[to + (kInt8Chunk + at)], odd);
  }
}

}  // namespace xjit
