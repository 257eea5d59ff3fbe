#include "codegen/attention/attention_vec.h"

#include <array>

namespace xjit::attention {
namespace {

using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

constexpr int kCompareNotLess = 5;  // _CMP_NLT_US: true for NaN

constexpr float kLowest = -125;

constexpr std::array<float, 4> kDegree3 = {0.0551716691f, 0.242611122f, 0.693260985f, 0.999928074f};
constexpr std::array<float, 6> kDegree5 = {0.0013276472f, 0.00967554133f, 0.0555071327f,
                                           0.240221197f,  0.693146967f,   1.00000007f};

}  // namespace

void Vec::Zero(int dst) const {
  // Clears the whole register; the VEX form has no registers above 15.
  if (wide()) {
    e_.vpxord(Zmm(dst), Zmm(dst), Zmm(dst));
  } else {
    e_.vxorps(Ymm(dst), Ymm(dst), Ymm(dst));
  }
}

void Vec::SwapHalves(int x, int tmp, int bits) const {
  const Xmm v = (*this)(x), t = (*this)(tmp);
  switch (bits) {
    case 512:
      e_.vshuff32x4(Zmm(tmp), Zmm(x), Zmm(x), 0x4e);
      break;
    case 256:
      if (wide()) {
        e_.vshuff32x4(Zmm(tmp), Zmm(x), Zmm(x), 0xb1);
      } else {
        e_.vperm2f128(Ymm(tmp), Ymm(x), Ymm(x), 1);
      }
      break;
    case 128:
      e_.vpermilps(t, v, 0x4e);
      break;
    default:
      e_.vpermilps(t, v, 0xb1);
  }
}

void Vec::MaxOfLanes(int x, int tmp) const {
  for (int bits = bytes_ * 8; bits >= 64; bits /= 2) {
    SwapHalves(x, tmp, bits);
    e_.vmaxps((*this)(x), (*this)(x), (*this)(tmp));
  }
}

void Vec::SumOfLanes(int x, int tmp) const {
  for (int bits = bytes_ * 8; bits >= 64; bits /= 2) {
    SwapHalves(x, tmp, bits);
    e_.vaddps((*this)(x), (*this)(x), (*this)(tmp));
  }
}

Exp2::Exp2(Emitter& e, const Vec& vec, Regs& regs, int degree, bool exact_one)
    : e_(e),
      vec_(vec),
      degree_(degree),
      coefficients_(regs.Vecs("exp2 coefficients", degree + 1)),
      magic_(regs.Vecs("exp2 magic")),
      lowest_(regs.Vecs("exp2 lowest")),
      smallest_(regs.Vecs("exp2 smallest", vec.wide() ? 0 : 1)) {
  for (int i = 0; i <= degree; ++i) {
    float c = degree == 3 ? kDegree3[static_cast<size_t>(i)] : kDegree5[static_cast<size_t>(i)];
    if (exact_one && i == degree) c = 1;
    vec.Broadcast(coefficients_[static_cast<size_t>(i)], c);
  }
  vec.Broadcast(magic_[0], 0x1.8p23f);  // adding it leaves round(x) in the low bits
  vec.Broadcast(lowest_[0], kLowest);
  if (!vec.wide()) vec.Broadcast(smallest_[0], 0x1p-124f);  // what is clamped to 2^kLowest is below it
}

void Exp2::Emit(int x, int tmp0, int tmp1) const {
  const Xmm vx = vec_(x), t = vec_(tmp0), p = vec_(tmp1), magic = vec_(magic_[0]), lowest = vec_(lowest_[0]);
  if (vec_.wide()) {
    e_.vcmpps(e_.k1, vx, lowest, kCompareNotLess);
  } else {
    e_.vmaxps(vx, lowest, vx);  // in this order a NaN stays one
  }
  e_.vaddps(t, vx, magic);
  e_.vsubps(p, t, magic);
  e_.vpslld(t, t, 23);
  e_.vsubps(vx, vx, p);
  e_.vmovaps(p, vec_(coefficients_[0]));
  for (int i = 1; i <= degree_; ++i) e_.vfmadd213ps(p, vx, vec_(coefficients_[static_cast<size_t>(i)]));
  if (vec_.wide()) {
    e_.vpaddd(Zmm(x) | e_.k1 | e_.T_z, Zmm(tmp1), Zmm(tmp0));
  } else {
    e_.vpaddd(p, p, t);
    e_.vcmpps(t, p, vec_(smallest_[0]), kCompareNotLess);
    e_.vandps(vx, p, t);
  }
}

}  // namespace xjit::attention
