// The k blocks (pack_block.h says what a struct of one has) of the encodings with fewer bits or a table: Q2_K, Q3_K,
// IQ4_NL, IQ4_XS, MXFP4.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack_block.h"

namespace xjit {
namespace pack_internal {

inline void Pairs(const std::byte* planes, int column, int8_t q[32]) {
  std::fill_n(q, 32, int8_t{0});
  for (int p = 0; p < 2; ++p) {
    const auto bits = Load<uint32_t>(planes + 64 * p + 4 * column);
    for (int k = 0; k < 16; ++k) q[16 * p + k] = static_cast<int8_t>(bits >> (8 * (k % 4) + k / 4 * 2) & 3);
  }
}

inline void LookUp(const int8_t table[16], int8_t q[32]) {
  for (int k = 0; k < 32; ++k) q[k] = table[q[k]];
}

// 16 fields of 6 bits as three words.
inline std::array<uint32_t, 3> PackFields(const std::array<uint32_t, 16>& fields) {
  std::array<uint32_t, 3> words = {};
  for (size_t f = 0; f < 15; ++f) words[f / 5] |= fields[f] << 6 * (f % 5);
  for (size_t i = 0; i < 3; ++i) words[i] |= (fields[15] >> 2 * i & 3) << 30;
  return words;
}

}  // namespace pack_internal

struct PackBlockQ2_K {
  static constexpr int kElems = 256, kSourceBytes = 84, kGroupBytes = 1344;
  static constexpr int kHeader = 64, kPart = 160, kPairs = 32;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 80, quad, out);
    StoreHalves(src, 82, quad, out + 32);
    for (int j = 0; j < 16; ++j) {
      for (int c = 0; c < 4; ++c) out[kHeader + j / 2 * kPart + j % 2 * 16 + 4 * quad + c] = src[c][j];
    }
    StorePairs(src, 16, quad, out + kHeader + kPairs, kPart);
  }
  static constexpr bool kHasAdd = true;
  static void Column(const std::byte* group, int column, int j, ColumnBlock* b) {
    using namespace pack_internal;
    const std::byte* part = group + kHeader + j * kPart;
    Pairs(part + kPairs, column, b->q);
    for (int half = 0; half < 2; ++half) {
      const uint8_t s = Byte(part + 16 * half + column);
      b->scale[half] = HalfAt(group + 2 * column) * static_cast<float>(s & 15);
      b->add[half] = -(HalfAt(group + 32 + 2 * column) * static_cast<float>(s >> 4));
    }
  }
};

struct PackBlockQ3_K {
  static constexpr int kElems = 256, kSourceBytes = 110, kGroupBytes = 1760;
  static constexpr int kScales = 32, kHeader = 224, kPart = 192, kHigh = 128;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 108, quad, out);
    for (int c = 0; c < 4; ++c) {
      const std::byte* scales = src[c] + 96;
      std::array<uint32_t, 16> fields;
      for (size_t j = 0; j < 16; ++j) {
        fields[j] = (Byte(scales + j % 8) >> 4 * (j / 8) & 15u) | (Byte(scales + 8 + j % 4) >> 2 * (j / 4) & 3u) << 4;
      }
      StoreWords(PackFields(fields), 4 * quad + c, out + kScales);
      StoreTopBits(src[c], out + kHeader + kHigh + 16 * quad + 4 * c, kPart);
    }
    StorePairs(src, 32, quad, out + kHeader, kPart);
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* group, int column, int j, ColumnBlock* b) {
    using namespace pack_internal;
    const std::byte* part = group + kHeader + j * kPart;
    Pairs(part, column, b->q);
    const auto high = Load<uint32_t>(part + kHigh + 4 * column);
    for (int k = 0; k < 32; ++k) {
      b->q[k] = static_cast<int8_t>((b->q[k] | (high >> (8 * (k % 4) + k / 4) & 1) << 2) - 4);
    }
    for (int half = 0; half < 2; ++half) {
      b->scale[half] =
          HalfAt(group + 2 * column) * static_cast<float>(SixBits(group + kScales, column, 2 * j + half) - 32);
      b->add[half] = 0;
    }
  }
};

struct PackBlockIQ4_NL {
  static constexpr int kElems = 32, kSourceBytes = 18, kGroupBytes = 288, kNibbles = 32;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 0, quad, out);
    __m128i v[4];
    for (int c = 0; c < 4; ++c) v[c] = LoadX(src[c] + 2);
    StoreDwords(v, quad, out + kNibbles);
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* group, int column, int, ColumnBlock* b) {
    using namespace pack_internal;
    Nibbles(group + kNibbles, column, b->q);
    LookUp(kIq4Values, b->q);
    b->scale[0] = b->scale[1] = HalfAt(group + 2 * column);
    b->add[0] = b->add[1] = 0;
  }
};

struct PackBlockIQ4_XS {
  static constexpr int kElems = 256, kSourceBytes = 136, kGroupBytes = 2176;
  static constexpr int kScalesHigh = 32, kScalesLow = 64, kHeader = 128, kPart = 256;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* out) {
    using namespace pack_internal;
    StoreHalves(src, 0, quad, out);
    StoreHalves(src, 2, quad, out + kScalesHigh);
    for (int c = 0; c < 4; ++c) std::memcpy(out + kScalesLow + 16 * quad + 4 * c, src[c] + 4, 4);
    for (int j = 0; j < 8; ++j) {
      __m128i v[4];
      for (int c = 0; c < 4; ++c) v[c] = LoadX(src[c] + 8 + 16 * j);
      StoreDwords(v, quad, out + kHeader + j * kPart);
    }
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* group, int column, int j, ColumnBlock* b) {
    using namespace pack_internal;
    Nibbles(group + kHeader + j * kPart, column, b->q);
    LookUp(kIq4Values, b->q);
    const uint32_t low = Load<uint32_t>(group + kScalesLow + 4 * column) >> 4 * j & 15;
    const uint32_t high = static_cast<uint32_t>(Load<uint16_t>(group + kScalesHigh + 2 * column)) >> 2 * j & 3;
    b->scale[0] = b->scale[1] = HalfAt(group + 2 * column) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    b->add[0] = b->add[1] = 0;
  }
};

// The exponents of both groups stand together, so that both groups' parts start on 32 bytes: `block` is the start of
// the k block, quads are 0..7 and columns 0..31.
struct PackBlockMxfp4 {
  static constexpr int kElems = 32, kSourceBytes = 17, kGroupBytes = 272;
  static constexpr bool kBothGroups = true;

  static void PackQuad(const std::byte* const src[4], int quad, std::byte* block) {
    using namespace pack_internal;
    __m128i v[4];
    for (int c = 0; c < 4; ++c) {
      block[4 * quad + c] = src[c][0];
      v[c] = LoadX(src[c] + 1);
    }
    StoreDwords(v, quad % 4, block + kPanelColumns + quad / 4 * 256);
  }
  static constexpr bool kHasAdd = false;
  static void Column(const std::byte* block, int column, int, ColumnBlock* b) {
    using namespace pack_internal;
    Nibbles(block + kPanelColumns + column / kGroupColumns * 256, column % kGroupColumns, b->q);
    LookUp(kFp4Doubled, b->q);
    b->scale[0] = b->scale[1] = static_cast<float>(0.5 * E8M0(Byte(block + column)));
    b->add[0] = b->add[1] = 0;
  }
};

}  // namespace xjit
