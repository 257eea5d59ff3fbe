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

int VnniUnpackedBytes(const VnniWeights& weights) { return 1024 + 128 + (weights.minimum || weights.halves() ? 128 : 0); }

VnniUnpacker::VnniUnpacker(const VnniWeights& weights, Emitter& e, Regs& regs)
    : weights_(weights),
      e_(e),
      w_(regs.Vecs("weights", 8)),
      scale_(regs.Vecs("scale", weights.halves() ? 2 : 1)),
      minimum_(regs.Vecs("minimum", weights.minimum ? 1 : 0)),
      super_(regs.Vecs("super", weights.scale == VnniWeights::Scale::kSixBit       ? 2
                                : weights.scale == VnniWeights::Scale::kByteOfHalf ? 1
                                                                                   : 0)),
      mask_(regs.Vecs("mask", weights.bits == 8 ? 0 : 1)) {}

Xbyak::Address VnniUnpacker::Dword(uint32_t bits) { return e_.ptr_b[e_.ConstLabel32(bits)]; }

void VnniUnpacker::Setup() {
  if (weights_.bits != 8) e_.vpbroadcastd(mask_.Z(), e_.ptr[e_.ConstLabel32(0x0f0f0f0f)]);
}

void VnniUnpacker::Header(const RegExp& group) {
  for (size_t i = 0; i < super_.size(); ++i) e_.vcvtph2ps(super_.Z(i), e_.yword[group + 32 * i]);
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
  // Bits above the nibble: shifted into place from memory (a shift by 0 is a load), masked and or-ed in one ternlog:
  // w | (t & mask), truth table 0xf8.
  const int plane = weights_.bits - 4;  // bits of a weight in the high planes
  for (int g = 0; g < 8 && plane > 0; ++g) {
    const int per_plane = 8 / plane;
    const auto high = e_.ptr[data + 256 + 64 * (g / per_plane)];
    const int shift = 4 - plane * (g % per_plane);
    if (shift > 0) e_.vpslld(temp, high, static_cast<uint8_t>(shift));
    if (shift < 0) e_.vpsrld(temp, high, static_cast<uint8_t>(-shift));
    if (shift == 0) e_.vmovdqu32(temp, high);
    e_.vpternlogd(weights(g), temp, Dword(plane == 1 ? 0x10101010 : 0x30303030), 0xf8);
  }
}

// The 6-bit fields of q4_k and q5_k (pack.h, `scales`).
void VnniUnpacker::SixBit(const RegExp& group, int part, const Zmm& temp) {
  const RegExp words = group + 64;
  const auto field = [&](const Zmm& x, int word, int bit) {
    if (bit > 0) {
      e_.vpsrld(x, e_.ptr[words + 64 * word], static_cast<uint8_t>(bit));
      e_.vpandd(x, x, Dword(63));
    } else {
      e_.vmovdqu32(x, e_.ptr[words + 64 * word]);
      e_.vpandd(x, x, Dword(63));
    }
  };
  if (part < 5) field(scale(), 0, 6 * part);
  if (part >= 5) field(scale(), 1, 6 * (part - 5));
  if (part < 2) field(minimum(), 1, 18 + 6 * part);
  if (part >= 2 && part < 7) field(minimum(), 2, 6 * (part - 2));
  if (part == 7) MinimumOf7(words, temp);
  e_.vcvtdq2ps(scale(), scale());
  e_.vcvtdq2ps(minimum(), minimum());
  e_.vmulps(scale(), scale(), super_.Z(0));
  e_.vmulps(minimum(), minimum(), super_.Z(1));
}

// Two bits from the top of each word.
void VnniUnpacker::MinimumOf7(const RegExp& words, const Zmm& temp) {
  e_.vpsrld(minimum(), e_.ptr[words], 30);
  for (int word = 1; word < 3; ++word) {
    e_.vpsrld(temp, e_.ptr[words + 64 * word], static_cast<uint8_t>(30 - 2 * word));
    e_.vpternlogd(minimum(), temp, Dword(3u << 2 * word), 0xf8);
  }
}

void VnniEpilogue::Row(const Zmm& sum0, const Zmm& sum1, const Zmm (&temp)[3], const Xbyak::Reg64& bias, const RegExp& c,
                       const RegExp& residual) {
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
