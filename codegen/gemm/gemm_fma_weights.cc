#include "codegen/gemm/gemm_fma_weights.h"

#include <bit>
#include <vector>

#include "codegen/gemm/gemm_fma_weights_scaled.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Xbyak::Reg64;

constexpr int kPlainUnit = 8;

struct Base : WeightReader {
  Base(int unit, Emitter& e, Regs& regs, const Lanes& lanes) : WeightReader(unit), e(e), regs(regs), lanes(lanes) {}
  Emitter& e;
  Regs& regs;
  const Lanes& lanes;

  static std::vector<int> List(const Regs::VecList& v) {
    std::vector<int> out(v.size());
    for (size_t i = 0; i < v.size(); ++i) out[i] = v[i];
    return out;
  }
};

// f32, f16: a row of the panel is one k.
struct RowReader : Base {
  RowReader(bool half, Emitter& e, Regs& regs, const Lanes& lanes) : Base(kPlainUnit, e, regs, lanes), half(half) {}
  bool half;

  void Unit(const WeightCursor& at, const WeightSink& sink) override { Tail(unit(), at, sink); }
  void Tail(int k, const WeightCursor& at, const WeightSink& sink) override {
    const auto w = regs.Vecs("w", lanes.per_panel());
    const int bytes = half ? lanes.bytes() / 2 : lanes.bytes();
    const int row = bytes * lanes.per_panel();
    for (int i = 0; i < k; ++i) {
      at.touch(i * row, row);
      for (int v = 0; v < lanes.per_panel(); ++v) {
        const auto from = e.ptr[at.w + i * row + v * bytes];
        if (half) {
          e.vcvtph2ps(lanes(w[v]), from);
        } else {
          e.vmovups(lanes(w[v]), from);
        }
      }
      sink(i, 0, List(w));
    }
    e.add(at.w, k * row);
    e.add(at.x, k * at.x_step);
  }
};

// bf16: a dword is two k's of a column, the even one in its low half. A bf16 is the upper half of an f32.
struct Bf16Reader : Base {
  Bf16Reader(Emitter& e, Regs& regs, const Lanes& lanes) : Base(kPlainUnit, e, regs, lanes) {}

  void Unit(const WeightCursor& at, const WeightSink& sink) override { Tail(unit(), at, sink); }
  void Tail(int k, const WeightCursor& at, const WeightSink& sink) override {
    const auto w = regs.Vecs("w", lanes.per_panel()), mask = regs.Vecs("mask");
    const int row = lanes.bytes() * lanes.per_panel();
    lanes.Fill(mask[0], 0xFFFF0000);
    for (int i = 0; i < k; ++i) {
      const int offset = i / 2 * row;
      if (i % 2 == 0) at.touch(offset, row);
      for (int v = 0; v < lanes.per_panel(); ++v) {
        const auto from = e.ptr[at.w + offset + v * lanes.bytes()];
        if (i % 2 == 0) {
          e.vmovups(lanes(w[v]), from);
          e.vpslld(lanes(w[v]), lanes(w[v]), 16);
        } else {
          lanes.And(w[v], mask[0], from);
        }
      }
      sink(i, 0, List(w));
    }
    e.add(at.w, (k + 1) / 2 * row);
    e.add(at.x, k * at.x_step);
  }
};

// Where the parts of 32 k of a group lie, as offsets from w.
struct Quants {
  int nibbles = 0;    // u8[4][16][4]
  int high = 0;       // the planes of bits above the nibbles
  int high_bits = 0;  // 0, 1 or 2
};

// What the GGUF encodings share. A weight is q * scale + offset in one fma: every product of the encodings' factors is
// exact in f32, so that this rounds at most once, where d * q - m does.
struct QuantReader : Base {
  using Base::Base;

  void Tail(int, const WeightCursor&, const WeightSink&) override {}  // k is a multiple of the block

  struct Scale {
    Scale(Regs& regs, const Lanes& lanes)
        : scale(regs.Vecs("scale", lanes.per_group())), offset(regs.Vecs("offset", lanes.per_group())) {}
    Regs::VecList scale, offset;
  };

  // The four q's in the bytes of each dword of `quad` are those of k .. k + 3.
  void Four(const Regs::VecList& quad, const Regs::VecList& t, const Scale& s, int k, int group,
            const WeightSink& sink) const {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        if (i == 3) {
          lanes.ShiftDown(t[j], quad[j], 24);
        } else {
          lanes.PickByte(t[j], quad[j], i);
        }
      }
      for (int j = 0; j < lanes.per_group(); ++j) e.vcvtdq2ps(lanes(t[j]), lanes(t[j]));
      for (int j = 0; j < lanes.per_group(); ++j) e.vfmadd213ps(lanes(t[j]), lanes(s.scale[j]), lanes(s.offset[j]));
      sink(k + i, group * lanes.per_group(), List(t));
    }
  }

  // offset = scale * factor.
  void OffsetOf(const Scale& s, float factor) const {
    const auto f = regs.Vecs("factor");
    lanes.Fill(f[0], std::bit_cast<uint32_t>(factor));
    for (int j = 0; j < lanes.per_group(); ++j) e.vmulps(lanes(s.offset[j]), lanes(s.scale[j]), lanes(f[0]));
  }

  void LoadF16(const Regs::VecList& dst, const Reg64& w, int offset) const {
    for (int j = 0; j < lanes.per_group(); ++j) {
      e.vcvtph2ps(lanes(dst[j]), e.ptr[w + offset + j * lanes.bytes() / 2]);
    }
  }

  void LoadDwords(const Regs::VecList& dst, const Reg64& w, int offset) const {
    for (int j = 0; j < lanes.per_group(); ++j) e.vmovups(lanes(dst[j]), e.ptr[w + offset + j * lanes.bytes()]);
  }

  // 32 k of `group`. `second_half` is called between k = 15 and 16 (a scale may change there).
  void Nibbles(
      const WeightCursor& at, const WeightSink& sink, int group, const Quants& q, const Scale& s,
      const std::function<void()>& second_half = [] {}) const {
    const auto quad = regs.Vecs("quad", lanes.per_group()), t = regs.Vecs("t", lanes.per_group());
    const auto low = regs.Vecs("low"), high = regs.Vecs("high", q.high_bits > 0 ? 2 : 0);
    lanes.Fill(low[0], 0x0F0F0F0F);
    if (q.high_bits > 0) lanes.Fill(high[1], q.high_bits == 1 ? 0x10101010 : 0x30303030);
    at.touch(q.nibbles, 256);
    if (q.high_bits > 0) at.touch(q.high, 64 * q.high_bits);
    for (int half = 0; half < 2; ++half) {
      if (half == 1) second_half();
      for (int g = 0; g < 4; ++g) {
        LoadDwords(quad, at.w, q.nibbles + g * 64);
        for (int j = 0; j < lanes.per_group(); ++j) {
          lanes.ShiftDown(quad[j], quad[j], 4 * half);
          lanes.And(quad[j], quad[j], low[0]);
          if (q.high_bits == 0) continue;
          const int plane = q.high_bits == 2 ? half : 0;
          const int bit = q.high_bits == 2 ? 2 * g : g + 4 * half;  // of each byte
          e.vmovups(lanes(high[0]), e.ptr[at.w + q.high + plane * 64 + j * lanes.bytes()]);
          lanes.ShiftDown(high[0], high[0], bit - 4);
          lanes.OrMasked(quad[j], high[0], high[1]);
        }
        Four(quad, t, s, 16 * half + 4 * g, group, sink);
      }
    }
  }
};

// q8_0, q4_0, q4_1, q5_0, q5_1.
struct Block32Reader : QuantReader {
  Block32Reader(DType encoding, Emitter& e, Regs& regs, const Lanes& lanes)
      : QuantReader(32, e, regs, lanes), group_bytes(PackedGroupBytes(encoding)) {
    switch (encoding) {
      case DType::kQ8_0:
        factor = -128;
        bytes = true;
        break;
      case DType::kQ4_0:
        factor = -8;
        break;
      case DType::kQ5_0:
        factor = -16;
        q.high_bits = 1;
        break;
      case DType::kQ5_1:
        min = true;
        q.high_bits = 1;
        break;
      default:  // kQ4_1
        min = true;
    }
    q.nibbles = min ? 64 : 32;
    q.high = q.nibbles + 256;
  }
  int group_bytes;
  float factor = 0;  // offset = factor * d, without mins
  bool min = false;
  bool bytes = false;
  Quants q;

  void Unit(const WeightCursor& at, const WeightSink& sink) override {
    for (int group = 0; group < 2; ++group) {
      const int base = group * group_bytes;
      const Scale s(regs, lanes);
      at.touch(base, q.nibbles);
      LoadF16(s.scale, at.w, base);
      if (min) {
        LoadF16(s.offset, at.w, base + 32);
      } else {
        OffsetOf(s, factor);
      }
      if (bytes) {
        Bytes(at, sink, group, base + q.nibbles, s);
      } else {
        Nibbles(at, sink, group, {base + q.nibbles, base + q.high, q.high_bits}, s);
      }
    }
    e.add(at.w, 2 * group_bytes);
    e.add(at.x, 32 * at.x_step);
  }

  void Bytes(const WeightCursor& at, const WeightSink& sink, int group, int offset, const Scale& s) const {
    const auto quad = regs.Vecs("quad", lanes.per_group()), t = regs.Vecs("t", lanes.per_group());
    for (int g = 0; g < 8; ++g) {
      at.touch(offset + g * 64, 64);
      LoadDwords(quad, at.w, offset + g * 64);
      Four(quad, t, s, 4 * g, group, sink);
    }
  }
};

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

  // t = the 6-bit field at `bit` of a word of the columns of a vector, `offset` from w.
  void Field(int t, int mask, const Reg64& w, int offset, int bit) const {
    e.vmovups(lanes(t), e.ptr[w + offset]);
    lanes.ShiftDown(t, t, bit);
    lanes.And(t, t, mask);
  }

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
        const auto word = [&](int i) { return offset + kWords + i * 64 + j * lanes.bytes(); };
        Field(t[0], mask[0], at.w, word(s < 5 ? 0 : 1), 6 * (s < 5 ? s : s - 5));
        e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
        e.vmulps(lanes(t[0]), lanes(t[0]), lanes(d[j]));
        e.vmovups(e.ptr[e.rsp + slot], lanes(t[0]));
        if (s < 2) {
          Field(t[0], mask[0], at.w, word(1), 18 + 6 * s);
        } else if (s < 7) {
          Field(t[0], mask[0], at.w, word(2), 6 * (s - 2));
        } else {  // two bits of it on top of each word
          Field(t[0], mask[0], at.w, word(0), 30);
          for (int i = 1; i < 3; ++i) {
            Field(u[0], mask[0], at.w, word(i), 30);
            lanes.ShiftDown(u[0], u[0], -2 * i);
            lanes.Or(t[0], t[0], u[0]);
          }
        }
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
    Nibbles(at, sink, group, {offset, offset + 256, five ? 1 : 0}, s);
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
        const auto x = lanes(s.scale[j]);
        e.vpmovsxbd(x, e.ptr[at.w + offset + half * 16 + j * lanes.count()]);
        e.vcvtdq2ps(x, x);
        e.vmulps(x, x, e.ptr[e.rsp + table + j * lanes.bytes()]);
      }
      const auto f = lanes(s.offset[0]);
      lanes.Fill(s.offset[0], std::bit_cast<uint32_t>(-32.0f));
      for (int j = lanes.per_group() - 1; j >= 0; --j) e.vmulps(lanes(s.offset[j]), lanes(s.scale[j]), f);
    };
    at.touch(offset, 32);
    half_scale(0);
    Nibbles(at, sink, group, {offset + 32, offset + 32 + 256, 2}, s, [&] { half_scale(1); });
  }
};

}  // namespace

int WeightUnit(const Encoding& w) {
  if (HasScalesOutside(w.type)) return ScaledUnit(w);
  return IsQuantized(w.type) ? Info(w.type).block_elems : kPlainUnit;
}

int WeightVectors(const Encoding& w, bool wide, bool vbmi) {
  if (HasScalesOutside(w.type)) return ScaledVectors(w, wide, vbmi);
  const int per_group = wide ? 1 : 2;
  if (IsQuantized(w.type)) return 4 * per_group + 3;
  return 2 * per_group + (w.type == DType::kBF16 ? 1 : 0);
}

int64_t UnreadBytes(const Encoding& w, int64_t k) {
  if (w.type == DType::kBF16) return PanelBytes(w, k) - CeilDiv(k, 2) * 128;
  if (w.type != DType::kI8) return 0;
  const ScaledBlocks blocks = ScaledBlocksOf(w, k);
  const int64_t last = blocks.elems(k, blocks.count(k) - 1);
  return blocks.block_bytes(last) - blocks.header_bytes() - CeilDiv<int64_t>(last, blocks.unit) * blocks.unit_bytes;
}

std::unique_ptr<WeightReader> MakeWeightReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs,
                                               const Lanes& lanes) {
  if (HasScalesOutside(w.type)) return MakeScaledReader(w, vbmi, e, regs, lanes);
  switch (w.type) {
    case DType::kF16:
      return std::make_unique<RowReader>(true, e, regs, lanes);
    case DType::kBF16:
      return std::make_unique<Bf16Reader>(e, regs, lanes);
    case DType::kQ4_K:
      return std::make_unique<KMinReader>(false, e, regs, lanes);
    case DType::kQ5_K:
      return std::make_unique<KMinReader>(true, e, regs, lanes);
    case DType::kQ6_K:
      return std::make_unique<Q6KReader>(e, regs, lanes);
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
      return std::make_unique<Block32Reader>(w.type, e, regs, lanes);
    default:
      return std::make_unique<RowReader>(false, e, regs, lanes);
  }
}

}  // namespace xjit
