// fuse_soft_cap: soft_cap of a gemm's result becomes the gemm's epilogue. Gain: one pass over the result less, which is
// the vocabulary wide where logits are capped. After fuse_bias, before fuse_scale and fuse_residual.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {

absl::StatusOr<PassResult> FuseSoftCap(Module& module, PassContext& context) {
  return PassResult::Changed(FuseNumber(module, context, OpCode::kSoftCap, "soft_cap", "cap"));
}

}  // namespace xjit
