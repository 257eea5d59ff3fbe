#include "codegen/gemm/gemm_vnni.h"

#include <array>

#include "codegen/gemm/pack.h"

namespace xjit {

using Xbyak::RegExp;
using Xbyak::Zmm;

VnniWeights VnniWeightsOf(DType encoding) {
  using Scale = VnniWeights::Scale;
  VnniWeights w;
  w.parts = PackedBlockElems(encoding) / 32;
  w.group_bytes = PackedGroupBytes(encoding);
  switch (encoding) {
    case DType::kQ8_0:
      w.bits = 8, w.offset_log2 = 7, w.part0 = 32;
      break;
    case DType::kQ4_0:
      w.bits = 4, w.offset_log2 = 3, w.part0 = 32;
      break;
    case DType::kQ4_1:
      w.bits = 4, w.minimum = true, w.part0 = 64;
      break;
    case DType::kQ5_0:
      w.bits = 5, w.offset_log2 = 4, w.part0 = 32;
      break;
    case DType::kQ5_1:
      w.bits = 5, w.minimum = true, w.part0 = 64;
      break;
    case DType::kQ4_K:
      w.bits = 4, w.minimum = w.minimum_negative = true, w.scale = Scale::kSixBit, w.part0 = 256, w.part_bytes = 256;
      break;
    case DType::kQ5_K:
      w.bits = 5, w.minimum = w.minimum_negative = true, w.scale = Scale::kSixBit, w.part0 = 256, w.part_bytes = 320;
      break;
    case DType::kQ6_K:
      w.bits = 6, w.offset_log2 = 5, w.scale = Scale::kByteOfHalf, w.part0 = 64, w.part_bytes = 416;
      break;
    default:
      break;
  }
  return w;
}

namespace {

// f16 factors in front of a K-quant's parts: d and dmin, or d.
int SuperScales(const VnniWeights& weights) {
  if (weights.scale == VnniWeights::Scale::kSixBit) return 2;
  return weights.scale == VnniWeights::Scale::kByteOfHalf ? 1 : 0;
}

}  // namespace

VnniUnpacker::VnniUnpacker(const VnniWeights& weights, bool keep, Emitter& e, Regs& regs)
    : weights_(weights),
      e_(e),
      w_(regs.Vecs("weights", 8)),
      scale_(regs.Vecs("scale", weights.halves() ? 2 : 1)),
      minimum_(regs.Vecs("minimum", weights.minimum ? 1 : 0)),
      super_(regs.Vecs("super", SuperScales(weights))),
      mask_(regs.Vecs("mask", weights.bits == 8 ? 0 : 1)),
      words_(regs.Vecs("words", keep && weights.scale == VnniWeights::Scale::kSixBit ? 3 : 0)),
      high_(regs.Vecs("high", keep && (weights.bits == 5 || weights.bits == 6) ? 1 : 0)) {}

Xbyak::Address VnniUnpacker::Dword(uint32_t bits) { return e_.ptr_b[e_.ConstLabel32(bits)]; }

void VnniUnpacker::Setup() {
  if (weights_.bits != 8) e_.vpbroadcastd(mask_.Z(), e_.ptr[e_.ConstLabel32(0x0f0f0f0f)]);
}

void VnniUnpacker::Header(const RegExp& group) {
  for (size_t i = 0; i < super_.size(); ++i) e_.vcvtph2ps(super_.Z(i), e_.yword[group + 32 * i]);
  for (size_t i = 0; i < words_.size(); ++i) e_.vmovdqu32(words_.Z(i), e_.ptr[group + (64 + 64 * i)]);
}

void VnniUnpacker::Part(const RegExp& group, int part, const Zmm& temp) {
  const RegExp data = group + (weights_.part0 + part * weights_.part_bytes);
  switch (weights_.scale) {
    case VnniWeights::Scale::kHalf:
      e_.vcvtph2ps(scale(), e_.yword[group]);
      if (weights_.minimum) e_.vcvtph2ps(minimum(), e_.yword[group + 32]);
      break;
    case VnniWeights::Scale::kSixBit:
      SixBit(group, part, temp);
      break;
    case VnniWeights::Scale::kByteOfHalf:
      for (int half = 0; half < 2; ++half) {
        e_.vpmovsxbd(scale(half), e_.xword[data - 32 + 16 * half]);
        e_.vcvtdq2ps(scale(half), scale(half));
        e_.vmulps(scale(half), scale(half), super_.Z());
      }
      break;
  }
  if (weights_.bits == 8) {
    for (int g = 0; g < 8; ++g) e_.vmovdqu32(weights(g), e_.ptr[data + 64 * g]);
    return;
  }
  for (int g = 0; g < 4; ++g) e_.vmovdqu32(weights(g + 4), e_.ptr[data + 64 * g]);
  for (int g = 0; g < 4; ++g) {
    e_.vpandd(weights(g), weights(g + 4), mask_.Z());
    e_.vpsrlw(weights(g + 4), weights(g + 4), 4);
    e_.vpandd(weights(g + 4), weights(g + 4), mask_.Z());
  }
  if (weights_.bits > 4) HighBits(data + 256, temp);
}

// Bits above the nibble: shifted into place, masked and or-ed in one ternlog, w | (t & mask): truth table 0xf8.
void VnniUnpacker::HighBits(const RegExp& high, const Zmm& temp) {
  const int bits = weights_.bits - 4, per_plane = 8 / bits;
  const auto mask = Dword(bits == 1 ? 0x10101010 : 0x30303030);
  for (int g = 0; g < 8; ++g) {
    const auto plane = e_.ptr[high + 64 * (g / per_plane)];
    if (high_.size() > 0 && g % per_plane == 0) e_.vmovdqu32(high_.Z(), plane);
    const int shift = 4 - bits * (g % per_plane);
    const auto place = [&](const Xbyak::Operand& from) {
      if (shift > 0) e_.vpslld(temp, from, static_cast<uint8_t>(shift));
      if (shift < 0) e_.vpsrld(temp, from, static_cast<uint8_t>(-shift));
      if (shift == 0) e_.vmovdqu32(temp, from);
    };
    if (high_.size() > 0) {
      place(high_.Z());
    } else {
      place(plane);
    }
    e_.vpternlogd(weights(g), temp, mask, 0xf8);
  }
}

void VnniUnpacker::ShiftedWord(const Zmm& dst, const RegExp& group, int word, int shift) {
  if (words_.size() > 0) {
    e_.vpsrld(dst, words_.Z(static_cast<size_t>(word)), static_cast<uint8_t>(shift));
  } else {
    e_.vpsrld(dst, e_.ptr[group + (64 + 64 * word)], static_cast<uint8_t>(shift));
  }
}

// The 6-bit fields of q4_k and q5_k (pack.h, `scales`).
void VnniUnpacker::SixBit(const RegExp& group, int part, const Zmm& temp) {
  const auto field = [&](const Zmm& x, int word, int bit) {
    ShiftedWord(x, group, word, bit);
    e_.vpandd(x, x, Dword(63));
  };
  if (part < 5) field(scale(), 0, 6 * part);
  if (part >= 5) field(scale(), 1, 6 * (part - 5));
  if (part < 2) field(minimum(), 1, 18 + 6 * part);
  if (part >= 2 && part < 7) field(minimum(), 2, 6 * (part - 2));
  if (part == 7) MinimumOf7(group, temp);
  e_.vcvtdq2ps(scale(), scale());
  e_.vcvtdq2ps(minimum(), minimum());
  e_.vmulps(scale(), scale(), super_.Z(0));
  e_.vmulps(minimum(), minimum(), super_.Z(1));
}

// Two bits from the top of each word.
void VnniUnpacker::MinimumOf7(const RegExp& group, const Zmm& temp) {
  ShiftedWord(minimum(), group, 0, 30);
  for (int word = 1; word < 3; ++word) {
    ShiftedWord(temp, group, word, 30 - 2 * word);
    e_.vpternlogd(minimum(), temp, Dword(3u << 2 * word), 0xf8);
  }
}

void VnniEpilogue::Row(const Zmm& sum0, const Zmm& sum1, const Zmm (&temp)[3], const Xbyak::Reg64& bias,
                       const RegExp& c, const RegExp& residual) {
  if (desc_.epilogue.bias) {
    e_.vaddps(sum0, sum0, e_.ptr[bias]);
    e_.vaddps(sum1, sum1, e_.ptr[bias + 64]);
  }
  if (desc_.epilogue.silu_mul) {
    math_.Silu(sum0, temp[0], temp[1], temp[2]);
    e_.vmulps(sum0, sum0, sum1);
  }
  const int groups = desc_.epilogue.silu_mul ? 1 : 2;
  for (int g = 0; g < groups; ++g) {
    const Zmm& sum = g == 0 ? sum0 : sum1;
    if (desc_.epilogue.residual) e_.vaddps(sum, sum, e_.ptr[residual + 64 * g]);
    e_.vmovups(e_.ptr[c + 64 * g], sum);
  }
}

}  // namespace xjit
