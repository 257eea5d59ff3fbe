// Emits exp2, exp and SiLU of vector registers, for Zmm (AVX-512 F, DQ) and Ymm (AVX2, FMA; registers 0..15).
//
//   VecMath math(e);
//   math.Silu(Zmm(0), Zmm(29), Zmm(30), Zmm(31));     // zmm0 = silu(zmm0); the others are overwritten
#pragma once

#include "codegen/emitter.h"

namespace xjit {

// Temporaries are distinct from `x` and each other; no mask register is used. NaN stays NaN.
//
// exp2(x) = 2^n * p(x - n), n = x rounded to an integer by adding 1.5 * 2^23, p a polynomial of degree 5 on
// [-1/2, 1/2] with p(0) = 1 exactly and relative error below 1.1e-7; n is added to the exponent of p as an integer.
// exp(x) does the same with x - n * ln 2 in two steps (Cody and Waite). Relative error of both below 3e-7 where the
// result is a normal number. Below 2^-126 the result is a number below 2^-126 (no correct subnormal); at -127 and less
// exp2 gives exactly 0, at 128 and more infinity.
class VecMath {
 public:
  explicit VecMath(Emitter& e) : e_(e) {}

  // x = 2^x. exp2(-inf) = 0.
  void Exp2(const Xbyak::Zmm& x, const Xbyak::Zmm& t0, const Xbyak::Zmm& t1) { EmitExp2(x, t0, t1); }
  void Exp2(const Xbyak::Ymm& x, const Xbyak::Ymm& t0, const Xbyak::Ymm& t1) { EmitExp2(x, t0, t1); }

  // x = e^x. exp(-inf) is below 2^-126; exp(x) stays at 3.4028e38 for x above 88.7228, infinity included.
  void Exp(const Xbyak::Zmm& x, const Xbyak::Zmm& t0, const Xbyak::Zmm& t1) { EmitExp(x, t0, t1); }
  void Exp(const Xbyak::Ymm& x, const Xbyak::Ymm& t0, const Xbyak::Ymm& t1) { EmitExp(x, t0, t1); }

  // x = x / (1 + e^-x), relative error below 6e-7 for x > -87; below it, a number in (-2^-118, 0].
  void Silu(const Xbyak::Zmm& x, const Xbyak::Zmm& t0, const Xbyak::Zmm& t1, const Xbyak::Zmm& t2) {
    EmitSilu(x, t0, t1, t2);
  }
  void Silu(const Xbyak::Ymm& x, const Xbyak::Ymm& t0, const Xbyak::Ymm& t1, const Xbyak::Ymm& t2) {
    EmitSilu(x, t0, t1, t2);
  }

 private:
  // `value` in every lane, as a memory operand: an embedded broadcast, or a full vector where there are none.
  Xbyak::Address Splat(const Xbyak::Zmm& like, float value);
  Xbyak::Address Splat(const Xbyak::Ymm& like, float value);
  void Broadcast(const Xbyak::Xmm& x, float value);
  template <typename V>
  void Clamp(const V& x, const V& t, float low, float high);
  template <typename V>
  void Polynomial(const V& f, const V& p, const float (&c)[5]);
  template <typename V>
  void EmitExp2(const V& x, const V& t0, const V& t1);
  template <typename V>
  void EmitExp(const V& x, const V& t0, const V& t1);
  template <typename V>
  void EmitSilu(const V& x, const V& t0, const V& t1, const V& t2);

  Emitter& e_;
};

}  // namespace xjit
