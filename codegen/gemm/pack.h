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
//   q2_k  (256 k)  f16 d[16]; f16 dmin[16]; 8 x { u8 s[2][16]; pairs }  value d*(s & 15) * q - dmin*(s >> 4), s of 16 k
//   q3_k  (256 k)  f16 d[16]; u32 scales[3][16]; 8 x { pairs; high1 }   value d*(sc - 32) * (q - 4), sc of 16 k
//   iq4_nl (32 k)  f16 d[16]; nibbles                                   value d * kIq4Values[q]
//   iq4_xs (256 k) f16 d[16]; u16 sh[16]; u32 sl[16]; 8 x { nibbles }   value d*(sc - 32) * kIq4Values[q]; of sub-block
//                  j sc has its low four bits in bits 4j up of sl, the other two in bits 2j up of sh
//   mxfp4 (32 k)   of both groups: u8 e[32], then nibbles of each       value 2^(e - 128) * kFp4Doubled[q]
// nibbles: u8[4][16][4], byte (g, c, i): k = 4g+i in the low four bits, k = 4(g+4)+i in the high.
// pairs:   u8[2][16][4], bits 2g and 2g+1 of byte (p, c, i) are bits 0 and 1 of k = 4(4p+g)+i, g = 0..3.
// high1:   u8[16][4], bit g of byte (c, i) is the top bit (of three or five) of k = 4g+i, g = 0..7.
// high2:   as pairs, bits 4 and 5.
// scales:  16 fields of 6 bits, five from bit 0 up in each word; the last has bits 1:0 in bits 31:30 of word 0, bits
//          3:2 in word 1's, bits 5:4 in word 2's. q4_k, q5_k: sc of the eight sub-blocks, then mn; q3_k: sc of each 16
//          k
// (16 columns x 4 k is one zmm whose dword is one column's; 8 columns are one ymm.)
// Bytes are those of the file: 34, 18, 20, 22, 24, 18, 17 for 32 k of a column; 144, 176, 210, 84, 110, 136 for 256.
// Every group's part of a k block starts on 32 bytes. Packing changes no value: UnpackColumn gives back exactly what
// the encoding defines.
//
// Encodings whose scales lie outside (ir/support/encoding.h) have k blocks of the depth that shares a scale (all of k
// for a scale a column or one in all; the last block may be shorter), the header of both groups in front, then units:
//   i8      f32 scale[32]; units of 4 k, u8[2][16][4] = q + 128: byte (group, c, i) is k = 4g+i; whole 64 k
//   f8e4m3  f32 scale[32]; units of 4 k, u8[2][4][2][4][2]: byte (group, l, h, c, i) is k = 4g+2h+i of column 4l+c, so
//           that interleaving the table's high and low bytes within 16-byte lanes gives pairs of k side by side
//   i4      f16 scale[32]; with zeros u8 zero[32]; units of 32 k, nibbles of both groups      value (q - zero) * scale
// of i4 without zeros the zero is 8; with act_order the k are sorted by group (stably), and so must activations be.
// bf16 panels are padded with zeros to whole 32 k, i8 to whole 64 k: tiles are loaded from where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/support/dtype.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"

namespace xjit {

// Whether weights of that encoding have a packed layout; the functions below are for those.
bool HasPanels(const Encoding& encoding);

// Packed columns of a matrix with n: whole panels, an interleaved one (of two equal parts) 16 of each part a panel.
int64_t PackedColumns(int64_t n, bool interleaved);
// Depth of one k block of a panel: 1 (f32, f16), 2 (bf16), 32 or 256. Not for encodings with scales outside.
int PackedBlockElems(DType encoding);
// Bytes of one group (16 columns) of one k block. Not for encodings with scales outside.
int PackedGroupBytes(DType encoding);
// Bytes of one packed panel of depth k.
int64_t PanelBytes(const Encoding& encoding, int64_t k);

// The k blocks of an encoding with scales outside.
struct ScaledBlocks {
  int unit = 0;               // k's of a unit
  int unit_bytes = 0;         // of both groups
  int64_t pad = 0;            // a block's depth is padded to a multiple of it
  int64_t depth = 0;          // k's that share a scale; more than k: all
  DType scale = DType::kF32;  // or kF16
  int scale_bytes = 0;        // of both groups' scales; zeros follow
  int zero_bytes = 0;

  int header_bytes() const { return scale_bytes + zero_bytes; }
  int64_t count(int64_t k) const;                                             // of blocks
  int64_t elems(int64_t k, int64_t block) const;                              // k's of a block
  int64_t block_bytes(int64_t elems) const;                                   // of both groups
  int64_t offset(int64_t block) const { return block * block_bytes(depth); }  // from the panel's start
};
// Of an encoding with panels whose scales lie outside.
ScaledBlocks ScaledBlocksOf(const Encoding& encoding, int64_t k);
// Whether the encoding is one of those: i8, f8e4m3, i4.
bool HasScalesOutside(DType type);

// Packs panels [panel_begin, panel_end). rows[n] points to the encoded row (k elements, file layout) that becomes
// packed column n, or is nullptr for a column of zeros; rows.size() is a multiple of 32. Panel p goes to dst + p *
// PanelBytes(). Joins, row permutations and the gate/up interleave are orders of `rows`.
void PackPanels(DType encoding, int64_t k, std::span<const std::byte* const> rows, int64_t panel_begin,
                int64_t panel_end, std::byte* dst);

// A row of a weight with scales outside: codes[k], one element a byte (int8, E4M3, or 0 .. 15), a scale and a zero
// point for each k block. codes == nullptr: a column of zeros.
struct ScaledColumn {
  const uint8_t* codes = nullptr;
  const float* scales = nullptr;
  const uint8_t* zeros = nullptr;  // with Scales::zeros
};
// Packs one panel. InvalidArgument: a scale of int4 that f16 cannot hold.
absl::Status PackScaledPanel(const Encoding& encoding, int64_t k, std::span<const ScaledColumn> columns,
                             std::byte* dst);

// Dequantises packed column n into out[k]: the values, bit for bit, that DequantizeRow gives for the row it came from
// (a column of zeros gives zeros, of either sign). `packed` is the start of panel 0.
void UnpackColumn(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, float* out);
// A code of an encoding with scales outside (ScaledColumn) as a number, before its scale.
float CodeValue(DType type, uint8_t code, int zero);

// 32 values of a packed column of a GGUF encoding or int4 as they are computed with: value k is scale[k / 16] * q[k] +
// add[k / 16].
struct ColumnBlock {
  int8_t q[32];    // offset (128, 8, 16, 32, 4) already taken off, or the table's value
  float scale[2];  // equal but for encodings with HasHalfScales
  float add[2];    // 0 for encodings without a minimum; equal but for those with HasHalfScales
};
// Encodings whose scale (and minimum) is of 16 k, not of 32: q6_k, q2_k, q3_k.
inline bool HasHalfScales(DType type) { return type == DType::kQ6_K || type == DType::kQ2_K || type == DType::kQ3_K; }
// Block `block` (k = 32 block ..) of packed column n.
void UnpackColumnBlock(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, int64_t block,
                       ColumnBlock* out);
// Packed column n of i8, f8e4m3 or i4: codes[k] and, of each k block, the scale and the zero point (0 or 128 are not in
// i8's codes: they are as in the file).
void UnpackCodes(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, uint8_t* codes, float* scales,
                 uint8_t* zeros);

}  // namespace xjit
