// One k block of each encoding, packed four columns at a time (pack.h has the layouts). Each struct has
//   kElems        depth of the block
//   kSourceBytes  bytes of a column's block in the file
//   kGroupBytes   bytes of 16 columns' blocks, packed
//   PackQuad(src, quad, out)   columns 4 quad .. 4 quad + 3 of the group at `out`, from src[0..3]
// and either Unpack(group, column, v), the kElems values of one column (f32, f16, bf16), or, for quantised encodings,
//   kHasAdd                              whether ColumnBlock::add is used
//   Column(group, column, part, block)   32 k of one column, part 0 (of 8 in a K-quant)
// SSE2 is part of baseline x86-64, and enough: the work is transposing dwords.
#pragma once

#include <emmintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "codegen/gemm/pack.h"
#include "ir/support/ref/dequant.h"

namespace xjit {
namespace pack_internal {

template <typename T>
T Load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename T>
void Store(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof(v));
}
inline __m128i LoadX(const std::byte* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
inline void StoreX(std::byte* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
inline uint8_t Byte(const std::byte* p) { return std::to_integer<uint8_t>(*p); }
inline float HalfAt(const std::byte* p) { return F16ToF32(Load<uint16_t>(p)); }

// v[c] holds four dwords of column c; afterwards v[g] holds dword g of the four columns.
inline void Transpose4(__m128i v[4]) {
  const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]);
  const __m128i c = _mm_unpackhi_epi32(v[0], v[1]), d = _mm_unpackhi_epi32(v[2], v[3]);
  v[0] = _mm_unpacklo_epi64(a, b);
  v[1] = _mm_unpackhi_epi64(a, b);
  v[2] = _mm_unpacklo_epi64(c, d);
  v[3] = _mm_unpackhi_epi64(c, d);
}

// Four columns' 16 bytes as u8[4][16][4] at `out`.
inline void StoreDwords(__m128i v[4], int quad, std::byte* out) {
  Transpose4(v);
  for (int g = 0; g < 4; ++g) StoreX(out + 64 * g + 16 * quad, v[g]);
}

inline void StoreHalves(const std::byte* const src[4], int offset, int quad, std::byte* out) {
  uint64_t halves = 0;
  for (int c = 0; c < 4; ++c) halves |= static_cast<uint64_t>(Load<uint16_t>(src[c] + offset)) << 16 * c;
  Store(out + 8 * quad, halves);
}

// Exchanges bits a and b (a > b) of the index of every bit of every dword.
template <int kA, int kB>
__m128i SwapIndexBits(__m128i x) {
  constexpr int kShift = (1 << kA) - (1 << kB);
  constexpr uint32_t kMask = [] {
    uint32_t m = 0;
    for (uint32_t i = 0; i < 32; ++i) m |= (i >> kA & 1) == 0 && (i >> kB & 1) == 1 ? 1u << i : 0;
    return m;
  }();
  const __m128i t = _mm_and_si128(_mm_xor_si128(_mm_srli_epi32(x, kShift), x), _mm_set1_epi32(static_cast<int>(kMask)));
  return _mm_xor_si128(x, _mm_xor_si128(t, _mm_slli_epi32(t, kShift)));
}

// In each dword, bit 4g+i becomes bit 8i+g: index bits (g2 g1 g0 i1 i0) to (i1 i0 g2 g1 g0).
inline __m128i HighBitOrder(__m128i x) {
  return SwapIndexBits<1, 0>(SwapIndexBits<2, 1>(SwapIndexBits<3, 0>(SwapIndexBits<4, 1>(x))));
}

// Low and high nibbles of 16 columns' bytes at `nibbles`: q[k] of one column, k = 0..31.
inline void Nibbles(const std::byte* nibbles, int column, int8_t q[32]) {
  for (int g = 0; g < 4; ++g) {
    for (int i = 0; i < 4; ++i) {
      const uint8_t b = Byte(nibbles + 64 * g + 4 * column + i);
      q[4 * g + i] = b & 15;
      q[4 * g + i + 16] = static_cast<int8_t>(b >> 4);
    }
  }
}
inline void AddHigh1(const std::byte* high, int column, int8_t q[32]) {
  const auto bits = Load<uint32_t>(high + 4 * column);
  for (int k = 0; k < 32; ++k) q[k] = static_cast<int8_t>(q[k] | (bits >> (8 * (k % 4) + k / 4) & 1) << 4);
}
inline void AddHigh2(const std::byte* high, int column, int8_t q[32]) {
  for (int p = 0; p < 2; ++p) {
    const auto bits = Load<uint32_t>(high + 64 * p + 4 * column);
    for (int k = 0; k < 16; ++k) {
      q[16 * p + k] = static_cast<int8_t>(q[16 * p + k] | (bits >> (8 * (k % 4) + k / 4 * 2) & 3) << 4);
    }
  }
}
inline void Subtract(int offset, int8_t q[32]) {
  for (int k = 0; k < 32; ++k) q[k] = static_cast<int8_t>(q[k] - offset);
}

// One dword of k a column (f32, bf16 pairs).
struct Dwords {
  static constexpr int kSourceBytes = 4, kGroupBytes = 64;
  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    for (int c = 0; c < 4; ++c) std::memcpy(out + 16 * quad + 4 * c, src[c], 4);
  }
};

// q4_0, q4_1, q5_0, q5_1: kHalves f16 (d, or d and m), high bits or not, 16 bytes of nibbles.
template <int kHalves, bool kHigh>
struct SmallBlock {
  static constexpr int kElems = 32;
  static constexpr int kQs = 2 * kHalves + (kHigh ? 4 : 0);
  static constexpr int kSourceBytes = kQs + 16, kGroupBytes = 16 * kSourceBytes;
  static constexpr int kNibbles = 32 * kHalves;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    for (int h = 0; h < kHalves; ++h) StoreHalves(src, 2 * h, quad, out + 32 * h);
    __m128i v[4];
    for (int c = 0; c < 4; ++c) v[c] = LoadX(src[c] + kQs);
    StoreDwords(v, quad, out + kNibbles);
    if constexpr (kHigh) {
      const auto word = [&](int c) { return Load<int>(src[c] + 2 * kHalves); };
      StoreX(out + kNibbles + 256 + 16 * quad, HighBitOrder(_mm_setr_epi32(word(0), word(1), word(2), word(3))));
    }
  }
  static constexpr bool kHasAdd = kHalves == 2;
  static void Column(const std::byte* group, int column, int, ColumnBlock* b) {
    Nibbles(group + kNibbles, column, b->q);
    if constexpr (kHigh) AddHigh1(group + kNibbles + 256, column, b->q);
    b->scale[0] = b->scale[1] = HalfAt(group + 2 * column);
    b->add[0] = b->add[1] = kHasAdd ? HalfAt(group + 32 + 2 * column) : 0;
    if constexpr (!kHasAdd) Subtract(kHigh ? 16 : 8, b->q);
  }
};

// The scales of q4_k and q5_k: the file's 12 bytes (ggml get_scale_min_k4) as three words of 6-bit fields.
inline std::array<uint32_t, 3> PackScales(const std::byte* s) {
  const uint32_t a = Load<uint32_t>(s), b = Load<uint32_t>(s + 4), c = Load<uint32_t>(s + 8);
  const auto fields = [](uint32_t x) {
    return (x & 63) | (x >> 2 & 63u << 6) | (x >> 4 & 63u << 12) | (x >> 6 & 63u << 18);
  };
  const uint32_t sc_lo = fields(a & 0x3f3f3f3f), mn_lo = fields(b & 0x3f3f3f3f);
  const uint32_t sc_hi = fields((c & 0x0f0f0f0f) | (a >> 2 & 0x30303030));
  const uint32_t mn_hi = fields((c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030));
  const uint32_t mn7 = mn_hi >> 18;
  return {sc_lo | (sc_hi & 63) << 24 | (mn7 & 3) << 30, sc_hi >> 6 | (mn_lo & 0xfff) << 18 | (mn7 >> 2 & 3) << 30,
          mn_lo >> 12 | (mn_hi & 0x3ffff) << 12 | (mn7 >> 4) << 30};
}
// Field f of 16 of a column's words.
inline int SixBits(const std::byte* words, int column, int f) {
  uint32_t w[3];
  for (int i = 0; i < 3; ++i) w[i] = Load<uint32_t>(words + 64 * i + 4 * column);
  if (f == 15) return static_cast<int>(w[0] >> 30 | w[1] >> 30 << 2 | w[2] >> 30 << 4);
  return static_cast<int>(w[f / 5] >> 6 * (f % 5) & 63);
}
inline void StoreWords(const std::array<uint32_t, 3>& words, int column, std::byte* out) {
  for (size_t i = 0; i < 3; ++i) Store(out + 64 * i + 4 * static_cast<size_t>(column), words[i]);
}

// In 32 bytes bit j is the top bit of sub-block j: bytes into the order (i, g), then one movemask for each sub-block's
// dword of high1, `part_bytes` apart.
inline void StoreTopBits(const std::byte* bytes, std::byte* out, int part_bytes) {
  __m128i a = LoadX(bytes), b = LoadX(bytes + 16);
  for (int round = 0; round < 3; ++round) {
    const __m128i lo = _mm_unpacklo_epi8(a, b);
    b = _mm_unpackhi_epi8(a, b);
    a = lo;
  }
  for (int j = 7; j >= 0; --j) {
    Store(out + j * part_bytes,
          static_cast<uint32_t>(_mm_movemask_epi8(a)) | static_cast<uint32_t>(_mm_movemask_epi8(b)) << 16);
    a = _mm_add_epi8(a, a);
    b = _mm_add_epi8(b, b);
  }
}

// In each 32 of the four columns' 64 bytes at `offset`, bits 2j and 2j+1 are those of sub-block j (of four): as the two
// planes of each sub-block, `part_bytes` apart.
inline void StorePairs(const std::byte* const src[4], int offset, int quad, std::byte* out, int part_bytes) {
  const __m128i mask = _mm_set1_epi8(3);
  for (int h = 0; h < 2; ++h) {
    for (int plane = 0; plane < 2; ++plane) {
      __m128i v[4];
      for (int c = 0; c < 4; ++c) v[c] = LoadX(src[c] + offset + 32 * h + 16 * plane);
      Transpose4(v);
      for (int j = 0; j < 4; ++j) {
        __m128i bits = _mm_setzero_si128();
        for (int g = 0; g < 4; ++g) {
          const __m128i two = _mm_and_si128(_mm_srli_epi16(v[g], 2 * j), mask);
          bits = _mm_or_si128(bits, _mm_slli_epi16(two, 2 * g));
        }
        StoreX(out + (4 * h + j) * part_bytes + 64 * plane + 16 * quad, bits);
      }
    }
  }
}

// 32 bytes of a K-quant's nibbles hold elements 0..31 of one sub-block low and of another high: as the bytes of each
// (k and k + 16 in one byte).
inline void SplitNibbles(const std::byte* qs, __m128i* low, __m128i* high) {
  const __m128i a = LoadX(qs), b = LoadX(qs + 16), mask = _mm_set1_epi8(15);
  *low = _mm_or_si128(_mm_and_si128(a, mask), _mm_slli_epi16(_mm_and_si128(b, mask), 4));
  *high = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), mask), _mm_andnot_si128(mask, b));
}

// q4_k and q5_k.
template <bool kHigh>
struct KBlock {
  static constexpr int kElems = 256;
  static constexpr int kQs = 16 + (kHigh ? 32 : 0);
  static constexpr int kSourceBytes = kQs + 128, kGroupBytes = 16 * kSourceBytes;
  static constexpr int kHeader = 256, kPart = kHigh ? 320 : 256;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    StoreHalves(src, 0, quad, out);
    StoreHalves(src, 2, quad, out + 32);
    for (int c = 0; c < 4; ++c) {
      StoreWords(PackScales(src[c] + 4), 4 * quad + c, out + 64);
    }
    for (int pair = 0; pair < 4; ++pair) {
      __m128i low[4], high[4];
      for (int c = 0; c < 4; ++c) SplitNibbles(src[c] + kQs + 32 * pair, &low[c], &high[c]);
      StoreDwords(low, quad, out + kHeader + 2 * pair * kPart);
      StoreDwords(high, quad, out + kHeader + (2 * pair + 1) * kPart);
    }
    if constexpr (kHigh) {
      for (int c = 0; c < 4; ++c) StoreTopBits(src[c] + 16, out + kHeader + 256 + 16 * quad + 4 * c, kPart);
    }
  }
  static constexpr bool kHasAdd = true;
  static void Column(const std::byte* group, int column, int j, ColumnBlock* b) {
    const std::byte* part = group + kHeader + j * kPart;
    Nibbles(part, column, b->q);
    if constexpr (kHigh) AddHigh1(part + 256, column, b->q);
    const auto field = [&](int f) { return static_cast<float>(SixBits(group + 64, column, f)); };
    b->scale[0] = b->scale[1] = HalfAt(group + 2 * column) * field(j);
    b->add[0] = b->add[1] = -(HalfAt(group + 32 + 2 * column) * field(8 + j));
  }
};

}  // namespace pack_internal

struct PackBlockF32 : pack_internal::Dwords {
  static constexpr int kElems = 1;
  static void Unpack(const std::byte* group, int column, float* v) {
    *v = pack_internal::Load<float>(group + 4 * column);
  }
};

struct PackBlockBF16 : pack_internal::Dwords {
  static constexpr int kElems = 2;
  static void Unpack(const std::byte* group, int column, float* v) {
    for (int i = 0; i < 2; ++i) v[i] = BF16ToF32(pack_internal::Load<uint16_t>(group + 4 * column + 2 * i));
  }
};

struct PackBlockF16 {
  static constexpr int kElems = 1, kSourceBytes = 2, kGroupBytes = 32;
  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    pack_internal::StoreHalves(src, 0, quad, out);
  }
  static void Unpack(const std::byte* group, int column, float* v) { *v = pack_internal::HalfAt(group + 2 * column); }
};

struct PackBlockQ8_0 {
  static constexpr int kElems = 32, kSourceBytes = 34, kGroupBytes = 544;
  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 0, quad, out);
    const __m128i offset = _mm_set1_epi8(-128);
    for (int half = 0; half < 2; ++half) {
      __m128i v[4];
      for (int c = 0; c < 4; ++c) v[c] = _mm_xor_si128(LoadX(src[c] + 2 + 16 * half), offset);
      StoreDwords(v, quad, out + 32 + 256 * half);
    }
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* group, int column, int, ColumnBlock* b) {
    using namespace pack_internal;
    for (int g = 0; g < 8; ++g) {
      for (int i = 0; i < 4; ++i) {
        b->q[4 * g + i] = static_cast<int8_t>(Byte(group + 32 + 64 * g + 4 * column + i) - 128);
      }
    }
    b->scale[0] = b->scale[1] = HalfAt(group + 2 * column);
    b->add[0] = b->add[1] = 0;
  }
};

struct PackBlockQ4_0 : pack_internal::SmallBlock<1, false> {};
struct PackBlockQ4_1 : pack_internal::SmallBlock<2, false> {};
struct PackBlockQ5_0 : pack_internal::SmallBlock<1, true> {};
struct PackBlockQ5_1 : pack_internal::SmallBlock<2, true> {};
struct PackBlockQ4_K : pack_internal::KBlock<false> {};
struct PackBlockQ5_K : pack_internal::KBlock<true> {};

struct PackBlockQ6_K {
  static constexpr int kElems = 256, kSourceBytes = 210, kGroupBytes = 3360;
  static constexpr int kHeader = 32, kPart = 416, kNibbles = 32, kHigh = 288;  // of a part: sc, nibbles, high2

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 208, quad, out);
    for (int part = 0; part < 8; ++part) {
      for (int half = 0; half < 2; ++half) {
        for (int c = 0; c < 4; ++c) {
          out[kHeader + part * kPart + 16 * half + 4 * quad + c] = src[c][192 + 2 * part + half];
        }
      }
    }
    for (int h = 0; h < 2; ++h) {          // halves of 128 elements
      for (int odd = 0; odd < 2; ++odd) {  // 32 bytes of ql: part 4h + odd low, 4h + odd + 2 high
        __m128i low[4], high[4];
        for (int c = 0; c < 4; ++c) SplitNibbles(src[c] + 64 * h + 32 * odd, &low[c], &high[c]);
        StoreDwords(low, quad, out + kHeader + (4 * h + odd) * kPart + kNibbles);
        StoreDwords(high, quad, out + kHeader + (4 * h + odd + 2) * kPart + kNibbles);
      }
    }
    StorePairs(src, 128, quad, out + kHeader + kHigh, kPart);
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* group, int column, int j, ColumnBlock* b) {
    using namespace pack_internal;
    const std::byte* part = group + kHeader + j * kPart;
    Nibbles(part + kNibbles, column, b->q);
    AddHigh2(part + kHigh, column, b->q);
    Subtract(32, b->q);
    const float d = HalfAt(group + 2 * column);
    for (int half = 0; half < 2; ++half) {
      b->scale[half] = d * static_cast<float>(static_cast<int8_t>(Byte(part + 16 * half + column)));
    }
    b->add[0] = b->add[1] = 0;
  }
};

}  // namespace xjit
