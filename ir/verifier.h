// Whether a module is well formed: every op against the table, definitions before uses, types as inferred, and, once
// memory has been planned, no two live values overlapping in the arena.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace xjit {

absl::Status VerifyModule(const Module& module);

// Bytes from row to row of an activation in memory: its columns padded to whole panels of 32 for f32 and bf16, so that
// kernels need no masks at a row's end; q8act as ir/support/q8_layout.h.
int64_t RowStrideBytes(DType elem, int64_t cols);

// Bytes of all rows of a value, of its 'L' rows and others; more than kMaxArenaBytes stands for anything larger. Of a
// value in strips whole strips.
int64_t ArenaBytes(const Type& type, int64_t rows, int64_t logit_rows);
int64_t ArenaBytes(const Value& value, int64_t rows, int64_t logit_rows);
// Whether the value's rows lie in strips (support/act_layout.h), 16 of which take no more bytes than 16 rows.
bool InStrips(const Value& value);

// Where plan_memory put a value: attribute `at` of the op that defines it, for results behind its first `at_rest`.
// nullopt: nowhere.
std::optional<int64_t> ArenaOffset(const Value& value);

// [first, last] index of the ops between which a value must keep its bytes; a view keeps its source alive. Arguments
// begin at -1; what return uses lives to the end.
struct LiveRange {
  int first = 0;
  int last = 0;
};
LiveRange LiveRangeOf(const Function& function, const Value* value);

// More bytes than any machine has: sums of a few such offsets stay far below overflow.
inline constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

// The value whose bytes a view shows (slices of slices included); the value itself if it is no view.
const Value* ViewRoot(const Value* value);

// The operand that the op may overwrite in place, reading each element before it writes it (a residual), or nullptr.
const Value* InPlaceOperand(const Op& op);

}  // namespace xjit
