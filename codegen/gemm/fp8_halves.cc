#include "codegen/gemm/fp8_halves.h"

#include <bit>

#include "ir/support/ref/dequant.h"

namespace xjit {
namespace {

int Bf16Of(int code) { return static_cast<int>(std::bit_cast<uint32_t>(E4M3ToF32(static_cast<uint8_t>(code))) >> 16); }

}  // namespace

Fp8Halves::Fp8Halves(bool vbmi, Emitter& e, Regs& regs, const Lanes& lanes)
    : vbmi_(vbmi), e_(e), regs_(regs), lanes_(lanes), tables_(e, regs, vbmi), sign_(regs.Vecs("sign", vbmi ? 1 : 0)) {}

void Fp8Halves::Constants() const {
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

// The halves of s.eeee.fff are s.(120 + eeee) / 2, from bits 4 .. 7, and (eeee % 2).fff.0000, from bits 0 .. 3; the 16
// codes of the least two exponents (one of them the subnormals') and NaN need something added. vpshufb gives zero for
// an index with bit 7, which makes its sums pick those codes.
void Fp8Halves::ByNibbles(int x, int low, int high) const {
  const auto scratch = regs_.Vecs("scratch", 2);
  const int t = scratch[0], u = scratch[1];
  const auto fill = [&](int byte) { return lanes_.Const(MakeVectorBytes([byte](int) { return byte; }).data()); };
  // dst = table[index], the table one of 16.
  const auto pick = [&](int dst, int index, auto value) {
    const auto table = MakeVectorBytes([&](int i) { return value(i % 16); });
    lanes_.Load(dst, table.data());
    e_.vpshufb(lanes_(dst), lanes_(dst), lanes_(index));
  };
  lanes_.And(t, x, fill(0x7F));
  lanes_.Load(u, MakeVectorBytes([](int) { return 0xFE; }).data());
  e_.vpsubb(lanes_(u), lanes_(u), lanes_(t));   // bit 7 clear for NaN alone
  e_.vpaddb(lanes_(t), lanes_(t), fill(0x70));  // bit 7 clear for the 16
  e_.vpsllw(lanes_(low), lanes_(x), 4);
  lanes_.And(low, low, fill(0xF0));
  pick(high, t, [](int i) { return Bf16Of(i) - (i << 4); });
  e_.vpaddb(lanes_(low), lanes_(low), lanes_(high));
  pick(high, t, [](int i) { return (Bf16Of(i) >> 8) - 0x3C; });
  pick(t, u, [](int) { return 0x7F - 0x43; });
  e_.vpaddb(lanes_(high), lanes_(high), lanes_(t));
  e_.vpsrlw(lanes_(u), lanes_(x), 4);
  lanes_.And(u, u, fill(0x0F));
  pick(t, u, [](int i) { return i / 8 * 0x80 + 0x3C + i % 8; });
  e_.vpaddb(lanes_(high), lanes_(high), lanes_(t));
}

}  // namespace xjit
