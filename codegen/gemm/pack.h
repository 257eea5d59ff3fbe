// Weights in the order in which a thread reads them: panels of 32 columns, a panel whole in k, ascending, scales in
// front of the data of their own block (one linear stream a thread runs at the machine's full read bandwidth).
//
// A panel is a sequence of k blocks; a k block holds group 0 (16 columns) then group 1. Of one group, in this order:
//   f32   (1 k)    f32[16]
//   f16   (1 k)    f16[16]
//   bf16  (2 k)    bf16[16][2]: pairs of k side by side; an odd k is padded with zero
//   q8_0  (32 k)   f16 d[16]; u8[8][16][4] = q + 128, byte (g, c, i) is k = 4g+i            value d * (u8 - 128)
//   q4_0  (32 k)   f16 d[16]; nibbles                                                       value d * (q - 8)
//   q4_1  (32 k)   f16 d[16]; f16 m[16]; nibbles                                            value d * q + m
//   q5_0  (32 k)   f16 d[16]; nibbles; high1                                                value d * (q - 16)
//   q5_1  (32 k)   f16 d[16]; f16 m[16]; nibbles; high1                                     value d * q + m
//   q4_k  (256 k)  f16 d[16]; f16 dmin[16]; u32 scales[3][16]; 8 x { nibbles }              value d*sc * q - dmin*mn
//   q5_k  (256 k)  f16 d[16]; f16 dmin[16]; u32 scales[3][16]; 8 x { nibbles; high1 }       value as q4_k
//   q6_k  (256 k)  f16 d[16]; 8 x { i8 sc[2][16] (k < 16, k >= 16); nibbles; high2 }        value d*sc * (q - 32)
// nibbles: u8[4][16][4], byte (g, c, i): k = 4g+i in the low four bits, k = 4(g+4)+i in the high.
// high1:   u8[16][4], bit g of byte (c, i) is bit 4 of k = 4g+i, g = 0..7.
// high2:   u8[2][16][4], bits 2g and 2g+1 of byte (p, c, i) are bits 4 and 5 of k = 4(4p+g)+i, g = 0..3.
// scales:  6-bit fields from bit 0 up. Word 0: sc of sub-blocks 0..4; word 1: sc of 5, 6, 7, then mn of 0, 1; word 2:
//          mn of 2..6; mn of 7 has bits 1:0 in bits 31:30 of word 0, bits 3:2 in word 1's, bits 5:4 in word 2's.
// (16 columns x 4 k is one zmm whose dword is one column's; 8 columns are one ymm.)
// Bytes are those of the file: 34, 18, 20, 22, 24 for 32 k of a column; 144, 176, 210 for 256. Every group's part of a
// k block starts on 32 bytes. Packing changes no value: UnpackColumn gives back exactly what the encoding defines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/support/dtype.h"

namespace xjit {

// Whether weights of that encoding have a packed layout; the functions below are for those.
bool HasPanels(DType encoding);

// Packed columns of a matrix with n: whole panels, an interleaved one (of two equal parts) 16 of each part a panel.
int64_t PackedColumns(int64_t n, bool interleaved);
// Depth of one k block of a panel: 1 (f32, f16), 2 (bf16), 32 or 256.
int PackedBlockElems(DType encoding);
// Bytes of one group (16 columns) of one k block.
int PackedGroupBytes(DType encoding);
// Bytes of one packed panel of depth k (for bf16 an odd k counts as k + 1).
int64_t PanelBytes(DType encoding, int64_t k);

// Packs panels [panel_begin, panel_end). rows[n] points to the encoded row (k elements, file layout) that becomes
// packed column n, or is nullptr for a column of zeros; rows.size() is a multiple of 32. Panel p goes to dst + p *
// PanelBytes(). Joins, row permutations and the gate/up interleave are orders of `rows`.
void PackPanels(DType encoding, int64_t k, std::span<const std::byte* const> rows, int64_t panel_begin,
                int64_t panel_end, std::byte* dst);

// Dequantises packed column n into out[k]: the values, bit for bit, that DequantizeRow gives for the row it came from
// (a column of zeros gives zeros, of either sign). `packed` is the start of panel 0.
void UnpackColumn(DType encoding, int64_t k, const std::byte* packed, int64_t n, float* out);

// 32 values of a packed column of a quantised encoding as they are computed with: value k is scale[k / 16] * q[k] +
// add.
struct ColumnBlock {
  int8_t q[32];    // offset (128, 8, 16, 32) already taken off
  float scale[2];  // equal but for q6_k
  float add;       // 0 for encodings without a minimum
};
// Block `block` (k = 32 block ..) of packed column n.
void UnpackColumnBlock(DType encoding, int64_t k, const std::byte* packed, int64_t n, int64_t block, ColumnBlock* out);

}  // namespace xjit
