// plan_blocking: writes how each matrix product is cut up on this machine: kernel, register or tile grid, cache blocks,
// loop order, the threads' shares and the parts of a narrow one's depth, with every candidate's cost in the notes.
// Gain: the choice between tiles and vectors, and each block size, is computed from caches, peaks and bandwidth instead
// of being a constant; a plan for a machine that is not there can be read. After plan_prologues, which decides what a
// product reads; before plan_memory.
#include <algorithm>

#include "codegen/gemm/blocking.h"
#include "ir/support/align.h"
#include "passes/lower_check.h"
#include "passes/pass.h"

namespace xjit {
namespace {

int64_t RowsOfStep(const PassContext& context, const Type& type) {
  const Dim rows = type.dims[0];
  return std::max<int64_t>(1, rows.symbol == 'L' ? context.logit_rows : rows.symbolic() ? context.rows : rows.size);
}

// Experts among which slots are shared out: the router's, of which a rank's weight may hold some.
int64_t AllExperts(const Value* experts, int64_t here) {
  const Op* route = experts->def;
  if (route == nullptr || route->code != OpCode::kRoute) return here;
  return std::max(here, route->operand(0)->type.cols() + route->Int("constant"));
}

// The product as numbers. Of experts each run is a product; a step's slots fall on them evenly, for want of better.
BlockingShape ShapeOf(const Op& op, const PassContext& context) {
  const bool grouped = op.code == OpCode::kGroupedGemm;
  const Weight& w = *op.weight(grouped ? 2 : 1);
  BlockingShape shape;
  shape.m = RowsOfStep(context, op.operand(0)->type);
  shape.n = w.type.rows();
  shape.k = w.type.cols();
  shape.w = w.type.encoding();
  shape.a = op.operand(0)->type.elem;
  shape.interleaved = w.interleaved();
  shape.grouped = grouped;
  if (grouped) {
    const int64_t here = w.type.dims[0].size, all = AllExperts(op.operand(1), here);
    const int64_t slots = std::max<int64_t>(1, shape.m * op.operand(1)->type.cols() * here / all);
    shape.experts = std::min(here, slots);
    shape.m = CeilDiv(slots, shape.experts);
  }
  return shape;
}

std::string Text(const Blocking& b) {
  return b.refused ? fmt::format("{} refused: {}", b.family, b.reason)
                   : fmt::format("{} {:.3g} us", b.family, b.cost_us);
}

// "amx_bf16 12.3 us (8.1 us of arithmetic, 12.3 us of reading), no kernel yet, 96 tasks; avx512 refused: ..."
std::string Why(const Blocking& chosen, const std::vector<Blocking>& candidates, bool lowerable) {
  std::string text = fmt::format("{} ({})", Text(chosen), chosen.reason);
  if (!lowerable) text += ", no kernel yet";
  text += fmt::format(", {} tasks", chosen.tasks);
  if (chosen.parts > 1) text += fmt::format(", depth in {} parts", chosen.parts);
  for (const Blocking& b : candidates) {
    if (b.family != chosen.family) text += "; " + Text(b);
  }
  return text;
}

}  // namespace

absl::StatusOr<PassResult> PlanBlocking(Module& module, PassContext& context) {
  int changed = 0;
  for (auto& f : module.functions) {
    for (auto& op : f->ops) {
      if (op->code != OpCode::kGemm && op->code != OpCode::kGroupedGemm) continue;
      const std::vector<Blocking> candidates = BlockingCandidates(ShapeOf(*op, context), context.target);
      const Blocking b = ChooseBlocking(candidates);
      if (b.refused) {
        context.Missed(*f, *op, b.reason);
        continue;
      }
      op->attrs["kernel"] = std::string(b.family);
      op->attrs["tile"] = std::vector<int64_t>{b.tile_m, b.tile_n};
      op->attrs["block"] = std::vector<int64_t>{b.block_m, b.block_n, b.block_k};
      op->attrs["split"] = std::vector<int64_t>{b.threads_m, b.threads_n};
      op->attrs["chunk"] = b.chunk;
      op->attrs["order"] = b.loop_order;
      op->attrs.erase("parts");
      if (b.parts > 1) op->attrs["parts"] = b.parts;
      op->attrs.erase("unpack_once");
      if (b.unpack_once) op->attrs["unpack_once"] = true;
      // A kernel that would do the product may not do what the op asks for besides.
      context.Chose(*f, *op, Why(b, candidates, CheckLowerable(*op).ok()));
      ++changed;
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
