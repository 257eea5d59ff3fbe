// Narrow products of few rows, cut over depth as well: a product reads its weights once, and threads share out its
// panels, of which 576 columns have 18; of 43 threads 25 would idle. Each panel is cut into parts of equal depth, tasks
// of their own. Whoever ends the last part of a panel adds up the parts' sums in order of depth, and applies the
// epilogue: no barrier more, no stage more.
//
// The number of parts follows from the shape alone: never from threads, so that their number changes no bit, nor from
// how few the rows are. Sums of floats are those of the parts, each in the kernels' order (gemm_ref.h), rounded once
// more for each part; those of kI8Act are exact: the same bits as without parts.
#pragma once

#include <cstdint>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/kernel.h"
#include "ir/support/status.h"

namespace xjit {

// The parts that few rows of such a product are cut into; 1: none. Panels times parts come near to two tasks for each
// of a socket's 64 cores, but no part of a panel has less than kMinTaskBytes (blocking.h). 1 also where CheckParts
// refuses. Does not look at desc.rows beyond few or many.
int64_t DepthParts(const GemmDesc& desc);

// Whether the product can be cut so: a divisor of k, into whole blocks of the weights (those that share a scale, or a
// packed k block; 32 at least, 64 of kI8Act). InvalidArgument or Unimplemented: with the reason. Not for many rows,
// which have tasks by rows; for silu_mul, whose weights are two matrices' and wide; for scales outside that are of all
// k, unless with kI8Act (they stand in front of the panel, where no part of it but the first has them).
absl::Status CheckParts(const GemmDesc& desc, int64_t parts);

// What the kernel of one part computes: one panel, its columns' sums side by side. With float rows an ordinary product
// of less depth.
GemmDesc PartOf(const GemmDesc& desc, int64_t parts);

// Parts of a panel that have ended; a cache line each, since all threads count.
struct alignas(64) EndedParts {
  int32_t count = 0;
};

// gemm_split (KernelLibrary::Split): grid n = panels x parts, unit n is part n % parts of panel n / parts, so that
// weights ascend; m = all rows in one call.
struct SplitGemmArgs {
  GemmArgs gemm;            // the whole product's
  KernelFn part = nullptr;  // the kernel of PartOf()
  int64_t parts = 1;
  int64_t rows = 0;
  bool int8 = false;         // kI8Act
  int64_t panel_bytes = 0;   // of weights, from panel to panel
  int64_t w_bytes = 0;       // ... from part to part
  int64_t a_bytes = 0;       // of a row of A, from part to part
  int64_t k = 0;             // of a part, where the kernel is told the first (GemmArgs::k0), else 0
  int64_t lda_bytes = 0;     // these four for the epilogue
  int64_t scale_offset = 0;  // of kI8Act's scale and sum, in a row of A
  int64_t ldc_bytes = 0;
  Epilogue epilogue;
  std::byte* sums = nullptr;    // SplitSumBytes(), 64-byte aligned: [panel][part][row][32]
  EndedParts* ended = nullptr;  // [panel]; zeros between steps
};
void SplitGemmKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

int64_t SplitSumBytes(const GemmDesc& desc, int64_t parts);
// Of a product that CheckParts takes.
SplitGemmArgs SplitArgs(const GemmDesc& desc, int64_t parts, const GemmArgs& gemm, KernelFn part, std::byte* sums,
                        EndedParts* ended);

}  // namespace xjit
