// flash_attention: attention over a q that is scaled for base 2 becomes flash_attention: two products with the softmax
// momentum (running maximum and sum, rescaling, conversion of the probabilities) between them, block by block over KV.
// Gain: no [T, context] matrix of scores. After fuse_rope_store.
#include <cmath>
#include <numbers>

#include "passes/pass.h"

namespace xjit {

absl::StatusOr<PassResult> FlashAttention(Module& module, PassContext& context) {
  int changed = 0;
  for (auto& f : module.functions) {
    for (auto& op : f->ops) {
      if (op->code != OpCode::kAttention) continue;
      if (std::fabs(op->Float("scale") - std::numbers::ln2) > 1e-12) {
        context.Missed(*f, *op, "q is not scaled for a softmax in base 2 (fuse_rope_store did not fire)");
        continue;
      }
      op->code = OpCode::kFlashAttention;
      op->attrs.erase("scale");
      context.Fused(*f, *op, "flash form");
      ++changed;
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
