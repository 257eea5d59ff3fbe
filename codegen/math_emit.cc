#include "codegen/math_emit.h"

#include <array>
#include <bit>

namespace xjit {
namespace {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low bits of the sum

// Coefficients of f^1 .. f^5, minimax in relative error with the constant 1 fixed: 2^f on [-1/2, 1/2] and e^f on
// [-ln 2 / 2, ln 2 / 2] (iteratively reweighted least squares at 300 Chebyshev points; largest errors 1.1e-7
// and 9.5e-8).
constexpr float kExp2Poly[5] = {0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647203f};
constexpr float kExpPoly[5] = {0.999999702f, 0.499991506f, 0.166676357f, 0.0418979302f, 0.00829031039f};

constexpr float kLog2E = 1.44269504f;
// ln 2 in two parts: n * kLn2High is exact for |n| <= 128 (Cody and Waite 1980).
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

}  // namespace

Xbyak::Address VecMath::Splat(const Xbyak::Zmm&, float value) {
  return e_.ptr_b[e_.ConstLabel32(std::bit_cast<uint32_t>(value))];
}

Xbyak::Address VecMath::Splat(const Xbyak::Ymm&, float value) {
  std::array<float, 8> lanes;
  lanes.fill(value);
  return e_.ConstYmm(lanes.data());
}

void VecMath::Broadcast(const Xbyak::Xmm& x, float value) { e_.vbroadcastss(x, e_.ConstF32(value)); }

// min and max return their second source when either is NaN, so x comes second.
template <typename V>
void VecMath::Clamp(const V& x, const V& t, float low, float high) {
  Broadcast(t, low);
  e_.vmaxps(x, t, x);
  Broadcast(t, high);
  e_.vminps(x, t, x);
}

// p = 1 + c[0] f + ... + c[4] f^5
template <typename V>
void VecMath::Polynomial(const V& f, const V& p, const float (&c)[5]) {
  Broadcast(p, c[4]);
  for (int i = 3; i >= 0; --i) e_.vfmadd213ps(p, f, Splat(p, c[i]));
  e_.vfmadd213ps(p, f, Splat(p, 1.0f));
}

template <typename V>
void VecMath::EmitExp2(const V& x, const V& t0, const V& t1) {
  Clamp(x, t0, -127.0f, 128.0f);
  e_.vaddps(t0, x, Splat(x, kRound));
  e_.vsubps(t1, t0, Splat(x, kRound));
  e_.vsubps(x, x, t1);
  Polynomial(x, t1, kExp2Poly);
  e_.vpslld(t0, t0, 23);
  e_.vpaddd(x, t1, t0);
}

template <typename V>
void VecMath::EmitExp(const V& x, const V& t0, const V& t1) {
  Clamp(x, t0, -88.0f, 88.7228317f);  // above -127 ln 2 = -88.03, below 128 ln 2 = 88.722839
  Broadcast(t0, kLog2E);
  e_.vfmadd213ps(t0, x, Splat(x, kRound));
  e_.vsubps(t1, t0, Splat(x, kRound));
  e_.vfnmadd231ps(x, t1, Splat(x, kLn2High));
  e_.vfnmadd231ps(x, t1, Splat(x, kLn2Low));
  Polynomial(x, t1, kExpPoly);
  e_.vpslld(t0, t0, 23);
  e_.vpaddd(x, t1, t0);
}

template <typename V>
void VecMath::EmitSilu(const V& x, const V& t0, const V& t1, const V& t2) {
  // Below -87 the quotient is a rounding error of 0, and e^-x stays finite.
  Broadcast(t0, -87.0f);
  e_.vmaxps(x, t0, x);
  e_.vxorps(t2, x, Splat(x, -0.0f));
  EmitExp(t2, t0, t1);
  e_.vaddps(t2, t2, Splat(x, 1.0f));
  e_.vdivps(x, x, t2);
}

template void VecMath::EmitExp2(const Xbyak::Zmm&, const Xbyak::Zmm&, const Xbyak::Zmm&);
template void VecMath::EmitExp2(const Xbyak::Ymm&, const Xbyak::Ymm&, const Xbyak::Ymm&);
template void VecMath::EmitExp(const Xbyak::Zmm&, const Xbyak::Zmm&, const Xbyak::Zmm&);
template void VecMath::EmitExp(const Xbyak::Ymm&, const Xbyak::Ymm&, const Xbyak::Ymm&);
template void VecMath::EmitSilu(const Xbyak::Zmm&, const Xbyak::Zmm&, const Xbyak::Zmm&, const Xbyak::Zmm&);
template void VecMath::EmitSilu(const Xbyak::Ymm&, const Xbyak::Ymm&, const Xbyak::Ymm&, const Xbyak::Ymm&);

}  // namespace xjit
