// fuse_combine: combine of a grouped_gemm's slots becomes its epilogue. Gain: the [rows, slots x columns] intermediate
// is never written; each expert's rows are weighed and added as they leave the registers. After group_experts and
// fuse_bias, before fuse_residual.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const Function& f, const Op& combine, const Op* product) {
  if (product == nullptr) return "its operand is not a grouped_gemm";
  if (OnlyUser(f, product->result()) != &combine) return "the grouped_gemm has a second user";
  const Value* weights = combine.operand(1);
  if (weights->type.cols() != product->operand(1)->type.cols()) return "it has other slots than the grouped_gemm";
  if (weights->def != nullptr && f.IndexOf(weights->def) > f.IndexOf(product))
    return "the weights are made after the grouped_gemm";
  return EpilogueBlocker(*product, "combine");
}

}  // namespace

absl::StatusOr<PassResult> FuseCombine(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* combine = f->ops[i].get();
      if (combine->code != OpCode::kCombine) continue;
      Op* product = DefOf(combine->operand(0), OpCode::kGroupedGemm);
      if (const char* why = Blocker(*f, *combine, product)) {
        context.Missed(*f, *combine, why);
        continue;
      }
      product->AddItem("epilogue", "combine", {combine->operands[1]});
      FoldInto(*f, combine, product);
      context.Fused(*f, *product, "combine fused");
      ++fused;
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
