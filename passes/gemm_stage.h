// A matrix product as a stage of a program: what lowering puts there, and what `xjit bench-op gemm` measures.
#pragma once

#include <cstdint>
#include <string_view>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/split.h"
#include "codegen/kernels.h"
#include "ir/support/status.h"
#include "runtime/program.h"

namespace xjit {

struct GemmStage {
  GemmDesc desc;
  int64_t parts = 1;
  const Kernel* kernel = nullptr;  // emitted: of the product, or of a part of it
  // Without a label. It takes GemmArgs, or with several parts Split()'s.
  Stage stage;

  // Memory of a split product, of which two may share it where a barrier lies between them.
  int64_t sum_bytes() const { return parts > 1 ? SplitSumBytes(desc, parts) : 0; }
  int64_t ended_bytes() const { return parts > 1 ? desc.panels() * static_cast<int64_t>(sizeof(EndedParts)) : 0; }
  SplitGemmArgs Split(const GemmArgs& gemm, std::byte* sums, EndedParts* ended) const {
    return SplitArgs(desc, parts, gemm, kernel->fn, sums, ended);
  }
};

// `row` of kernels.inc, empty: the cheapest; `rows` of a step at most. The kernel's code address is that of a library
// which is not sealed yet. Unimplemented, InvalidArgument: no such kernel, or parts that CheckParts refuses.
absl::StatusOr<GemmStage> MakeGemmStage(const GemmDesc& desc, int64_t parts, std::string_view row, int64_t rows,
                                        int threads, KernelLibrary& library);

}  // namespace xjit
