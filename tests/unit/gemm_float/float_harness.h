// Random matrix products for the kernels with float activations: operands against guard pages, calls that watch the
// callee-saved registers, and what the sums have to be.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/kernel.h"
#include "ir/support/status.h"
#include "ir/support/target.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

struct FloatRow {
  const char* name;
  Isa isa;
  DType a;
  absl::StatusOr<GemmPlan> (*plan)(const GemmDesc&, const TargetInfo&);
  absl::Status (*emit)(const GemmDesc&, const GemmPlan&, Emitter&);
};
extern const FloatRow kFma512, kFma2, kBf16Dot;
bool HostHas(const FloatRow& row);

std::vector<DType> WeightEncodings();
// Those with scales outside: each kind of scales.
std::vector<Encoding> ScaledEncodings();
// "i4_g64z"
std::string TestName(const Encoding& w);

// Emitted code with its memory.
struct Built {
  GemmPlan plan;
  Kernel kernel;
  CodeArena arena;
};
// Plans for default caches (with `l2_bytes`, if given) and emits; with `vbmi` if the host has it.
absl::Status Build(const FloatRow& row, const GemmDesc& desc, Built* built, int64_t l2_bytes = 0, bool vbmi = true);
bool HostHasVbmi();
absl::Status BuildWith(const FloatRow& row, const GemmDesc& desc, const GemmPlan& plan, Built* built);

// One product of m rows. Strides leave a gap after each row of A and C; many rows of bf16 lie in strips.
class Problem {
 public:
  Problem(DType a, const Encoding& w, int64_t m, int64_t n, int64_t k, Epilogue epilogue, uint32_t seed);

  // The descriptor of a kernel for `rows` (0: many).
  GemmDesc Desc(int rows) const;
  int64_t m() const { return m_; }

  // C poisoned; then columns and rows of the part computed.
  void Poison();
  // Calls `built` on the part, with fresh guarded scratch of exactly its size; returns which of rbx, rbp, r12-r15 the
  // kernel has not preserved ("" if none). With few rows, row `m0` on.
  std::string Call(const Built& built, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

  float C(int64_t row, int64_t column) const;
  std::vector<float> CopyC() const;
  int64_t c_columns() const;
  // Bytes of C's buffer that belong to no column of rows [m0, m1) and panels [n0, n1) but are no longer poison.
  int64_t Stray(int64_t n0, int64_t n1, int64_t m0, int64_t m1) const;

  // Packed weights, which a test may change before it calls; the reference follows if Refresh() does.
  std::byte* w() { return w_->as<std::byte>(); }
  void Refresh();

  // A C with the sums as the f32 kernels define them: one fma at a time in ascending k, then bias, then residual. No
  // silu_mul.
  std::vector<float> FmaChain() const;
  // GemmRef's C.
  std::vector<float> Reference() const;
  // Bound of |C - Reference()| per column of C, from k, epsilon and sum |a||w| (see the definition).
  std::vector<float> Tolerance() const;

 private:
  GemmArgs Args(bool few, int64_t m0) const;

  DType a_type_;
  Encoding w_type_;
  int64_t m_, n_, k_;
  Epilogue epilogue_;
  int64_t lda_bytes_, ldc_bytes_;
  std::vector<std::vector<float>> a_values_, w_values_;  // [m][k], [n][k]
  std::unique_ptr<GuardedBuffer> a_, strips_, w_, c_, bias_, residual_;
};

// Bits of `got` and `want` differ first here ("" if nowhere).
std::string FirstDifference(const std::vector<float>& got, const std::vector<float>& want, int64_t columns);

}  // namespace xjit::testing
