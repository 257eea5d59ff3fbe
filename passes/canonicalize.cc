// canonicalize: slices of slices become one, a slice of everything disappears, equal pure ops are merged, and ops whose
// results nobody uses are dropped. Gain: later passes see one form of everything. Runs first.
#include <algorithm>

#include "ir/ops.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

bool ComposeSlice(Function& f, Op& op) {
  if (op.Int("from") == 0 && op.Int("to") == op.operand(0)->type.cols()) {
    f.ReplaceUses(op.result(), op.operand(0));
    return true;
  }
  const Op* inner = DefOf(op.operand(0), OpCode::kSlice);
  if (inner == nullptr) return false;
  op.attrs["from"] = inner->Int("from") + op.Int("from");
  op.attrs["to"] = inner->Int("from") + op.Int("to");
  op.operands[0].value = inner->operand(0);
  return true;
}

bool Equal(const Op& a, const Op& b) {
  return a.code == b.code && a.operands == b.operands && a.attrs == b.attrs && !a.results.empty() &&
         Info(a.code).effects == Effects::kPure && a.code != OpCode::kRepeat;
}

int MergeEqual(Function& f) {
  int merged = 0;
  for (size_t i = 0; i < f.ops.size(); ++i) {
    for (size_t j = i + 1; j < f.ops.size(); ++j) {
      if (!Equal(*f.ops[i], *f.ops[j])) continue;
      for (size_t r = 0; r < f.ops[i]->results.size(); ++r) f.ReplaceUses(f.ops[j]->result(r), f.ops[i]->result(r));
      f.Erase(f.ops[j].get());
      --j;
      ++merged;
    }
  }
  return merged;
}

int DropDead(Function& f) {
  int dropped = 0;
  for (size_t i = f.ops.size(); i-- > 0;) {
    Op& op = *f.ops[i];
    if (op.results.empty() || Info(op.code).effects == Effects::kWritesKv || op.code == OpCode::kRepeat) continue;
    const bool used =
        std::any_of(op.results.begin(), op.results.end(), [&f](const auto& r) { return !f.Users(r.get()).empty(); });
    if (used) continue;
    f.Erase(&op);
    ++dropped;
  }
  return dropped;
}

}  // namespace

absl::StatusOr<PassResult> Canonicalize(Module& module, PassContext&) {
  int changes = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      if (f->ops[i]->code == OpCode::kSlice && ComposeSlice(*f, *f->ops[i])) ++changes;
    }
    changes += MergeEqual(*f);
    changes += DropDead(*f);
  }
  return PassResult::Changed(changes);
}

}  // namespace xjit
