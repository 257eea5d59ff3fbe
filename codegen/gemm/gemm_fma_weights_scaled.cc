#include "codegen/gemm/gemm_fma_weights_scaled.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "codegen/gemm/fp8_halves.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// A unit is smaller than a scale block (which may be all of k). The units left of the block are counted in the table;
// the code in front of each reads the block's header when none is left, and keeps of it, of each column, a scale and
// what one fma adds to code * scale: every product with a zero point is exact, so that this rounds once, as
// (code - zero) * scale does.
struct ScaledReader : WeightReader {
  ScaledReader(int unit, const Encoding& w, Emitter& e, Regs& regs, const Lanes& lanes)
      : WeightReader(unit),
        blocks(ScaledBlocksOf(w, std::numeric_limits<int32_t>::max())),
        e(e),
        regs(regs),
        lanes(lanes) {}
  const ScaledBlocks blocks;
  Emitter& e;
  Regs& regs;
  const Lanes& lanes;

  static constexpr int kScales = 0, kOffsets = 128, kLeft = 256;  // in the table
  static_assert(kLeft + 4 <= kWeightTableBytes);

  Xbyak::Address Scale(const WeightCursor& at, int v) const {
    return e.ptr[e.rsp + at.table + kScales + v * lanes.bytes()];
  }
  Xbyak::Address Offset(const WeightCursor& at, int v) const {
    return e.ptr[e.rsp + at.table + kOffsets + v * lanes.bytes()];
  }
  Xbyak::Address Left(const WeightCursor& at) const { return e.dword[e.rsp + at.table + kLeft]; }

  void Begin(const WeightCursor& at) override { e.mov(Left(at), 1); }
  void Unit(const WeightCursor& at, const WeightSink& sink) override { Tail(unit(), at, sink); }
  void Tail(int k, const WeightCursor& at, const WeightSink& sink) override {
    Xbyak::Label same;
    e.dec(Left(at));
    e.jnz(same);
    at.touch(0, blocks.header_bytes());
    Header(at);
    e.add(at.w, blocks.header_bytes());
    e.mov(Left(at), static_cast<int>(CeilDiv<int64_t>(blocks.depth, unit())));
    e.L(same);
    Data(k, at, sink);
    e.add(at.w, CeilDiv(k, blocks.unit) * blocks.unit_bytes);
    e.add(at.x, k * at.x_step);
  }

  virtual void Header(const WeightCursor& at) = 0;
  virtual void Data(int k, const WeightCursor& at, const WeightSink& sink) = 0;

  // The scales of the header, and with `zero` that times them as what is added.
  void CopyScales(const WeightCursor& at, float zero) const {
    const auto scale = regs.Vecs("scale"), factor = regs.Vecs("factor");
    if (zero != 0) lanes.Fill(factor[0], std::bit_cast<uint32_t>(-zero));
    for (int v = 0; v < lanes.per_panel(); ++v) {
      LoadScale(at, v, scale[0]);
      e.vmovups(Scale(at, v), lanes(scale[0]));
      if (zero == 0) continue;
      e.vmulps(lanes(scale[0]), lanes(scale[0]), lanes(factor[0]));
      e.vmovups(Offset(at, v), lanes(scale[0]));
    }
  }
  void LoadScale(const WeightCursor& at, int v, int dst) const {
    if (blocks.scale == DType::kF16) {
      e.vcvtph2ps(lanes(dst), e.ptr[at.w + v * lanes.bytes() / 2]);
    } else {
      e.vmovups(lanes(dst), e.ptr[at.w + v * lanes.bytes()]);
    }
  }

  // The codes in the bytes of each dword of `quad` are those of first .. first + 3 (those below `k`) of vector v.
  void Four(int quad, int first, int k, int v, const WeightCursor& at, const WeightSink& sink) const {
    const auto t = regs.Vecs("t"), scale = regs.Vecs("scale");
    e.vmovups(lanes(scale[0]), Scale(at, v));
    for (int i = 0; i < 4 && first + i < k; ++i) {
      if (i == 3) {
        lanes.ShiftDown(t[0], quad, 24);
      } else {
        lanes.PickByte(t[0], quad, i);
      }
      e.vcvtdq2ps(lanes(t[0]), lanes(t[0]));
      e.vfmadd213ps(lanes(t[0]), lanes(scale[0]), Offset(at, v));
      sink(first + i, v, std::array{t[0]});
    }
  }
};

struct Int8Reader : ScaledReader {
  static constexpr int kUnit = 16;
  Int8Reader(const Encoding& w, Emitter& e, Regs& regs, const Lanes& lanes) : ScaledReader(kUnit, w, e, regs, lanes) {}

  void Header(const WeightCursor& at) override { CopyScales(at, 128); }
  void Data(int k, const WeightCursor& at, const WeightSink& sink) override {
    const auto quad = regs.Vecs("quad");
    for (int first = 0; first < k; first += 4) {
      at.touch(first * kPanelColumns, 4 * kPanelColumns);
      for (int v = 0; v < lanes.per_panel(); ++v) {
        e.vmovups(lanes(quad[0]), e.ptr[at.w + first * kPanelColumns + v * lanes.bytes()]);
        Four(quad[0], first, k, v, at, sink);
      }
    }
  }
};

struct Int4Reader : ScaledReader {
  static constexpr int kUnit = 32;
  Int4Reader(const Encoding& w, Emitter& e, Regs& regs, const Lanes& lanes) : ScaledReader(kUnit, w, e, regs, lanes) {}

  void Header(const WeightCursor& at) override {
    if (blocks.zero_bytes == 0) return CopyScales(at, 8);
    CopyScales(at, 0);
    const auto zero = regs.Vecs("zero"), sign = regs.Vecs("sign");
    lanes.Fill(sign[0], 0x80000000);
    for (int v = 0; v < lanes.per_panel(); ++v) {
      e.vpmovzxbd(lanes(zero[0]), e.ptr[at.w + blocks.scale_bytes + v * lanes.count()]);
      e.vcvtdq2ps(lanes(zero[0]), lanes(zero[0]));
      e.vmulps(lanes(zero[0]), lanes(zero[0]), Scale(at, v));
      e.vxorps(lanes(zero[0]), lanes(zero[0]), lanes(sign[0]));
      e.vmovups(Offset(at, v), lanes(zero[0]));
    }
  }
  void Data(int k, const WeightCursor& at, const WeightSink& sink) override {
    const auto quad = regs.Vecs("quad"), low = regs.Vecs("low");
    lanes.Fill(low[0], 0x0F0F0F0F);
    for (int group = 0; group < 2; ++group) {
      at.touch(group * 256, 256);
      for (int first = 0; first < k; first += 4) {
        for (int j = 0; j < lanes.per_group(); ++j) {
          e.vmovups(lanes(quad[0]), e.ptr[at.w + group * 256 + first / 4 % 4 * 64 + j * lanes.bytes()]);
          if (first >= 16) lanes.ShiftDown(quad[0], quad[0], 4);
          lanes.And(quad[0], quad[0], low[0]);
          Four(quad[0], first, k, group * lanes.per_group() + j, at, sink);
        }
      }
    }
  }
};

// bf16 holds E4M3: a pair's dword is two f32's upper halves.
struct Fp8Reader : ScaledReader {
  static constexpr int kUnit = 16;
  Fp8Reader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs, const Lanes& lanes)
      : ScaledReader(kUnit, w, e, regs, lanes), vbmi(vbmi && lanes.wide()) {}
  const bool vbmi;

  // Vectors that are converted before they are handed over: wide, both groups, which then share an activation.
  static int Together(bool wide) { return wide ? kPanelColumns / kGroupColumns : 1; }
  static int Vectors(bool wide, bool vbmi) {
    const int kept = Fp8Halves::Kept(vbmi) + (wide ? 1 + Together(wide) : 0);
    return kept + 2 * Together(wide) + std::max(Fp8Halves::Scratch(vbmi), Together(wide));
  }

  void Header(const WeightCursor& at) override { CopyScales(at, 0); }
  void Data(int k, const WeightCursor& at, const WeightSink& sink) override {
    const int together = Together(lanes.wide());
    const auto upper = MakeVectorBytes([](int b) { return b % 4 / 2 * 255; });
    // Narrow vectors leave too few registers for these.
    const auto mask = regs.Vecs("mask", lanes.wide() ? 1 : 0), scale = regs.Vecs("scale", lanes.wide() ? together : 0);
    if (lanes.wide()) lanes.Load(mask[0], upper.data());
    for (int v = 0; v < static_cast<int>(scale.size()); ++v) e.vmovups(lanes(scale[v]), Scale(at, v));
    const auto pairs = regs.Vecs("pairs", 2 * together);  // those of the first two k's, then of the others
    constexpr int kSinks = 2;                             // registers that a sink may take
    const Fp8Halves halves(vbmi, e, regs, lanes,
                           regs.FreeVecs() - std::max(Fp8Halves::Scratch(vbmi), together + kSinks));
    halves.Constants();
    for (int first = 0; first < k; first += 4) {
      at.touch(first * kPanelColumns, 4 * kPanelColumns);
      for (int v0 = 0; v0 < lanes.per_panel(); v0 += together) {
        for (int j = 0; j < together; ++j) {
          e.vmovups(lanes(pairs[j]), e.ptr[at.w + first * kPanelColumns + (v0 + j) * lanes.bytes()]);
          halves.Convert(pairs[j], pairs[together + j]);
        }
        const auto t = regs.Vecs("t", together);
        std::vector<int> out;
        for (int j = 0; j < together; ++j) out.push_back(t[j]);
        for (int i = 0; i < 4 && first + i < k; ++i) {
          for (int j = 0; j < together; ++j) {
            const int pair = pairs[i / 2 * together + j];
            if (i % 2 == 0) {
              lanes.ShiftDown(t[j], pair, -16);
            } else if (lanes.wide()) {
              lanes.And(t[j], pair, mask[0]);
            } else {
              lanes.And(t[j], pair, lanes.Const(upper.data()));
            }
            if (lanes.wide()) {
              e.vmulps(lanes(t[j]), lanes(t[j]), lanes(scale[v0 + j]));
            } else {
              e.vmulps(lanes(t[j]), lanes(t[j]), Scale(at, v0 + j));
            }
          }
          sink(first + i, v0, out);
        }
      }
    }
  }
};

}  // namespace

int ScaledUnit(const Encoding& w) {
  return w.type == DType::kI4 ? Int4Reader::kUnit : w.type == DType::kI8 ? Int8Reader::kUnit : Fp8Reader::kUnit;
}

int ScaledVectors(const Encoding& w, bool wide, bool vbmi) {
  if (w.type != DType::kF8E4M3) return w.type == DType::kI4 ? 4 : 3;
  return Fp8Reader::Vectors(wide, wide && vbmi);
}

std::unique_ptr<WeightReader> MakeScaledReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs,
                                               const Lanes& lanes) {
  if (w.type == DType::kI4) return std::make_unique<Int4Reader>(w, e, regs, lanes);
  if (w.type == DType::kI8) return std::make_unique<Int8Reader>(w, e, regs, lanes);
  return std::make_unique<Fp8Reader>(w, vbmi, e, regs, lanes);
}

}  // namespace xjit
