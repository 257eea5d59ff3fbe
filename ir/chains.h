// Prologues and epilogues: what gemm, grouped_gemm, prepare and all_reduce share. The items are listed in ChainItems().
#pragma once

#include <string_view>

#include "ir/interpreter.h"
#include "ir/ops.h"

namespace xjit {

// Names, arguments and their order against ChainItems(); no item twice. `allowed` are the items that this op takes,
// "bias silu_mul residual", in the order in which they must stand.
absl::Status CheckChain(const Op& op, std::string_view chain, std::string_view allowed);

// The item's i-th argument, an operand.
const Operand& ItemOperand(const Op& op, const ChainItem& item, size_t i = 0);
// The item's i-th argument, a number.
double ItemNumber(const ChainItem& item, size_t i);

// That a prologue's norm fits x: its gain's size divides x's columns.
absl::Status CheckPrologue(const Op& op, std::string_view allowed = "rms_norm");
// x after the prologue.
absl::Status ApplyPrologue(const Op& op, EvalContext& eval, const TensorData& x, TensorData* y);

// The item that multiplies gate and up, or nullptr.
const ChainItem* GluItem(const Op& op);
// gate[n] and up[n] to y[n] as the item says.
void ApplyGlu(const ChainItem& item, const float* gate, const float* up, int64_t n, float* y);

// Columns of a product of `n` weight rows after the epilogue; checks that the weight is of gate and up where they are
// multiplied, and vector and residual arguments. `rows` is the result's first dimension.
absl::Status InferEpilogue(const Op& op, const Weight& w, Dim rows, std::vector<Type>* types);
// product [rows, n] after the epilogue, in place.
absl::Status ApplyEpilogue(const Op& op, EvalContext& eval, TensorData* product);

// What kernels read: attribute `out` as a type, of rows of `cols` values.
absl::StatusOr<DType> ActivationType(const Op& op, int64_t cols);
// Rounds each row of `cols` values as that type would hold it: q8act has a scale for 32 values, i8act one for the row.
void RoundActivations(DType type, int64_t cols, std::vector<float>* y);

// y[m, group] = RMSNorm of each group of gain.size() columns.
void NormGroups(const std::vector<float>& gain, float eps, TensorData* y);

}  // namespace xjit
