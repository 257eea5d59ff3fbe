// Row-wise kernels: what feeds a matrix product (RMSNorm, conversion, quantisation) and elementwise operations.
#pragma once

#include <cstdint>
#include <string>

#include "codegen/attention/attention_desc.h"
#include "ir/support/dtype.h"
#include "ir/support/encoding.h"

namespace xjit {

// rows.prepare: out = convert(norm ? x * gain / sqrt(mean(x^2) + eps) : x). Grid m = rows, n unused.
// out: kF32, kBF16, kF16 (round to nearest even; an odd `cols` is followed by one zero), kQ8Act (Q8Layout{cols}) or
// kI8Act (I8Layout{cols}).
struct PrepareDesc {
  int64_t cols = 0;
  bool norm = false;
  float eps = 0;
  DType out = DType::kF32;
  int64_t ldx_bytes = 0;
  int64_t ldo_bytes = 0;  // not used with strips
  bool strips = false;    // kBF16, kF16, kI8Act: rows go to strips (ir/support/act_layout.h)
  // Column i of the result is column order[i] of the input: for weights whose depth was sorted by group (act-order).
  bool gather = false;
  bool operator==(const PrepareDesc&) const = default;
};
struct PrepareArgs {
  const float* x = nullptr;
  const float* gain = nullptr;  // [cols], with norm
  void* out = nullptr;
  const int32_t* order = nullptr;  // [cols], with gather
};

// rows.eltwise: y = f(a, b), f32, for what no epilogue took. Grid m = rows, n unused.
enum class EltwiseOp : uint8_t { kAdd, kMul, kSilu, kSiluMul, kAddRow };  // silu(a); silu(a) * b; a + b[0, :]
struct EltwiseDesc {
  EltwiseOp op = EltwiseOp::kAdd;
  int64_t cols = 0;
  int64_t lda_bytes = 0, ldb_bytes = 0, ldy_bytes = 0;
  bool operator==(const EltwiseDesc&) const = default;
};
struct EltwiseArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  float* y = nullptr;
};

// Kernels in C++ (no inner loop worth emitting), same calling convention, grid m = rows:

// embed: out row m = column ids[m] of a packed weight (pack.h), dequantised.
struct EmbedArgs {
  const StepView* step = nullptr;
  const std::byte* packed = nullptr;
  Encoding encoding;
  int64_t k = 0;  // hidden size
  float* out = nullptr;
  int64_t ldo_bytes = 0;
};
// rope_table: out row m = cos then sin of position[m] * inv_freq[i], times scale.
struct RopeTableArgs {
  const StepView* step = nullptr;
  const float* inv_freq = nullptr;  // [half]
  int64_t half = 0;                 // rope_dim / 2
  float scale = 1;                  // yarn's attention factor
  float* out = nullptr;             // [rows][2][half]
};
// gather_rows: out row m = x row logit_row[m]. Grid m = logit rows.
struct GatherRowsArgs {
  const StepView* step = nullptr;
  const float* x = nullptr;
  float* out = nullptr;
  int64_t ld_bytes = 0;
};

std::string PrepareName(const PrepareDesc& desc, const char* row);
std::string EltwiseName(const EltwiseDesc& desc, const char* row);

}  // namespace xjit
