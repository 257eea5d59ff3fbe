// rows.prepare to q8act with AVX-512: a group of 8 blocks is 16 vectors, its 8 maxima, scales and sums are one each.
#include <bit>
#include <cfloat>

#include "codegen/rows/prepare_emitter.h"
#include "ir/support/q8_layout.h"

namespace xjit {

using Xbyak::Ymm;
using Xbyak::Zmm;

namespace {

// zmm dword k of the result = dword k % 4 of 128-bit lane k / 4 transposed: four vectors packed within lanes come out
// in their order.
constexpr uint32_t kLanesToOrder[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};

constexpr int kBlockBytes = kQ8Block * 4;  // of x

}  // namespace

// Masks k4 (dwords of blocks) and k5 (dwords of half blocks) of a short group.
void PrepareEmitter::SetBlockMasks(int blocks) {
  if (blocks == 8) return;
  const auto mask = regs_.Gpr("mask");
  e_.mov((*mask).cvt32(), (1u << blocks) - 1);
  e_.kmovw(e_.k4, (*mask).cvt32());
  e_.mov((*mask).cvt32(), (1u << 2 * blocks) - 1);
  e_.kmovw(e_.k5, (*mask).cvt32());
}

void PrepareEmitter::EmitQ8ScalesWide(int blocks) {
  const Q8Layout layout{desc_.cols};
  const auto v = regs_.Vecs("v", 4);
  const auto t = regs_.Vecs("t", 8);
  const auto tmp = regs_.Vecs("tmp", 2);
  const auto zero = regs_.Vecs("zero");
  // A short group's missing blocks are this register of zeros.
  const auto block = [&](int i) { return i < blocks ? t.Z(i) : zero.Z(); };
  SetBlockMasks(blocks);
  if (blocks < 8) e_.vpxord(zero.Z(), zero.Z(), zero.Z());

  // max|x| of the blocks: 16 lanes of 8 vectors, halved four times with the vectors merged at each halving.
  const auto magnitude = regs_.Vecs("magnitude");
  vectors_->BroadcastBits(magnitude[0], 0x7fffffff);
  for (int b = 0; b < blocks; ++b) {
    const int lo = v[2 * b % 4], hi = v[2 * b % 4 + 1];
    LoadMagnitudes(lo, *q8_columns_, kBlockBytes * b, false, magnitude[0]);
    LoadMagnitudes(hi, *q8_columns_, kBlockBytes * b + 64, false, magnitude[0]);
    Max(t[b], lo, hi);
  }
  for (int i = 0; 2 * i < blocks; ++i) {
    const Zmm lo = block(2 * i), hi = block(2 * i + 1);
    e_.vunpcklps(tmp.Z(i % 2), lo, hi);
    e_.vunpckhps(t.Z(2 * i), lo, hi);
    Max(t[2 * i], tmp[i % 2], t[2 * i]);
  }
  for (int i = 0; 4 * i < blocks; ++i) {
    const Zmm lo = t.Z(4 * i), hi = block(4 * i + 2);
    e_.vunpcklpd(tmp.Z(i % 2), lo, hi);
    e_.vunpckhpd(t.Z(4 * i), lo, hi);
    Max(t[4 * i], tmp[i % 2], t[4 * i]);
  }
  const Zmm low4 = t.Z(0), high4 = block(4);
  e_.vshuff32x4(tmp.Z(0), low4, high4, 0x44);
  e_.vshuff32x4(t.Z(0), low4, high4, 0xee);
  Max(t[0], tmp[0], t[0]);
  e_.vshuff32x4(tmp.Z(0), t.Z(0), t.Z(0), 0x08);
  e_.vshuff32x4(t.Z(0), t.Z(0), t.Z(0), 0x0d);
  e_.vpmaxud(t.Y(0), t.Y(0), tmp.Y(0));

  const Ymm inverse = tmp.Y(0), scale = tmp.Y(1);
  e_.vbroadcastss(inverse, e_.ConstF32(127));
  e_.vdivps(scale, t.Y(0), inverse);
  e_.vdivps(inverse, inverse, t.Y(0));
  e_.vminps(inverse, inverse, e_.ptr_b[e_.ConstLabel32(std::bit_cast<uint32_t>(FLT_MAX))]);
  e_.vmovups(e_.ptr[*q8_inverse_], inverse);
  const auto at = e_.ptr[*out_ + *index_ + static_cast<size_t>(layout.scale_offset())];
  blocks < 8 ? e_.vmovups(at | e_.k4, scale) : e_.vmovups(at, scale);
}

void PrepareEmitter::EmitQ8IntegersWide(int blocks) {
  const Q8Layout layout{desc_.cols};
  const auto v = regs_.Vecs("v", 4);
  const auto q = regs_.Vecs("q", 4);
  const auto t = regs_.Vecs("t", 6);
  const auto tmp = regs_.Vecs("tmp");
  const auto zero = regs_.Vecs("zero");
  const auto order = regs_.Vecs("order");
  const auto ones8 = regs_.Vecs("ones8");
  const auto ones16 = regs_.Vecs("ones16");
  SetBlockMasks(blocks);
  e_.vpxord(zero.Z(), zero.Z(), zero.Z());
  e_.vmovdqu32(order.Z(), e_.ConstZmm(kLanesToOrder));
  e_.vpbroadcastd(ones8.Z(), e_.ptr[e_.ConstLabel32(0x01010101)]);
  if (!plan_.native_dot) e_.vpbroadcastd(ones16.Z(), e_.ptr[e_.ConstLabel32(0x00010001)]);

  // Two blocks a store: four vectors of dwords become one of bytes, then sums of 4 neighbours.
  const int pairs = (blocks + 1) / 2;
  for (int j = 0; j < pairs; ++j) {
    const bool both = 2 * j + 1 < blocks;
    for (int i = 0; i < (both ? 4 : 2); ++i) {
      LoadColumns(v[i], *q8_columns_, 2 * kBlockBytes * j + 64 * i, false);
      e_.vmulps(v.Z(i), v.Z(i), e_.ptr_b[*q8_inverse_ + 8 * j + 4 * (i / 2)]);
      e_.vcvtps2dq(v.Z(i), v.Z(i));
    }
    e_.vpackssdw(v.Z(0), v.Z(0), v.Z(1));
    if (both) e_.vpackssdw(v.Z(2), v.Z(2), v.Z(3));
    e_.vpacksswb(q.Z(j), v.Z(0), both ? v.Z(2) : zero.Z());
    e_.vpermd(q.Z(j), order.Z(), q.Z(j));
    const auto at = *out_ + *index_ * 8 + 64 * j;
    both ? e_.vmovdqu32(e_.ptr[at], q.Z(j)) : e_.vmovdqu(e_.ptr[at], q.Y(j));
    if (plan_.native_dot) {
      e_.vpxord(t.Z(j), t.Z(j), t.Z(j));
      e_.vpdpbusd(t.Z(j), ones8.Z(), q.Z(j));
    } else {
      e_.vpmaddubsw(t.Z(j), ones8.Z(), q.Z(j));
      e_.vpmaddwd(t.Z(j), t.Z(j), ones16.Z());
    }
  }
  // Of each 16 values four dwords are left: added for four vectors at once.
  const auto pair = [&](int j) { return j < pairs ? t.Z(j) : zero.Z(); };
  const auto add_halves = [&](const Zmm& into, const Zmm& a, const Zmm& b, bool qwords) {
    qwords ? e_.vpunpcklqdq(tmp.Z(), a, b) : e_.vpunpckldq(tmp.Z(), a, b);
    qwords ? e_.vpunpckhqdq(into, a, b) : e_.vpunpckhdq(into, a, b);
    e_.vpaddd(into, into, tmp.Z());
  };
  add_halves(t.Z(4), t.Z(0), pair(1), false);
  if (pairs > 2) add_halves(t.Z(5), t.Z(2), pair(3), false);
  add_halves(t.Z(4), t.Z(4), pairs > 2 ? t.Z(5) : zero.Z(), true);
  e_.vpermd(t.Z(4), order.Z(), t.Z(4));  // 16 half sums in order

  const auto store = [&](int64_t offset, const Ymm& y) {
    const auto at = e_.ptr[*out_ + *index_ + static_cast<size_t>(offset)];
    blocks < 8 ? e_.vmovups(at | e_.k4, y) : e_.vmovups(at, y);
  };
  const auto halves_at = e_.ptr[*out_ + *index_ * 2 + static_cast<size_t>(layout.neg_half_sum_offset())];
  e_.vpsubd(t.Z(5), zero.Z(), t.Z(4));
  blocks < 8 ? e_.vmovdqu32(halves_at | e_.k5, t.Z(5)) : e_.vmovdqu32(halves_at, t.Z(5));
  e_.vpsrlq(t.Z(5), t.Z(4), 32);
  e_.vpaddd(t.Z(4), t.Z(4), t.Z(5));
  e_.vpmovqd(t.Y(4), t.Z(4));  // 8 sums
  e_.vpsubd(t.Y(5), zero.Y(), t.Y(4));
  store(layout.neg_sum_offset(), t.Y(5));
  const auto scale_at = e_.ptr[*out_ + *index_ + static_cast<size_t>(layout.scale_offset())];
  blocks < 8 ? e_.vmovups(tmp.Y() | e_.k4 | e_.T_z, scale_at) : e_.vmovups(tmp.Y(), scale_at);
  e_.vcvtdq2ps(t.Y(4), t.Y(4));
  e_.vmulps(t.Y(4), t.Y(4), tmp.Y());
  store(layout.scaled_sum_offset(), t.Y(4));
}

}  // namespace xjit
