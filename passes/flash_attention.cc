// flash_attention: attention over a q that is scaled for base 2 becomes flash_attention: two products with the softmax
// momentum (running maximum and sum, rescaling, conversion of the probabilities) between them, block by block over KV.
// Gain: no [T, context] matrix of scores; and the query heads that share a KV head are rows of one product, so that K
// and V are read once for all of them. Sinks, soft cap, window, V's heads and uneven groups stay as they are. Its form
// (extend or decode) is plan_prologues' choice, which knows the step's rows. After fuse_rope_store.
#include <cmath>
#include <numbers>

#include "passes/pass.h"

namespace xjit {
namespace {

// "7 query heads of a KV head are rows of one product".
std::string Rows(const Op& op) {
  const int64_t heads = op.Int("heads"), kv_heads = op.Int("kv_heads");
  if (const auto it = op.attrs.find("groups"); it != op.attrs.end()) {
    return fmt::format("{} query heads of a KV head are rows of one product",
                       fmt::join(std::get<std::vector<int64_t>>(it->second), ", "));
  }
  if (heads == kv_heads) return "each query head has a KV head of its own";
  return fmt::format("{} query heads of a KV head are rows of one product", heads / kv_heads);
}

}  // namespace

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
      context.Fused(*f, *op, fmt::format("flash form, {}", Rows(*op)));
      ++changed;
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
