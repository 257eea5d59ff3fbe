// Rotary embedding into the cache, and attention over it.
#include <numbers>

#include "codegen/attention/attention_desc.h"
#include "codegen/gemm/gemm_desc.h"
#include "passes/lowering.h"

namespace xjit {

absl::Status Lowering::LowerRopeStore(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const Place q, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place k, PlaceOf(op.operand(1)));
  XJIT_ASSIGN_OR_RETURN(const Place v, PlaceOf(op.operand(2)));
  XJIT_ASSIGN_OR_RETURN(const Place table, PlaceOf(op.operand(3)));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  RopeStoreDesc desc;
  desc.heads = static_cast<int>(op.Int("heads"));
  desc.kv_heads = static_cast<int>(op.Int("kv_heads"));
  desc.head_dim = static_cast<int>(op.operand(0)->type.cols() / op.Int("heads"));
  desc.rope_dim = desc.head_dim;
  desc.q = op.result()->type.elem;
  desc.kv = *ParseDType(op.Str("kv"));
  desc.q_scale = static_cast<float>(op.Float("scale") * std::numbers::log2e);
  const float *q_gain = nullptr, *k_gain = nullptr;
  if (op.operands.size() > 5) {
    desc.head_norm = true;
    desc.eps = static_cast<float>(op.Float("eps"));
    XJIT_ASSIGN_OR_RETURN(q_gain, context_.weights->Vector(layer_, *op.weight(5)));
    XJIT_ASSIGN_OR_RETURN(k_gain, context_.weights->Vector(layer_, *op.weight(6)));
  }
  desc.ldqin_bytes = q.stride;
  desc.ldkin_bytes = k.stride;
  desc.ldvin_bytes = v.stride;
  desc.ldq_bytes = out.stride;
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
  Access access;
  for (size_t i = 0; i < 4; ++i) AddSpan(op.operand(i), &access.reads);
  AddSpan(op.result(), &access.writes);
  access.writes.push_back({Span::Space::kKv, layer_, layer_ + 1});
  std::byte* layer_kv = context_.kv.base + layer_ * context_.kv.layer_bytes;
  const int64_t head_bytes = context_.kv.head_bytes;
  const StepView* step = view_;
  AddStage(RowStage(Label(op), kernel, op.result(), out.own), access, [=, this](int t) {
    return RopeStoreArgs{reinterpret_cast<const float*>(At(q, t)),
                         reinterpret_cast<const float*>(At(k, t)),
                         reinterpret_cast<const float*>(At(v, t)),
                         reinterpret_cast<const float*>(At(table, t)),
                         At(out, t),
                         layer_kv,
                         head_bytes,
                         step,
                         q_gain,
                         k_gain};
  });
  return absl::OkStatus();
}

absl::Status Lowering::LowerAttention(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const Place q, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  AttentionDesc desc;
  desc.heads = static_cast<int>(op.Int("heads"));
  desc.kv_heads = static_cast<int>(op.Int("kv_heads"));
  desc.head_dim = static_cast<int>(op.operand(0)->type.cols() / op.Int("heads"));
  desc.q = op.operand(0)->type.elem;
  desc.kv = *ParseDType(op.Str("kv"));
  desc.window = static_cast<int>(op.Int("window"));
  desc.ldq_bytes = q.stride;
  desc.ldo_bytes = out.stride;
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
  const StepView* step = context_.step(desc.window);
  if (step == nullptr) return Internal("lower: no step view for window {}", desc.window);
  const int64_t slots = context_.partial_slots;
  XJIT_ASSIGN_OR_RETURN(
      std::byte * partial,
      context_.memory->Get(WorkMemory::Use::kPartial, 0, slots * PartialSlotBytes(desc.group(), desc.head_dim)));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  access.reads.push_back({Span::Space::kKv, layer_, layer_ + 1});
  AddSpan(op.result(), &access.writes);
  access.writes.push_back({Span::Space::kPartial, 0, 1});
  Stage stage;
  stage.label = Label(op);
  stage.kernel = kernel;
  stage.n_kind = GridN::kItems;
  stage.n_chunk = 1;
  stage.step = step;
  std::byte* layer_kv = context_.kv.base + layer_ * context_.kv.layer_bytes;
  const int64_t head_bytes = context_.kv.head_bytes;
  AddStage(std::move(stage), access, [=, this](int t) {
    return AttentionArgs{At(q, t), reinterpret_cast<float*>(At(out, t)), layer_kv, head_bytes, step,
                         partial,  scratch_[static_cast<size_t>(t)]};
  });

  XJIT_ASSIGN_OR_RETURN(const Kernel* merge, context_.kernels->Get(AttentionMergeDesc{desc}));
  Access merge_access;
  merge_access.reads.push_back({Span::Space::kPartial, 0, 1});
  // With a few threads each merges every row for itself, as it reads them next: cheaper than a barrier.
  const bool replicated = rows_ <= kMaxFewRows && context_.threads <= 4;
  if (!replicated) AddSpan(op.result(), &merge_access.writes);
  AddSpan(op.result(), &merge_access.reads);
  Stage combine;
  combine.label = Label(op) + ".merge";
  combine.kernel = merge;
  combine.mode = replicated ? StageMode::kReplicated : StageMode::kShared;
  combine.m_kind = GridM::kMerges;
  combine.m_chunk = replicated ? kWholeGrid : 1;
  combine.step = step;
  AddStage(std::move(combine), merge_access,
           [=, this](int t) { return AttentionMergeArgs{reinterpret_cast<float*>(At(out, t)), partial, step}; });
  return absl::OkStatus();
}

}  // namespace xjit
