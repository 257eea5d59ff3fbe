// A mixture of experts: routing, sorting of tokens by expert, and the experts' products (lower_moe.h).
#include <algorithm>
#include <optional>

#include "codegen/moe/grouped.h"
#include "codegen/moe/moe_route.h"
#include "ir/chains.h"
#include "ir/route.h"
#include "ir/verifier.h"
#include "passes/lower_moe.h"
#include "passes/lowering.h"

namespace xjit {

absl::Status Lowering::LowerRoute(const Op& op) {
  RouteArgs args;
  XJIT_ASSIGN_OR_RETURN(args.params, RouteParamsOf(op));
  args.constant = op.Int("constant");
  if (op.operands.size() > 1) {
    XJIT_ASSIGN_OR_RETURN(args.bias, context_.weights->Vector(layer_, *op.weight(1)));
  }
  XJIT_ASSIGN_OR_RETURN(const Place logits, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Place experts, PlaceOf(op.result(0)));
  XJIT_ASSIGN_OR_RETURN(const Place weights, PlaceOf(op.result(1)));
  args.ldl_bytes = logits.stride;
  args.lde_bytes = experts.stride;
  args.ldw_bytes = weights.stride;
  Access access;
  AddSpan(op.operand(0), &access.reads);
  AddSpan(op.result(0), &access.writes);
  AddSpan(op.result(1), &access.writes);
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("route"));
  const bool replicated = ReplicatesRoute(rows_, args.params.experts);
  AddStage(
      RowStage(Label(op), kernel, op.result(0), replicated), access,
      [=, this](int t) {
        RouteArgs own = args;
        own.logits = reinterpret_cast<const float*>(At(logits, t));
        own.experts = reinterpret_cast<int32_t*>(At(experts, t));
        own.weights = reinterpret_cast<float*>(At(weights, t));
        own.scratch = scratch_[static_cast<size_t>(t)];
        return own;
      },
      RouteScratchBytes(args.params));
  return absl::OkStatus();
}

absl::StatusOr<const MoeStages*> Lowering::StagesFor(const MoeDesc& desc) {
  for (const MoeStages& stages : moe_) {
    if (stages.plan().desc == desc) return &stages;
  }
  XJIT_ASSIGN_OR_RETURN(const MoePlan plan, PlanMoe(desc, *context_.kernels, context_.threads));
  auto* tables = static_cast<std::byte*>(program_->AddArgs(static_cast<size_t>(plan.table_bytes(context_.threads))));
  XJIT_ASSIGN_OR_RETURN(std::byte * work, context_.memory->Get(WorkMemory::Use::kExperts, 0, plan.work_bytes()));
  return &moe_.emplace_back(plan, context_.threads, tables, work);
}

absl::Status Lowering::LowerMoeSort(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const MoeProducts products, ProductsOf(*function_, op));
  XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, StagesFor(DescOf(products, rows_)));
  sorted_[op.result(0)] = moe;
  XJIT_ASSIGN_OR_RETURN(const Place experts, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("moe_sort"));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  const int64_t first = op.Int("first");
  AddStage(RowStage(Label(op), kernel, nullptr, true), access, [=, this](int t) {
    MoeSortArgs args = moe->Sort(t);
    args.experts = reinterpret_cast<const int32_t*>(At(experts, t));
    args.lde_bytes = experts.stride;
    args.first = first;
    return args;
  });
  return absl::OkStatus();
}

absl::StatusOr<const MoeStages*> Lowering::SortedBy(const Value* order) const {
  const auto found = sorted_.find(order);
  if (found == sorted_.end()) return Internal("lower: no stage sorts by '%{}'", order->name);
  return found->second;
}

Stage Lowering::GroupedStage(const Op& op, const Kernel* kernel, const GroupedPlan& plan, const MoeDesc& desc) const {
  Stage stage;
  stage.label = Label(op);
  stage.kernel = kernel;
  stage.m_kind = GridM::kRows;
  // As many experts as there are slots: what a step of few rows reads.
  stage.weight_bytes = std::min(desc.experts, desc.rows * desc.slots) * plan.expert_bytes;
  return stage;
}

absl::Status Lowering::LowerGateUp(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, SortedBy(op.operand(3)));
  const MoePlan& plan = moe->plan();
  if (InStrips(*ViewRoot(op.operand(0)))) return Internal("lower: experts read '%{}' in strips", op.operand(0)->name);
  XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
  XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, *op.weight(2)));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("grouped_up"));
  Access access;
  AddSpan(op.operand(0), &access.reads);
  access.writes.push_back({Span::Space::kExperts, 0, 1});
  Stage stage = GroupedStage(op, kernel, plan.up, plan.desc);
  stage.n_count = plan.up_tasks();
  stage.n_chunk = 1;
  AddStage(
      std::move(stage), access,
      [=, this](int t) {
        GroupedUpArgs args = moe->Up(t, scratch_[static_cast<size_t>(t)]);
        args.weights.w = packed;
        args.x = At(x, t);
        args.ldx_bytes = x.stride;
        return args;
      },
      plan.up_scratch_bytes());
  return absl::OkStatus();
}

absl::Status Lowering::LowerDown(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, SortedBy(op.operand(3)));
  const MoePlan& plan = moe->plan();
  XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
  XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, *op.weight(2)));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("grouped_down"));
  const Value* weights = ItemOperand(op, *op.Item("epilogue", "combine")).value;
  XJIT_ASSIGN_OR_RETURN(const Place weight, PlaceOf(weights));
  Access access;
  access.reads.push_back({Span::Space::kExperts, 0, 1});
  AddSpan(weights, &access.reads);
  AddSpan(op.result(), &access.writes);
  std::optional<Place> residual;
  if (const ChainItem* item = op.Item("epilogue", "residual")) {
    const Value* value = ItemOperand(op, *item).value;
    XJIT_ASSIGN_OR_RETURN(residual, PlaceOf(value));
    AddSpan(value, &access.reads);
  }
  Stage stage = GroupedStage(op, kernel, plan.down, plan.desc);
  stage.n_count = plan.down.panels;
  stage.n_chunk = plan.down.chunk;
  AddStage(
      std::move(stage), access,
      [=, this](int t) {
        GroupedDownArgs args = moe->Down(t, scratch_[static_cast<size_t>(t)]);
        args.weights.w = packed;
        args.weight = reinterpret_cast<const float*>(At(weight, t));
        args.ldweight_bytes = weight.stride;
        if (residual.has_value()) {
          args.residual = reinterpret_cast<const float*>(At(*residual, t));
          args.ldr_bytes = residual->stride;
        }
        args.out = reinterpret_cast<float*>(At(out, t));
        args.ldo_bytes = out.stride;
        return args;
      },
      plan.down_scratch_bytes());
  return absl::OkStatus();
}

}  // namespace xjit
