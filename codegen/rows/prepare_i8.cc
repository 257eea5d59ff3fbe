// rows.prepare to i8act: one scale a row, so the row is read twice, for its largest magnitude and to be divided. A step
// of 64 values is one line of the record, or a chunk of a strip.
#include "codegen/rows/prepare_emitter.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {

using Xbyak::RegExp;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

namespace {

// What packing within 128-bit lanes leaves, put in order (prepare_q8_wide.cc, prepare_q8_narrow.cc).
constexpr uint32_t kLanesToOrder16[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
constexpr uint32_t kLanesToOrder8[8] = {0, 4, 1, 5, 2, 6, 3, 7};
constexpr int kStepBytes = kStripChunk * 4;  // of x

struct All {
  uint32_t word[8];
  explicit All(uint32_t w) : word{w, w, w, w, w, w, w, w} {}
};

}  // namespace

void PrepareEmitter::EmitI8() {
  const auto divisor = regs_.Vecs("divisor"), sum = regs_.Vecs("sum");
  const auto place = regs_.Gpr("place");
  EmitI8Scale(divisor[0]);
  EmitI8Steps({*place, divisor[0], sum[0]});
  EmitI8NegSum(sum[0]);
}

void PrepareEmitter::EmitI8Steps(const I8Step& step) {
  vectors_->Zero(step.sum);
  const int64_t steps = desc_.cols / kStripChunk;
  e_.mov(step.place, out_);
  e_.xor_((*index_).cvt32(), (*index_).cvt32());
  if (steps > 0) {
    Xbyak::Label loop;
    e_.L(loop);
    EmitI8Step(kStripChunk, step);
    e_.add(index_, kStepBytes);
    e_.add(step.place, desc_.strips ? kStripRows * kStripChunk : kStripChunk);
    if (steps > 1) {
      e_.cmp(index_, static_cast<uint32_t>(steps * kStepBytes));
      e_.jb(loop, e_.T_NEAR);
    }
  }
  if (desc_.cols % kStripChunk != 0) EmitI8Step(static_cast<int>(desc_.cols % kStripChunk), step);
}

// The largest magnitude on the bits, which any NaN is above; its scale to memory; what to divide by to v.
void PrepareEmitter::EmitI8Scale(int v) {
  const RowVectors& vec = *vectors_;
  constexpr int kMaxima = 4;
  const auto max = regs_.Vecs("max", kMaxima);
  const auto t = regs_.Vecs("t", 2);
  const auto magnitude = regs_.Vecs("magnitude");
  vec.BroadcastBits(magnitude[0], 0x7fffffff);
  for (int i = 0; i < kMaxima; ++i) vec.Zero(max[i]);
  vec.ForColumns(kMaxima, index_, [&](int u, int offset, bool masked) {
    const int m = max[u % kMaxima];
    LoadMagnitudes(t[u % 2], *index_ * 2, offset, masked, magnitude[0]);
    Max(m, m, t[u % 2]);
  });
  Max(max[0], max[0], max[1]);
  Max(max[2], max[2], max[3]);
  Max(max[0], max[0], max[2]);
  const Xmm m = max.X(0), other = t.X(0), scale(v);
  if (wide_) {
    e_.vextracti64x4(Ymm(t[0]), max.Z(0), 1);
    e_.vpmaxud(max.Y(0), max.Y(0), Ymm(t[0]));
  }
  e_.vextracti128(other, max.Y(0), 1);
  e_.vpmaxud(m, m, other);
  e_.vpshufd(other, m, 0x0e);
  e_.vpmaxud(m, m, other);
  e_.vpshufd(other, m, 0x01);
  e_.vpmaxud(m, m, other);
  e_.vdivss(scale, m, e_.ConstF32(127));
  e_.vmovss(e_.dword[I8TailAt()], scale);
  // A row of zeros is divided by 1.
  e_.vxorps(m, m, m);
  e_.vcmpss(m, scale, m, 0);
  e_.vbroadcastss(other, e_.ConstF32(1));
  e_.vblendvps(scale, scale, other, m);
  e_.vbroadcastss(vec.V(v), scale);
}

// `count` columns at index_ (in bytes of x) to a line, filled up with zeros; q added to the sums.
void PrepareEmitter::EmitI8Step(int count, const I8Step& step) {
  // The next row (of the call or not) is on its way while this one is divided.
  for (int b = 0; b < 4 * count; b += 64)
    e_.prefetcht1(e_.ptr[*x_ + *index_ + static_cast<size_t>(desc_.ldx_bytes + b)]);
  wide_ ? EmitI8StepWide(count, step) : EmitI8StepNarrow(count, step);
}

void PrepareEmitter::EmitI8StepWide(int count, const I8Step& step) {
  const auto v = regs_.Vecs("v", 4);
  const auto order = regs_.Vecs("order");
  const auto ones = regs_.Vecs("ones", 2);
  for (int i = 0; i < 4; ++i) {
    if (16 * i >= count) {
      e_.vpxord(v.Z(i), v.Z(i), v.Z(i));
      continue;
    }
    LoadColumns(v[i], RegExp(*index_), 64 * i, count - 16 * i < 16);
    e_.vdivps(v.Z(i), v.Z(i), Zmm(step.divisor));
    e_.vcvtps2dq(v.Z(i), v.Z(i));
    // 0 / a scale that is no number.
    if (count - 16 * i < 16) vectors_->ZeroBeyond(v[i]);
  }
  e_.vmovdqu32(order.Z(), e_.ConstZmm(kLanesToOrder16));
  e_.vpackssdw(v.Z(0), v.Z(0), v.Z(1));
  e_.vpackssdw(v.Z(2), v.Z(2), v.Z(3));
  e_.vpacksswb(v.Z(0), v.Z(0), v.Z(2));
  e_.vpermd(v.Z(0), order.Z(), v.Z(0));
  e_.vmovdqu32(e_.ptr[step.place], v.Z(0));
  e_.vpbroadcastd(ones.Z(0), e_.ptr[e_.ConstLabel32(0x01010101)]);
  if (plan_.native_dot) {
    e_.vpdpbusd(Zmm(step.sum), ones.Z(0), v.Z(0));
  } else {
    e_.vpbroadcastd(ones.Z(1), e_.ptr[e_.ConstLabel32(0x00010001)]);
    e_.vpmaddubsw(v.Z(0), ones.Z(0), v.Z(0));
    e_.vpmaddwd(v.Z(0), v.Z(0), ones.Z(1));
    e_.vpaddd(Zmm(step.sum), Zmm(step.sum), v.Z(0));
  }
}

void PrepareEmitter::EmitI8StepNarrow(int count, const I8Step& step) {
  const auto v = regs_.Vecs("v", 4);
  const auto order = regs_.Vecs("order");
  const All ones8(0x01010101), ones16(0x00010001);
  for (int half = 0; half < 2; ++half) {
    const int left = count - 32 * half;
    for (int i = 0; i < 4; ++i) {
      if (8 * i >= left) {
        e_.vpxor(v.Y(i), v.Y(i), v.Y(i));
        continue;
      }
      LoadColumns(v[i], RegExp(*index_), 128 * half + 32 * i, left - 8 * i < 8);
      e_.vdivps(v.Y(i), v.Y(i), Ymm(step.divisor));
      e_.vcvtps2dq(v.Y(i), v.Y(i));
      if (left - 8 * i < 8) vectors_->ZeroBeyond(v[i]);
    }
    if (left > 0) {
      e_.vmovdqu(order.Y(), e_.ConstYmm(kLanesToOrder8));
      e_.vpackssdw(v.Y(0), v.Y(0), v.Y(1));
      e_.vpackssdw(v.Y(2), v.Y(2), v.Y(3));
      e_.vpacksswb(v.Y(0), v.Y(0), v.Y(2));
      e_.vpermd(v.Y(0), order.Y(), v.Y(0));
    }
    e_.vmovdqu(e_.ptr[step.place + 32 * half], v.Y(0));
    if (left <= 0) continue;
    e_.vmovdqu(v.Y(1), e_.ConstYmm(&ones8));
    e_.vpmaddubsw(v.Y(1), v.Y(1), v.Y(0));
    e_.vpmaddwd(v.Y(1), v.Y(1), e_.ConstYmm(&ones16));
    e_.vpaddd(Ymm(step.sum), Ymm(step.sum), v.Y(1));
  }
}

void PrepareEmitter::EmitI8NegSum(int sum) {
  const auto t = regs_.Vecs("t");
  const Xmm s(sum);
  if (wide_) {
    e_.vextracti64x4(t.Y(), Zmm(sum), 1);
    e_.vpaddd(Ymm(sum), Ymm(sum), t.Y());
  }
  e_.vextracti128(t.X(), Ymm(sum), 1);
  e_.vpaddd(s, s, t.X());
  e_.vpshufd(t.X(), s, 0x0e);
  e_.vpaddd(s, s, t.X());
  e_.vpshufd(t.X(), s, 0x01);
  e_.vpaddd(s, s, t.X());
  e_.vpxor(t.X(), t.X(), t.X());
  e_.vpsubd(s, t.X(), s);
  e_.vmovd(e_.dword[I8TailAt() + (desc_.strips ? 4 * kStripRows : 4)], s);
}

// Where the row's scale goes, by index_ in strips: a row is 64 bytes from the next, its scale 4.
RegExp PrepareEmitter::I8TailAt() {
  if (!desc_.strips) return *out_ + static_cast<size_t>(I8Layout{desc_.cols}.scale_offset());
  constexpr int kCloser = kStripChunk - 4;
  e_.imul(index_, strip_left_, kCloser);
  return *out_ + *index_ + static_cast<size_t>(OutputStrips(desc_).tail_offset() - kStripRows * kCloser);
}

}  // namespace xjit
