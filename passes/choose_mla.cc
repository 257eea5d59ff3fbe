// choose_mla: mla_attention takes one of its two forms. Absorbed, kv_b multiplies q and the attended latent instead of
// the cache: all heads share one KV head, the latent itself. Expanded, kv_b makes keys and values out of the cache,
// block by block, for all rows of the step. Gain: decoding does not expand the cache for one row; a prompt does not
// attend in r + p columns where nope + p do. After canonicalize, before fuse_latent_store and flash_attention.
//
// Multiply-adds of a head, for t rows that each attend to n tokens out of the N in the cache (DeepSeek-AI 2024,
// arXiv:2405.04434, section 2.1.2 and appendix C, where W_UK and W_UV are kv_b):
//   absorbed  t n (r + p + r)        + t (nope + v) r    q and the result meet kv_b once a row
//   expanded  t n (nope + p + v)     + N (nope + v) r    the cache meets kv_b once a step
// Either reads the same latent cache. With many tokens cached the second terms are 0 and N = n, and the forms cost the
// same at t = (nope + v) r / (2 r - nope - v): 171 rows of a sequence for DeepSeek-R1 (r 512, p 64, nope = v = 128).
#include <numbers>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

struct Cost {
  double absorbed = 0;
  double expanded = 0;
};

// Of a head and one sequence's share of the rows.
Cost CostOf(const Op& mla, const PassContext& context) {
  const double nope = static_cast<double>(mla.Int("nope_dim")), v = static_cast<double>(mla.Int("v_dim"));
  const double r = static_cast<double>(mla.weight(2)->type.cols());
  const double p = static_cast<double>(mla.operand(0)->type.cols()) / static_cast<double>(mla.Int("heads")) - nope;
  const double t = static_cast<double>(context.rows) / static_cast<double>(std::max<int64_t>(context.sequences, 1));
  // Without a length: per cached token, of which there are many.
  if (context.kv_length <= 0) return {t * (r + p + r), t * (nope + p + v) + (nope + v) * r};
  // The step's own tokens are among them; of those a row sees itself and half of the others.
  const double length = std::max(static_cast<double>(context.kv_length), t);
  const double attended = length - t + (t + 1) / 2;
  return {t * attended * (r + p + r) + t * (nope + v) * r, t * attended * (nope + p + v) + length * (nope + v) * r};
}

absl::Status Absorb(Module& module, Function& f, Op* mla) {
  const auto sizes = [mla] {
    return std::map<std::string, Attr, std::less<>>{
        {"heads", mla->Int("heads")}, {"nope_dim", mla->Int("nope_dim")}, {"v_dim", mla->Int("v_dim")}};
  };
  const Operand step = mla->operands[1], kv_b = mla->operands[2];
  const std::string name = mla->result()->name;
  XJIT_ASSIGN_OR_RETURN(Op * q, InsertBefore(f, module, mla, OpCode::kAbsorbQ, {mla->operands[0], kv_b}, sizes(),
                                             mla->operand(0)->name + "_abs"));
  XJIT_ASSIGN_OR_RETURN(Op * a, InsertBefore(f, module, mla, OpCode::kAttention, {{q->result(), nullptr}, step},
                                             {{"heads", mla->Int("heads")},
                                              {"kv_heads", int64_t{1}},
                                              {"scale", mla->Float("scale")},
                                              {"v_dim", kv_b.weight->type.cols()},
                                              {"latent", true}},
                                             name + "_lat"));
  XJIT_ASSIGN_OR_RETURN(Op * y,
                        InsertBefore(f, module, mla, OpCode::kAbsorbV, {{a->result(), nullptr}, kv_b}, sizes(), name));
  f.ReplaceUses(mla->result(), y->result());
  f.Erase(mla);
  TakeName(y->result(), name);
  return absl::OkStatus();
}

absl::Status Expand(Module& module, Function& f, Op* mla) {
  const std::string name = mla->result()->name;
  XJIT_ASSIGN_OR_RETURN(
      Op * q, InsertBefore(f, module, mla, OpCode::kScale, {mla->operands[0]},
                           {{"by", mla->Float("scale") * std::numbers::log2e}}, mla->operand(0)->name + "_scaled"));
  XJIT_ASSIGN_OR_RETURN(
      Op * y,
      InsertBefore(f, module, mla, OpCode::kMlaExtend, {{q->result(), nullptr}, mla->operands[1], mla->operands[2]},
                   {{"heads", mla->Int("heads")}, {"nope_dim", mla->Int("nope_dim")}, {"v_dim", mla->Int("v_dim")}},
                   name));
  f.ReplaceUses(mla->result(), y->result());
  f.Erase(mla);
  TakeName(y->result(), name);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PassResult> ChooseMla(Module& module, PassContext& context) {
  int changes = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (op->code != OpCode::kMlaAttention) continue;
      const Cost cost = CostOf(*op, context);
      const bool absorbed = cost.absorbed <= cost.expanded;
      context.Chose(*f, *op,
                    fmt::format("{}: {:.4g} multiply-adds a head{} absorbed, {:.4g} expanded ({} rows, {} sequences)",
                                absorbed ? "absorbed" : "expanded", cost.absorbed,
                                context.kv_length > 0 ? "" : " and cached token", cost.expanded, context.rows,
                                context.sequences));
      XJIT_RETURN_IF_ERROR(absorbed ? Absorb(module, *f, op) : Expand(module, *f, op));
      ++changes;
    }
  }
  return PassResult::Changed(changes);
}

}  // namespace xjit
