// fuse_bias: add_bias of a gemm's result becomes the gemm's epilogue. Gain: the result is not written and read once
// more. After linear_to_gemm; before fuse_silu_mul and fuse_residual, which come after the bias in an epilogue.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const Function& f, const Op& add, const Op* gemm) {
  if (gemm == nullptr) return "its operand is not a gemm";
  if (OnlyUser(f, gemm->result()) != &add) return "the gemm has a second user";
  if (!gemm->ChainAttr("epilogue").empty()) return "the gemm's epilogue is taken";
  return nullptr;
}

}  // namespace

absl::StatusOr<PassResult> FuseBias(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAddBias) continue;
      Op* gemm = DefOf(add->operand(0), OpCode::kGemm);
      if (const char* why = Blocker(*f, *add, gemm)) {
        context.Missed(*f, *add, why);
        continue;
      }
      gemm->AddItem("epilogue", "bias", {add->operands[1]});
      std::string name = add->result()->name;
      f->ReplaceUses(add->result(), gemm->result());
      f->Erase(add);
      TakeName(gemm->result(), std::move(name));
      context.Fused(*f, *gemm, "bias fused");
      ++fused;
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
