// fuse_all_reduce: the rms_norm that reads a sum over ranks, as an op or as the prologue of products, becomes the last
// item of the all_reduce's epilogue, which gives the normed rows beside the sum. Gain: who adds a row up norms it while
// it is in cache, once, instead of every reader on its own. After shard.
#include <algorithm>

#include "ir/chains.h"
#include "passes/pass.h"
#include "passes/rewrite.h"
#include "passes/shard_reduce.h"

namespace xjit {
namespace {

struct Norm {
  Weight* gain = nullptr;
  double eps = 0;
  bool operator==(const Norm&) const = default;
};

// The norm of `value` that `user` begins with; no gain where there is none of whole rows.
Norm NormOf(const Op& user, const Value* value) {
  Norm norm;
  if (user.code == OpCode::kRmsNorm) {
    norm = {user.weight(1), user.Float("eps")};
  } else if (const ChainItem* item = user.Item("prologue", "rms_norm"); item != nullptr && user.operand(0) == value) {
    norm = {ItemOperand(user, *item).weight, ItemNumber(*item, 1)};
  }
  if (norm.gain != nullptr && norm.gain->type.cols() != value->type.cols()) norm.gain = nullptr;
  return norm;
}

}  // namespace

absl::StatusOr<PassResult> FuseAllReduce(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (op->code != OpCode::kAllReduce || op->Item("epilogue", "rms_norm") != nullptr) continue;
      Value* sum = op->result();
      Norm norm;
      std::vector<Op*> readers;
      for (Op* user : f->Users(sum)) {
        const Norm own = NormOf(*user, sum);
        if (own.gain == nullptr || (norm.gain != nullptr && own != norm)) continue;
        norm = own;
        readers.push_back(user);
      }
      if (readers.empty()) {
        const bool leaves = std::any_of(f->ops.begin(), f->ops.end(), [&](const auto& user) {
          return (user->code == OpCode::kReturn || user->code == OpCode::kRepeat) &&
                 std::any_of(user->operands.begin(), user->operands.end(),
                             [&](const Operand& o) { return o.value == sum; });
        });
        context.Missed(*f, *op, leaves ? "its norm is in another function" : "no rms_norm reads the sum");
        continue;
      }
      op->AddItem("epilogue", "rms_norm", {{nullptr, norm.gain}}, {norm.eps});
      std::string name = f->FreeName("n");
      if (readers[0]->code == OpCode::kRmsNorm) std::swap(name, readers[0]->result()->name);
      op->results.push_back(std::make_unique<Value>(Value{name, sum->type, op}));
      Value* normed = op->result(1);
      for (Op* reader : readers) {
        if (reader->code == OpCode::kRmsNorm) {
          f->ReplaceUses(reader->result(), normed);
          f->Erase(reader);
        } else {
          RemoveItem(reader, "prologue", "rms_norm");
          reader->operands[0].value = normed;
        }
      }
      context.Fused(*f, *op, fmt::format("rms_norm fused, for {} readers", readers.size()));
      ++fused;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
