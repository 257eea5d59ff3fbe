// What a matrix product is: C[m, n] = A[m, k] * W[n, k]^T with an epilogue, W packed into panels (pack.h).
#pragma once

#include <cstdint>
#include <string>

#include "ir/support/dtype.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"

namespace xjit {

// Columns of a panel: two groups of 16, one zmm of f32 each.
inline constexpr int kPanelColumns = 32;
inline constexpr int kGroupColumns = 16;

// Applied to the f32 sums in this order: + bias[n], then silu_mul, then + residual[m, n].
struct Epilogue {
  bool bias = false;
  // Group 0 of a panel is 16 columns of the gate, group 1 the same 16 of up; C gets 16 columns silu(gate) * up.
  bool silu_mul = false;
  bool residual = false;
  bool operator==(const Epilogue&) const = default;
};

struct GemmDesc {
  int64_t n = 0;  // columns, as packed: a multiple of kPanelColumns (pad columns have zero weights and zero bias)
  int64_t k = 0;  // depth: a multiple of the block of `w`; any size for f32, f16, bf16, i8, f8e4m3
  // Activations: kF32; kBF16; kF16 (AMX-FP16); kQ8Act (int8 in blocks of 32); kI8Act (int8, a scale a row,
  // for i8 with a scale a column)
  DType a = DType::kF32;
  Encoding w;  // weights, any encoding
  // 1..kMaxFewRows: few rows, exactly this many in every call (m0 = 0, m1 = rows), each weight byte streamed once.
  // 0: many rows, any [m0, m1), a panel is unpacked once for all of them.
  int rows = 0;
  // Many rows of kBF16, kF16 or kI8Act: A is in strips (ir/support/act_layout.h), and m0 is a multiple of 16.
  bool strips = false;
  // kQ8Act and kI8Act, few rows: this is a part (split.h) of a product of that depth, of which the k are some whole
  // blocks (kQ8Act: 32, or of the weights; kI8Act: 64), of one panel and without an epilogue. 0: no part. A's rows are
  // the whole product's: of kQ8Act records, of kI8Act the q from the part's first on. kI8Act: C is the int32 sums of
  // products with the unsigned weights, whose units begin a header's bytes behind w.
  int64_t depth = 0;
  int64_t lda_bytes = 0;  // from row to row of A; not used with strips
  int64_t ldc_bytes = 0;  // from row to row of C and of the residual
  Epilogue epilogue;
  bool operator==(const GemmDesc&) const = default;

  int64_t panels() const { return n / kPanelColumns; }
  int64_t whole_k() const { return depth > 0 ? depth : k; }  // of A's records
};
inline constexpr int kMaxFewRows = 8;

// A call computes panels [n0, n1) for rows [m0, m1), whole k. It reads and writes nothing outside them, except that A's
// row may be read up to the next multiple of 64 bytes.
struct GemmArgs {
  // Row m at a + m * lda_bytes: f32[k], bf16[k] (zero-padded to even k), Q8Layout{k} or I8Layout{k}; or strips:
  // HalfStrips(k), I8Layout{k}.strips().
  const void* a = nullptr;
  const void* w = nullptr;          // panel p at w + p * PanelBytes(desc.w, desc.k); 64-byte aligned
  float* c = nullptr;               // panel p of a row starts at column 32 p (16 p with silu_mul)
  const float* residual = nullptr;  // may be c itself
  const float* bias = nullptr;      // [n] in packed column order
  void* scratch = nullptr;          // this thread's, Kernel::scratch_bytes, 64-byte aligned
  int64_t k0 = 0;                   // of a part of kQ8Act: its first k; not read otherwise
};

// Bytes of k values of a row of A side by side, bf16 and f16 in pairs; without what follows them in a record of kQ8Act
// or kI8Act.
int64_t ActivationValueBytes(DType a, int64_t k);
// Bytes of a row of k: of kQ8Act and kI8Act the record's. Of a part the whole product's.
int64_t ActivationRowBytes(DType a, int64_t k);
int64_t ActivationRowBytes(const GemmDesc& desc);
// Bytes of A with so many rows.
int64_t ActivationBytes(const GemmDesc& desc, int64_t rows);

// "q4_k", "i4_g128z": without what a file name or a symbol cannot hold.
std::string EncodingName(const Encoding& w);
// "gemm.avx512_vnni.q8act_q4_k_f32.m1n8960k1536.silu_mul", of a part "...m1n32k512of1536"; `row` is the kernels.inc
// row's name.
std::string GemmName(const GemmDesc& desc, const char* row);

}  // namespace xjit
