// fuse_bias: add_bias of a gemm's result and expert_bias of a grouped_gemm's become the epilogue. Gain: the result is
// not written and read once more. After linear_to_gemm and group_experts; before the other items of an epilogue, which
// come after the bias.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const Function& f, const Op& add, const Op* product) {
  const bool experts = add.code == OpCode::kExpertBias;
  if (product == nullptr) return experts ? "its operand is not a grouped_gemm" : "its operand is not a gemm";
  if (OnlyUser(f, product->result()) != &add) return "the gemm has a second user";
  if (experts) {
    if (product->operand(1) != add.operand(1) || !SameShare(*product, add)) return "the gemm is of other experts";
    const Type &bias = add.weight(2)->type, &w = product->weight(2)->type;
    if (bias.dims[0] != w.dims[0] || bias.dims[1] != w.dims[1]) return "the bias is of other rows than the gemm's";
  }
  return EpilogueBlocker(*product, "bias");
}

}  // namespace

absl::StatusOr<PassResult> FuseBias(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAddBias && add->code != OpCode::kExpertBias) continue;
      const bool experts = add->code == OpCode::kExpertBias;
      Op* product = DefOf(add->operand(0), experts ? OpCode::kGroupedGemm : OpCode::kGemm);
      if (const char* why = Blocker(*f, *add, product)) {
        context.Missed(*f, *add, why);
        continue;
      }
      product->AddItem("epilogue", "bias", {add->operands[experts ? 2 : 1]});
      FoldInto(*f, add, product);
      context.Fused(*f, *product, "bias fused");
      ++fused;
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
