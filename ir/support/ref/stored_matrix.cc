#include "ir/support/ref/stored_matrix.h"

#include <algorithm>
#include <cstring>

#include "ir/support/align.h"
#include "ir/support/ref/dequant.h"

namespace xjit {
namespace {

uint32_t Load32(const std::byte* p, int64_t index) {
  uint32_t v;
  std::memcpy(&v, p + 4 * index, sizeof(v));
  return v;
}

float Scale(const StoredMatrix& m, int64_t index) {
  float scale;
  DequantizeRow(m.scale_type, m.scales + index * Info(m.scale_type).block_bytes, 1, &scale);
  return scale;
}

// Part of a row of an encoding whose elements come in blocks.
void Blocks(const StoredMatrix& m, const std::byte* row, int64_t begin, int64_t end, float* out) {
  const DTypeInfo& info = Info(m.type);
  float block[256];  // the largest there is
  for (int64_t at = begin; at < end;) {
    const int64_t first = at / info.block_elems * info.block_elems, stop = std::min(end, first + info.block_elems);
    DequantizeRow(m.type, row + first / info.block_elems * info.block_bytes, info.block_elems, block);
    std::copy(block + (at - first), block + (stop - first), out + (at - begin));
    at = stop;
  }
}

void Plain(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out) {
  const DTypeInfo& info = Info(m.type);
  const bool columns = m.layout == StoredMatrix::Layout::kColumns;
  if (columns) {
    for (int64_t i = begin; i < end; ++i) {
      DequantizeRow(m.type, m.values + (i * m.n + row) * info.block_bytes, 1, out + (i - begin));
    }
  } else {
    const std::byte* at = m.values + row * RowBytes(m.type, m.k);
    if (begin % info.block_elems == 0 && end % info.block_elems == 0) {
      DequantizeRow(m.type, at + RowBytes(m.type, begin), end - begin, out);
    } else {
      Blocks(m, at, begin, end, out);
    }
  }
  if (m.scales == nullptr) return;
  const int64_t stride = CeilDiv(m.k, m.scale_cols);
  for (int64_t i = begin; i < end;) {
    const float scale = Scale(m, row / m.scale_rows * stride + i / m.scale_cols);
    const int64_t stop = std::min(end, (i / m.scale_cols + 1) * m.scale_cols);
    for (; i < stop; ++i) out[i - begin] *= scale;
  }
}

void Fp4(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out) {
  const auto* values = reinterpret_cast<const uint8_t*>(m.values) + row * (m.k / 2);
  const auto* scales = reinterpret_cast<const uint8_t*>(m.scales) + row * (m.k / 32);
  for (int64_t i = begin; i < end; ++i) {
    const double value = static_cast<double>(Fp4ToF32(static_cast<uint8_t>(values[i / 2] >> 4 * (i % 2))));
    out[i - begin] = static_cast<float>(value * E8M0(scales[i / 32]));
  }
}

// Where row 0..7 of an AWQ word lies: the inverse of 0, 2, 4, 6, 1, 3, 5, 7.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

void Int4(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out) {
  const bool awq = m.layout == StoredMatrix::Layout::kAwq, packed = m.layout == StoredMatrix::Layout::kPacked;
  const int shift = 4 * (awq ? kAwqNibble[row % 8] : static_cast<int>(row % 8));
  const int64_t groups = m.k / m.scale_cols;
  int64_t last = -1;
  float scale = 0;
  int zero = 8;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t group = m.group_of == nullptr ? i / m.scale_cols : int64_t{Load32(m.group_of, i)};
    if (group != last) {
      scale = Scale(m, packed ? row * groups + group : group * m.n + row);
      if (m.zeros != nullptr) {
        const uint32_t word = Load32(m.zeros, packed ? row / 8 * groups + group : group * (m.n / 8) + row / 8);
        zero = static_cast<int>(word >> shift & 15) + m.zero_offset;
      }
      last = group;
    }
    const uint32_t q = awq      ? Load32(m.values, i * (m.n / 8) + row / 8) >> shift & 15
                       : packed ? Load32(m.values, row * (m.k / 8) + i / 8) >> 4 * (i % 8) & 15
                                : Load32(m.values, i / 8 * m.n + row) >> 4 * (i % 8) & 15;
    out[i - begin] = static_cast<float>(static_cast<int>(q) - zero) * scale;
  }
}

}  // namespace

void DequantizeRow(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out) {
  switch (m.layout) {
    case StoredMatrix::Layout::kRows:
    case StoredMatrix::Layout::kColumns:
      return Plain(m, row, begin, end, out);
    case StoredMatrix::Layout::kFp4:
      return Fp4(m, row, begin, end, out);
    case StoredMatrix::Layout::kAwq:
    case StoredMatrix::Layout::kGptq:
    case StoredMatrix::Layout::kPacked:
      return Int4(m, row, begin, end, out);
  }
}

}  // namespace xjit
