// StoredMatrix: every layout written here by its definition, and read back whole and in parts.
#include "ir/support/ref/stored_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "ir/support/ref/dequant.h"

namespace xjit {
namespace {

using Layout = StoredMatrix::Layout;

std::vector<std::byte> Bytes(const void* data, size_t size) {
  const auto* p = static_cast<const std::byte*>(data);
  return {p, p + size};
}
template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  return Bytes(values.data(), values.size() * sizeof(T));
}

float Value(DType type, uint8_t code, int zero) {
  if (type == DType::kI8) return static_cast<float>(static_cast<int8_t>(code));
  return type == DType::kF8E4M3 ? E4M3ToF32(code) : static_cast<float>(code - zero);
}

// Codes, scales and zero points apart, of rows out of order, one of them twice.
void ExpectParts(const StoredMatrix& m, const std::vector<float>& want) {
  std::vector<int64_t> rows;
  for (int64_t n = 0; n < m.n; ++n) rows.push_back(m.n - 1 - n);
  rows.push_back(0);
  const int64_t stride = m.k + 3;
  std::vector<uint8_t> codes(rows.size() * static_cast<size_t>(stride), 0xcc);
  StoredCodes(m, rows, stride, codes.data());
  const std::vector<int32_t> order = GroupOrder(m);
  for (size_t j = 0; j < rows.size(); ++j) {
    const uint8_t* row = codes.data() + static_cast<int64_t>(j) * stride;
    for (int64_t i = 0; i < m.k; ++i) {
      const int64_t element = order[static_cast<size_t>(i)], block = i / m.scale_cols;
      const int zero = m.type == DType::kI4 ? StoredZero(m, rows[j], block) : 0;
      ASSERT_EQ(Value(m.type, row[element], zero) * StoredScale(m, rows[j], block),
                want[static_cast<size_t>(rows[j] * m.k + element)])
          << rows[j] << ", " << element;
    }
    for (int64_t i = m.k; i < stride; ++i) ASSERT_EQ(row[i], 0xcc);
  }
}

// Whole rows, then each row in uneven parts.
void ExpectRows(const StoredMatrix& m, const std::vector<float>& want) {
  if (m.type == DType::kI8 || m.type == DType::kF8E4M3 || m.type == DType::kI4) {
    ExpectParts(m, want);
  } else {
    std::vector<std::byte> blocks(static_cast<size_t>(RowBytes(m.type, m.k)));
    std::vector<float> values(static_cast<size_t>(m.k));
    for (int64_t n = 0; n < m.n; ++n) {
      StoredBlocks(m, n, blocks.data());
      DequantizeRow(m.type, blocks.data(), m.k, values.data());
      for (int64_t i = 0; i < m.k; ++i)
        ASSERT_EQ(values[static_cast<size_t>(i)], want[static_cast<size_t>(n * m.k + i)]);
    }
  }
  std::vector<float> row(static_cast<size_t>(m.k));
  for (int64_t n = 0; n < m.n; ++n) {
    const float* expected = want.data() + n * m.k;
    DequantizeRow(m, n, 0, m.k, row.data());
    for (int64_t i = 0; i < m.k; ++i) ASSERT_EQ(row[static_cast<size_t>(i)], expected[i]) << n << ", " << i;
    std::fill(row.begin(), row.end(), -99.0f);
    for (int64_t begin = 0, step = 1; begin < m.k; begin += step, step = step * 2 + 1) {
      const int64_t end = std::min(m.k, begin + step);
      DequantizeRow(m, n, begin, end, row.data() + begin);
    }
    for (int64_t i = 0; i < m.k; ++i) ASSERT_EQ(row[static_cast<size_t>(i)], expected[i]) << n << ", " << i;
  }
}

TEST(StoredMatrix, Int8ByRowTensorGroupAndBlock) {
  std::mt19937 rng(1);
  StoredMatrix m;
  m.type = DType::kI8;
  m.n = 5;
  m.k = 12;
  std::vector<int8_t> q(60);
  for (int8_t& v : q) v = static_cast<int8_t>(rng());
  const auto values = Bytes(q);
  m.values = values.data();
  struct Case {
    int64_t rows, cols;
  };
  for (const Case& c : {Case{1, 12}, Case{5, 12}, Case{1, 4}, Case{2, 5}}) {
    m.scale_rows = c.rows;
    m.scale_cols = c.cols;
    const int64_t across = (m.k + c.cols - 1) / c.cols, down = (m.n + c.rows - 1) / c.rows;
    std::vector<float> scale(static_cast<size_t>(across * down));
    for (float& s : scale) s = static_cast<float>(rng() % 1000 + 1) / 64;
    const auto scales = Bytes(scale);
    m.scales = scales.data();
    m.layout = Layout::kRows;
    m.values = values.data();
    std::vector<float> want;
    for (int64_t n = 0; n < m.n; ++n) {
      for (int64_t i = 0; i < m.k; ++i) {
        want.push_back(static_cast<float>(q[static_cast<size_t>(n * m.k + i)]) *
                       scale[static_cast<size_t>(n / c.rows * across + i / c.cols)]);
      }
    }
    ExpectRows(m, want);
    std::vector<int8_t> transposed;
    for (int64_t i = 0; i < m.k; ++i) {
      for (int64_t n = 0; n < m.n; ++n) transposed.push_back(q[static_cast<size_t>(n * m.k + i)]);
    }
    const auto columns = Bytes(transposed);
    m.layout = Layout::kColumns;
    m.values = columns.data();
    ExpectRows(m, want);
  }
}

TEST(StoredMatrix, BlocksInPartsAndColumns) {
  std::mt19937 rng(2);
  StoredMatrix m;
  m.type = DType::kQ8_0;
  m.n = 3;
  m.k = 96;
  std::vector<std::byte> values(static_cast<size_t>(m.n * RowBytes(m.type, m.k)));
  for (std::byte& b : values) b = static_cast<std::byte>(rng());
  for (size_t at = 0; at < values.size(); at += 34) values[at + 1] = std::byte{0x2c};  // a tame f16
  m.values = values.data();
  std::vector<float> want(static_cast<size_t>(m.n * m.k));
  DequantizeRow(m.type, m.values, m.n * m.k, want.data());
  ExpectRows(m, want);

  StoredMatrix columns;
  columns.layout = Layout::kColumns;
  columns.n = m.n;
  columns.k = m.k;
  std::vector<float> transposed;
  for (int64_t i = 0; i < m.k; ++i) {
    for (int64_t n = 0; n < m.n; ++n) transposed.push_back(want[static_cast<size_t>(n * m.k + i)]);
  }
  const auto bytes = Bytes(transposed);
  columns.values = bytes.data();
  ExpectRows(columns, want);
}

TEST(StoredMatrix, Fp4EvenElementFirst) {
  StoredMatrix m;
  m.layout = Layout::kFp4;
  m.type = DType::kMxfp4;
  m.n = 1;
  m.k = 64;
  std::vector<uint8_t> values(32, 0), scales = {127, 129};
  values[0] = 0x52;   // elements 0: code 2, 1: code 5
  values[16] = 0xf1;  // elements 32: code 1, 33: code 15
  values[8] = 0x70;   // element 17: code 7
  const auto v = Bytes(values), s = Bytes(scales);
  m.values = v.data();
  m.scales = s.data();
  std::vector<float> want(64, 0.0f);
  want[0] = 1;
  want[1] = 3;
  want[17] = 6;
  want[32] = 2;
  want[33] = -24;
  ExpectRows(m, want);
}

// The int4 layouts of one random matrix with zero points and f16 scales.
TEST(StoredMatrix, Int4) {
  constexpr int64_t kN = 16, kK = 32, kGroup = 8, kGroups = kK / kGroup;
  constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  std::mt19937 rng(3);
  std::vector<int> q(kN * kK), zero(kGroups * kN);
  std::vector<uint16_t> scale(kGroups * kN);
  std::vector<int32_t> group_of(kK);
  for (int& v : q) v = static_cast<int>(rng() % 16);
  for (int& z : zero) z = static_cast<int>(rng() % 15) + 1;
  for (uint16_t& s : scale) s = static_cast<uint16_t>(0x2000 + rng() % 0x1000);
  for (int64_t i = 0; i < kK; ++i) group_of[static_cast<size_t>(i)] = static_cast<int32_t>(i * 5 % kGroups);

  for (const Layout layout : {Layout::kAwq, Layout::kGptq, Layout::kPacked}) {
    const bool awq = layout == Layout::kAwq, packed = layout == Layout::kPacked;
    for (const bool ordered : {true, false}) {
      if (awq && !ordered) continue;
      std::vector<uint32_t> words(kN * kK / 8), zeros(kGroups * kN / 8);
      for (int64_t n = 0; n < kN; ++n) {
        int nibble = static_cast<int>(n % 8);
        if (awq) nibble = static_cast<int>(std::find(kAwqOrder, kAwqOrder + 8, nibble) - kAwqOrder);
        for (int64_t i = 0; i < kK; ++i) {
          const auto value = static_cast<uint32_t>(q[static_cast<size_t>(n * kK + i)]);
          if (awq) {
            words[static_cast<size_t>(i * (kN / 8) + n / 8)] |= value << 4 * nibble;
          } else if (packed) {
            words[static_cast<size_t>(n * (kK / 8) + i / 8)] |= value << 4 * (i % 8);
          } else {
            words[static_cast<size_t>(i / 8 * kN + n)] |= value << 4 * (i % 8);
          }
        }
        for (int64_t g = 0; g < kGroups; ++g) {
          const auto value =
              static_cast<uint32_t>(zero[static_cast<size_t>(g * kN + n)] - (layout == Layout::kGptq ? 1 : 0));
          zeros[static_cast<size_t>(packed ? n / 8 * kGroups + g : g * (kN / 8) + n / 8)] |= value << 4 * nibble;
        }
      }
      std::vector<uint16_t> stored_scale = scale;
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t g = 0; g < kGroups && packed; ++g) {
          stored_scale[static_cast<size_t>(n * kGroups + g)] = scale[static_cast<size_t>(g * kN + n)];
        }
      }
      const auto w = Bytes(words), z = Bytes(zeros), s = Bytes(stored_scale), g = Bytes(group_of);
      StoredMatrix m;
      m.layout = layout;
      m.type = DType::kI4;
      m.n = kN;
      m.k = kK;
      m.values = w.data();
      m.zeros = z.data();
      m.zero_offset = layout == Layout::kGptq ? 1 : 0;
      m.scales = s.data();
      m.scale_type = DType::kF16;
      m.scale_cols = kGroup;
      if (!ordered) m.group_of = g.data();
      for (const bool with_zeros : {true, false}) {
        if (!with_zeros) m.zeros = nullptr;
        std::vector<float> want;
        for (int64_t n = 0; n < kN; ++n) {
          for (int64_t i = 0; i < kK; ++i) {
            const int64_t group = ordered ? i / kGroup : group_of[static_cast<size_t>(i)];
            const auto at = static_cast<size_t>(group * kN + n);
            want.push_back(static_cast<float>(q[static_cast<size_t>(n * kK + i)] - (with_zeros ? zero[at] : 8)) *
                           F16ToF32(scale[at]));
          }
        }
        ExpectRows(m, want);
      }
    }
  }
}

}  // namespace
}  // namespace xjit
