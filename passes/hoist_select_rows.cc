// hoist_select_rows: select_rows moves above ops that compute each row on its own, so that norms, products and caps of
// a head are computed for the rows whose logits are wanted alone. Gain: with a prompt of T tokens, T - 1 rows of the
// head less; the copy is no larger. After canonicalize, before everything that fuses.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

bool RowWise(OpCode code) {
  return Info(code).elementwise || code == OpCode::kRmsNorm || code == OpCode::kLinear || code == OpCode::kSlice;
}

const char* Blocker(const Function& f, const Op& select, const Op& op) {
  if (OnlyUser(f, op.result()) != &select) return "other rows of its operand are wanted too";
  // Rows are numbered as the step's tokens are.
  if (op.result()->type.dims[0] != Dim::Symbol('T')) return "its operand is not of the step's tokens";
  return nullptr;
}

// The rows of x, selected in front of `at`.
absl::StatusOr<Value*> Select(Module& module, Function& f, Value* x, const Operand& step, const Op* at,
                              std::string_view name) {
  for (const auto& op : f.ops) {
    if (op.get() == at) break;
    if (op->code == OpCode::kSelectRows && op->operand(0) == x && op->operands[1] == step) return op->result();
  }
  XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(f, module, at, OpCode::kSelectRows, {{x, nullptr}, step}, {}, name));
  return op->result();
}

}  // namespace

absl::StatusOr<PassResult> HoistSelectRows(Module& module, PassContext& context) {
  int moved = 0;
  for (auto& f : module.functions) {
    // Backwards, so that a new select_rows, which stands above, is looked at too.
    for (size_t i = f->ops.size(); i-- > 0;) {
      Op* select = f->ops[i].get();
      Op* op = select->code == OpCode::kSelectRows ? select->operand(0)->def : nullptr;
      if (op == nullptr || !RowWise(op->code)) continue;
      if (const char* why = Blocker(*f, *select, *op)) {
        context.Missed(*f, *select, why);
        continue;
      }
      const Operand step = select->operands[1];
      const std::string name = select->result()->name;
      f->ReplaceUses(select->result(), op->result());
      f->Erase(select);
      for (size_t o = 0; o < op->operands.size(); ++o) {
        if (op->operand(o) == nullptr) continue;
        XJIT_ASSIGN_OR_RETURN(op->operands[o].value, Select(module, *f, op->operand(o), step, op, name));
      }
      std::vector<Type> types;
      XJIT_RETURN_IF_ERROR(AtOp(*op, CheckOp(*op, &module, &types)));
      op->result()->type = types[0];
      context.Fused(*f, *op, "for the rows that need logits only");
      ++moved;
      i = static_cast<size_t>(f->IndexOf(op));
    }
  }
  return PassResult::Changed(moved);
}

}  // namespace xjit
