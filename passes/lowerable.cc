// What has no kernel yet, op by op, so that an engine can say so before it packs weights. Kept beside lower.cc: what
// that learns leaves this list.
#include <algorithm>

#include "ir/chains.h"
#include "ir/ops.h"
#include "passes/lower.h"

namespace xjit {
namespace {

absl::Status NoKernel(const Op& op, std::string_view what) {
  return Unimplemented("{}{}{} has no kernel yet", Name(op.code), what.empty() ? "" : " with ", what);
}

absl::Status CheckItems(const Op& op, std::string_view chain, std::initializer_list<std::string_view> known) {
  for (const ChainItem& item : op.ChainAttr(chain)) {
    if (std::find(known.begin(), known.end(), item.name) == known.end()) return NoKernel(op, item.name);
  }
  return absl::OkStatus();
}

// A prologue's norm is of whole rows.
absl::Status CheckPrologueItems(const Op& op) {
  XJIT_RETURN_IF_ERROR(CheckItems(op, "prologue", {"rms_norm"}));
  const ChainItem* norm = op.Item("prologue", "rms_norm");
  if (norm != nullptr && ItemOperand(op, *norm).weight->type.cols() != op.operand(0)->type.cols()) {
    return NoKernel(op, "a norm of groups");
  }
  return absl::OkStatus();
}

absl::Status CheckGemm(const Op& op) {
  XJIT_RETURN_IF_ERROR(CheckPrologueItems(op));
  return CheckItems(op, "epilogue", {"bias", "silu_mul", "residual"});
}

absl::Status CheckRopeStore(const Op& op) {
  const int64_t head = op.operand(0)->type.cols() / op.Int("heads");
  if (op.operands.size() > 5) return NoKernel(op, "norms of q and k");
  if (op.operand(3)->type.cols() != head) return NoKernel(op, "heads rotated in part");
  if (op.operand(2)->type.cols() != op.Int("kv_heads") * head) return NoKernel(op, "values of another size");
  return absl::OkStatus();
}

absl::Status CheckFlashAttention(const Op& op) {
  if (op.operands.size() > 2) return NoKernel(op, "sinks");
  if (op.Float("soft_cap") != 0) return NoKernel(op, "a soft cap");
  if (op.Bool("latent")) return NoKernel(op, "a latent cache");
  if (op.Int("v_dim") != 0 && op.Int("v_dim") != op.operand(0)->type.cols() / op.Int("heads")) {
    return NoKernel(op, "values of another size");
  }
  if (op.Has("groups")) return NoKernel(op, "uneven groups");
  return absl::OkStatus();
}

absl::Status CheckOpHasKernel(const Op& op) {
  switch (op.code) {
    case OpCode::kSlice:
    case OpCode::kReturn:
    case OpCode::kRepeat:
    case OpCode::kRopeTable:
    case OpCode::kSelectRows:
    case OpCode::kAdd:
    case OpCode::kMul:
    case OpCode::kSilu:
    case OpCode::kAddBias:
      return absl::OkStatus();
    case OpCode::kEmbed:
      if (op.Int("vocab") != 0) return NoKernel(op, "a share of the vocabulary");
      return absl::OkStatus();
    case OpCode::kPrepare:
      return CheckPrologueItems(op);
    case OpCode::kGemm:
      return CheckGemm(op);
    case OpCode::kRmsNorm:
      if (op.weight(1)->type.cols() != op.operand(0)->type.cols()) return NoKernel(op, "groups");
      return absl::OkStatus();
    case OpCode::kRopeStore:
      return CheckRopeStore(op);
    case OpCode::kFlashAttention:
      return CheckFlashAttention(op);
    default:
      return NoKernel(op, "");
  }
}

}  // namespace

absl::Status CheckHasKernels(const Module& fused) {
  for (const auto& f : fused.functions) {
    for (const auto& op : f->ops) {
      XJIT_RETURN_IF_ERROR(Prefix(CheckOpHasKernel(*op), fmt::format("@{}", f->name)));
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
