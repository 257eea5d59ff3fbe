// The arithmetic of the TDP instructions on tiles of 16 rows of 64 bytes, bit for bit as documented. Needs AVX2, FMA
// and F16C. Bytes of a tile beyond its rows and columns are zero before and after.
#pragma once

#include <cstdint>

namespace xjit {

struct alignas(64) Tile {
  uint32_t row[16][16];
};

enum class TileFloat : uint8_t { kBf16, kFp16 };

// dest[m, n] += a[m, 2k, 2k+1] * b[k, 2n, 2n+1]; m, n, k: 1 to 16. Rounds to nearest even and flushes denormals
// whatever MXCSR says, which is left as it was.
void TileDotFloat(Tile* dest, const Tile& a, const Tile& b, int m, int n, int k, TileFloat type);

// The same with four bytes a dword; sums wrap around.
void TileDotInt8(Tile* dest, const Tile& a, const Tile& b, int m, int k, bool a_signed, bool b_signed);

}  // namespace xjit
