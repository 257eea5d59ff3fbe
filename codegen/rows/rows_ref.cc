#include "codegen/rows/rows_ref.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "ir/support/align.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/eltwise.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

const float* Row(const float* p, int64_t ld_bytes, int64_t m) {
  return reinterpret_cast<const float*>(reinterpret_cast<const std::byte*>(p) + m * ld_bytes);
}

int ToInt8(float scaled) {
  if (std::isnan(scaled)) return -128;  // as the packed conversions give
  return static_cast<int>(std::clamp(std::nearbyint(scaled), -128.0f, 127.0f));
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
    float amax = 0;
    for (int i = 0; i < kQ8Block; ++i) amax = std::max(amax, std::fabs(v[i]));
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

void PrepareRef(const PrepareDesc& desc, const PrepareArgs& args, int64_t m0, int64_t m1) {
  std::vector<float> row(static_cast<size_t>(desc.cols));
  for (int64_t m = m0; m < m1; ++m) {
    const float* x = Row(args.x, desc.ldx_bytes, m);
    std::byte* out = static_cast<std::byte*>(args.out) + m * desc.ldo_bytes;
    if (desc.norm) {
      ref::RmsNorm(x, args.gain, desc.cols, desc.eps, row.data());
      x = row.data();
    }
    if (desc.out == DType::kF32) {
      std::memcpy(out, x, static_cast<size_t>(desc.cols) * 4);
    } else if (desc.out == DType::kBF16) {
      for (int64_t i = 0; i < AlignUp(desc.cols, 2); ++i) {
        const uint16_t value = i < desc.cols ? ToBf16(x[i]) : uint16_t{0};
        std::memcpy(out + 2 * i, &value, 2);
      }
    } else {
      QuantizeRow(x, desc.cols, out);
    }
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
