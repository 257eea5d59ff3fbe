#include "codegen/rows/rows_ref.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/dequant.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

const float* Row(const float* p, int64_t ld_bytes, int64_t m) {
  return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(p) + m * ld_bytes);
}

int ToInt8(float scaled) {
  if (!(std::fabs(scaled) < 0x1p31f)) return -128;  // no number, or no int32: as the packed conversions give
  return static_cast<int>(std::clamp(std::nearbyint(scaled), -128.0f, 127.0f));
}

// max|x|, but what is no number where a value is none: the largest bits.
float MaxMagnitude(const float* x, int64_t n) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
  return std::bit_cast<float>(most);
}

}  // namespace

uint16_t ToBf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

void QuantizeRow(const float* x, int64_t k, void* record) {
  const Q8Layout layout{k};
  auto* base = static_cast<std::byte*>(record);
  const auto store = [&](int64_t offset, int64_t i, auto value) {
    std::memcpy(base + offset + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
  };
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    const float* v = x + b * kQ8Block;
    const float amax = MaxMagnitude(v, kQ8Block);
    const float scale = amax / 127;
    const float quotient = 127 / amax;
    const float inverse = quotient < FLT_MAX ? quotient : FLT_MAX;
    int32_t half[2] = {0, 0};
    for (int i = 0; i < kQ8Block; ++i) {
      const int q = ToInt8(v[i] * inverse);
      store(0, b * kQ8Block + i, static_cast<int8_t>(q));
      half[i / 16] += q;
    }
    const int32_t sum = half[0] + half[1];
    store(layout.scale_offset(), b, scale);
    store(layout.scaled_sum_offset(), b, scale * static_cast<float>(sum));
    store(layout.neg_sum_offset(), b, -sum);
    store(layout.neg_half_sum_offset(), 2 * b, -half[0]);
    store(layout.neg_half_sum_offset(), 2 * b + 1, -half[1]);
  }
}

void QuantizeRowI8(const float* x, int64_t k, void* record) {
  const I8Layout layout{k};
  auto* base = static_cast<std::byte*>(record);
  std::memset(base, 0, static_cast<size_t>(layout.row_bytes()));
  const float scale = MaxMagnitude(x, k) / 127;
  const float divisor = scale == 0 ? 1 : scale;
  int32_t sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int q = ToInt8(x[i] / divisor);
    base[i] = static_cast<std::byte>(q);
    sum += q;
  }
  const int32_t neg_sum = -sum;
  std::memcpy(base + layout.scale_offset(), &scale, 4);
  std::memcpy(base + layout.neg_sum_offset(), &neg_sum, 4);
}

namespace {

// A prepared row, without a record's padding, to where the descriptor wants it.
void Put(const PrepareDesc& desc, const std::vector<std::byte>& row, int64_t m, std::byte* out) {
  if (!desc.strips) {
    std::memcpy(out + m * desc.ldo_bytes, row.data(), row.size());
    return;
  }
  const I8Layout ints{desc.cols};
  const bool i8 = desc.out == DType::kI8Act;
  const StripLayout strips = StripsOf(desc.out, desc.cols);
  const int64_t bytes = strips.chunks() * kStripChunk;
  for (int64_t b = 0; b < bytes; ++b) {
    const bool inside = b < (i8 ? ints.scale_offset() : static_cast<int64_t>(row.size()));
    out[strips.offset(m, b)] = inside ? row[static_cast<size_t>(b)] : std::byte{0};
  }
  if (!i8) return;
  std::byte* tail = out + m / kStripRows * strips.strip_bytes() + strips.tail_offset() + m % kStripRows * 4;
  std::memcpy(tail, row.data() + ints.scale_offset(), 4);
  std::memcpy(tail + 4 * kStripRows, row.data() + ints.neg_sum_offset(), 4);
}

}  // namespace

void PrepareRef(const PrepareDesc& desc, const PrepareArgs& args, int64_t m0, int64_t m1) {
  std::vector<float> row(static_cast<size_t>(desc.cols)), gathered(desc.gather ? row.size() : 0);
  for (int64_t m = m0; m < m1; ++m) {
    const float* x = Row(args.x, desc.ldx_bytes, m);
    if (desc.norm) {
      ref::RmsNorm(x, args.gain, desc.cols, desc.eps, row.data());
      x = row.data();
    }
    if (desc.gather) {
      for (size_t i = 0; i < gathered.size(); ++i) gathered[i] = x[args.order[i]];
      x = gathered.data();
    }
    std::vector<std::byte> out;
    if (desc.out == DType::kF32) {
      out.resize(static_cast<size_t>(desc.cols) * 4);
      std::memcpy(out.data(), x, out.size());
    } else if (desc.out == DType::kBF16 || desc.out == DType::kF16) {
      out.resize(static_cast<size_t>(AlignUp(desc.cols, 2)) * 2);
      for (int64_t i = 0; i < desc.cols; ++i) {
        const uint16_t value = desc.out == DType::kF16 ? F32ToF16(x[i]) : ToBf16(x[i]);
        std::memcpy(&out[static_cast<size_t>(2 * i)], &value, 2);
      }
    } else if (desc.out == DType::kI8Act) {
      out.resize(static_cast<size_t>(I8Layout{desc.cols}.row_bytes()));
      QuantizeRowI8(x, desc.cols, out.data());
      out.resize(static_cast<size_t>(I8Layout{desc.cols}.neg_sum_offset()) + 4);
    } else {
      out.resize(static_cast<size_t>(Q8Layout{desc.cols}.row_bytes()));
      QuantizeRow(x, desc.cols, out.data());
      out.resize(static_cast<size_t>(Q8Layout{desc.cols}.neg_half_sum_offset() + 8 * Q8Layout{desc.cols}.blocks()));
    }
    Put(desc, out, m, static_cast<std::byte*>(args.out));
  }
}

void EltwiseRef(const EltwiseDesc& desc, const EltwiseArgs& args, int64_t m0, int64_t m1) {
  for (int64_t m = m0; m < m1; ++m) {
    const float* a = Row(args.a, desc.lda_bytes, m);
    float* y = const_cast<float*>(Row(args.y, desc.ldy_bytes, m));
    switch (desc.op) {
      case EltwiseOp::kAdd:
        ref::Add(a, Row(args.b, desc.ldb_bytes, m), desc.cols, y);
        break;
      case EltwiseOp::kMul:
        ref::Mul(a, Row(args.b, desc.ldb_bytes, m), desc.cols, y);
        break;
      case EltwiseOp::kSilu:
        ref::Silu(a, desc.cols, y);
        break;
      case EltwiseOp::kSiluMul:
        ref::SiluMul(a, Row(args.b, desc.ldb_bytes, m), desc.cols, y);
        break;
      case EltwiseOp::kAddRow:
        ref::Add(a, args.b, desc.cols, y);
        break;
    }
  }
}

}  // namespace xjit
