// Planners of the attention family. Register blocks: measured on Zen 4 and Zen 5, 20 to 28 accumulators are within two
// points of each other, so a block of rows is chosen to hold whole tokens (a multiple of the group).
#include "codegen/attention/attention_plan.h"

#include <algorithm>

#include "ir/support/align.h"

namespace xjit {
namespace {

absl::Status CheckShape(int heads, int kv_heads, int head_dim) {
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0) {
    return InvalidArgument("attention: {} heads are not a multiple of {} KV heads", heads, kv_heads);
  }
  if (head_dim < 16 || head_dim > 256 || head_dim % 16 != 0) {
    return Unimplemented("attention: head_dim {} is not a multiple of 16 from 16 to 256", head_dim);
  }
  return absl::OkStatus();
}

absl::Status Check(const AttentionDesc& desc) {
  XJIT_RETURN_IF_ERROR(CheckShape(desc.heads, desc.kv_heads, desc.head_dim));
  // Row numbers of an item times a 32-bit reciprocal of the group stay exact far beyond this.
  if (desc.group() > 128) return Unimplemented("attention: {} query heads a KV head (at most 128)", desc.group());
  if (desc.window < 0) return InvalidArgument("attention: window {} is negative", desc.window);
  if (desc.kv != DType::kBF16 && desc.kv != DType::kF32) {
    return Unimplemented("attention: KV of type {} (bf16 and f32 are known)", Name(desc.kv));
  }
  const int64_t q_bytes = desc.q == DType::kBF16 ? 2 : 4;
  if (desc.ldq_bytes < desc.heads * desc.head_dim * q_bytes ||
      desc.ldo_bytes < int64_t{4} * desc.heads * desc.head_dim) {
    return InvalidArgument("attention: rows of {} and {} bytes do not hold {} heads of {}", desc.ldq_bytes,
                           desc.ldo_bytes, desc.heads, desc.head_dim);
  }
  return absl::OkStatus();
}

// Rows of a block: whole tokens where that fills a register block of up to `limit` rows, else near-equal parts of one.
int BlockRows(int group, int limit) {
  if (group > limit) {
    const int parts = CeilDiv(group, limit);
    return CeilDiv(group, parts);
  }
  const int best = limit / group * group;
  return best >= 10 ? best : std::min(limit, 12);
}

int64_t Align(int64_t bytes) { return AlignUp(bytes, 64); }

void PlanScratch(const AttentionDesc& desc, AttentionPlan& plan) {
  const int64_t rows = int64_t{kAttentionItemRows} * desc.group();
  const int64_t q_bytes = plan.product == AttentionProduct::kDotBf16 ? 2 : 4;
  // 64 bytes behind each row of scores (and in front of the first) take the overrun of masking by whole vectors, and
  // keep the rows of a block out of each other's cache sets.
  plan.s_row_bytes = 4 * std::max(plan.step_tokens, plan.few_step_tokens) + 64;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t offset = at;
    at += Align(bytes);
    return offset;
  };
  plan.alpha_offset = take(64);
  plan.m_offset = take(rows * 4);
  plan.s_offset = take(64 + plan.block_rows * plan.s_row_bytes) + 64;
  plan.l_offset = take(rows * plan.vector_bytes);
  plan.q_offset = take(rows * desc.head_dim * q_bytes);
  plan.o_offset = take(rows * desc.head_dim * 4);
  plan.scratch_bytes = at;
}

// Few rows: one page a step, so that memory is read in ascending order, and explicit prefetch half a step ahead.
// Measured on Zen 5 (12 heads, 2 KV heads x 128, one thread against an ascending read of 40 GB/s, medians): 46% without
// prefetch, 79% with it, 80 to 89% with the lines that softmax prefetches (4 to 12 a row are equal); steps of two pages
// 68%; scores of the next page computed before P V of a page (which hides the latency of softmax, but reads out of
// order) 72%. Where pages are small (head_dim 64) and rows many, softmax weighs more: with 7 rows two pages reach 75 to
// 80%, one 73%; with 3 rows one page is better, 75 to 77%.
void PlanStream(const AttentionDesc& desc, AttentionPlan& plan) {
  plan.few_step_tokens = desc.head_dim <= 64 && desc.group() > 4 ? 2 * kPageTokens : kPageTokens;
  plan.few_prefetch = true;
  plan.few_softmax_prefetch = std::clamp(desc.head_dim / desc.group(), 2, 8);  // at most the K of a page
}

// Columns of the widest register block that a few rows of `vectors` columns take.
int FewColumns(int vectors, int accumulators) {
  const int parts = CeilDiv(vectors, accumulators);
  return CeilDiv(vectors, parts);
}

AttentionPlan Plan512(const AttentionDesc& desc, AttentionProduct product) {
  AttentionPlan plan;
  plan.product = product;
  plan.vector_bytes = 64;
  plan.block_rows = BlockRows(desc.group(), product == AttentionProduct::kFmaBf16 ? 12 : 14);
  plan.qk_rows = plan.block_rows;
  plan.pv_rows = plan.block_rows;
  plan.pv_cols = std::min(2, desc.head_dim / 16);
  plan.few_rows = std::max(plan.block_rows, desc.group());
  plan.few_pv_cols = FewColumns(desc.head_dim / 16, 8);
  plan.few_pv_rows = std::min(plan.block_rows, 24 / plan.few_pv_cols);
  plan.step_tokens = 256;
  PlanStream(desc, plan);
  plan.exp_degree = product == AttentionProduct::kDotBf16 ? 3 : 5;
  PlanScratch(desc, plan);
  return plan;
}

}  // namespace

std::string ToString(const AttentionPlan& plan) {
  return fmt::format(
      "block {} rows, qk {}x32, pv {}x{}, step {}, few rows {}: pv {}x{}, step {}, scratch {}, cost {:.2f}",
      plan.block_rows, plan.qk_rows, plan.pv_rows, plan.pv_cols, plan.step_tokens, plan.few_rows, plan.few_pv_rows,
      plan.few_pv_cols, plan.few_step_tokens, plan.scratch_bytes, plan.cost);
}

absl::StatusOr<AttentionPlan> PlanAttentionBf16Dot(const AttentionDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc));
  if (target.isa < Isa::kAvx512Bf16) return FailedPrecondition("attention: vdpbf16ps needs avx512_bf16");
  if (desc.q != DType::kBF16 || desc.kv != DType::kBF16) {
    return Unimplemented("attention: vdpbf16ps takes q and KV in bf16, not {} and {}", Name(desc.q), Name(desc.kv));
  }
  AttentionPlan plan = Plan512(desc, AttentionProduct::kDotBf16);
  plan.cost = 2.0 * desc.head_dim / 32 + 0.7;
  return plan;
}

absl::StatusOr<AttentionPlan> PlanAttentionFma512(const AttentionDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc));
  if (target.isa < Isa::kAvx512) return FailedPrecondition("attention: this kernel needs avx512");
  if (desc.q != DType::kF32) return Unimplemented("attention: f32 products take q in f32, not {}", Name(desc.q));
  AttentionPlan plan = Plan512(desc, desc.kv == DType::kF32 ? AttentionProduct::kFmaF32 : AttentionProduct::kFmaBf16);
  plan.cost = 2.0 * desc.head_dim / 16 + 1.0;
  return plan;
}

absl::StatusOr<AttentionPlan> PlanAttentionFma2(const AttentionDesc& desc, const TargetInfo&) {
  XJIT_RETURN_IF_ERROR(Check(desc));
  if (desc.q != DType::kF32) return Unimplemented("attention: f32 products take q in f32, not {}", Name(desc.q));
  AttentionPlan plan;
  plan.product = desc.kv == DType::kF32 ? AttentionProduct::kFmaF32 : AttentionProduct::kFmaBf16;
  plan.vector_bytes = 32;
  plan.block_rows = BlockRows(desc.group(), 12);
  plan.qk_rows = 3;  // 3 x 4 vectors of 8: 12 accumulators, 3 broadcasts, 1 load
  plan.pv_rows = plan.few_pv_rows = 3;
  plan.pv_cols = plan.few_pv_cols = std::min(4, desc.head_dim / 8);
  plan.few_rows = std::max(plan.block_rows, desc.group());
  plan.step_tokens = 256;
  PlanStream(desc, plan);
  plan.exp_degree = 5;
  PlanScratch(desc, plan);
  plan.cost = 2.0 * desc.head_dim / 8 + 2.0;
  return plan;
}

absl::StatusOr<AttentionMergePlan> PlanAttentionMerge(const AttentionDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(CheckShape(desc.heads, desc.kv_heads, desc.head_dim));
  AttentionMergePlan plan;
  plan.vector_bytes = target.isa >= Isa::kAvx512 ? 64 : 32;
  plan.cost = 2.0 * desc.heads * desc.head_dim * 4 / plan.vector_bytes;
  return plan;
}

namespace {

absl::StatusOr<RopeStorePlan> PlanRopeStore(const RopeStoreDesc& desc) {
  XJIT_RETURN_IF_ERROR(CheckShape(desc.heads, desc.kv_heads, desc.head_dim));
  if (desc.rope_dim != desc.head_dim) {
    return Unimplemented("rope_store: {} rotated dimensions of {} (all or nothing is known)", desc.rope_dim,
                         desc.head_dim);
  }
  for (const DType type : {desc.q, desc.kv}) {
    if (type != DType::kBF16 && type != DType::kF32) {
      return Unimplemented("rope_store: type {} (bf16 and f32 are known)", Name(type));
    }
  }
  // 1 / rms of each lies on the stack.
  if (desc.head_norm && desc.heads + desc.kv_heads > 1024) {
    return Unimplemented("rope_store: norms of {} heads (at most 1024)", desc.heads + desc.kv_heads);
  }
  const int64_t q_bytes = desc.q == DType::kBF16 ? 2 : 4;
  const int64_t q_values = int64_t{desc.heads} * desc.head_dim, kv_values = int64_t{desc.kv_heads} * desc.head_dim;
  if (desc.ldqin_bytes < 4 * q_values || desc.ldkin_bytes < 4 * kv_values || desc.ldvin_bytes < 4 * kv_values ||
      desc.ldq_bytes < q_bytes * q_values) {
    return InvalidArgument("rope_store: rows of {}, {}, {} and {} bytes do not hold {} + 2 x {} heads of {}",
                           desc.ldqin_bytes, desc.ldkin_bytes, desc.ldvin_bytes, desc.ldq_bytes, desc.heads,
                           desc.kv_heads, desc.head_dim);
  }
  return RopeStorePlan{};
}

// Each head is read once more, at two loads a cycle; its division and root overlap with other heads'.
double NormCost(const RopeStoreDesc& desc, int lanes) {
  const int heads = desc.heads + desc.kv_heads;
  return desc.head_norm ? heads * (0.5 * desc.head_dim / lanes + 20) : 0;
}

}  // namespace

absl::StatusOr<RopeStorePlan> PlanRopeStore512(const RopeStoreDesc& desc, const TargetInfo& target) {
  if (target.isa < Isa::kAvx512) return FailedPrecondition("rope_store: this kernel needs avx512");
  XJIT_ASSIGN_OR_RETURN(RopeStorePlan plan, PlanRopeStore(desc));
  plan.vector_bytes = 64;
  plan.convert_bf16 = target.isa >= Isa::kAvx512Bf16;
  plan.cost = 1.0 * desc.heads * desc.head_dim / 16 + 2.0 * desc.kv_heads * desc.head_dim + NormCost(desc, 16);
  return plan;
}

absl::StatusOr<RopeStorePlan> PlanRopeStore2(const RopeStoreDesc& desc, const TargetInfo&) {
  XJIT_ASSIGN_OR_RETURN(RopeStorePlan plan, PlanRopeStore(desc));
  plan.vector_bytes = 32;
  plan.cost = 1.0 * desc.heads * desc.head_dim / 8 + 3.0 * desc.kv_heads * desc.head_dim + NormCost(desc, 8);
  return plan;
}

}  // namespace xjit
