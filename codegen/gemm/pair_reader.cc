#include "codegen/gemm/pair_reader.h"

#include <array>
#include <bit>
#include <vector>

#include "codegen/gemm/fp8_halves.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Xbyak::Address;
using Xbyak::Zmm;

constexpr int kGroups = kPanelColumns / kGroupColumns;
constexpr uint8_t kOrMasked = 0xF8;  // vpternlog: A | (B & C)

VectorBytes Fill(int byte) {
  return MakeVectorBytes([byte](int) { return byte; });
}

// The upper half of an f32 that bf16 holds exactly.
int Bf16(float value) { return static_cast<int>(std::bit_cast<uint32_t>(value) >> 16); }
int Low(float value) { return Bf16(value) & 255; }
int High(float value) { return Bf16(value) >> 8; }

struct Base : PairReader {
  Base(int unit, Emitter& e, Regs& regs) : PairReader(unit), e(e), regs(regs) {}
  Emitter& e;
  Regs& regs;

  Address Const(const VectorBytes& bytes) const { return e.ConstZmm(bytes.data()); }
  void Unit(const WeightCursor& at, const PairSink& sink) override { Tail(unit(), at, sink); }
  // Bytes of low and high halves in pack.h's order for f8e4m3 to two pairs: pair 0 in `pair0`, pair 1 in `low`.
  void Interleave(const Zmm& pair0, const Zmm& low, const Zmm& high) const {
    e.vpunpcklbw(pair0, low, high);
    e.vpunpckhbw(low, low, high);
  }
};

// Dwords of a column's four k to the order in which interleaving gives pairs: (c, i) to (i / 2, c, i % 2) of each
// 16 bytes.
VectorBytes PairOrder() {
  return MakeVectorBytes([](int b) { return 4 * (b / 2 % 4) + b % 16 / 8 * 2 + b % 2; });
}

// f8e4m3 and i8: units of four k, 64 bytes a group.
struct ByteReader : Base {
  static constexpr int kUnit = 16;  // so that a loop's own instructions are few beside those of its body
  ByteReader(Emitter& e, Regs& regs) : Base(kUnit, e, regs) {}

  // `x` holds the bytes of a group; on return x and low hold pairs 0 and 1.
  virtual void Convert(const Zmm& x, const Zmm& low) = 0;

  void Tail(int k, const WeightCursor& at, const PairSink& sink) override {
    const int pairs = CeilDiv(k, 2);
    for (int p = 0; p < pairs; p += 2) {
      const auto x = regs.Vecs("x", kGroups), low = regs.Vecs("low", kGroups);
      at.touch(p * 64, 128);
      for (int g = 0; g < kGroups; ++g) {
        e.vmovdqu64(x.Z(g), e.ptr[at.w + p * 64 + g * 64]);
        Convert(x.Z(g), low.Z(g));
      }
      sink(p, 0, std::array{x[0], x[1]});
      if (p + 1 < pairs) sink(p + 1, 0, std::array{low[0], low[1]});
    }
    e.add(at.w, CeilDiv(k, 4) * 128);
    e.add(at.x, k * at.x_step);
  }
};

struct Fp8Reader : ByteReader {
  Fp8Reader(bool vbmi, Emitter& e, Regs& regs) : ByteReader(e, regs), halves(vbmi, e, regs, Lanes(e, true)) {}
  Fp8Halves halves;

  void Constants() override { halves.Constants(); }
  void Convert(const Zmm& x, const Zmm& low) override { halves.Convert(x.getIdx(), low.getIdx()); }
};

// The table is of |q|, which is 128 once: index 0, whose low half is that of 128 too; the high one is put right.
struct Int8TableReader : ByteReader {
  Int8TableReader(Emitter& e, Regs& regs) : ByteReader(e, regs), tables(e, regs), sign(regs.Vecs("sign")) {}
  TableHalves tables;
  Regs::VecList sign;

  void Constants() override {
    tables.Constants([](int i) { return Bf16(static_cast<float>(i)); });
    e.vmovdqa64(sign.Z(), Const(Fill(0x80)));
  }
  void Convert(const Zmm& x, const Zmm& low) override {
    const Xbyak::Opmask least(6);
    const auto high = regs.Vecs("high");
    e.vpshufb(x, x, Const(PairOrder()));
    e.vptestnmb(least, x, x);
    e.vpxord(x, x, sign.Z());
    e.vpabsb(high.Z(), x);
    tables.LookUp(high.Z(), low, high.Z());
    e.vpternlogd(high.Z(), x, sign.Z(), kOrMasked);
    e.vmovdqu8(high.Z() | least, Const(Fill(High(-128))));
    Interleave(x, low, high.Z());
  }
};

// i4: 256 bytes a group, the low nibbles of all (k = 0 .. 15) before the high ones.
struct NibbleReader : Base {
  static constexpr int kUnit = 32;
  NibbleReader(const Encoding& w, Emitter& e, Regs& regs)
      : Base(kUnit, e, regs),
        has_zeros(w.scales.zeros),
        zeros(regs.Vecs("zeros", has_zeros ? kGroups : 0)),
        zeros_at(ScaledBlocksOf(w, kUnit).scale_bytes) {}
  const bool has_zeros;
  const Regs::VecList zeros;
  const int zeros_at;  // in the header

  // A dword a column.
  void LoadZeroDwords(const Xbyak::Reg64& header) const {
    for (int g = 0; g < kGroups && has_zeros; ++g) {
      e.vpmovzxbd(zeros.Z(g), e.ptr[header + zeros_at + g * kGroupColumns]);
    }
  }
  // `x` holds dwords of a column's four bytes, in whose low or high nibbles are four k. Calls give(0, register) and
  // give(1, register) with the two pairs.
  virtual void Convert(const Zmm& x, bool high, int group, const std::function<void(int, int)>& give) = 0;

  void Tail(int k, const WeightCursor& at, const PairSink& sink) override {
    const int pairs = CeilDiv(k, 2);
    for (int group = 0; group < kGroups; ++group) {
      at.touch(group * 256, 256);
      for (int p = 0; p < pairs; p += 2) {
        const auto x = regs.Vecs("x");
        e.vmovdqu64(x.Z(), e.ptr[at.w + group * 256 + p / 2 % 4 * 64]);
        Convert(x.Z(), p >= 8, group, [&](int i, int reg) {
          if (p + i < pairs) sink(p + i, group, std::array{reg});
        });
      }
    }
    e.add(at.w, 512);
    e.add(at.x, k * at.x_step);
  }
};

// Tables of 64 bytes: indexed by q - zero in six bits, or, with the zero of 8 in the table, by q and any two bits.
struct NibbleTableReader : NibbleReader {
  NibbleTableReader(const Encoding& w, Emitter& e, Regs& regs)
      : NibbleReader(w, e, regs), tables(regs.Vecs("tables", 2)), order(regs.Vecs("order")) {}
  Regs::VecList tables, order;

  void Constants() override {
    const auto value = [this](int i) { return static_cast<float>(!has_zeros ? i % 16 - 8 : i < 32 ? i : i - 64); };
    e.vmovdqa64(tables.Z(0), Const(MakeVectorBytes([&](int i) { return Low(value(i)); })));
    e.vmovdqa64(tables.Z(1), Const(MakeVectorBytes([&](int i) { return High(value(i)); })));
    e.vmovdqa64(order.Z(), Const(PairOrder()));
  }
  void LoadZeros(const Xbyak::Reg64& header) override {
    LoadZeroDwords(header);
    // The column's byte in both of its places in both pairs.
    const auto places = MakeVectorBytes([](int b) { return 4 * (b / 2 % 4); });
    for (int g = 0; g < kGroups && has_zeros; ++g) e.vpshufb(zeros.Z(g), zeros.Z(g), Const(places));
  }
  void Convert(const Zmm& x, bool high, int group, const std::function<void(int, int)>& give) override {
    const auto halves = regs.Vecs("halves", 2);
    e.vpshufb(x, x, order.Z());
    if (high) e.vpsrlw(x, x, 4);
    if (has_zeros) {
      e.vpandd(x, x, Const(Fill(0x0F)));
      e.vpsubb(x, x, zeros.Z(group));
    }
    e.vpermb(halves.Z(0), x, tables.Z(0));
    e.vpermb(halves.Z(1), x, tables.Z(1));
    Interleave(x, halves.Z(0), halves.Z(1));
    give(0, x.getIdx());
    give(1, halves[0]);
  }
};

// Without vpermb, a byte u in bits 8 .. 15 of the f32 2^15 is 2^15 + u; 2^15 + offset taken off leaves an integer that
// is exact in the upper half.
struct ByteMagic {
  ByteMagic(Emitter& e, Regs& regs)
      : e(e), magic(regs.Vecs("magic")), upper(regs.Vecs("upper")), odd(regs.Vecs("odd")) {}
  Emitter& e;
  Regs::VecList magic, upper, odd;
  static constexpr uint32_t kMagic = std::bit_cast<uint32_t>(0x1p15f);

  void Constants() const {
    e.vpbroadcastd(magic.Z(), e.ptr[e.ConstLabel32(kMagic)]);
    e.vpbroadcastd(upper.Z(), e.ptr[e.ConstLabel32(0xFFFF0000)]);
  }
  // pair = bytes 2 i and 2 i + 1 of x's dwords, less `offset`'s.
  void Pair(const Zmm& pair, const Zmm& x, int i, const Zmm& offset) const {
    const auto pick = [i](int odd) {
      return MakeVectorBytes([=](int b) { return b % 4 == 1 ? b % 16 / 4 * 4 + 2 * i + odd : 0x80; });
    };
    e.vpshufb(odd.Z(), x, e.ConstZmm(pick(1).data()));
    e.vpshufb(pair, x, e.ConstZmm(pick(0).data()));
    for (const Zmm& z : {pair, odd.Z()}) {
      e.vpord(z, z, magic.Z());
      e.vsubps(z, z, offset);
    }
    e.vpsrld(pair, pair, 16);
    e.vpternlogd(pair, odd.Z(), upper.Z(), kOrMasked);
  }
};

struct Int8MagicReader : ByteReader {
  Int8MagicReader(Emitter& e, Regs& regs) : ByteReader(e, regs), magic(e, regs), offset(regs.Vecs("offset")) {}
  ByteMagic magic;
  Regs::VecList offset;

  void Constants() override {
    magic.Constants();
    e.vbroadcastss(offset.Z(), e.ptr[e.ConstLabel32(std::bit_cast<uint32_t>(0x1p15f + 128))]);
  }
  void Convert(const Zmm& x, const Zmm& low) override {
    const auto bytes = regs.Vecs("bytes");
    e.vmovdqa64(bytes.Z(), x);
    magic.Pair(x, bytes.Z(), 0, offset.Z());
    magic.Pair(low, bytes.Z(), 1, offset.Z());
  }
};

struct NibbleMagicReader : NibbleReader {
  NibbleMagicReader(const Encoding& w, Emitter& e, Regs& regs)
      : NibbleReader(w, e, regs), magic(e, regs), offset(regs.Vecs("offset", has_zeros ? 0 : 1)) {}
  ByteMagic magic;
  Regs::VecList offset;  // without zeros

  void Constants() override {
    magic.Constants();
    if (!has_zeros) e.vbroadcastss(offset.Z(), e.ptr[e.ConstLabel32(std::bit_cast<uint32_t>(0x1p15f + 8))]);
  }
  void LoadZeros(const Xbyak::Reg64& header) override {
    LoadZeroDwords(header);
    for (int g = 0; g < kGroups && has_zeros; ++g) {
      e.vcvtdq2ps(zeros.Z(g), zeros.Z(g));
      e.vaddps(zeros.Z(g), zeros.Z(g), magic.magic.Z());
    }
  }
  void Convert(const Zmm& x, bool high, int group, const std::function<void(int, int)>& give) override {
    const auto pair = regs.Vecs("pair", 2);
    if (high) e.vpsrlw(x, x, 4);
    e.vpandd(x, x, Const(Fill(0x0F)));
    for (int i = 0; i < 2; ++i) {
      magic.Pair(pair.Z(i), x, i, has_zeros ? zeros.Z(group) : offset.Z());
      give(i, pair[i]);
    }
  }
};

}  // namespace

int PairUnit(const Encoding& w) { return w.type == DType::kI4 ? NibbleReader::kUnit : ByteReader::kUnit; }

int PairVectors(const Encoding& w, bool vbmi) {
  if (w.type == DType::kI4) return (w.scales.zeros ? 2 : vbmi ? 0 : 1) + 3 + 3;
  if (w.type == DType::kI8) return (vbmi ? 5 : 4) + 2 * kGroups + 1;
  return Fp8Halves::Kept(vbmi) + 2 * kGroups + Fp8Halves::Scratch(vbmi);
}

std::unique_ptr<PairReader> MakePairReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs) {
  if (w.type == DType::kI4) {
    if (vbmi) return std::make_unique<NibbleTableReader>(w, e, regs);
    return std::make_unique<NibbleMagicReader>(w, e, regs);
  }
  if (w.type == DType::kI8) {
    if (vbmi) return std::make_unique<Int8TableReader>(e, regs);
    return std::make_unique<Int8MagicReader>(e, regs);
  }
  return std::make_unique<Fp8Reader>(vbmi, e, regs);
}

void ReadBlocks(const Encoding& w, int64_t k, PairReader& reader, const WeightCursor& at, const Xbyak::Reg64& units,
                const Xbyak::Reg64& blocks, const PairSink& sink, const std::function<void()>& end, Emitter& e) {
  const ScaledBlocks layout = ScaledBlocksOf(w, k);
  const auto block = [&](int64_t elems) {
    e.mov(at.inner, at.w);
    at.touch(0, layout.header_bytes());
    reader.LoadZeros(at.inner);
    e.add(at.w, layout.header_bytes());
    ReadUnits(elems, reader, at, units, sink, e);
    end();
    e.mov(at.w, layout.block_bytes(elems));
    e.add(at.w, at.inner);
  };
  const int64_t whole = k / layout.depth;
  if (whole > 0) {
    Xbyak::Label next;
    e.mov(blocks, whole);
    e.L(next);
    block(layout.depth);
    e.dec(blocks);
    e.jnz(next);
  }
  if (k % layout.depth != 0) block(k % layout.depth);
}

}  // namespace xjit
