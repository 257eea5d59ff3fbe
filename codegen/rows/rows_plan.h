// How the row kernels run: plans, planners and emitters of rows.prepare and rows.eltwise for both vector widths.
#pragma once

#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/rows/rows_desc.h"
#include "ir/support/act_layout.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// Columns as vectors of `lanes`: `whole` full ones, then `tail` elements under a mask.
struct ColumnSplit {
  int lanes = 8;
  int64_t whole = 0;
  int tail = 0;
  bool operator==(const ColumnSplit&) const = default;
};

struct PreparePlan {
  ColumnSplit columns;
  int sums = 8;    // accumulators of the sum of squares
  int unroll = 4;  // vectors of an iteration of the f32 and bf16 forms
  // kQ8Act: blocks of 32 go through in groups of 8 (one vector of 8 scales); the last group has tail_blocks (0: none).
  int64_t groups = 0;
  int tail_blocks = 0;
  bool native_bf16 = false;  // vcvtneps2bf16, else integer rounding
  bool native_dot = false;   // vpdpbusd for sums of int8 (zmm), else vpmaddubsw and vpmaddwd
  int64_t scratch_bytes = 0;
  double cost = 0;  // estimated cycles of a row that is in L1
  bool operator==(const PreparePlan&) const = default;
};

struct EltwisePlan {
  ColumnSplit columns;
  int unroll = 4;
  int64_t scratch_bytes = 0;
  double cost = 0;  // estimated cycles of a row that is in L1
  bool operator==(const EltwisePlan&) const = default;
};

// Types of activations that many rows take as strips, and how those of a descriptor lie.
bool HasStrips(DType out);
StripLayout OutputStrips(const PrepareDesc& desc);

// Any cols >= 1; kQ8Act needs cols % 32 == 0. Strides are multiples of 4 bytes (bf16: 2) and no shorter than a row.
absl::StatusOr<PreparePlan> PlanPrepare512(const PrepareDesc& desc, const TargetInfo& target);
absl::StatusOr<PreparePlan> PlanPrepare2(const PrepareDesc& desc, const TargetInfo& target);
absl::Status EmitPrepare512(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e);
absl::Status EmitPrepare2(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e);

absl::StatusOr<EltwisePlan> PlanEltwise512(const EltwiseDesc& desc, const TargetInfo& target);
absl::StatusOr<EltwisePlan> PlanEltwise2(const EltwiseDesc& desc, const TargetInfo& target);
absl::Status EmitEltwise512(const EltwiseDesc& desc, const EltwisePlan& plan, Emitter& e);
absl::Status EmitEltwise2(const EltwiseDesc& desc, const EltwisePlan& plan, Emitter& e);

}  // namespace xjit
