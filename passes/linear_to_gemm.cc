// linear_to_gemm: linear becomes gemm with empty prologue and epilogue, which the fusions then fill. Gain: none by
// itself. After join_linears, before every fuse_ pass.
#include "passes/pass.h"

namespace xjit {

absl::StatusOr<PassResult> LinearToGemm(Module& module, PassContext&) {
  int changed = 0;
  for (auto& f : module.functions) {
    for (auto& op : f->ops) {
      if (op->code != OpCode::kLinear) continue;
      op->code = OpCode::kGemm;
      ++changed;
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
