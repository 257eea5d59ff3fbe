#include "ir/support/ref/stored_matrix.h"

#include <algorithm>
#include <cstring>
#include <numeric>

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

// Where the scale of a block of a row is.
int64_t ScaleIndex(const StoredMatrix& m, int64_t row, int64_t block) {
  switch (m.layout) {
    case StoredMatrix::Layout::kAwq:
    case StoredMatrix::Layout::kGptq:
      return block * m.n + row;
    case StoredMatrix::Layout::kPacked:
      return row * (m.k / m.scale_cols) + block;
    default:
      return row / m.scale_rows * CeilDiv(m.k, m.scale_cols) + block;
  }
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
  for (int64_t i = begin; i < end;) {
    const float scale = StoredScale(m, row, i / m.scale_cols);
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

// Of rows of which eight share a word.
int Shift(const StoredMatrix& m, int64_t row) {
  return 4 * (m.layout == StoredMatrix::Layout::kAwq ? kAwqNibble[row % 8] : static_cast<int>(row % 8));
}

void Int4(const StoredMatrix& m, int64_t row, int64_t begin, int64_t end, float* out) {
  const bool awq = m.layout == StoredMatrix::Layout::kAwq, packed = m.layout == StoredMatrix::Layout::kPacked;
  const int shift = Shift(m, row);
  int64_t last = -1;
  float scale = 0;
  int zero = 8;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t group = m.group_of == nullptr ? i / m.scale_cols : int64_t{Load32(m.group_of, i)};
    if (group != last) {
      scale = StoredScale(m, row, group);
      zero = StoredZero(m, row, group);
      last = group;
    }
    const uint32_t q = awq      ? Load32(m.values, i * (m.n / 8) + row / 8) >> shift & 15
                       : packed ? Load32(m.values, row * (m.k / 8) + i / 8) >> 4 * (i % 8) & 15
                                : Load32(m.values, i / 8 * m.n + row) >> 4 * (i % 8) & 15;
    out[i - begin] = static_cast<float>(static_cast<int>(q) - zero) * scale;
  }
}

// The eight int4 of a word, the lowest first, a byte each.
void Spread(uint32_t word, uint8_t* out) {
  uint64_t v = word;
  v = (v | v << 16) & 0x0000ffff0000ffff;
  v = (v | v << 8) & 0x00ff00ff00ff00ff;
  v = (v | v << 4) & 0x0f0f0f0f0f0f0f0f;
  std::memcpy(out, &v, sizeof(v));
}

}  // namespace

void StoredCodes(const StoredMatrix& m, std::span<const int64_t> rows, int64_t stride, uint8_t* codes) {
  const auto* values = reinterpret_cast<const uint8_t*>(m.values);
  const auto count = static_cast<int64_t>(rows.size());
  const auto row = [&rows](int64_t j) { return rows[static_cast<size_t>(j)]; };
  switch (m.layout) {
    case StoredMatrix::Layout::kColumns:
      for (int64_t i = 0; i < m.k; ++i) {
        for (int64_t j = 0; j < count; ++j) codes[j * stride + i] = values[i * m.n + row(j)];
      }
      return;
    case StoredMatrix::Layout::kAwq: {
      struct Place {
        int64_t word;
        int shift;
      };
      std::vector<Place> places;
      for (const int64_t r : rows) places.push_back({r / 8, Shift(m, r)});
      for (int64_t i = 0; i < m.k; ++i) {
        const std::byte* words = m.values + i * (m.n / 8) * 4;
        uint8_t* out = codes + i;
        for (const Place& place : places) {
          *out = static_cast<uint8_t>(Load32(words, place.word) >> place.shift & 15);
          out += stride;
        }
      }
      return;
    }
    case StoredMatrix::Layout::kGptq:
      for (int64_t i = 0; i < m.k / 8; ++i) {
        for (int64_t j = 0; j < count; ++j) Spread(Load32(m.values, i * m.n + row(j)), codes + j * stride + 8 * i);
      }
      return;
    case StoredMatrix::Layout::kPacked:
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = 0; i < m.k / 8; ++i) {
          Spread(Load32(m.values, row(j) * (m.k / 8) + i), codes + j * stride + 8 * i);
        }
      }
      return;
    default:
      for (int64_t j = 0; j < count; ++j) {
        std::memcpy(codes + j * stride, values + row(j) * m.k, static_cast<size_t>(m.k));
      }
  }
}

float StoredScale(const StoredMatrix& m, int64_t row, int64_t block) { return Scale(m, ScaleIndex(m, row, block)); }

int StoredZero(const StoredMatrix& m, int64_t row, int64_t block) {
  if (m.zeros == nullptr) return 8;
  const bool packed = m.layout == StoredMatrix::Layout::kPacked;
  const int64_t at = packed ? row / 8 * (m.k / m.scale_cols) + block : block * (m.n / 8) + row / 8;
  return static_cast<int>(Load32(m.zeros, at) >> Shift(m, row) & 15) + m.zero_offset;
}

std::vector<int32_t> GroupOrder(const StoredMatrix& m) {
  std::vector<int32_t> order(static_cast<size_t>(m.k));
  std::iota(order.begin(), order.end(), 0);
  if (m.group_of == nullptr) return order;
  std::stable_sort(order.begin(), order.end(),
                   [&m](int32_t a, int32_t b) { return Load32(m.group_of, a) < Load32(m.group_of, b); });
  return order;
}

void StoredBlocks(const StoredMatrix& m, int64_t row, std::byte* out) {
  const DTypeInfo& info = Info(m.type);
  switch (m.layout) {
    case StoredMatrix::Layout::kColumns:
      for (int64_t i = 0; i < m.k; ++i) {
        std::memcpy(out + i * info.block_bytes, m.values + (i * m.n + row) * info.block_bytes,
                    static_cast<size_t>(info.block_bytes));
      }
      return;
    case StoredMatrix::Layout::kFp4: {
      // ggml's block_mxfp4: the exponent, then elements i and i + 16 in one byte.
      const auto* values = reinterpret_cast<const uint8_t*>(m.values) + row * (m.k / 2);
      for (int64_t b = 0; b < m.k / 32; ++b, values += 16) {
        *out++ = m.scales[row * (m.k / 32) + b];
        for (int i = 0; i < 16; ++i) {
          const int low = values[i / 2] >> 4 * (i % 2) & 15, high = values[8 + i / 2] >> 4 * (i % 2) & 15;
          *out++ = static_cast<std::byte>(low | high << 4);
        }
      }
      return;
    }
    default:
      std::memcpy(out, m.values + row * RowBytes(m.type, m.k), static_cast<size_t>(RowBytes(m.type, m.k)));
  }
}

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
