#include "codegen/amx/tile_math.h"

#include <immintrin.h>

#include <algorithm>

// The library is compiled for plain x86-64; the caller has asked CPUID. Not inlined, so that the changed MXCSR covers
// exactly the arithmetic.
#define XJIT_TILE_MATH __attribute__((target("avx2,fma,f16c"), noinline))
#define XJIT_TILE_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace xjit {
namespace {

// FTZ, DAZ, round to nearest, every exception masked.
constexpr uint32_t kFlushNearest = 0x9FC0;

// A tile of pairs as two tiles of f32: the even elements and the odd ones.
struct alignas(64) Pairs {
  float even[16][16], odd[16][16];
};

XJIT_TILE_INLINE __m256 HalvesToF32(__m256i dwords) {  // an fp16 in the low half of each; denormals become normal
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(dwords, dwords), 0b1000);
  return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
}

XJIT_TILE_MATH void Widen(const Tile& tile, int rows, TileFloat type, Pairs* pairs) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < 16; c += 8) {
      const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(&tile.row[r][c]));
      const bool bf16 = type == TileFloat::kBf16;
      const __m256 even = bf16 ? _mm256_castsi256_ps(_mm256_slli_epi32(x, 16))
                               : HalvesToF32(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)));
      const __m256 odd = bf16 ? _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(~0xffff)))
                              : HalvesToF32(_mm256_srli_epi32(x, 16));
      _mm256_store_ps(&pairs->even[r][c], even);
      _mm256_store_ps(&pairs->odd[r][c], odd);
    }
  }
}

// Two sums run over k in f32, one of the even and one of the odd products, each product fused with its addition; then
// even + odd is added to the destination (Intel SDM vol. 2, TDPBF16PS and TDPFP16PS, Operation). Two rows at a time,
// for eight independent chains: a row that does not exist is zero and is not stored.
XJIT_TILE_MATH void DotRows(Tile* dest, const Pairs& a, const Pairs& b, int m, int n, int k) {
  const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 columns0 = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), iota));
  const __m256 columns1 = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), iota));
  for (int r = 0; r < m; r += 2) {
    const float* even0 = a.even[r];
    const float* even1 = a.even[r + 1];
    const float* odd0 = a.odd[r];
    const float* odd1 = a.odd[r + 1];
    __m256 e00 = _mm256_setzero_ps(), e01 = e00, e10 = e00, e11 = e00, o00 = e00, o01 = e00, o10 = e00, o11 = e00;
    for (int i = 0; i < k; ++i) {
      const __m256 be0 = _mm256_load_ps(&b.even[i][0]), be1 = _mm256_load_ps(&b.even[i][8]);
      const __m256 bo0 = _mm256_load_ps(&b.odd[i][0]), bo1 = _mm256_load_ps(&b.odd[i][8]);
      const __m256 ae0 = _mm256_set1_ps(even0[i]), ae1 = _mm256_set1_ps(even1[i]);
      const __m256 ao0 = _mm256_set1_ps(odd0[i]), ao1 = _mm256_set1_ps(odd1[i]);
      e00 = _mm256_fmadd_ps(ae0, be0, e00);
      e01 = _mm256_fmadd_ps(ae0, be1, e01);
      e10 = _mm256_fmadd_ps(ae1, be0, e10);
      e11 = _mm256_fmadd_ps(ae1, be1, e11);
      o00 = _mm256_fmadd_ps(ao0, bo0, o00);
      o01 = _mm256_fmadd_ps(ao0, bo1, o01);
      o10 = _mm256_fmadd_ps(ao1, bo0, o10);
      o11 = _mm256_fmadd_ps(ao1, bo1, o11);
    }
    auto* out = reinterpret_cast<float*>(dest->row[r]);
    const __m256 r00 = _mm256_add_ps(_mm256_load_ps(out), _mm256_add_ps(e00, o00));
    const __m256 r01 = _mm256_add_ps(_mm256_load_ps(out + 8), _mm256_add_ps(e01, o01));
    // 0 * Inf beyond the last column would be NaN.
    _mm256_store_ps(out, _mm256_and_ps(r00, columns0));
    _mm256_store_ps(out + 8, _mm256_and_ps(r01, columns1));
    if (r + 1 == m) break;
    const __m256 r10 = _mm256_add_ps(_mm256_load_ps(out + 16), _mm256_add_ps(e10, o10));
    const __m256 r11 = _mm256_add_ps(_mm256_load_ps(out + 24), _mm256_add_ps(e11, o11));
    _mm256_store_ps(out + 16, _mm256_and_ps(r10, columns0));
    _mm256_store_ps(out + 24, _mm256_and_ps(r11, columns1));
  }
}

// A tile of four bytes a dword as two tiles of two 16-bit integers a dword: bytes 0 and 1, bytes 2 and 3.
struct alignas(64) ByteHalves {
  uint32_t low[16][16], high[16][16];
};

XJIT_TILE_MATH void WidenBytes(const Tile& tile, int rows, bool is_signed, ByteHalves* halves) {
  constexpr char z = -128;                                                                // pshufb: zero
  const __m256i low = _mm256_setr_epi8(z, 0, z, 1, z, 4, z, 5, z, 8, z, 9, z, 12, z, 13,  //
                                       z, 0, z, 1, z, 4, z, 5, z, 8, z, 9, z, 12, z, 13);
  const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi16(0x0200));
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < 16; c += 8) {
      const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(&tile.row[r][c]));
      const __m256i l = _mm256_shuffle_epi8(x, low), h = _mm256_shuffle_epi8(x, high);
      _mm256_store_si256(reinterpret_cast<__m256i*>(&halves->low[r][c]),
                         is_signed ? _mm256_srai_epi16(l, 8) : _mm256_srli_epi16(l, 8));
      _mm256_store_si256(reinterpret_cast<__m256i*>(&halves->high[r][c]),
                         is_signed ? _mm256_srai_epi16(h, 8) : _mm256_srli_epi16(h, 8));
    }
  }
}

XJIT_TILE_INLINE __m256i Multiply(uint32_t a_low, uint32_t a_high, const uint32_t* b_low, const uint32_t* b_high) {
  const __m256i low = _mm256_madd_epi16(_mm256_set1_epi32(static_cast<int>(a_low)),
                                        _mm256_load_si256(reinterpret_cast<const __m256i*>(b_low)));
  const __m256i high = _mm256_madd_epi16(_mm256_set1_epi32(static_cast<int>(a_high)),
                                         _mm256_load_si256(reinterpret_cast<const __m256i*>(b_high)));
  return _mm256_add_epi32(low, high);
}

XJIT_TILE_MATH void DotBytes(Tile* dest, const ByteHalves& a, const ByteHalves& b, int m, int k) {
  for (int r = 0; r < m; ++r) {
    auto* out = reinterpret_cast<__m256i*>(dest->row[r]);
    __m256i sum0 = _mm256_load_si256(out), sum1 = _mm256_load_si256(out + 1);
    for (int i = 0; i < k; ++i) {
      const uint32_t low = a.low[r][i], high = a.high[r][i];
      sum0 = _mm256_add_epi32(sum0, Multiply(low, high, &b.low[i][0], &b.high[i][0]));
      sum1 = _mm256_add_epi32(sum1, Multiply(low, high, &b.low[i][8], &b.high[i][8]));
    }
    _mm256_store_si256(out, sum0);
    _mm256_store_si256(out + 1, sum1);
  }
}

}  // namespace

void TileDotFloat(Tile* dest, const Tile& a, const Tile& b, int m, int n, int k, TileFloat type) {
  Pairs wide_a, wide_b;
  Widen(a, std::min(16, m + 1), type, &wide_a);
  Widen(b, k, type, &wide_b);
  uint32_t before;
  asm volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(before) : "m"(kFlushNearest) : "memory");
  DotRows(dest, wide_a, wide_b, m, n, k);
  asm volatile("ldmxcsr %0" : : "m"(before) : "memory");
}

void TileDotInt8(Tile* dest, const Tile& a, const Tile& b, int m, int k, bool a_signed, bool b_signed) {
  ByteHalves wide_a, wide_b;
  WidenBytes(a, m, a_signed, &wide_a);
  WidenBytes(b, k, b_signed, &wide_b);
  DotBytes(dest, wide_a, wide_b, m, k);
}

}  // namespace xjit
