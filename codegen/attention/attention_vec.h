// Vector code shared by the attention kernels, for zmm (AVX-512) and ymm (AVX2, VEX only) alike.
#pragma once

#include "codegen/emitter.h"
#include "codegen/regs.h"

namespace xjit::attention {

// Vector registers of one width, and what differs between the widths.
class Vec {
 public:
  Vec(Emitter& e, int bytes) : e_(e), bytes_(bytes) {}
  int bytes() const { return bytes_; }
  int lanes() const { return bytes_ / 4; }
  bool wide() const { return bytes_ == 64; }
  int registers() const { return wide() ? 32 : 16; }
  Xbyak::Xmm operator()(int index) const {
    return Xbyak::Xmm(wide() ? Xbyak::Operand::ZMM : Xbyak::Operand::YMM, index);
  }

  void Broadcast(int dst, float value) const { e_.vbroadcastss((*this)(dst), e_.ConstF32(value)); }
  void Zero(int dst) const;
  // All lanes of `x` become the maximum (sum) of its lanes; `tmp` is overwritten.
  void MaxOfLanes(int x, int tmp) const;
  void SumOfLanes(int x, int tmp) const;

 private:
  // `x` with its halves swapped inside each `bits` bits, into `tmp`.
  void SwapHalves(int x, int tmp, int bits) const;
  Emitter& e_;
  int bytes_;
};

// 2^x of vectors, for x <= about 1; 0 below -125 (-124 with ymm; -inf included). 2^x = 2^n * poly(x - n), n = round(x);
// polynomials are minimax on [-1/2, 1/2] in relative error: degree 3: 7.5e-5, degree 5: 2.1e-7; with `exact_one` the
// constant term is 1, so that 2^0 is exactly 1 (error at most 2.9e-7). Holds its constants in registers while it lives.
class Exp2 {
 public:
  Exp2(Emitter& e, const Vec& vec, Regs& regs, int degree, bool exact_one);
  // In place; two other registers are overwritten, and k1 with zmm.
  void Emit(int x, int tmp0, int tmp1) const;

 private:
  Emitter& e_;
  const Vec& vec_;
  int degree_;
  Regs::VecList coefficients_;  // highest first
  Regs::VecList magic_, lowest_, smallest_;
};

}  // namespace xjit::attention
