// How attention kernels run: block sizes, instruction choice and scratch layout. A planner fills a plan from the
// descriptor and the machine or refuses with the reason; an emitter obeys it. Plain, comparable.
//
// attention is FlashAttention-2 (Dao 2023, arXiv:2307.08691) over pages that already lie as the two products read them.
// The rows of an item (tokens x query heads of one KV head) are cut into blocks of `block_rows`; KV is walked in steps
// of `step_tokens`; for each step and block: scores S = Q K^T in register blocks of qk_rows x 32 tokens, softmax with
// running maximum and sum, O += P V in register blocks of pv_rows x pv_cols vectors. An item of few rows (decode)
// takes steps of few_step_tokens (a page or two) and register blocks as wide as V's rows, so that memory sees K and V
// of one page after the other in ascending order, with prefetch half a step ahead.
#pragma once

#include <cstdint>
#include <string>

#include "codegen/attention/attention_desc.h"
#include "codegen/emitter.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

enum class AttentionProduct : uint8_t {
  kDotBf16,  // vdpbf16ps on pairs; P is rounded to bf16, its sum is taken of the rounded values
  kFmaF32,   // f32 FMA, KV is f32
  kFmaBf16,  // f32 FMA, bf16 pairs unpacked by shift and mask
};

struct AttentionPlan {
  AttentionProduct product = AttentionProduct::kDotBf16;
  int vector_bytes = 64;  // 64: AVX-512; 32: AVX2, no EVEX encoding anywhere
  int block_rows = 0;     // at most 16: alpha's place in scratch
  int qk_rows = 0;
  int pv_rows = 0, pv_cols = 0;
  int few_rows = 0;  // items of at most so many rows (tokens x group) take the few_* values
  int few_pv_rows = 0, few_pv_cols = 0;
  int step_tokens = 0, few_step_tokens = 0;
  bool few_prefetch = false;     // few rows: while K of a page is read, its V is prefetched, and with V the K to come
  int few_softmax_prefetch = 0;  // lines of the K to come that softmax prefetches with each row, lest memory idles
  int exp_degree = 0;            // polynomial of the probabilities (3 is below bf16's rounding, 5 is f32's)
  // Scratch of a thread: byte offsets of its arrays.
  int64_t q_offset = 0, s_offset = 0, alpha_offset = 0, m_offset = 0, l_offset = 0, o_offset = 0;
  int64_t s_row_bytes = 0;
  int64_t scratch_bytes = 0;
  // Estimated cycles of one core for one query row (one head) against one token, KV in L2. Compared between kernels
  // that accept the same descriptor.
  double cost = 0;
  bool operator==(const AttentionPlan&) const = default;
  int vector_lanes() const { return vector_bytes / 4; }
};
std::string ToString(const AttentionPlan& plan);

absl::StatusOr<AttentionPlan> PlanAttentionBf16Dot(const AttentionDesc& desc, const TargetInfo& target);
absl::Status EmitAttentionBf16Dot(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e);
absl::StatusOr<AttentionPlan> PlanAttentionFma512(const AttentionDesc& desc, const TargetInfo& target);
absl::Status EmitAttentionFma512(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e);
absl::StatusOr<AttentionPlan> PlanAttentionFma2(const AttentionDesc& desc, const TargetInfo& target);
absl::Status EmitAttentionFma2(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e);

// Combines partial results; one kernel for every ISA, as wide as the machine.
struct AttentionMergePlan {
  int vector_bytes = 64;
  int64_t scratch_bytes = 0;
  double cost = 0;
  bool operator==(const AttentionMergePlan&) const = default;
};
absl::StatusOr<AttentionMergePlan> PlanAttentionMerge(const AttentionDesc& desc, const TargetInfo& target);
absl::Status EmitAttentionMerge(const AttentionDesc& desc, const AttentionMergePlan& plan, Emitter& e);

struct RopeStorePlan {
  int vector_bytes = 64;      // 64: AVX-512; 32: AVX2, no EVEX encoding
  bool convert_bf16 = false;  // vcvtneps2bf16; else rounding in integers
  int64_t scratch_bytes = 0;
  double cost = 0;
  bool operator==(const RopeStorePlan&) const = default;
};
absl::StatusOr<RopeStorePlan> PlanRopeStore512(const RopeStoreDesc& desc, const TargetInfo& target);
absl::Status EmitRopeStore512(const RopeStoreDesc& desc, const RopeStorePlan& plan, Emitter& e);
absl::StatusOr<RopeStorePlan> PlanRopeStore2(const RopeStoreDesc& desc, const TargetInfo& target);
absl::Status EmitRopeStore2(const RopeStoreDesc& desc, const RopeStorePlan& plan, Emitter& e);

}  // namespace xjit
