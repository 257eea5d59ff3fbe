// fuse_residual: add(x, gemm) becomes the gemm's epilogue, which then updates x in place. Gain: one pass over [m, n]
// less, and no buffer for the product. After fuse_bias and fuse_silu_mul.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const Function& f, const Op& add, const Op* gemm, const Value* other) {
  if (gemm == nullptr) return "no operand is a gemm";
  if (OnlyUser(f, gemm->result()) != &add) return "the gemm has a second user";
  if (gemm->Item("epilogue", "residual") != nullptr) return "the gemm has a residual already";
  if (other->def != nullptr && f.IndexOf(other->def) > f.IndexOf(gemm))
    return "the other operand is made after the gemm";
  return nullptr;
}

}  // namespace

absl::StatusOr<PassResult> FuseResidual(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAdd) continue;
      Op* gemm = DefOf(add->operand(1), OpCode::kGemm);
      Value* other = add->operand(0);
      const char* why = Blocker(*f, *add, gemm, other);
      if (why != nullptr) {
        gemm = DefOf(add->operand(0), OpCode::kGemm);
        other = add->operand(1);
        if (Blocker(*f, *add, gemm, other) != nullptr) {
          context.Missed(*f, *add, why);
          continue;
        }
      }
      gemm->AddItem("epilogue", "residual", {{other, nullptr}});
      std::string name = add->result()->name;
      f->ReplaceUses(add->result(), gemm->result());
      f->Erase(add);
      TakeName(gemm->result(), std::move(name));
      context.Fused(*f, *gemm, "residual fused");
      ++fused;
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
