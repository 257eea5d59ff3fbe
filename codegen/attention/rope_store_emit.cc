// rope_store: rotary embedding of q and k of each row (Su et al. 2021, arXiv:2104.09864; half-split pairs), q scaled
// and converted, k and v stored at the token's place in its page; with head_norm a first walk leaves 1 / rms of each
// head on the stack, and the second multiplies as it rotates. Neighbouring tokens of a page may be stored by other
// threads at the same time, so a store touches the token's own bytes only: dwords of K, halves of dwords of bf16 V.
#include <cstddef>
#include <functional>

#include "codegen/attention/attention_plan.h"
#include "codegen/attention/attention_vec.h"

namespace xjit {
namespace {

using attention::Vec;
using Xbyak::Label;
using Xbyak::Reg64;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

constexpr int kKRowBytes = 4 * kPageTokens;  // a row of K: one dword a token, whatever the type

class RopeStoreEmitter {
 public:
  RopeStoreEmitter(const RopeStoreDesc& desc, const RopeStorePlan& plan, Emitter& e)
      : desc_(desc), plan_(plan), e_(e), vec_(e, plan.vector_bytes), regs_(vec_.registers()) {}
  absl::Status Emit();

 private:
  enum Slot { kIndex, kEnd, kArgs, kKIn, kVIn, kSlots };
  static constexpr int kNorms = 8 * kSlots;  // f32 of each head of q, then of k, from rsp on
  Xbyak::Address Var(Slot slot) const { return e_.qword[e_.rsp + 8 * slot]; }
  // A register of 16 (zmm) or 8 (ymm) lanes.
  static Xmm Lanes(int index, int lanes) {
    return lanes == 16 ? static_cast<Xmm>(Zmm(index)) : static_cast<Xmm>(Ymm(index));
  }
  int Dim() const { return desc_.head_dim; }
  int HeadBytes() const { return 4 * Dim(); }

  void LoadRow();
  void HeadNorms();
  void HeadNormsOf(int heads);
  // One chunk of the gains, for both values of its pairs.
  void LoadGains(size_t gain, int i, int lanes);
  // One chunk of pairs of all q heads, then of all k heads.
  void Rotate(int i, int lanes);
  void RotatePair(int lanes, const Reg64& in, int i);
  void StoreValues();
  void StoreQ(int x, int lanes, const Reg64& to, int i);
  void StoreK(int x, int lanes, const Reg64& to, int i);
  void StoreV(int x, int lanes, const Reg64& to, int i);
  // Stores each dword of the `bytes` long register at to + disp + j * stride.
  void Scatter(int x, int bytes, const Reg64& to, int disp, int stride);
  // x = bf16 values, packed, in the lower half.
  void PackBf16(int x, int lanes);
  // Runs body `count` times, moving `in` by a head and `out` by out_bytes (an immediate, or args->kv_head_bytes).
  void Heads(int count, const Reg64& in, const Reg64& out, int64_t out_bytes, const std::function<void()>& body);

  const RopeStoreDesc& desc_;
  const RopeStorePlan& plan_;
  Emitter& e_;
  Vec vec_;
  Regs regs_;
  // In use for the whole kernel.
  Regs::Gpr64 in_ = regs_.Gpr("in"), table_ = regs_.Gpr("table"), q_ = regs_.Gpr("q"), k_ = regs_.Gpr("k"),
              v_ = regs_.Gpr("v"), from_ = regs_.Gpr("from"), to_ = regs_.Gpr("to"), left_ = regs_.Gpr("left"),
              norm_ = regs_.Gpr("norm");
  Regs::VecList x1_ = regs_.Vecs("x1"), x2_ = regs_.Vecs("x2"), y1_ = regs_.Vecs("y1"), t_ = regs_.Vecs("t"),
                cos_ = regs_.Vecs("cos"), sin_ = regs_.Vecs("sin"), scale_ = regs_.Vecs("scale"),
                one_ = regs_.Vecs("one"), half_ulp_ = regs_.Vecs("half_ulp"), quiet_ = regs_.Vecs("quiet"),
                shift_ = regs_.Vecs("shift", vec_.wide() ? 1 : 0),
                gain1_ = regs_.Vecs("gain1", desc_.head_norm ? 1 : 0),
                gain2_ = regs_.Vecs("gain2", desc_.head_norm ? 1 : 0);
};

void RopeStoreEmitter::PackBf16(int x, int lanes) {
  const Xmm v = Lanes(x, lanes), t = Lanes(t_[0], lanes);
  if (plan_.convert_bf16) {
    e_.vcvtneps2bf16(lanes == 16 ? static_cast<Xmm>(Ymm(x)) : Xmm(x), v, Xbyak::EvexEncoding);
    return;
  }
  // Round to nearest even in integers: add half a unit less one, plus the last bit that stays. A NaN only gets quiet.
  const Xmm one = Lanes(one_[0], lanes), half_ulp = Lanes(half_ulp_[0], lanes), quiet = Lanes(quiet_[0], lanes);
  e_.vpsrld(t, v, 16);
  if (lanes == 16) {
    e_.vpandd(t, t, one);
    e_.vpaddd(t, t, half_ulp);
    e_.vpaddd(t, t, v);
    e_.vcmpps(e_.k1, v, v, 3);  // _CMP_UNORD_Q
    e_.vpord(Zmm(t_[0]) | e_.k1, Zmm(x), Zmm(quiet_[0]));
    e_.vpsrld(t, t, 16);
    e_.vpmovdw(Ymm(x), Zmm(t_[0]));
    return;
  }
  e_.vpand(t, t, one);
  e_.vpaddd(t, t, half_ulp);
  e_.vpaddd(t, t, v);
  const auto is_nan = regs_.Vecs("is_nan"), nan = regs_.Vecs("nan");
  e_.vcmpps(Ymm(is_nan[0]), v, v, 3);
  e_.vorps(Ymm(nan[0]), v, quiet);
  e_.vblendvps(Ymm(t_[0]), Ymm(t_[0]), Ymm(nan[0]), Ymm(is_nan[0]));
  e_.vpsrld(t, t, 16);
  e_.vpackusdw(t, t, t);
  e_.vpermq(Ymm(x), Ymm(t_[0]), 0x08);
}

void RopeStoreEmitter::Scatter(int x, int bytes, const Reg64& to, int disp, int stride) {
  for (int at = 0; at < bytes; at += 16) {
    int part = x;
    if (at > 0) {
      part = t_[0];
      if (bytes == 64) {
        e_.vextracti32x4(Xmm(part), Zmm(x), static_cast<uint8_t>(at / 16));
      } else {
        e_.vextracti128(Xmm(part), Ymm(x), 1);
      }
    }
    for (int j = 0; j < 4; ++j) {
      const Xbyak::Address place = e_.dword[to + disp + (at / 4 + j) * stride];
      if (j == 0) {
        e_.vmovd(place, Xmm(part));
      } else {
        e_.vpextrd(place, Xmm(part), static_cast<uint8_t>(j));
      }
    }
  }
}

void RopeStoreEmitter::StoreQ(int x, int lanes, const Reg64& to, int i) {
  e_.vmulps(Lanes(x, lanes), Lanes(x, lanes), Lanes(scale_[0], lanes));
  if (desc_.q == DType::kF32) {
    e_.vmovups(e_.ptr[to + 4 * i], Lanes(x, lanes));
  } else {
    PackBf16(x, lanes);
    e_.vmovups(e_.ptr[to + 2 * i], lanes == 16 ? static_cast<Xmm>(Ymm(x)) : Xmm(x));
  }
}

void RopeStoreEmitter::StoreK(int x, int lanes, const Reg64& to, int i) {
  if (desc_.kv == DType::kF32) {
    Scatter(x, 4 * lanes, to, i * kKRowBytes, kKRowBytes);
  } else {
    PackBf16(x, lanes);
    Scatter(x, 2 * lanes, to, i / 2 * kKRowBytes, kKRowBytes);
  }
}

void RopeStoreEmitter::StoreV(int x, int lanes, const Reg64& to, int i) {
  if (desc_.kv == DType::kF32) {
    e_.vmovups(e_.ptr[to + 4 * i], Lanes(x, lanes));
    return;
  }
  PackBf16(x, lanes);
  if (lanes == 16) {  // `to` is at the pair; the token's half is chosen by shift and mask
    e_.vpmovzxwd(Zmm(x), Ymm(x));
    e_.vpslld(Zmm(x), Zmm(x), Xmm(shift_[0]));
    e_.vmovdqu16(e_.ptr[to + 4 * i] | e_.k2, Zmm(x));
  } else {  // `to` is at the token's half
    for (int j = 0; j < 8; ++j) e_.vpextrw(e_.word[to + 4 * (i + j)], Xmm(x), static_cast<uint8_t>(j));
  }
}

void RopeStoreEmitter::Heads(int count, const Reg64& in, const Reg64& out, int64_t out_bytes,
                             const std::function<void()>& body) {
  Label loop;
  e_.mov(left_, count);
  e_.L(loop);
  body();
  e_.add(in, HeadBytes());
  if (out_bytes > 0) {
    e_.add(out, static_cast<int>(out_bytes));
  } else {
    const auto args = regs_.Gpr("args");
    e_.mov(args, Var(kArgs));
    e_.add(out, e_.qword[*args + offsetof(RopeStoreArgs, kv_head_bytes)]);
  }
  e_.sub(left_, 1);
  e_.jnz(loop);
}

// y1 = x1 cos - x2 sin and, in x2, y2 = x2 cos + x1 sin.
void RopeStoreEmitter::RotatePair(int lanes, const Reg64& in, int i) {
  const Xmm x1 = Lanes(x1_[0], lanes), x2 = Lanes(x2_[0], lanes), y1 = Lanes(y1_[0], lanes), t = Lanes(t_[0], lanes),
            c = Lanes(cos_[0], lanes), s = Lanes(sin_[0], lanes);
  e_.vmovups(x1, e_.ptr[in + 4 * i]);
  e_.vmovups(x2, e_.ptr[in + 4 * i + HeadBytes() / 2]);
  if (desc_.head_norm) {
    e_.vbroadcastss(t, e_.dword[*norm_]);
    e_.add(norm_, 4);
    e_.vmulps(x1, x1, t);
    e_.vmulps(x2, x2, t);
    e_.vmulps(x1, x1, Lanes(gain1_[0], lanes));
    e_.vmulps(x2, x2, Lanes(gain2_[0], lanes));
  }
  e_.vmulps(t, x2, s);
  e_.vmovaps(y1, x1);
  e_.vfmsub213ps(y1, c, t);
  e_.vmulps(t, x1, s);
  e_.vfmadd213ps(x2, c, t);
}

void RopeStoreEmitter::LoadGains(size_t gain, int i, int lanes) {
  if (!desc_.head_norm) return;
  const auto gains = regs_.Gpr("gains");
  e_.mov(gains, Var(kArgs));
  e_.mov(gains, e_.qword[*gains + static_cast<int>(gain)]);
  e_.vmovups(Lanes(gain1_[0], lanes), e_.ptr[*gains + 4 * i]);
  e_.vmovups(Lanes(gain2_[0], lanes), e_.ptr[*gains + 4 * i + HeadBytes() / 2]);
}

// 1 / rms of the heads at from_, to norm_ on.
void RopeStoreEmitter::HeadNormsOf(int heads) {
  Label head;
  e_.mov(left_, heads);
  e_.L(head);
  vec_.Zero(x1_[0]);
  for (int i = 0; i < Dim(); i += vec_.lanes()) {
    e_.vmovups(vec_(x2_[0]), e_.ptr[*from_ + 4 * i]);
    e_.vfmadd231ps(vec_(x1_[0]), vec_(x2_[0]), vec_(x2_[0]));
  }
  vec_.SumOfLanes(x1_[0], t_[0]);
  const Xmm s(x1_[0]), one(x2_[0]);
  e_.vdivss(s, s, e_.ConstF32(static_cast<float>(Dim())));
  e_.vaddss(s, s, e_.ConstF32(desc_.eps));
  e_.vsqrtss(s, s, s);
  e_.vmovss(one, e_.ConstF32(1));
  e_.vdivss(s, one, s);
  e_.vmovss(e_.dword[*norm_], s);
  e_.add(norm_, 4);
  e_.add(from_, HeadBytes());
  e_.sub(left_, 1);
  e_.jnz(head);
}

void RopeStoreEmitter::HeadNorms() {
  if (!desc_.head_norm) return;
  e_.lea(norm_, e_.ptr[e_.rsp + kNorms]);
  e_.mov(from_, in_);
  HeadNormsOf(desc_.heads);
  e_.mov(from_, Var(kKIn));
  HeadNormsOf(desc_.kv_heads);
}

void RopeStoreEmitter::Rotate(int i, int lanes) {
  const int half = Dim() / 2;
  e_.vmovups(Lanes(cos_[0], lanes), e_.ptr[*table_ + 4 * i]);
  e_.vmovups(Lanes(sin_[0], lanes), e_.ptr[*table_ + 4 * (half + i)]);
  LoadGains(offsetof(RopeStoreArgs, q_gain), i, lanes);
  e_.lea(norm_, e_.ptr[e_.rsp + kNorms]);
  e_.mov(from_, in_);
  e_.mov(to_, q_);
  Heads(desc_.heads, from_, to_, desc_.q == DType::kF32 ? HeadBytes() : HeadBytes() / 2, [&] {
    RotatePair(lanes, from_, i);
    StoreQ(y1_[0], lanes, to_, i);
    StoreQ(x2_[0], lanes, to_, half + i);
  });
  LoadGains(offsetof(RopeStoreArgs, k_gain), i, lanes);
  e_.mov(from_, Var(kKIn));
  e_.mov(to_, k_);
  Heads(desc_.kv_heads, from_, to_, 0, [&] {
    RotatePair(lanes, from_, i);
    StoreK(y1_[0], lanes, to_, i);
    StoreK(x2_[0], lanes, to_, half + i);
  });
}

void RopeStoreEmitter::StoreValues() {
  e_.mov(from_, Var(kVIn));
  e_.mov(to_, v_);
  Heads(desc_.kv_heads, from_, to_, 0, [&] {
    for (int i = 0; i < Dim(); i += vec_.lanes()) {
      e_.vmovups(vec_(x1_[0]), e_.ptr[*from_ + 4 * i]);
      StoreV(x1_[0], vec_.lanes(), to_, i);
    }
  });
}

// Pointers of the row at Var(kIndex); for bf16 V also which half of its pairs it is.
void RopeStoreEmitter::LoadRow() {
  const auto args = regs_.Gpr("args"), step = regs_.Gpr("step"), x = regs_.Gpr("x"), row = regs_.Gpr("row");
  e_.mov(args, Var(kArgs));
  e_.mov(row, Var(kIndex));
  const auto row_pointer = [&](const Reg64& dst, int64_t row_bytes, size_t base) {
    e_.imul(dst, row, static_cast<int>(row_bytes));
    e_.add(dst, e_.qword[*args + static_cast<int>(base)]);
  };
  row_pointer(x, desc_.ldkin_bytes, offsetof(RopeStoreArgs, k_in));
  e_.mov(Var(kKIn), x);
  row_pointer(x, desc_.ldvin_bytes, offsetof(RopeStoreArgs, v_in));
  e_.mov(Var(kVIn), x);
  row_pointer(in_, desc_.ldqin_bytes, offsetof(RopeStoreArgs, q_in));
  row_pointer(table_, int64_t{4} * desc_.rope_dim, offsetof(RopeStoreArgs, cos_sin));
  row_pointer(q_, desc_.ldq_bytes, offsetof(RopeStoreArgs, q));

  e_.mov(step, e_.qword[*args + offsetof(RopeStoreArgs, step)]);
  e_.mov(x, e_.qword[*step + offsetof(StepView, row_seq)]);
  e_.movsxd(k_, e_.dword[*x + *row * 4]);
  e_.imul(k_, k_, sizeof(SeqView));
  e_.add(k_, e_.qword[*step + offsetof(StepView, seq)]);
  e_.mov(k_, e_.qword[*k_ + offsetof(SeqView, pages)]);
  e_.mov(x, e_.qword[*step + offsetof(StepView, position)]);
  e_.movsxd(x, e_.dword[*x + *row * 4]);
  e_.mov(v_, x);
  e_.shr(v_, 5);
  e_.movsxd(v_, e_.dword[*k_ + *v_ * 4]);
  e_.imul(v_, v_, static_cast<int>(KvPageBytes(desc_.kv, Dim())));
  e_.add(v_, e_.qword[*args + offsetof(RopeStoreArgs, kv)]);
  e_.and_(x, kPageTokens - 1);
  e_.lea(k_, e_.ptr[*v_ + *x * 4]);
  e_.add(v_, static_cast<int>(KvPageBytes(desc_.kv, Dim()) / 2));
  if (desc_.kv == DType::kF32) {
    e_.imul(x, x, HeadBytes());
    e_.add(v_, x);
    return;
  }
  e_.mov(row, x);
  e_.and_(row, 1);
  e_.shr(x, 1);
  e_.imul(x, x, HeadBytes());
  e_.add(v_, x);
  if (!vec_.wide()) {
    e_.lea(v_, e_.ptr[*v_ + *row * 2]);
    return;
  }
  e_.mov(x, 0x55555555);
  e_.neg(row);
  e_.and_(row, 0x55555555);  // 0, or x
  e_.add(x, row);            // an odd token: 0xaaaaaaaa
  e_.kmovd(e_.k2, (*x).cvt32());
  e_.and_(row, 16);  // bit 4 of 0x55555555 is set
  e_.vmovd(Xmm(shift_[0]), (*row).cvt32());
}

absl::Status RopeStoreEmitter::Emit() {
  Label row, done;
  e_.Prologue(kNorms + (desc_.head_norm ? 4 * (desc_.heads + desc_.kv_heads) : 0));
  e_.mov(Var(kIndex), e_.arg_m0);
  e_.mov(Var(kEnd), e_.arg_m1);
  e_.mov(Var(kArgs), e_.arg_args);
  e_.vpbroadcastd(vec_(one_[0]), e_.ptr[e_.ConstLabel32(1)]);
  e_.vpbroadcastd(vec_(half_ulp_[0]), e_.ptr[e_.ConstLabel32(0x7fff)]);
  e_.vpbroadcastd(vec_(quiet_[0]), e_.ptr[e_.ConstLabel32(0x400000)]);
  vec_.Broadcast(scale_[0], desc_.q_scale);
  regs_.FreeArguments();
  e_.L(row);
  {
    const auto index = regs_.Gpr("index");
    e_.mov(index, Var(kIndex));
    e_.cmp(index, Var(kEnd));
    e_.jge(done);
  }
  LoadRow();
  HeadNorms();
  for (int i = 0; i < Dim() / 2;) {
    const int lanes = Dim() / 2 - i >= vec_.lanes() ? vec_.lanes() : 8;
    Rotate(i, lanes);
    i += lanes;
  }
  StoreValues();
  e_.add(Var(kIndex), 1);
  e_.jmp(row);
  e_.L(done);
  e_.Epilogue();
  return regs_.status();
}

}  // namespace

absl::Status EmitRopeStore512(const RopeStoreDesc& desc, const RopeStorePlan& plan, Emitter& e) {
  return RopeStoreEmitter(desc, plan, e).Emit();
}
absl::Status EmitRopeStore2(const RopeStoreDesc& desc, const RopeStorePlan& plan, Emitter& e) {
  return RopeStoreEmitter(desc, plan, e).Emit();
}

}  // namespace xjit
