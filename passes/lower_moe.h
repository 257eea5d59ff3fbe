// What lowering wants to know of a mixture of experts: the two products behind a moe_sort, and whether they are what
// the grouped kernels do.
#pragma once

#include "codegen/moe/moe_plan.h"
#include "ir/graph.h"
#include "ir/support/status.h"

namespace xjit {

// Unimplemented where a grouped_gemm is neither of the two products: gate and up multiplied, silu_mul in the epilogue,
// which leave their rows for down alone, or down of such rows with combine in the epilogue; both over one moe_sort.
absl::Status CheckGroupedGemm(const Op& op);

// The products over a sort's order. Unimplemented where there are others, or the intermediate has a further user.
struct MoeProducts {
  const Op* gate_up = nullptr;
  const Op* down = nullptr;
};
absl::StatusOr<MoeProducts> ProductsOf(const Function& f, const Op& sort);

// For steps of at most `rows` tokens.
MoeDesc DescOf(const MoeProducts& products, int64_t rows);

}  // namespace xjit
