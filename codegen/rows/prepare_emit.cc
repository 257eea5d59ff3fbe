#include <bit>

#include "codegen/rows/prepare_emitter.h"
#include "ir/support/align.h"

namespace xjit {

constexpr uint8_t kNearestEven = 0;  // of vcvtps2ph

using Xbyak::RegExp;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

PrepareEmitter::PrepareEmitter(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e)
    : desc_(desc),
      plan_(plan),
      e_(e),
      wide_(plan.columns.lanes == 16),
      regs_(wide_ ? 32 : 16),
      x_(regs_.Gpr("x")),
      gain_(regs_.Gpr("gain")),
      order_(regs_.Gpr("order")),
      out_(regs_.Gpr("out")),
      rows_(regs_.Gpr("rows")),
      index_(regs_.Gpr("index")),
      strip_left_(regs_.Gpr("strip_left")),
      strip_index_(regs_.FreeArguments().Gpr("strip_index")),
      norm_(regs_.Vecs("norm", desc.norm ? 1 : 0)),
      q8_columns_(regs_.Gpr("columns")),
      q8_inverse_(regs_.Gpr("inverse")) {}

absl::Status PrepareEmitter::Emit() {
  const bool q8 = desc_.out == DType::kQ8Act;
  e_.Prologue(q8 ? kChunkGroups * kGroupBytes : 0);
  e_.mov(x_, e_.ptr[e_.arg_args + offsetof(PrepareArgs, x)]);
  if (desc_.norm) e_.mov(gain_, e_.ptr[e_.arg_args + offsetof(PrepareArgs, gain)]);
  if (desc_.gather) e_.mov(order_, e_.ptr[e_.arg_args + offsetof(PrepareArgs, order)]);
  e_.mov(out_, e_.ptr[e_.arg_args + offsetof(PrepareArgs, out)]);
  e_.imul(index_, e_.arg_m0, static_cast<int>(desc_.ldx_bytes));
  e_.add(x_, index_);
  FirstOutput();
  e_.mov(rows_, e_.arg_m1);
  Xbyak::Label row, done;
  e_.sub(rows_, e_.arg_m0);
  e_.jle(done);
  RowVectors vectors(e_, regs_, plan_.columns, index_);
  vectors_ = &vectors;

  e_.L(row);
  if (desc_.norm) EmitNormScale();
  if (desc_.out == DType::kF32) EmitF32();
  if (desc_.out == DType::kBF16 || desc_.out == DType::kF16) EmitHalves();
  if (q8) EmitQ8();
  if (desc_.out == DType::kI8Act) EmitI8();
  e_.add(x_, static_cast<uint32_t>(desc_.ldx_bytes));
  NextOutput();
  e_.dec(rows_);
  e_.jnz(row);
  e_.L(done);
  e_.Epilogue();
  return regs_.status();
}

void PrepareEmitter::FirstOutput() {
  if (!desc_.strips) {
    e_.imul(index_, e_.arg_m0, static_cast<int>(desc_.ldo_bytes));
    e_.add(out_, index_);
    return;
  }
  e_.mov(index_, e_.arg_m0);
  e_.shr(index_, std::countr_zero(static_cast<unsigned>(kStripRows)));
  e_.imul(index_, index_, static_cast<int>(OutputStrips(desc_).strip_bytes()));
  e_.add(out_, index_);
  e_.mov(index_, e_.arg_m0);
  e_.and_(index_, kStripRows - 1);
  e_.mov((*strip_left_).cvt32(), kStripRows);
  e_.sub(strip_left_, index_);
  e_.imul(index_, index_, kStripChunk);
  e_.add(out_, index_);
}

void PrepareEmitter::NextOutput() {
  if (!desc_.strips) return e_.add(out_, static_cast<uint32_t>(desc_.ldo_bytes));
  Xbyak::Label same;
  e_.add(out_, kStripChunk);
  e_.dec(strip_left_);
  e_.jnz(same);
  e_.add(out_, static_cast<uint32_t>(OutputStrips(desc_).strip_bytes() - kStripRows * kStripChunk));
  e_.mov((*strip_left_).cvt32(), kStripRows);
  e_.L(same);
}

void PrepareEmitter::SetStripIndex(const Xbyak::Reg64& index) {
  if (!desc_.strips) return;
  e_.mov(strip_index_, index);
  e_.shl(strip_index_, std::countr_zero(static_cast<unsigned>(kStripRows)));
}

RegExp PrepareEmitter::OutputAt(const Xbyak::Reg64& index, int offset) const {
  if (!desc_.strips) return *out_ + index + offset;
  return *out_ + *strip_index_ + static_cast<size_t>(OutputStrips(desc_).offset(0, offset));
}

void PrepareEmitter::PadChunk(int64_t begin, int v) {
  const int64_t end = AlignUp(begin, kStripChunk);
  if (begin == end) return;
  e_.vpxor(Xmm(v), Xmm(v), Xmm(v));
  for (int64_t b = begin; b < end;) {
    const bool half = b % 32 == 0;
    const auto at = e_.ptr[*out_ + static_cast<size_t>(OutputStrips(desc_).offset(0, b))];
    half ? e_.vmovdqu(at, Ymm(v)) : e_.vmovdqu(at, Xmm(v));
    b += half ? 32 : 16;
  }
}

void PrepareEmitter::EmitNormScale() {
  const auto sum = regs_.Vecs("sum", plan_.sums);
  const auto t = regs_.Vecs("t", 2);
  const RowVectors& v = *vectors_;
  for (int i = 0; i < plan_.sums; ++i) v.Zero(sum[i]);
  // One accumulator each, since one chain of fused multiply-adds would run at their latency.
  v.ForColumns(plan_.sums, index_, [&](int u, int offset, bool masked) {
    v.Load(t[u % 2], *x_ + *index_ * 2 + offset, masked);
    e_.vfmadd231ps(v.V(sum[u % plan_.sums]), v.V(t[u % 2]), v.V(t[u % 2]));
  });
  for (int n = plan_.sums; n > 1; n = (n + 1) / 2) {
    for (int i = 0; i < n / 2; ++i) e_.vaddps(v.V(sum[i]), v.V(sum[i]), v.V(sum[i + (n + 1) / 2]));
  }
  v.SumLanes(sum[0], t[0]);
  const Xmm s(sum[0]), one(t[0]);
  e_.vdivss(s, s, e_.ConstF32(static_cast<float>(desc_.cols)));
  e_.vaddss(s, s, e_.ConstF32(desc_.eps));
  e_.vsqrtss(s, s, s);
  e_.vmovss(one, e_.ConstF32(1));
  e_.vdivss(s, one, s);
  e_.vbroadcastss(v.V(norm_[0]), s);
}

void PrepareEmitter::LoadColumns(int v, const RegExp& index, int offset, bool masked) {
  const RowVectors& vec = *vectors_;
  if (desc_.gather) return GatherColumns(v, index, offset, masked);
  if (masked) {
    vec.Load(v, *x_ + index + offset, true);
    if (!desc_.norm) return;
    const auto g = regs_.Vecs("gain");
    vec.Load(g[0], *gain_ + index + offset, true);
    e_.vmulps(vec.V(v), vec.V(v), vec.V(norm_[0]));
    e_.vmulps(vec.V(v), vec.V(v), vec.V(g[0]));
    vec.ZeroBeyond(v);  // 0 times a norm of infinity is no number
  } else if (desc_.norm) {
    e_.vmulps(vec.V(v), vec.V(norm_[0]), e_.ptr[*x_ + index + offset]);
    e_.vmulps(vec.V(v), vec.V(v), e_.ptr[*gain_ + index + offset]);
  } else {
    vec.Load(v, *x_ + index + offset, false);
  }
}

void PrepareEmitter::GatherColumns(int v, const RegExp& index, int offset, bool masked) {
  const RowVectors& vec = *vectors_;
  const auto place = regs_.Vecs("place"), g = regs_.Vecs("gathered gain", desc_.norm ? 1 : 0);
  const auto mask = regs_.Vecs("mask", wide_ ? 0 : 1);
  // A gather uses its mask up, and leaves the lanes of other bits as they are.
  const auto gather = [&](int to, const Xbyak::Reg64& base) {
    vec.Zero(to);
    if (wide_) {
      masked ? e_.kmovw(e_.k6, e_.k1) : e_.kxnorw(e_.k6, e_.k6, e_.k6);
      e_.vgatherdps(Zmm(to) | e_.k6, e_.ptr[base + place.Z() * 4]);
    } else {
      masked ? vec.CopyMask(mask[0]) : e_.vpcmpeqd(mask.Y(), mask.Y(), mask.Y());
      e_.vgatherdps(Ymm(to), e_.ptr[base + place.Y() * 4], mask.Y());
    }
  };
  vec.Load(place[0], *order_ + index + offset, masked);
  gather(v, x_);
  if (!desc_.norm) return;
  gather(g[0], gain_);
  e_.vmulps(vec.V(v), vec.V(v), vec.V(norm_[0]));
  e_.vmulps(vec.V(v), vec.V(v), vec.V(g[0]));
  if (masked) vec.ZeroBeyond(v);
}

void PrepareEmitter::LoadMagnitudes(int v, const RegExp& index, int offset, bool masked, int magnitude) {
  const bool plain = !masked && !desc_.norm && !desc_.gather;
  const Xmm to = vectors_->V(v), bits = vectors_->V(magnitude);
  if (plain) return e_.vandps(to, bits, e_.ptr[*x_ + index + offset]);
  LoadColumns(v, index, offset, masked);
  e_.vandps(to, to, bits);
}

void PrepareEmitter::Max(int to, int a, int b) { e_.vpmaxud(vectors_->V(to), vectors_->V(a), vectors_->V(b)); }

void PrepareEmitter::EmitF32() {
  const auto t = regs_.Vecs("t", plan_.unroll);
  vectors_->ForColumns(plan_.unroll, index_, [&](int u, int offset, bool masked) {
    LoadColumns(t[u % plan_.unroll], *index_ * 2, offset, masked);
    vectors_->Store(*out_ + *index_ * 2 + offset, t[u % plan_.unroll], masked);
  });
}

// Round half to even on the bits: u + 0x7fff + bit 16 of u, upper half. A NaN would overflow into a number, so it keeps
// its upper half with the quiet bit set, as vcvtneps2bf16 leaves it.
void PrepareEmitter::RoundToBf16(int v, int t) {
  const auto bits = [&](uint32_t value) {
    const uint32_t all[8] = {value, value, value, value, value, value, value, value};
    return wide_ ? e_.ptr_b[e_.ConstLabel32(value)] : e_.ConstYmm(all);
  };
  const Xmm x = vectors_->V(v), r = vectors_->V(t);
  if (wide_) {
    e_.vcmpps(e_.k3, x, x, 3);
    e_.vpsrld(r, x, 16);
    e_.vpandd(r, r, bits(1));
    e_.vpaddd(r, r, x);
    e_.vpaddd(r, r, bits(0x7fff));
    e_.vpord(r | e_.k3, x, bits(0x400000));
    e_.vpsrld(x, r, 16);
  } else {
    const auto nan = regs_.Vecs("nan");
    const Xmm n = nan.Y();
    e_.vpsrld(r, x, 16);
    e_.vpand(r, r, bits(1));
    e_.vpaddd(r, r, x);
    e_.vpaddd(r, r, bits(0x7fff));
    e_.vcmpps(n, x, x, 3);
    e_.vpor(x, x, bits(0x400000));
    e_.vblendvps(r, r, x, n);
    e_.vpsrld(x, r, 16);
  }
}

void PrepareEmitter::EmitHalves() {
  const auto t = regs_.Vecs("t", plan_.unroll);
  const auto tmp = regs_.Vecs("tmp");
  const int tail_dwords = (plan_.columns.tail + 1) / 2;  // an odd last column is followed by a zero
  if (wide_ && tail_dwords > 0) {
    e_.mov((*index_).cvt32(), (1u << tail_dwords) - 1);
    e_.kmovw(e_.k2, (*index_).cvt32());
  }
  vectors_->ForColumns(plan_.unroll, index_, [&](int u, int offset, bool masked) {
    const int v = t[u % plan_.unroll];
    if (u == 0) SetStripIndex(index_);
    const RegExp at = OutputAt(index_, offset / 2);
    LoadColumns(v, *index_ * 2, offset, masked);
    if (desc_.out == DType::kF16) {
      wide_ ? e_.vcvtps2ph(Ymm(v), Zmm(v), kNearestEven) : e_.vcvtps2ph(Xmm(v), Ymm(v), kNearestEven);
    } else if (plan_.native_bf16) {
      e_.vcvtneps2bf16(Ymm(v), Zmm(v));
    } else {
      RoundToBf16(v, tmp[0]);
      if (wide_) {
        e_.vpmovdw(Ymm(v), Zmm(v));
      } else {
        e_.vpackusdw(Ymm(v), Ymm(v), Ymm(v));
        e_.vpermq(Ymm(v), Ymm(v), 0x08);
      }
    }
    const bool partly = masked && !desc_.strips;  // a strip's chunk is filled up with zeros
    if (wide_) {
      partly ? e_.vmovdqu32(e_.ptr[at] | e_.k2, Ymm(v)) : e_.vmovdqu(e_.ptr[at], Ymm(v));
    } else if (partly) {
      e_.vmovdqa(Ymm(tmp[0]), DwordMask(e_, tail_dwords));
      e_.vpmaskmovd(e_.ptr[at], Xmm(tmp[0]), Xmm(v));
    } else {
      e_.vmovdqu(e_.ptr[at], Xmm(v));
    }
  });
  if (desc_.strips) PadChunk(AlignUp(desc_.cols, plan_.columns.lanes) * 2, t[0]);
}

void PrepareEmitter::EmitQ8() {
  const auto start = regs_.Gpr("start"), end = regs_.Gpr("end");
  const auto total = static_cast<uint32_t>(plan_.groups * kGroupBytes);
  e_.xor_((*index_).cvt32(), (*index_).cvt32());
  if (plan_.groups > 0) {
    Xbyak::Label chunk;
    e_.L(chunk);
    e_.mov(start, index_);
    if (plan_.groups > kChunkGroups) {
      e_.lea(end, e_.ptr[*index_ + kChunkGroups * kGroupBytes]);
      e_.mov(q8_columns_, total);
      e_.cmp(end, q8_columns_);
      e_.cmova(end, q8_columns_);
    } else {
      e_.mov(end, total);
    }
    for (bool scales : {true, false}) {
      Xbyak::Label group;
      e_.mov(index_, start);
      e_.mov(q8_inverse_, e_.rsp);
      e_.L(group);
      EmitQ8Group(8, scales);
      e_.add(index_, kGroupBytes);
      e_.add(q8_inverse_, kGroupBytes);
      e_.cmp(index_, end);
      e_.jb(group);
    }
    if (plan_.groups > kChunkGroups) {
      e_.cmp(index_, total);
      e_.jb(chunk);
    }
  }
  if (plan_.tail_blocks > 0) {
    e_.mov(q8_inverse_, e_.rsp);
    EmitQ8Group(plan_.tail_blocks, true);
    EmitQ8Group(plan_.tail_blocks, false);
  }
}

void PrepareEmitter::EmitQ8Group(int blocks, bool scales) {
  e_.imul(q8_columns_, index_, 32);  // 32 f32 of x for a dword of the arrays
  if (wide_) {
    scales ? EmitQ8ScalesWide(blocks) : EmitQ8IntegersWide(blocks);
  } else {
    scales ? EmitQ8ScalesNarrow(blocks) : EmitQ8IntegersNarrow(blocks);
  }
}

absl::Status EmitPrepare512(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e) {
  return PrepareEmitter(desc, plan, e).Emit();
}

absl::Status EmitPrepare2(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e) {
  return PrepareEmitter(desc, plan, e).Emit();
}

}  // namespace xjit
