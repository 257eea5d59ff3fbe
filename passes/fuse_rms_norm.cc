// fuse_rms_norm: an rms_norm that only gemms read as their x becomes a prologue of each. Gain: norm and quantisation
// are one pass over the row, and no normed copy of x is kept. After join_linears.
#include <algorithm>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const std::vector<Op*>& users, const Value* normed) {
  if (users.empty()) return "nobody reads it";
  for (const Op* user : users) {
    if (user->code != OpCode::kGemm || user->operand(0) != normed) return "not only gemms read it";
    if (std::count(user->operands.begin(), user->operands.end(), Operand{const_cast<Value*>(normed), nullptr}) != 1) {
      return "a gemm reads it in its epilogue too";
    }
    if (!user->ChainAttr("prologue").empty()) return "a gemm's prologue is taken";
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<PassResult> FuseRmsNorm(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* norm = f->ops[i].get();
      if (norm->code != OpCode::kRmsNorm) continue;
      const std::vector<Op*> users = f->Users(norm->result());
      if (const char* why = Blocker(users, norm->result())) {
        context.Missed(*f, *norm, why);
        continue;
      }
      for (Op* gemm : users) {
        gemm->operands[0] = norm->operands[0];
        gemm->AddItem("prologue", "rms_norm", {norm->operands[1]}, {norm->Float("eps")});
        context.Fused(*f, *gemm, "rms_norm fused");
        ++fused;
      }
      f->Erase(norm);
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
