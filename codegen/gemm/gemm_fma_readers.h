// What the readers of gemm_fma_weights.h share: registers and, for block encodings, the way from codes to f32.
#pragma once

#include <bit>
#include <vector>

#include "codegen/gemm/gemm_fma_weights.h"
#include "ir/support/ref/dequant.h"

namespace xjit::fma_internal {

using Xbyak::Reg64;

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

// Where the parts of 32 k of a group lie, as offsets from w.
struct Quants {
  int low = 0;        // nibbles, u8[4][16][4], or pairs, u8[2][16][4]
  int high = 0;       // the planes of bits above them
  int high_bits = 0;  // 0, 1 or 2
  bool pairs = false;
  const int8_t* table = nullptr;  // of 16 values: the nibbles are indices
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

  // The four q's in the bytes of each dword of `quad` are those of k .. k + 3; with kSigned they are int8 and there is
  // no offset (a table of MXFP4 times a scale of 2^127 may not pass through an infinite one).
  enum Bytes { kUnsigned, kSigned };
  void Four(const Regs::VecList& quad, const Regs::VecList& t, const Scale& s, int k, int group, const WeightSink& sink,
            Bytes bytes = kUnsigned) const {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < lanes.per_group(); ++j) {
        if (bytes == kSigned) {
          lanes.ShiftDown(t[j], quad[j], 8 * i - 24);
          e.vpsrad(lanes(t[j]), lanes(t[j]), 24);
        } else if (i == 3) {
          lanes.ShiftDown(t[j], quad[j], 24);
        } else {
          lanes.PickByte(t[j], quad[j], i);
        }
      }
      for (int j = 0; j < lanes.per_group(); ++j) e.vcvtdq2ps(lanes(t[j]), lanes(t[j]));
      for (int j = 0; j < lanes.per_group(); ++j) {
        if (bytes == kSigned) {
          e.vmulps(lanes(t[j]), lanes(t[j]), lanes(s.scale[j]));
        } else {
          e.vfmadd213ps(lanes(t[j]), lanes(s.scale[j]), lanes(s.offset[j]));
        }
      }
      sink(k + i, group * lanes.per_group(), List(t));
    }
  }

  // offset = scale * factor.
  void OffsetOf(const Scale& s, float factor) const {
    lanes.Fill(s.offset[0], std::bit_cast<uint32_t>(factor));
    for (int j = lanes.per_group() - 1; j >= 0; --j) {
      e.vmulps(lanes(s.offset[j]), lanes(s.scale[j]), lanes(s.offset[0]));
    }
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
  void Codes(
      const WeightCursor& at, const WeightSink& sink, int group, const Quants& q, const Scale& s,
      const std::function<void()>& second_half = [] {}) const {
    const auto quad = regs.Vecs("quad", lanes.per_group()), t = regs.Vecs("t", lanes.per_group());
    const auto low = regs.Vecs("low"), high = regs.Vecs("high", q.high_bits > 0 ? 2 : 0),
               table = regs.Vecs("table", q.table != nullptr ? 1 : 0);
    lanes.Fill(low[0], q.pairs ? 0x03030303 : 0x0F0F0F0F);
    const int first_high = q.pairs ? 2 : 4;  // bit of the code
    if (q.high_bits > 0) lanes.Fill(high[1], 0x01010101u * (((1u << q.high_bits) - 1) << first_high));
    if (q.table != nullptr) lanes.Table(table[0], q.table);
    at.touch(q.low, q.pairs ? 128 : 256);
    if (q.high_bits > 0) at.touch(q.high, 64 * q.high_bits);
    for (int half = 0; half < 2; ++half) {
      if (half == 1) second_half();
      for (int g = 0; g < 4; ++g) {
        LoadDwords(quad, at.w, q.low + (q.pairs ? half : g) * 64);
        for (int j = 0; j < lanes.per_group(); ++j) {
          lanes.ShiftDown(quad[j], quad[j], q.pairs ? 2 * g : 4 * half);
          lanes.And(quad[j], quad[j], low[0]);
          if (q.table != nullptr) e.vpshufb(lanes(quad[j]), lanes(table[0]), lanes(quad[j]));
          if (q.high_bits == 0) continue;
          const int plane = q.high_bits == 2 ? half : 0;
          const int bit = q.high_bits == 2 ? 2 * g : g + 4 * half;  // of each byte
          e.vmovups(lanes(high[0]), e.ptr[at.w + q.high + plane * 64 + j * lanes.bytes()]);
          lanes.ShiftDown(high[0], high[0], bit - first_high);
          lanes.OrMasked(quad[j], high[0], high[1]);
        }
        Four(quad, t, s, 16 * half + 4 * g, group, sink, q.table != nullptr ? kSigned : kUnsigned);
      }
    }
  }
};

// Of a K-quant.
std::unique_ptr<WeightReader> MakeKQuantReader(DType encoding, Emitter& e, Regs& regs, const Lanes& lanes);

}  // namespace xjit::fma_internal
