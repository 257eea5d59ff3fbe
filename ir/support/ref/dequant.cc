#include "ir/support/ref/dequant.h"

#include <cstring>

namespace xjit {
namespace {

uint16_t Load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
uint32_t Load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// block_q8_0: f16 d; i8 qs[32].
void Q8_0(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b));
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(b[2 + i]));
}

// block_q4_0: f16 d; u8 qs[16], element i low and 16 + i high.
void Q4_0(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
  }
}

// block_q4_1: f16 d, m; u8 qs[16].
void Q4_1(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b)), m = F16ToF32(Load16(b + 2));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(b[4 + i] & 15) + m;
    out[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
  }
}

// block_q5_0: f16 d; u32 qh, bit i is element i's fifth; u8 qs[16].
void Q5_0(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b));
  const uint32_t qh = Load32(b + 2);
  for (int i = 0; i < 16; ++i) {
    const int lo = (b[6 + i] & 15) | static_cast<int>(qh >> i & 1) << 4;
    const int hi = (b[6 + i] >> 4) | static_cast<int>(qh >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(lo - 16);
    out[i + 16] = d * static_cast<float>(hi - 16);
  }
}

// block_q5_1: f16 d, m; u32 qh; u8 qs[16].
void Q5_1(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b)), m = F16ToF32(Load16(b + 2));
  const uint32_t qh = Load32(b + 4);
  for (int i = 0; i < 16; ++i) {
    const int lo = (b[8 + i] & 15) | static_cast<int>(qh >> i & 1) << 4;
    const int hi = (b[8 + i] >> 4) | static_cast<int>(qh >> (i + 16) & 1) << 4;
    out[i] = d * static_cast<float>(lo) + m;
    out[i + 16] = d * static_cast<float>(hi) + m;
  }
}

// The 6-bit scale and minimum of sub-block j in the 12 bytes of block_q4_K and block_q5_K (ggml get_scale_min_k4).
void ScaleMinK4(int j, const uint8_t* s, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  }
}

// block_q4_K: f16 d, dmin; u8 scales[12]; u8 qs[128]: 64 elements in 32 bytes, the first 32 low, the others high.
void Q4_K(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b)), dmin = F16ToF32(Load16(b + 2));
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    ScaleMinK4(j, b + 4, &scale, &min);
    const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(min);
    for (int i = 0; i < 32; ++i) {
      const int q = b[16 + 32 * (j / 2) + i] >> 4 * (j % 2) & 15;
      out[32 * j + i] = s * static_cast<float>(q) - m;
    }
  }
}

// block_q5_K: f16 d, dmin; u8 scales[12]; u8 qh[32], bit j of byte i is element i of sub-block j; u8 qs[128].
void Q5_K(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b)), dmin = F16ToF32(Load16(b + 2));
  for (int j = 0; j < 8; ++j) {
    int scale, min;
    ScaleMinK4(j, b + 4, &scale, &min);
    const float s = d * static_cast<float>(scale), m = dmin * static_cast<float>(min);
    for (int i = 0; i < 32; ++i) {
      const int q = (b[48 + 32 * (j / 2) + i] >> 4 * (j % 2) & 15) | (b[16 + i] >> j & 1) << 4;
      out[32 * j + i] = s * static_cast<float>(q) - m;
    }
  }
}

// block_q6_K: u8 ql[128], qh[64]; i8 scales[16]; f16 d. Each half of 128 elements has 64 ql and 32 qh.
void Q6_K(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b + 208));
  for (int j = 0; j < 8; ++j) {
    const uint8_t* ql = b + 64 * (j / 4) + 32 * (j % 2);
    const uint8_t* qh = b + 128 + 32 * (j / 4);
    for (int i = 0; i < 32; ++i) {
      const int q = (ql[i] >> 4 * (j % 4 / 2) & 15) | (qh[i] >> 2 * (j % 4) & 3) << 4;
      const float s = d * static_cast<float>(static_cast<int8_t>(b[192 + 2 * j + i / 16]));
      out[32 * j + i] = s * static_cast<float>(q - 32);
    }
  }
}

// block_q2_K: u8 scales[16], scale low and minimum high; u8 qs[64]; f16 d, dmin. Each half of 128 elements has 32 qs.
void Q2_K(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b + 80)), dmin = F16ToF32(Load16(b + 82));
  for (int j = 0; j < 16; ++j) {
    const uint8_t* qs = b + 16 + 32 * (j / 8) + 16 * (j % 2);
    const float s = d * static_cast<float>(b[j] & 15), m = dmin * static_cast<float>(b[j] >> 4);
    for (int i = 0; i < 16; ++i) out[16 * j + i] = s * static_cast<float>(qs[i] >> 2 * (j % 8 / 2) & 3) - m;
  }
}

// block_q3_K: u8 hmask[32], bit j / 2 of byte i is the third of sub-block j, inverted; u8 qs[64]; u8 scales[12], 16
// times 6 bits: the low four in the first eight bytes, the high two in the last four; f16 d.
void Q3_K(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b + 108));
  const uint8_t* scales = b + 96;
  for (int j = 0; j < 16; ++j) {
    const uint8_t* qs = b + 32 + 32 * (j / 8) + 16 * (j % 2);
    const uint8_t* hmask = b + 16 * (j % 2);
    const int scale = (scales[j % 8] >> 4 * (j / 8) & 15) | (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
    const float s = d * static_cast<float>(scale - 32);
    for (int i = 0; i < 16; ++i) {
      const int q = (qs[i] >> 2 * (j % 8 / 2) & 3) | (hmask[i] >> (j / 2) & 1) << 2;
      out[16 * j + i] = s * static_cast<float>(q - 4);
    }
  }
}

// 32 codes in 16 bytes, element i low and 16 + i high.
void Table(const uint8_t* qs, const int8_t* values, float d, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(values[qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(values[qs[i] >> 4]);
  }
}

// block_iq4_nl: f16 d; u8 qs[16].
void IQ4_NL(const uint8_t* b, float* out) { Table(b + 2, kIq4Values, F16ToF32(Load16(b)), out); }

// block_iq4_xs: f16 d; u16 scales_h; u8 scales_l[4]; u8 qs[128]: a 6-bit scale for each 32 elements.
void IQ4_XS(const uint8_t* b, float* out) {
  const float d = F16ToF32(Load16(b));
  const int high = Load16(b + 2);
  for (int j = 0; j < 8; ++j) {
    const int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
    Table(b + 8 + 16 * j, kIq4Values, d * static_cast<float>(scale - 32), out + 32 * j);
  }
}

// block_mxfp4: u8 e; u8 qs[16].
void Mxfp4(const uint8_t* b, float* out) { Table(b + 1, kFp4Doubled, static_cast<float>(0.5 * E8M0(b[0])), out); }

template <typename Block>
void Blocks(DType type, const uint8_t* row, int64_t k, float* out, Block block) {
  const auto& info = Info(type);
  for (int64_t i = 0; i < k / info.block_elems; ++i) block(row + i * info.block_bytes, out + i * info.block_elems);
}

// Offsets of a block's f16 scale and minimum, the same twice where there is one; -1: none.
struct BlockScales {
  int d = -1, m = -1;
};
BlockScales ScalesOf(DType type) {
  switch (type) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {0, 0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, 108};
    case DType::kQ6_K:
      return {208, 208};
    default:
      return {};
  }
}

}  // namespace

int64_t BlockWithBadScale(DType type, const std::byte* row, int64_t k) {
  const BlockScales at = ScalesOf(type);
  const bool exponents = type == DType::kMxfp4;  // E8M0, whose 255 is no number
  if (at.d < 0 && !exponents) return -1;
  constexpr uint16_t kExponent = 0x7c00;  // all of its bits set
  const auto bad = [](const uint8_t* p) { return (Load16(p) & kExponent) == kExponent; };
  const auto& info = Info(type);
  const auto* b = reinterpret_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < k / info.block_elems; ++i, b += info.block_bytes) {
    if (exponents ? b[0] == 255 : bad(b + at.d) || bad(b + at.m)) return i;
  }
  return -1;
}

void DequantizeRow(DType type, const std::byte* bytes, int64_t k, float* out) {
  const auto* row = reinterpret_cast<const uint8_t*>(bytes);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(k) * 4);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < k; ++i) out[i] = F16ToF32(Load16(row + 2 * i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < k; ++i) out[i] = BF16ToF32(Load16(row + 2 * i));
      return;
    case DType::kQ8_0:
      return Blocks(type, row, k, out, Q8_0);
    case DType::kQ4_0:
      return Blocks(type, row, k, out, Q4_0);
    case DType::kQ4_1:
      return Blocks(type, row, k, out, Q4_1);
    case DType::kQ5_0:
      return Blocks(type, row, k, out, Q5_0);
    case DType::kQ5_1:
      return Blocks(type, row, k, out, Q5_1);
    case DType::kQ4_K:
      return Blocks(type, row, k, out, Q4_K);
    case DType::kQ5_K:
      return Blocks(type, row, k, out, Q5_K);
    case DType::kQ6_K:
      return Blocks(type, row, k, out, Q6_K);
    case DType::kQ2_K:
      return Blocks(type, row, k, out, Q2_K);
    case DType::kQ3_K:
      return Blocks(type, row, k, out, Q3_K);
    case DType::kIQ4_NL:
      return Blocks(type, row, k, out, IQ4_NL);
    case DType::kIQ4_XS:
      return Blocks(type, row, k, out, IQ4_XS);
    case DType::kMxfp4:
      return Blocks(type, row, k, out, Mxfp4);
    case DType::kI8:
      for (int64_t i = 0; i < k; ++i) out[i] = static_cast<float>(static_cast<int8_t>(row[i]));
      return;
    case DType::kF8E4M3:
      for (int64_t i = 0; i < k; ++i) out[i] = E4M3ToF32(row[i]);
      return;
    default:
      return;  // not weight encodings
  }
}

}  // namespace xjit
