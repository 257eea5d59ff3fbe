#include "codegen/gemm/fp8_halves.h"

#include <algorithm>
#include <bit>

#include "ir/support/ref/dequant.h"

namespace xjit {
namespace {

int Bf16Of(int code) { return static_cast<int>(std::bit_cast<uint32_t>(E4M3ToF32(static_cast<uint8_t>(code))) >> 16); }

}  // namespace

Fp8Halves::Fp8Halves(bool vbmi, Emitter& e, Regs& regs, const Lanes& lanes, int spare)
    : vbmi_(vbmi),
      e_(e),
      regs_(regs),
      lanes_(lanes),
      tables_(e, regs, vbmi),
      sign_(regs.Vecs("sign", vbmi ? 1 : 0)),
      constants_(regs.Vecs("constants", vbmi ? 0 : std::clamp<int>(spare, 0, kConstants))) {}

void Fp8Halves::Constants() const {
  for (size_t c = 0; c < constants_.size(); ++c) lanes_.Load(constants_[c], Bytes(static_cast<Constant>(c)).data());
  if (!vbmi_) return;
  tables_.Constants(Bf16Of);
  e_.vpbroadcastd(sign_.Z(), e_.ptr[e_.ConstLabel32(0x80808080)]);
}

void Fp8Halves::Convert(int x, int low) const {
  const auto high = regs_.Vecs("high");
  if (vbmi_) {
    tables_.LookUp(Xbyak::Zmm(x), Xbyak::Zmm(low), high.Z());
    lanes_.OrMasked(high[0], x, sign_[0]);
  } else {
    ByNibbles(x, low, high[0]);
  }
  e_.vpunpcklbw(lanes_(x), lanes_(low), lanes_(high[0]));
  e_.vpunpckhbw(lanes_(low), lanes_(low), lanes_(high[0]));
}

VectorBytes Fp8Halves::Bytes(Constant c) {
  return MakeVectorBytes([c](int byte) {
    const int i = byte % 16;
    switch (c) {
      case kSignAndExponent:
        return i / 8 * 0x80 + 0x3C + i % 8;
      case kLowOfSmall:
        return Bf16Of(i) - (i << 4);
      case kHighOfSmall:
        return (Bf16Of(i) >> 8) - 0x3C;
      case kHighOfNan:
        return 0x7F - 0x43;
      case kNanIndex:
        return 0xFE;
      case kMagnitude:
        return 0x7F;
      case kSmallIndex:
        return 0x70;
      case kUpper:
        return 0xF0;
      default:
        return 0x0F;
    }
  });
}

void Fp8Halves::And(int dst, int src, Constant mask) const {
  if (IsKept(mask)) {
    lanes_.And(dst, src, constants_[mask]);
  } else {
    lanes_.And(dst, src, Memory(mask));
  }
}

void Fp8Halves::Add(int dst, int src, Constant c) const {
  if (IsKept(c)) {
    e_.vpaddb(lanes_(dst), lanes_(src), lanes_(constants_[c]));
  } else {
    e_.vpaddb(lanes_(dst), lanes_(src), Memory(c));
  }
}

void Fp8Halves::Pick(int dst, Constant table, int index) const {
  if (!IsKept(table)) lanes_.Load(dst, Bytes(table).data());
  e_.vpshufb(lanes_(dst), lanes_(IsKept(table) ? constants_[table] : dst), lanes_(index));
}

// The halves of s.eeee.fff are s.(120 + eeee) / 2, from bits 4 .. 7, and (eeee % 2).fff.0000, from bits 0 .. 3; the 16
// codes of the least two exponents (one of them the subnormals') and NaN need something added. vpshufb gives zero for
// an index with bit 7, which makes its sums pick those codes.
void Fp8Halves::ByNibbles(int x, int low, int high) const {
  const auto scratch = regs_.Vecs("scratch", 2);
  const int t = scratch[0], u = scratch[1];
  const auto add = [&](int dst, int other) { e_.vpaddb(lanes_(dst), lanes_(dst), lanes_(other)); };
  And(t, x, kMagnitude);
  if (!IsKept(kNanIndex)) lanes_.Load(u, Bytes(kNanIndex).data());
  e_.vpsubb(lanes_(u), lanes_(IsKept(kNanIndex) ? constants_[kNanIndex] : u), lanes_(t));  // bit 7 clear for NaN alone
  Add(t, t, kSmallIndex);                                                                  // bit 7 clear for the 16
  e_.vpsllw(lanes_(low), lanes_(x), 4);
  And(low, low, kUpper);
  Pick(high, kLowOfSmall, t);
  add(low, high);
  Pick(high, kHighOfSmall, t);
  Pick(t, kHighOfNan, u);
  add(high, t);
  e_.vpsrlw(lanes_(u), lanes_(x), 4);
  And(u, u, kLower);
  Pick(t, kSignAndExponent, u);
  add(high, t);
}

}  // namespace xjit
