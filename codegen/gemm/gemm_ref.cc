#include "codegen/gemm/gemm_ref.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/dequant.h"

namespace xjit {
namespace {

template <typename T>
T At(const std::byte* base, int64_t index) {
  T v;
  std::memcpy(&v, base + index * static_cast<int64_t>(sizeof(T)), sizeof(v));
  return v;
}

// One column's blocks, decoded once for all rows.
std::vector<ColumnBlock> Blocks(const GemmDesc& desc, const std::byte* w, int64_t n) {
  std::vector<ColumnBlock> blocks(static_cast<size_t>(desc.k / kQ8Block));
  for (size_t b = 0; b < blocks.size(); ++b) {
    UnpackColumnBlock(desc.w, desc.k, w, n, static_cast<int64_t>(b), &blocks[b]);
  }
  return blocks;
}

// Encodings of value = scale * q + add.
bool HasMinimum(const Encoding& w) {
  return w.type == DType::kQ4_1 || w.type == DType::kQ5_1 || w.type == DType::kQ4_K || w.type == DType::kQ5_K ||
         w.type == DType::kQ2_K || w.scales.zeros;
}

// `k0`: of the first block in the row.
float DotQ8(const GemmDesc& desc, const std::byte* row, const std::vector<ColumnBlock>& blocks, int64_t k0) {
  const Q8Layout layout{desc.whole_k()};
  float acc = 0;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto block = static_cast<int64_t>(b) + k0 / kQ8Block;
    int32_t dot[2] = {0, 0};
    for (int i = 0; i < kQ8Block; ++i) {
      dot[i / 16] += blocks[b].q[i] * At<int8_t>(row, block * kQ8Block + i);
    }
    const auto sa = At<float>(row + layout.scale_offset(), block);
    if (HasHalfScales(desc.w.type)) {
      float t =
          std::fma(static_cast<float>(dot[1]), blocks[b].scale[1], static_cast<float>(dot[0]) * blocks[b].scale[0]);
      for (int half = 0; half < 2 && HasMinimum(desc.w); ++half) {
        const auto neg_sum = At<int32_t>(row + layout.neg_half_sum_offset(), 2 * block + half);
        t = std::fma(static_cast<float>(-neg_sum), blocks[b].add[half], t);
      }
      acc = std::fma(t, sa, acc);
      continue;
    }
    acc = std::fma(static_cast<float>(dot[0] + dot[1]) * sa, blocks[b].scale[0], acc);
    if (HasMinimum(desc.w)) acc = std::fma(At<float>(row + layout.scaled_sum_offset(), block), blocks[b].add[0], acc);
  }
  return acc;
}

// A row of A, whichever way it lies, as a row by itself.
std::vector<std::byte> RowOfA(const GemmDesc& desc, const std::byte* a, int64_t m) {
  if (desc.a == DType::kI8Act && desc.depth > 0) {
    const std::byte* q = a + m * desc.lda_bytes;
    return {q, q + desc.k};
  }
  if (desc.a == DType::kI8Act) {
    const I8Layout layout{desc.k};
    std::vector<std::byte> row(static_cast<size_t>(ActivationRowBytes(desc)));
    if (!desc.strips) {
      std::memcpy(row.data(), a + m * desc.lda_bytes, static_cast<size_t>(layout.neg_sum_offset()) + 4);
      return row;
    }
    const StripLayout strips = layout.strips();
    for (int64_t b = 0; b < desc.k; ++b) row[static_cast<size_t>(b)] = a[strips.offset(m, b)];
    const std::byte* tail = a + m / kStripRows * strips.strip_bytes() + strips.tail_offset() + m % kStripRows * 4;
    std::memcpy(row.data() + layout.scale_offset(), tail, 4);
    std::memcpy(row.data() + layout.neg_sum_offset(), tail + 4 * kStripRows, 4);
    return row;
  }
  std::vector<std::byte> row(static_cast<size_t>(ActivationRowBytes(desc)));
  if (!desc.strips) {
    std::memcpy(row.data(), a + m * desc.lda_bytes, row.size());
  } else {
    const StripLayout strips = HalfStrips(desc.k);
    for (size_t b = 0; b < row.size(); ++b) row[b] = a[strips.offset(m, static_cast<int64_t>(b))];
  }
  return row;
}

// A column of i8 as the kernels multiply it.
struct IntColumn {
  std::vector<uint8_t> codes;
  float scale = 0;
};
IntColumn IntColumnOf(const GemmDesc& desc, const std::byte* w, int64_t n) {
  IntColumn column{std::vector<uint8_t>(static_cast<size_t>(desc.k)), 0};
  uint8_t zero = 0;
  UnpackCodes(desc.w, desc.k, w, n, column.codes.data(), &column.scale, &zero);
  return column;
}

float DotInt8(const GemmDesc& desc, const std::byte* row, const IntColumn& column) {
  int64_t dot = 0;
  for (int64_t i = 0; i < desc.k; ++i) {
    dot += static_cast<int8_t>(column.codes[static_cast<size_t>(i)]) * At<int8_t>(row, i);
  }
  const I8Layout layout{desc.k};
  return static_cast<float>(dot) * At<float>(row + layout.scale_offset(), 0) * column.scale;
}

// Of a part: the bits of its sum.
float SumInt8(const GemmDesc& desc, const std::byte* row, const IntColumn& column) {
  uint32_t sum = 0;  // as the kernels wrap around
  for (int64_t i = 0; i < desc.k; ++i) {
    const int code = static_cast<int8_t>(column.codes[static_cast<size_t>(i)]) + 128;
    sum += static_cast<uint32_t>(code * At<int8_t>(row, i));
  }
  return std::bit_cast<float>(sum);
}

float DotFloat(const GemmDesc& desc, const std::byte* row, const std::vector<float>& column) {
  double acc = 0;
  for (int64_t k = 0; k < desc.k; ++k) {
    const float a = desc.a == DType::kF32   ? At<float>(row, k)
                    : desc.a == DType::kF16 ? F16ToF32(At<uint16_t>(row, k))
                                            : BF16ToF32(At<uint16_t>(row, k));
    acc += static_cast<double>(a) * static_cast<double>(column[static_cast<size_t>(k)]);
  }
  return static_cast<float>(acc);
}

// Half to even.
void RoundToBf16(std::vector<float>* values) {
  for (float& v : *values) {
    const auto u = std::bit_cast<uint32_t>(v);
    if (v == v) v = std::bit_cast<float>((u + 0x7fff + (u >> 16 & 1)) & 0xffff0000);
  }
}

float Silu(float x) { return static_cast<float>(x / (1.0 + std::exp(-static_cast<double>(x)))); }

}  // namespace

void GemmRef(const GemmDesc& desc, const GemmArgs& args, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  const auto* a = static_cast<const std::byte*>(args.a);
  const auto* w = static_cast<const std::byte*>(args.w);
  const size_t rows = static_cast<size_t>(m1 - m0);
  const Epilogue& epilogue = desc.epilogue;
  std::vector<std::vector<std::byte>> a_rows;
  for (int64_t m = m0; m < m1; ++m) a_rows.push_back(RowOfA(desc, a, m));
  std::vector<float> sums(rows * kPanelColumns);
  for (int64_t p = n0; p < n1; ++p) {
    for (int64_t j = 0; j < kPanelColumns; ++j) {
      const int64_t n = p * kPanelColumns + j;
      std::vector<ColumnBlock> blocks;
      std::vector<float> column;
      IntColumn ints;
      if (desc.a == DType::kI8Act) {
        ints = IntColumnOf(desc, w, n);
      } else if (desc.a == DType::kQ8Act) {
        blocks = Blocks(desc, w, n);
      } else {
        column.resize(static_cast<size_t>(desc.k));
        UnpackColumn(desc.w, desc.k, w, n, column.data());
        if (desc.a == DType::kBF16 && IsQuantized(desc.w.type)) RoundToBf16(&column);
      }
      for (size_t m = 0; m < rows; ++m) {
        const std::byte* row = a_rows[m].data();
        float v = desc.a == DType::kI8Act   ? (desc.depth > 0 ? SumInt8 : DotInt8)(desc, row, ints)
                  : desc.a == DType::kQ8Act ? DotQ8(desc, row, blocks, desc.depth > 0 ? args.k0 : 0)
                                            : DotFloat(desc, row, column);
        if (epilogue.bias) v += args.bias[n];
        sums[m * kPanelColumns + static_cast<size_t>(j)] = v;
      }
    }
    const int64_t columns = epilogue.silu_mul ? kGroupColumns : kPanelColumns;
    for (size_t m = 0; m < rows; ++m) {
      const int64_t at = (m0 + static_cast<int64_t>(m)) * desc.ldc_bytes + p * columns * 4;
      float* c = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(args.c) + at);
      const auto* residual = reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(args.residual) +
                                                            (epilogue.residual ? at : 0));
      for (int64_t j = 0; j < columns; ++j) {
        const float* sum = &sums[m * kPanelColumns + static_cast<size_t>(j)];
        float v = epilogue.silu_mul ? Silu(sum[0]) * sum[kGroupColumns] : sum[0];
        if (epilogue.residual) v += residual[j];
        c[j] = v;
      }
    }
  }
}

}  // namespace xjit
