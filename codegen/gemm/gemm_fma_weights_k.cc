// Readers of encodings with blocks of 256.
#include "codegen/gemm/gemm_fma_readers.h"

namespace xjit::fma_internal {
namespace {

// Eight sub-blocks of 32 k, walked by a loop in the emitted code, one group's right after the other's: sums of 256 k of
// one group alone would wait for each other.
struct Block256Reader : QuantReader {
  Block256Reader(int header_bytes, int sub_bytes, Emitter& e, Regs& regs, const Lanes& lanes)
      : QuantReader(256, e, regs, lanes),
        header_bytes(header_bytes),
        sub_bytes(sub_bytes),
        group_bytes(header_bytes + 8 * sub_bytes) {}
  // Reads what stands before the sub-blocks of a group, `offset` from w, into the table at rsp + table.
  virtual void Header(const WeightCursor& at, int offset, int table) = 0;
  // Sub-block `at.inner / kSlot` of the group, `offset` from w.
  virtual void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) = 0;
  int header_bytes, sub_bytes, group_bytes;

  // t = field f of the 16 of 6 bits in the three words of a vector's columns, `words` from w.
  void Field(int t, int u, int mask, const Reg64& w, int words, int f) const {
    const auto bits = [&](int x, int word, int bit) {
      e.vmovups(lanes(x), e.ptr[w + words + word * 64]);
      lanes.ShiftDown(x, x, bit);
      lanes.And(x, x, mask);
    };
    if (f < 15) return bits(t, f / 5, 6 * (f % 5));
    bits(t, 0, 30);  // two bits of it on top of each word
    for (int i = 1; i < 3; ++i) {
      bits(u, i, 30);
      lanes.ShiftDown(u, u, -2 * i);
      lanes.Or(t, t, u);
    }
  }
  // dst = d * f32(dst), d in the table.
  void TimesD(int dst, int table, int j) const {
    e.vcvtdq2ps(lanes(dst), lanes(dst));
    e.vmulps(lanes(dst), lanes(dst), e.ptr[e.rsp + table + j * lanes.bytes()]);
  }

  static constexpr int kSlot = 128;  // bytes of the table of one sub-block
  static constexpr int kTable = 8 * kSlot;

  void Unit(const WeightCursor& at, const WeightSink& sink) override {
    for (int group = 0; group < 2; ++group) Header(at, group * group_bytes, at.table + group * kTable);
    e.add(at.w, header_bytes);
    e.xor_(at.inner.cvt32(), at.inner.cvt32());
    Xbyak::Label next;
    e.L(next);
    for (int group = 0; group < 2; ++group) {
      SubBlock(at, sink, group, group * group_bytes, at.table + group * kTable);
    }
    e.add(at.w, sub_bytes);
    e.add(at.x, 32 * at.x_step);
    e.add(at.inner, kSlot);
    e.cmp(at.inner, kTable);
    e.jl(next);
    e.add(at.w, group_bytes);
  }
};

// q4_k, q5_k: the table holds of each sub-block d * sc and -(dmin * mn), 16 columns each.
struct KMinReader : Block256Reader {
  KMinReader(bool five, Emitter& e, Regs& regs, const Lanes& lanes)
      : Block256Reader(kHeader, five ? 320 : 256, e, regs, lanes), five(five) {}
  bool five;
  static constexpr int kWords = 64;            // after d and dmin
  static constexpr int kHeader = 64 + 3 * 64;  // d, dmin, three dwords

  void Header(const WeightCursor& at, int offset, int table) override {
    const auto d = regs.Vecs("d", lanes.per_group()), dmin = regs.Vecs("dmin", lanes.per_group());
    const auto t = regs.Vecs("t"), u = regs.Vecs("u"), mask = regs.Vecs("mask");
    at.touch(offset, kHeader);
    LoadF16(d, at.w, offset);
    LoadF16(dmin, at.w, offset + 32);
    lanes.Fill(mask[0], 0x80000000);
    for (int j = 0; j < lanes.per_group(); ++j) e.vxorps(lanes(dmin[j]), lanes(dmin[j]), lanes(mask[0]));
    lanes.Fill(mask[0], 0x3F);
    for (int s = 0; s < 8; ++s) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        const int slot = table + s * kSlot + j * lanes.bytes();
        const int words = offset + kWords + j * lanes.bytes();
        Field(t[0], u[0], mask[0], at.w, words, s);
        e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
        e.vmulps(lanes(t[0]), lanes(t[0]), lanes(d[j]));
        e.vmovups(e.ptr[e.rsp + slot], lanes(t[0]));
        Field(t[0], u[0], mask[0], at.w, words, 8 + s);
        e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
        e.vmulps(lanes(t[0]), lanes(t[0]), lanes(dmin[j]));
        e.vmovups(e.ptr[e.rsp + slot + 64], lanes(t[0]));
      }
    }
  }

  void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) override {
    const Scale s(regs, lanes);
    for (int j = 0; j < lanes.per_group(); ++j) {
      e.vmovups(lanes(s.scale[j]), e.ptr[e.rsp + at.inner + table + j * lanes.bytes()]);
      e.vmovups(lanes(s.offset[j]), e.ptr[e.rsp + at.inner + table + 64 + j * lanes.bytes()]);
    }
    Codes(at, sink, group, {offset, offset + 256, five ? 1 : 0}, s);
  }
};

// q6_k: the table holds d; a sub-block starts with the 8-bit scales of its two halves.
struct Q6KReader : Block256Reader {
  Q6KReader(Emitter& e, Regs& regs, const Lanes& lanes) : Block256Reader(32, 416, e, regs, lanes) {}

  void Header(const WeightCursor& at, int offset, int table) override {
    const auto d = regs.Vecs("d", lanes.per_group());
    at.touch(offset, 32);
    LoadF16(d, at.w, offset);
    for (int j = 0; j < lanes.per_group(); ++j) e.vmovups(e.ptr[e.rsp + table + j * lanes.bytes()], lanes(d[j]));
  }

  void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) override {
    const Scale s(regs, lanes);
    const auto half_scale = [&](int half) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        e.vpmovsxbd(lanes(s.scale[j]), e.ptr[at.w + offset + half * 16 + j * lanes.count()]);
        TimesD(s.scale[j], table, j);
      }
      OffsetOf(s, -32);
    };
    at.touch(offset, 32);
    half_scale(0);
    Codes(at, sink, group, {offset + 32, offset + 32 + 256, 2}, s, [&] { half_scale(1); });
  }
};

// q2_k: the table holds d and -dmin; a sub-block starts with the scales (low four bits) and minima of its two halves.
struct Q2KReader : Block256Reader {
  Q2KReader(Emitter& e, Regs& regs, const Lanes& lanes) : Block256Reader(64, 160, e, regs, lanes) {}

  void Header(const WeightCursor& at, int offset, int table) override {
    const auto d = regs.Vecs("d", lanes.per_group()), sign = regs.Vecs("sign");
    at.touch(offset, 64);
    lanes.Fill(sign[0], 0x80000000);
    for (int i = 0; i < 2; ++i) {
      LoadF16(d, at.w, offset + 32 * i);
      for (int j = 0; j < lanes.per_group(); ++j) {
        if (i == 1) e.vxorps(lanes(d[j]), lanes(d[j]), lanes(sign[0]));
        e.vmovups(e.ptr[e.rsp + table + 64 * i + j * lanes.bytes()], lanes(d[j]));
      }
    }
  }

  void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) override {
    const Scale s(regs, lanes);
    const auto half_scale = [&](int half) {
      const auto mask = regs.Vecs("mask");
      lanes.Fill(mask[0], 15);
      for (int j = 0; j < lanes.per_group(); ++j) {
        e.vpmovzxbd(lanes(s.scale[j]), e.ptr[at.w + offset + half * 16 + j * lanes.count()]);
        lanes.ShiftDown(s.offset[j], s.scale[j], 4);
        TimesD(s.offset[j], table + 64, j);
        lanes.And(s.scale[j], s.scale[j], mask[0]);
        TimesD(s.scale[j], table, j);
      }
    };
    at.touch(offset, 32);
    half_scale(0);
    Codes(at, sink, group, {offset + 32, 0, 0, true}, s, [&] { half_scale(1); });
  }
};

// q3_k: the table holds of each sub-block d * (sc - 32) of its two halves.
struct Q3KReader : Block256Reader {
  Q3KReader(Emitter& e, Regs& regs, const Lanes& lanes) : Block256Reader(kHeader, 192, e, regs, lanes) {}
  static constexpr int kWords = 32, kHeader = 32 + 3 * 64;

  void Header(const WeightCursor& at, int offset, int table) override {
    const auto d = regs.Vecs("d", lanes.per_group());
    const auto t = regs.Vecs("t"), u = regs.Vecs("u"), mask = regs.Vecs("mask"), middle = regs.Vecs("middle");
    at.touch(offset, kHeader);
    LoadF16(d, at.w, offset);
    lanes.Fill(mask[0], 0x3F);
    lanes.Fill(middle[0], 32);
    for (int f = 0; f < 16; ++f) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        Field(t[0], u[0], mask[0], at.w, offset + kWords + j * lanes.bytes(), f);
        e.vpsubd(lanes(t[0]), lanes(t[0]), lanes(middle[0]));
        e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
        e.vmulps(lanes(t[0]), lanes(t[0]), lanes(d[j]));
        e.vmovups(e.ptr[e.rsp + table + 64 * f + j * lanes.bytes()], lanes(t[0]));
      }
    }
  }

  void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) override {
    const Scale s(regs, lanes);
    const auto half_scale = [&](int half) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        e.vmovups(lanes(s.scale[j]), e.ptr[e.rsp + at.inner + table + 64 * half + j * lanes.bytes()]);
      }
      OffsetOf(s, -4);
    };
    half_scale(0);
    Codes(at, sink, group, {offset, offset + 128, 1, true}, s, [&] { half_scale(1); });
  }
};

// iq4_xs: the table holds of each sub-block d * (sc - 32).
struct IQ4XSReader : Block256Reader {
  IQ4XSReader(Emitter& e, Regs& regs, const Lanes& lanes) : Block256Reader(kHeader, 256, e, regs, lanes) {}
  static constexpr int kHigh = 32, kLow = 64, kHeader = 128;

  void Header(const WeightCursor& at, int offset, int table) override {
    const auto d = regs.Vecs("d", lanes.per_group());
    const auto t = regs.Vecs("t"), u = regs.Vecs("u"), mask = regs.Vecs("mask");
    at.touch(offset, kHeader);
    LoadF16(d, at.w, offset);
    for (int sub = 0; sub < 8; ++sub) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        e.vmovups(lanes(t[0]), e.ptr[at.w + offset + kLow + j * lanes.bytes()]);
        lanes.ShiftDown(t[0], t[0], 4 * sub);
        lanes.Fill(mask[0], 15);
        lanes.And(t[0], t[0], mask[0]);
        e.vpmovzxwd(lanes(u[0]), e.ptr[at.w + offset + kHigh + j * lanes.bytes() / 2]);
        lanes.ShiftDown(u[0], u[0], 2 * sub - 4);
        lanes.Fill(mask[0], 3 << 4);
        lanes.OrMasked(t[0], u[0], mask[0]);
        lanes.Fill(mask[0], 32);
        e.vpsubd(lanes(t[0]), lanes(t[0]), lanes(mask[0]));
        e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
        e.vmulps(lanes(t[0]), lanes(t[0]), lanes(d[j]));
        e.vmovups(e.ptr[e.rsp + table + kSlot * sub + j * lanes.bytes()], lanes(t[0]));
      }
    }
  }

  void SubBlock(const WeightCursor& at, const WeightSink& sink, int group, int offset, int table) override {
    const Scale s(regs, lanes);
    for (int j = 0; j < lanes.per_group(); ++j) {
      e.vmovups(lanes(s.scale[j]), e.ptr[e.rsp + at.inner + table + j * lanes.bytes()]);
    }
    Codes(at, sink, group, {offset, 0, 0, false, kIq4Values}, s);
  }
};

}  // namespace

std::unique_ptr<WeightReader> MakeKQuantReader(DType encoding, Emitter& e, Regs& regs, const Lanes& lanes) {
  switch (encoding) {
    case DType::kQ4_K:
      return std::make_unique<KMinReader>(false, e, regs, lanes);
    case DType::kQ5_K:
      return std::make_unique<KMinReader>(true, e, regs, lanes);
    case DType::kQ6_K:
      return std::make_unique<Q6KReader>(e, regs, lanes);
    case DType::kQ2_K:
      return std::make_unique<Q2KReader>(e, regs, lanes);
    case DType::kQ3_K:
      return std::make_unique<Q3KReader>(e, regs, lanes);
    default:  // kIQ4_XS
      return std::make_unique<IQ4XSReader>(e, regs, lanes);
  }
}

}  // namespace xjit::fma_internal
