// group_experts: expert_linear becomes grouped_gemm, whose rows are worked on in the order of their experts; a layer's
// moe_sort is made once for all products of the same experts. Gain: each chosen expert's weight is read once a step for
// all of its tokens, and one parallel loop covers all experts' blocks. After fold_shared_expert, before every fuse_
// pass.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// The sort of the product's experts, made in front of it where there is none yet.
absl::StatusOr<Op*> SortFor(Module& module, Function& f, const Op& product) {
  std::map<std::string, Attr, std::less<>> attrs = {{"experts", product.weight(2)->type.dims[0].size}};
  if (product.Has("first")) attrs["first"] = product.Int("first");
  for (const auto& op : f.ops) {
    if (op.get() == &product) break;
    if (op->code == OpCode::kMoeSort && op->operand(0) == product.operand(1) && op->attrs == attrs) return op.get();
  }
  return InsertBefore(f, module, &product, OpCode::kMoeSort, {product.operands[1]}, std::move(attrs), "order");
}

}  // namespace

absl::StatusOr<PassResult> GroupExperts(Module& module, PassContext& context) {
  int changed = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (op->code != OpCode::kExpertLinear) continue;
      XJIT_ASSIGN_OR_RETURN(Op * sort, SortFor(module, *f, *op));
      op->code = OpCode::kGroupedGemm;
      op->operands.push_back({sort->result(0), nullptr});
      op->operands.push_back({sort->result(1), nullptr});
      context.Fused(*f, *op, fmt::format("{} experts grouped", op->weight(2)->type.dims[0].size));
      ++changed;
      i = static_cast<size_t>(f->IndexOf(op));
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
