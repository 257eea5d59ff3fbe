// Products on tiles with data of their own: buffers that end at guard pages, a reference in double, and a bound of the
// difference computed from the data.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_amx.h"
#include "codegen/kernel.h"
#include "ir/support/target.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

// Makes tiles usable on this thread, by the processor or the emulator; why not, or "".
std::string PrepareTilesHere();

#define XJIT_NEED_TILES_HERE() \
  if (const std::string why = PrepareTilesHere(); !why.empty()) GTEST_SKIP() << why

// Caches so small that a product of tests has several blocks in each direction.
struct Caches {
  int64_t l1d = 48 << 10, l2 = 2 << 20;
};
inline constexpr Caches kRealCaches, kTinyCaches = {.l1d = 6 << 10, .l2 = 64 << 10};

struct AmxBuilt {
  CodeArena arena;
  GemmPlan plan;
  Kernel kernel;
};
// Of the row for desc.a; with `vbmi` only where the host has it.
absl::Status BuildAmx(const GemmDesc& desc, const Caches& caches, AmxBuilt* built, bool vbmi = true);

class AmxProblem {
 public:
  struct Size {
    int64_t m = 0, n = 0, k = 0;
  };
  AmxProblem(const Encoding& w, DType a, Size size, Epilogue epilogue, uint32_t seed);

  // For `rows` rows in plain rows (few), or for any number in strips (0).
  GemmDesc Desc(int rows = 0) const;
  // Overwrites a value of A in all its forms.
  void SetA(int64_t row, int64_t k, float value);
  void SetRowOfA(int64_t row, float value);

  // Calls `built`, with guarded scratch of exactly its size. Few rows: from m0 on.
  void Call(const AmxBuilt& built, int64_t n0, int64_t n1, int64_t m0, int64_t m1);
  void CallAll(const AmxBuilt& built) { Call(built, 0, size_.n / kPanelColumns, 0, size_.m); }
  // C is poison again.
  void Poison();

  std::vector<float> C() const;
  // Bytes of C's buffer outside rows [m0, m1) and panels [n0, n1) that are no longer poison.
  int64_t Stray(int64_t n0, int64_t n1, int64_t m0, int64_t m1) const;
  // GemmRef's C over strips.
  std::vector<float> Reference() const;
  // C of exact sums, of weights as the kernel multiplies them, and how far from it C may be.
  void Exact(std::vector<double>* want, std::vector<double>* bound) const;
  // Fails unless C is as it should be: bit for bit GemmRef's with int8 and without SiLU, else within Exact()'s bound.
  void ExpectRight(const std::string& what) const;

  int64_t columns() const { return epilogue_.silu_mul ? size_.n / 2 : size_.n; }
  const Size& size() const { return size_; }

 private:
  void Prepare();
  GemmArgs Args(bool strips, int64_t m0) const;

  Encoding w_type_;
  DType a_type_;
  Size size_;
  Epilogue epilogue_;
  int64_t lda_bytes_ = 0, ldc_bytes_ = 0;
  std::vector<float> x_;  // [m][k] before preparation
  std::unique_ptr<GuardedBuffer> strips_, rows_, w_, c_, residual_, bias_;
};

std::vector<Encoding> AmxBf16Weights();

// Bits of `got` and `want` differ first here ("" if nowhere).
std::string FirstBitDifference(const std::vector<float>& got, const std::vector<float>& want, int64_t columns);

}  // namespace xjit::testing
