// rows.prepare to q8act with AVX2: a block is 4 vectors, the 8 maxima, scales and sums of a group are one each.
#include <bit>
#include <cfloat>

#include "codegen/rows/prepare_emitter.h"
#include "ir/support/q8_layout.h"

namespace xjit {

using Xbyak::RegExp;
using Xbyak::Ymm;

namespace {

// Two 128-bit lanes of four dwords, taken alternately: what packs and horizontal additions leave, put in order.
constexpr uint32_t kLanesToOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr int kBlockBytes = kQ8Block * 4;  // of x

struct All {
  uint32_t word[8];
  explicit All(uint32_t w) : word{w, w, w, w, w, w, w, w} {}
};

// Stores the first `count` of 8 dwords; `mask` is clobbered.
void StoreDwords(Emitter& e, const RegExp& at, const Ymm& y, const Ymm& mask, int count) {
  if (count <= 0) return;
  if (count >= 8) return e.vmovups(e.ptr[at], y);
  e.vmovups(mask, DwordMask(e, count));
  e.vmaskmovps(e.ptr[at], mask, y);
}

}  // namespace

void PrepareEmitter::EmitQ8ScalesNarrow(int blocks) {
  const Q8Layout layout{desc_.cols};
  const auto t = regs_.Vecs("t", 8);
  {
    const auto v = regs_.Vecs("v", 2);  // gathering takes three more
    const auto magnitude = regs_.Vecs("magnitude");
    vectors_->BroadcastBits(magnitude[0], 0x7fffffff);
    for (int b = 0; b < blocks; ++b) {
      for (int i = 0; i < 4; ++i) {
        const int to = i == 0 ? t[b] : v[i % 2];
        LoadMagnitudes(to, *q8_columns_, kBlockBytes * b + 32 * i, false, magnitude[0]);
        if (i > 0) Max(t[b], t[b], to);
      }
    }
  }
  const auto v = regs_.Vecs("v", 4);
  const auto tmp = regs_.Vecs("tmp");
  for (int b = blocks; b < 8; ++b) e_.vxorps(t.Y(b), t.Y(b), t.Y(b));
  // 8 lanes of 8 vectors, halved three times with the vectors merged at each halving.
  for (int i = 0; i < 4; ++i) {
    e_.vunpcklps(v.Y(i), t.Y(2 * i), t.Y(2 * i + 1));
    e_.vunpckhps(t.Y(2 * i), t.Y(2 * i), t.Y(2 * i + 1));
    Max(t[2 * i], v[i], t[2 * i]);
  }
  for (int i = 0; i < 2; ++i) {
    e_.vunpcklpd(v.Y(i), t.Y(4 * i), t.Y(4 * i + 2));
    e_.vunpckhpd(t.Y(4 * i), t.Y(4 * i), t.Y(4 * i + 2));
    Max(t[4 * i], v[i], t[4 * i]);
  }
  e_.vperm2f128(tmp.Y(), t.Y(0), t.Y(4), 0x20);
  e_.vperm2f128(t.Y(0), t.Y(0), t.Y(4), 0x31);
  Max(t[0], tmp[0], t[0]);

  const All largest(std::bit_cast<uint32_t>(FLT_MAX));
  const Ymm inverse = tmp.Y(), scale = t.Y(1);
  e_.vbroadcastss(inverse, e_.ConstF32(127));
  e_.vdivps(scale, t.Y(0), inverse);
  e_.vdivps(inverse, inverse, t.Y(0));
  e_.vminps(inverse, inverse, e_.ConstYmm(&largest));
  e_.vmovups(e_.ptr[*q8_inverse_], inverse);
  StoreDwords(e_, *out_ + *index_ + static_cast<size_t>(layout.scale_offset()), scale, t.Y(2), blocks);
}

void PrepareEmitter::EmitQ8IntegersNarrow(int blocks) {
  const Q8Layout layout{desc_.cols};
  const auto v = regs_.Vecs("v", 4);
  const auto t = regs_.Vecs("t", 8);
  // Gathering takes three registers more: then these are free between loads only.
  const auto inverse = regs_.Vecs("inverse", desc_.gather ? 0 : 1);
  const auto kept_order = regs_.Vecs("order", desc_.gather ? 0 : 1);
  const auto put_in_order = [&](const Ymm& y) {
    const auto loaded = regs_.Vecs("order", desc_.gather ? 1 : 0);
    const Ymm order = desc_.gather ? loaded.Y() : kept_order.Y();
    if (desc_.gather) e_.vmovdqu(order, e_.ConstYmm(kLanesToOrder));
    e_.vpermd(y, order, y);
  };
  const auto scale_up = [&](const Ymm& y, int b) {
    const auto loaded = regs_.Vecs("inverse", desc_.gather ? 1 : 0);
    if (desc_.gather) e_.vbroadcastss(loaded.Y(), e_.ptr[*q8_inverse_ + 4 * b]);
    e_.vmulps(y, y, desc_.gather ? loaded.Y() : inverse.Y());
  };
  if (!desc_.gather) e_.vmovdqu(kept_order.Y(), e_.ConstYmm(kLanesToOrder));
  const All ones8(0x01010101), ones16(0x00010001);
  for (int b = 0; b < blocks; ++b) {
    if (!desc_.gather) e_.vbroadcastss(inverse.Y(), e_.ptr[*q8_inverse_ + 4 * b]);
    for (int i = 0; i < 4; ++i) {
      LoadColumns(v[i], *q8_columns_, kBlockBytes * b + 32 * i, false);
      scale_up(v.Y(i), b);
      e_.vcvtps2dq(v.Y(i), v.Y(i));
    }
    e_.vpackssdw(v.Y(0), v.Y(0), v.Y(1));
    e_.vpackssdw(v.Y(2), v.Y(2), v.Y(3));
    e_.vpacksswb(v.Y(0), v.Y(0), v.Y(2));
    put_in_order(v.Y(0));
    e_.vmovdqu(e_.ptr[*out_ + *index_ * 8 + kQ8Block * b], v.Y(0));
    // Lane 0: four sums of the first half block, lane 1: of the second.
    e_.vmovdqu(t.Y(b), e_.ConstYmm(&ones8));
    e_.vpmaddubsw(t.Y(b), t.Y(b), v.Y(0));
    e_.vpmaddwd(t.Y(b), t.Y(b), e_.ConstYmm(&ones16));
  }
  const Ymm zero = v.Y(0), mask = v.Y(1), scale = v.Y(2);
  for (int b = blocks; b < 8; ++b) e_.vpxor(t.Y(b), t.Y(b), t.Y(b));
  e_.vpxor(zero, zero, zero);
  for (int j = 0; j < 2; ++j) {  // t[4 j] = 8 half sums of blocks 4 j ..
    e_.vphaddd(t.Y(4 * j), t.Y(4 * j), t.Y(4 * j + 1));
    e_.vphaddd(t.Y(4 * j + 2), t.Y(4 * j + 2), t.Y(4 * j + 3));
    e_.vphaddd(t.Y(4 * j), t.Y(4 * j), t.Y(4 * j + 2));
    put_in_order(t.Y(4 * j));
    e_.vpsubd(t.Y(4 * j + 1), zero, t.Y(4 * j));
    const auto at = *out_ + *index_ * 2 + static_cast<size_t>(layout.neg_half_sum_offset() + 32 * j);
    StoreDwords(e_, at, t.Y(4 * j + 1), mask, 2 * (blocks - 4 * j));
  }
  e_.vphaddd(t.Y(0), t.Y(0), t.Y(4));  // sums of blocks 0 1 4 5, 2 3 6 7
  e_.vpermq(t.Y(0), t.Y(0), 0xd8);
  e_.vpsubd(t.Y(1), zero, t.Y(0));
  StoreDwords(e_, *out_ + *index_ + static_cast<size_t>(layout.neg_sum_offset()), t.Y(1), mask, blocks);
  const auto scale_at = e_.ptr[*out_ + *index_ + static_cast<size_t>(layout.scale_offset())];
  if (blocks < 8) e_.vmovups(mask, DwordMask(e_, blocks));
  blocks < 8 ? e_.vmaskmovps(scale, mask, scale_at) : e_.vmovups(scale, scale_at);
  e_.vcvtdq2ps(t.Y(0), t.Y(0));
  e_.vmulps(t.Y(0), t.Y(0), scale);
  StoreDwords(e_, *out_ + *index_ + static_cast<size_t>(layout.scaled_sum_offset()), t.Y(0), mask, blocks);
}

}  // namespace xjit
