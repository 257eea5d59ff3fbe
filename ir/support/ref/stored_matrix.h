// A matrix as a checkpoint stores it, with the scales and zero points that lie in tensors of their own, and what it
// means: rows of f32, in plain loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/support/dtype.h"

namespace xjit {

// The pointers need no alignment; whoever fills this in has checked that all it describes lies in its tensors.
struct StoredMatrix {
  enum class Layout : uint8_t {
    kRows,     // [n, k] of `type`, row after row
    kColumns,  // [k, n]: transposed; `type` has blocks of one element
    kFp4,      // [n, k / 32, 16] bytes of two FP4, the even element in the low bits; scales E8M0 [n, k / 32]
    kAwq,      // [k, n / 8] words of eight int4; bits 4i.. are row 0, 2, 4, 6, 1, 3, 5, 7 [i] of the eight
    kGptq,     // [k / 8, n] words of eight int4, in the order of k
    kPacked,   // [n, k / 8] words of eight int4, in the order of k (compressed-tensors)
  };
  Layout layout = Layout::kRows;
  DType type = DType::kF32;  // of an element: f32 .. q6_k, i8, f8e4m3; mxfp4 and i4 for the packed layouts
  int64_t n = 0;
  int64_t k = 0;
  const std::byte* values = nullptr;

  // kRows, kColumns: one for each block of so many rows and columns, [blocks of rows, blocks of columns]; null: none.
  // int4: one for each row and group of scale_cols elements of k, [groups, n], of kPacked [n, groups].
  const std::byte* scales = nullptr;
  DType scale_type = DType::kF32;  // f32, f16 or bf16
  int64_t scale_rows = 1;
  int64_t scale_cols = 1;

  // int4 [groups, n / 8] words: packed along n as kAwq's values, or in plain order; of kPacked [n / 8, groups]; null: 8
  // throughout.
  const std::byte* zeros = nullptr;
  int zero_offset = 0;                  // added to them: GPTQ's first format stores them less one
  const std::byte* group_of = nullptr;  // kGptq, kPacked: i32 [k], the group of each element; null: in order
};

// Elements [begin, end) of row `row`.
void DequantizeRow(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out);

// The parts of what DequantizeRow() multiplies, of int8, FP8 and int4: element i of a row is (code - zero) * scale,
// where scale and zero are those of its block. Blocks are m.scale_cols consecutive elements of k; with group_of they
// are the groups, which GroupOrder() makes consecutive.
//
// Codes of whole rows, int8 and E4M3 as they are, int4 as 0 .. 15: row rows[j] at codes + j * stride. Several at once,
// since layouts that have k outside hold them side by side.
void StoredCodes(const StoredMatrix& m, std::span<const int64_t> rows, int64_t stride, uint8_t* codes);
float StoredScale(const StoredMatrix& m, int64_t row, int64_t block);
int StoredZero(const StoredMatrix& m, int64_t row, int64_t block);  // of int4
// Element order[i] of k is the i-th of all sorted by group, stably.
std::vector<int32_t> GroupOrder(const StoredMatrix& m);

// A row as ggml's blocks of that type have it, RowBytes(m.type, m.k), of values without scales outside: another order
// of bytes where the layout is not kRows.
void StoredBlocks(const StoredMatrix& m, int64_t row, std::byte* out);

}  // namespace xjit
