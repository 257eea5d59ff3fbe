// fuse_scale: scale of a gemm's result (a multiplier of residuals or of logits) becomes the gemm's epilogue. Gain: one
// pass over the result less. After fuse_bias, fuse_glu and fuse_soft_cap, before fuse_residual.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {

absl::StatusOr<PassResult> FuseScale(Module& module, PassContext& context) {
  return PassResult::Changed(FuseNumber(module, context, OpCode::kScale, "scale", "by"));
}

}  // namespace xjit
