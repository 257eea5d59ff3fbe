// What the attention ops of the interpreter share.
#pragma once

#include <span>

#include "ir/interpreter.h"
#include "ir/ops.h"

namespace xjit {

// That an operand's columns are `heads` heads of an even size.
absl::Status CheckHeads(const Op& op, size_t operand, int64_t heads);

// x[cols] as `heads` heads, of each the `rotated` values from `offset` on turned by a row of a rope table; the rest is
// copied.
void RotateHeads(const float* x, const float* table, int64_t heads, int64_t cols, int64_t offset, int64_t rotated,
                 float* y);

// Puts a token's k and v (either may be empty) at its position in its sequence's cache of this layer.
void StoreKv(EvalContext& eval, int64_t token, std::span<const float> k, std::span<const float> v);

// The element type that attribute `q` asks of q: f32 or bf16.
absl::StatusOr<DType> QueryType(const Op& op);
// That attribute `kv` is a type that a KV cache may have: f32, bf16, i8, f8e4m3 or q4_0.
absl::Status VerifyKvType(const Op& op, const Module* module);

}  // namespace xjit
