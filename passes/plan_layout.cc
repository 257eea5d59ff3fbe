// plan_layout: names the order in which the bytes of each packed weight lie, and of a page of the KV cache, so that
// kernels read one ascending stream and never shuffle. Gain: bytes are arranged once, when a weight is loaded or a
// token stored, instead of at every read. It depends on neither ISA nor the rows of a step: weights exist once for all
// programs. After plan_prologues (which knows the cache's type), before plan_memory.
#include "codegen/attention/attention_desc.h"
#include "codegen/gemm/blocking.h"
#include "codegen/gemm/pack.h"
#include "passes/pass.h"

namespace xjit {
namespace {

// The matrix that the op multiplies with.
const Weight* MatrixOf(const Op& op) {
  switch (op.code) {
    case OpCode::kGemm:
    case OpCode::kAbsorbQ:
    case OpCode::kAbsorbV:
      return op.weight(1);
    case OpCode::kGroupedGemm:
    case OpCode::kMlaExtend:
      return op.weight(2);
    default:
      return nullptr;
  }
}

// Depths of K and V of one head in the cache that an op reads or writes; k = 0: it does neither.
struct KvDims {
  int64_t k = 0, v = 0;
  bool latent = false;
};
KvDims KvDimsOf(const Op& op) {
  const auto cols = [&op](size_t i) { return op.operand(i)->type.cols(); };
  switch (op.code) {
    case OpCode::kRopeStore:
      return {cols(1) / op.Int("kv_heads"), cols(2) / op.Int("kv_heads")};
    case OpCode::kFlashAttention:
      return {cols(0) / op.Int("heads"), op.result()->type.cols() / op.Int("heads"), op.Bool("latent")};
    case OpCode::kLatentStore:
      return {cols(1) + cols(2), cols(1), true};
    case OpCode::kMlaExtend: {
      const int64_t r = op.weight(2)->type.cols();
      return {r + cols(0) / op.Int("heads") - op.Int("nope_dim"), r, true};
    }
    default:
      return {};
  }
}

}  // namespace

absl::StatusOr<PassResult> PlanLayout(Module& module, PassContext& context) {
  int changed = 0;
  for (auto& f : module.functions) {
    for (auto& op : f->ops) {
      if (const Weight* w = MatrixOf(*op)) {
        const Encoding encoding = w->type.encoding();
        if (HasPanels(encoding)) {
          op->attrs["layout"] = std::string(kPanelLayout);
          ++changed;
        } else {
          context.Missed(*f, *op, fmt::format("{} weights have no packed layout", ToString(encoding)));
        }
      }
      if (const KvDims dims = KvDimsOf(*op); dims.k > 0) {
        const std::string layout = KvLayout(context.kv_dtype, dims.k, dims.v, dims.latent);
        if (layout.empty()) {
          context.Missed(*f, *op, fmt::format("a cache of {} has no page layout", Name(context.kv_dtype)));
        } else {
          op->attrs["kv_layout"] = layout;
          ++changed;
        }
      }
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
