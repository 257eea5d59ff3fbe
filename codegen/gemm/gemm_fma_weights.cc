#include "codegen/gemm/gemm_fma_weights.h"

#include "codegen/gemm/gemm_fma_readers.h"
#include "codegen/gemm/gemm_fma_weights_scaled.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using namespace fma_internal;  // NOLINT: this file's own

constexpr int kPlainUnit = 8;

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

// q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl.
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
      case DType::kIQ4_NL:
        q.table = kIq4Values;
        break;
      default:  // kQ4_1
        min = true;
    }
    q.low = min ? 64 : 32;
    q.high = q.low + 256;
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
      at.touch(base, q.low);
      LoadF16(s.scale, at.w, base);
      if (min) {
        LoadF16(s.offset, at.w, base + 32);
      } else if (q.table == nullptr) {
        OffsetOf(s, factor);
      }
      if (bytes) {
        Bytes(at, sink, group, base + q.low, s);
      } else {
        Codes(at, sink, group, {base + q.low, base + q.high, q.high_bits, false, q.table}, s);
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

// mxfp4: the exponents of both groups stand in front.
struct Mxfp4Reader : QuantReader {
  Mxfp4Reader(Emitter& e, Regs& regs, const Lanes& lanes) : QuantReader(32, e, regs, lanes) {}

  void Unit(const WeightCursor& at, const WeightSink& sink) override {
    at.touch(0, kPanelColumns);
    for (int group = 0; group < 2; ++group) {
      const Scale s(regs, lanes);
      for (int j = 0; j < lanes.per_group(); ++j) {
        HalfPower(s.scale[j], s.offset[j], at.w, group * kGroupColumns + j * lanes.count());
      }
      Codes(at, sink, group, {kPanelColumns + 256 * group, 0, 0, false, kFp4Doubled}, s);
    }
    e.add(at.w, kPanelColumns + 512);
    e.add(at.x, 32 * at.x_step);
  }

  // dst = 2^(x - 128) of the bytes x at w + offset: bits (x - 1) << 23, but for x < 2 the subnormals 0x200000 << x.
  void HalfPower(int dst, int t, const Reg64& w, int offset) const {
    const auto two = regs.Vecs("two");
    e.vpmovzxbd(lanes(dst), e.ptr[w + offset]);
    lanes.Fill(two[0], 2);
    e.vpminsd(lanes(t), lanes(dst), lanes(two[0]));
    lanes.Fill(two[0], 0x200000);
    e.vpsllvd(lanes(t), lanes(two[0]), lanes(t));
    e.vpslld(lanes(dst), lanes(dst), 23);
    lanes.Fill(two[0], 0x800000);
    e.vpsubd(lanes(dst), lanes(dst), lanes(two[0]));
    e.vpmaxsd(lanes(dst), lanes(dst), lanes(t));
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
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kIQ4_XS:
      return MakeKQuantReader(w.type, e, regs, lanes);
    case DType::kMxfp4:
      return std::make_unique<Mxfp4Reader>(e, regs, lanes);
    case DType::kIQ4_NL:
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
