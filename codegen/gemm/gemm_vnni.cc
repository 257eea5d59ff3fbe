#include "codegen/gemm/gemm_vnni.h"

#include <algorithm>
#include <array>

#include "codegen/gemm/pack.h"
#include "ir/support/ref/dequant.h"

namespace xjit {

using Xbyak::RegExp;
using Xbyak::Zmm;
using Scale = VnniWeights::Scale;

namespace {

VnniWeights Int4Weights(const Encoding& encoding, int64_t k) {
  const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
  VnniWeights w;
  w.bits = 4;
  w.scale = Scale::kOutside;
  w.minimum = w.minimum_negative = blocks.zero_bytes > 0;
  w.offset_log2 = w.minimum ? 0 : 3;
  w.header_stride = 32;
  w.group_stride = 256;
  w.parts = 1;
  w.step_bytes = blocks.unit_bytes;
  if (blocks.depth == 32) {
    w.part0 = blocks.header_bytes();
    w.step_bytes += blocks.header_bytes();
    return w;
  }
  w.far_header_bytes = blocks.header_bytes();
  const int64_t depth = std::min(blocks.depth, k);
  w.far_header_steps = static_cast<int>(depth / 32);
  w.last_header_steps = static_cast<int>(k % depth / 32);
  return w;
}

}  // namespace

VnniWeights VnniWeightsOf(const Encoding& encoding, int64_t k) {
  if (encoding.type == DType::kI4) return Int4Weights(encoding, k);
  VnniWeights w;
  w.parts = PackedBlockElems(encoding.type) / 32;
  w.header_stride = w.group_stride = PackedGroupBytes(encoding.type);
  w.step_bytes = 2 * w.group_stride;
  w.part0 = 32;
  switch (encoding.type) {
    case DType::kQ8_0:
      w.bits = 8, w.offset_log2 = 7;
      break;
    case DType::kQ4_0:
      w.bits = 4, w.offset_log2 = 3;
      break;
    case DType::kQ4_1:
      w.bits = 4, w.minimum = true, w.part0 = 64;
      break;
    case DType::kQ5_0:
      w.bits = 5, w.offset_log2 = 4;
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
    case DType::kQ2_K:
      w.bits = 2, w.minimum = w.minimum_negative = true, w.scale = Scale::kNibbleOfHalf, w.part0 = 96,
      w.part_bytes = 160;
      break;
    case DType::kQ3_K:
      w.bits = 3, w.offset_log2 = 2, w.scale = Scale::kSixBitOfHalf, w.part0 = 224, w.part_bytes = 192;
      break;
    case DType::kIQ4_NL:
      w.bits = 4, w.offset_log2 = 7, w.table = kIq4Values;
      break;
    case DType::kIQ4_XS:
      w.bits = 4, w.offset_log2 = 7, w.table = kIq4Values, w.scale = Scale::kSplitSixBit, w.part0 = 128,
      w.part_bytes = 256;
      break;
    case DType::kMxfp4:
      w.bits = 4, w.offset_log2 = 4, w.table = kFp4Doubled, w.scale = Scale::kExponent, w.header_stride = 16,
      w.group_stride = 256;
      break;
    default:
      break;
  }
  return w;
}

namespace {

// f16 factors in front of a K-quant's parts: d, or d and dmin.
int Factors(const VnniWeights& weights) { return !weights.super_blocks() ? 0 : weights.minimum ? 2 : 1; }
// Those that stay in registers over the parts. Two scales and two minima leave no room for them beside the sums of
// eight rows.
int KeptFactors(const VnniWeights& weights, bool keep) {
  if (weights.scales_in_header() || (weights.minimum && !keep)) return 0;
  return Factors(weights);
}

}  // namespace

VnniUnpacker::VnniUnpacker(const VnniWeights& weights, bool keep, Emitter& e, Regs& regs)
    : weights_(weights),
      e_(e),
      w_(regs.Vecs("weights", 8)),
      scale_(regs.Vecs("scale", weights.halves() ? 2 : 1)),
      minimum_(regs.Vecs("minimum", !weights.minimum   ? 0
                                    : weights.halves() ? 2
                                                       : 1)),
      super_(regs.Vecs("super", KeptFactors(weights, keep))),
      mask_(regs.Vecs("mask", weights.bits == 8 ? 0 : 1)),
      table_(regs.Vecs("table", weights.table == nullptr ? 0 : 1)),
      high_(regs.Vecs("high", keep && weights.high_bits() > 0 ? 1 : 0)) {}

int VnniUnpacker::frame_bytes() const {
  if (!weights_.super_blocks()) return 0;
  if (weights_.scales_in_header()) return weights_.parts * kScalesOfPart;
  return super_.size() > 0 ? 0 : 64 * Factors(weights_);
}

Xbyak::Address VnniUnpacker::Dword(uint32_t bits) { return e_.ptr_b[e_.ConstLabel32(bits)]; }

void VnniUnpacker::Setup(int frame) {
  frame_ = frame;
  if (weights_.bits != 8)
    e_.vpbroadcastd(mask_.Z(), e_.ptr[e_.ConstLabel32(weights_.bits < 4 ? 0x03030303 : 0x0f0f0f0f)]);
  if (weights_.table == nullptr) return;
  std::array<uint8_t, 64> bytes;
  for (size_t i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(weights_.table[i % 16] + (1 << weights_.offset_log2));
  e_.vmovdqu32(table_.Z(), e_.ConstZmm(bytes.data()));
}

void VnniUnpacker::FarHeader(const Xbyak::Reg64& w, const Xbyak::Reg64& header, const Xbyak::Reg64& left, int steps) {
  Xbyak::Label same;
  e_.test(left, left);
  e_.jnz(same);
  e_.mov(header, w);
  e_.add(w, weights_.far_header_bytes);
  e_.mov(left.cvt32(), static_cast<uint32_t>(weights_.far_header_steps / steps));
  e_.L(same);
  e_.dec(left);
}

void VnniUnpacker::Header(const Xbyak::Reg64& header, const Zmm& temp) {
  const int factors = Factors(weights_);
  for (int i = 0; i < factors; ++i) {
    const bool kept = weights_.scales_in_header() || super_.size() > 0;
    const Zmm to = kept ? factor(i) : temp;
    e_.vcvtph2ps(to, e_.yword[header + 32 * i]);
    if (!kept) e_.vmovaps(e_.ptr[e_.rsp + (frame_ + 64 * i)], to);
  }
  if (!weights_.scales_in_header()) return;
  if (weights_.scale == Scale::kSplitSixBit) {
    e_.vpmovzxwd(word(0), e_.yword[header + 32]);
    e_.vmovdqu32(word(1), e_.ptr[header + 64]);
  } else {
    for (int i = 0; i < 3; ++i) e_.vmovdqu32(word(i), e_.ptr[header + (32 * factors + 64 * i)]);
  }
  for (int part = 0; part < weights_.parts; ++part) {
    const RegExp to = e_.rsp + (frame_ + part * kScalesOfPart);
    Scales(header, header, part, temp);
    e_.vmovaps(e_.ptr[to], scale());
    if (weights_.minimum) e_.vmovaps(e_.ptr[to + 64], minimum());
    if (weights_.halves()) e_.vmovaps(e_.ptr[to + 64], scale(1));
  }
}

void VnniUnpacker::SuperPart(const Xbyak::Reg64& part, const Xbyak::Reg64& at, const Zmm& temp) {
  const RegExp data = RegExp(part) + PartLead();
  if (weights_.scales_in_header()) {
    const RegExp from = RegExp(e_.rsp) + at + frame_;
    e_.vmovaps(scale(), e_.ptr[from]);
    if (weights_.minimum) e_.vmovaps(minimum(), e_.ptr[from + 64]);
    if (weights_.halves()) e_.vmovaps(scale(1), e_.ptr[from + 64]);
  } else {
    Scales(part, data, 0, temp);
  }
  Weights(data, temp);
}

void VnniUnpacker::TimesSuper(const Zmm& dst, int i) {
  e_.vcvtdq2ps(dst, dst);
  if (weights_.scales_in_header() || super_.size() > 0) {
    e_.vmulps(dst, dst, factor(i));
  } else {
    e_.vmulps(dst, dst, e_.ptr[e_.rsp + (frame_ + 64 * i)]);
  }
}

void VnniUnpacker::Scales(const RegExp& header, const RegExp& data, int part, const Zmm& temp) {
  const auto halves = [&](auto f) { f(0), f(1); };
  switch (weights_.scale) {
    case Scale::kHalf:
      e_.vcvtph2ps(scale(), e_.yword[header]);
      if (weights_.minimum) e_.vcvtph2ps(minimum(), e_.yword[header + 32]);
      return;
    case Scale::kSixBit:
      Field(scale(), part, temp);
      Field(minimum(), 8 + part, temp);
      TimesSuper(scale(), 0);
      TimesSuper(minimum(), 1);
      return;
    case Scale::kByteOfHalf:
      return halves([&](int half) {
        e_.vpmovsxbd(scale(half), e_.xword[data - 32 + 16 * half]);
        TimesSuper(scale(half), 0);
      });
    case Scale::kNibbleOfHalf:
      return halves([&](int half) {
        e_.vpmovzxbd(scale(half), e_.xword[data - 32 + 16 * half]);
        e_.vpsrld(minimum(half), scale(half), 4);
        e_.vpandd(scale(half), scale(half), Dword(15));
        TimesSuper(scale(half), 0);
        TimesSuper(minimum(half), 1);
      });
    case Scale::kSixBitOfHalf:
      return halves([&](int half) {
        Field(scale(half), 2 * part + half, temp);
        e_.vpsubd(scale(half), scale(half), Dword(32));
        TimesSuper(scale(half), 0);
      });
    case Scale::kSplitSixBit:
      SplitField(part, temp);
      e_.vpsubd(scale(), scale(), Dword(32));
      TimesSuper(scale(), 0);
      return;
    case Scale::kExponent:
      return HalfPower(header, temp);
    case Scale::kOutside:
      e_.vcvtph2ps(scale(), e_.yword[header]);
      return;
  }
}

// As a minimum: scale * zero.
void VnniUnpacker::ZeroPoint(const RegExp& zeros) {
  e_.vpmovzxbd(minimum(), e_.xword[zeros]);
  e_.vcvtdq2ps(minimum(), minimum());
  e_.vmulps(minimum(), minimum(), scale());
}

void VnniUnpacker::Part(const RegExp& header, const RegExp& step, int group, const Zmm& temp) {
  const RegExp data = step + (weights_.part0 + group * weights_.group_stride);
  Scales(header + group * weights_.header_stride, data, 0, temp);
  if (weights_.scale == Scale::kOutside && weights_.minimum)
    ZeroPoint(header + (2 * weights_.header_stride + 16 * group));
  Weights(data, temp);
}

void VnniUnpacker::Weights(const RegExp& data, const Zmm& temp) {
  if (weights_.bits == 8) {
    for (int g = 0; g < 8; ++g) e_.vmovdqu32(weights(g), e_.ptr[data + 64 * g]);
  } else if (weights_.bits < 4) {
    Pairs(data);
  } else {
    Nibbles(data);
  }
  if (weights_.high_bits() > 0) HighBits(data + (weights_.bits < 4 ? 128 : 256), temp);
}

void VnniUnpacker::Nibbles(const RegExp& data) {
  for (int g = 0; g < 4; ++g) e_.vmovdqu32(weights(g + 4), e_.ptr[data + 64 * g]);
  for (int g = 0; g < 4; ++g) {
    e_.vpandd(weights(g), weights(g + 4), mask_.Z());
    e_.vpsrlw(weights(g + 4), weights(g + 4), 4);
    e_.vpandd(weights(g + 4), weights(g + 4), mask_.Z());
    if (weights_.table == nullptr) continue;
    e_.vpshufb(weights(g), table_.Z(), weights(g));
    e_.vpshufb(weights(g + 4), table_.Z(), weights(g + 4));
  }
}

void VnniUnpacker::Pairs(const RegExp& data) {
  for (int p = 0; p < 2; ++p) {
    const Zmm plane = weights(4 * p + 3);
    e_.vmovdqu32(plane, e_.ptr[data + 64 * p]);
    e_.vpandd(weights(4 * p), plane, mask_.Z());
    for (int g = 1; g < 4; ++g) {
      e_.vpsrlw(weights(4 * p + g), plane, static_cast<uint8_t>(2 * g));
      e_.vpandd(weights(4 * p + g), weights(4 * p + g), mask_.Z());
    }
  }
}

// Bits above the nibble or pair: shifted into place, masked and or-ed in one ternlog, w | (t & mask): truth table 0xf8.
void VnniUnpacker::HighBits(const RegExp& high, const Zmm& temp) {
  const int bits = weights_.high_bits(), per_plane = 8 / bits, first = weights_.bits - bits;
  const auto mask = Dword(0x01010101u * (((1u << bits) - 1) << first));
  for (int g = 0; g < 8; ++g) {
    const auto plane = e_.ptr[high + 64 * (g / per_plane)];
    if (high_.size() > 0 && g % per_plane == 0) e_.vmovdqu32(high_.Z(), plane);
    const int shift = first - bits * (g % per_plane);
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

void VnniUnpacker::Field(const Zmm& dst, int f, const Zmm& temp) {
  if (f < 15) {
    e_.vpsrld(dst, word(f / 5), static_cast<uint8_t>(6 * (f % 5)));
    e_.vpandd(dst, dst, Dword(63));
    return;
  }
  // Two bits from the top of each word.
  e_.vpsrld(dst, word(0), 30);
  for (int i = 1; i < 3; ++i) {
    e_.vpsrld(temp, word(i), static_cast<uint8_t>(30 - 2 * i));
    e_.vpternlogd(dst, temp, Dword(3u << 2 * i), 0xf8);
  }
}

void VnniUnpacker::SplitField(int part, const Zmm& temp) {
  e_.vpsrld(scale(), word(1), static_cast<uint8_t>(4 * part));
  e_.vpandd(scale(), scale(), Dword(15));
  if (part < 2) {
    e_.vpslld(temp, word(0), static_cast<uint8_t>(4 - 2 * part));
  } else {
    e_.vpsrld(temp, word(0), static_cast<uint8_t>(2 * part - 4));
  }
  e_.vpternlogd(scale(), temp, Dword(3u << 4), 0xf8);
}

// 2^(x - 128) of bytes x: bits (x - 1) << 23, but for x < 2 the subnormals 0x200000 << x.
void VnniUnpacker::HalfPower(const RegExp& header, const Zmm& temp) {
  const Zmm small = weights(0);
  e_.vpmovzxbd(scale(), e_.xword[header]);
  e_.vpminsd(small, scale(), Dword(2));
  e_.vpbroadcastd(temp, e_.ptr[e_.ConstLabel32(0x200000)]);
  e_.vpsllvd(small, temp, small);
  e_.vpslld(scale(), scale(), 23);
  e_.vpsubd(scale(), scale(), Dword(0x800000));
  e_.vpmaxsd(scale(), scale(), small);
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
