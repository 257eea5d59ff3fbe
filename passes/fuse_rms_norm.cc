// fuse_rms_norm: an rms_norm that only products read as their x becomes a prologue of each. Gain: norm and conversion
// are one pass over the row, and no normed f32 copy of x is kept. After join_linears and group_experts.
//
// The norm is computed once for each type in which products want their x (plan_prologues makes equal prologues one op),
// which reads x (4 bytes a value) and writes that type. As an op of its own it reads x and writes f32 (8), and each
// type but f32 reads that again. With f32 among the types both move the same bytes, without it the prologue moves 8
// less: never more, so it is always taken where it can be. The third place, the tail of the op that makes x, would save
// x's read as well, but a product's rows are complete only when all threads are done with it: only all_reduce, which
// waits for all anyway, has a norm in its epilogue. The norm of a product's result before a residual is added (Gemma's
// post-norms) has no product behind it and stays an op.
#include <algorithm>
#include <set>

#include "codegen/kernels.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

const char* Blocker(const std::vector<Op*>& users, const Op& norm) {
  const Value* normed = norm.result();
  if (users.empty()) return "nobody reads it";
  if (ProductOf(norm.operand(0)) != nullptr && users[0]->code == OpCode::kAdd)
    return "a norm of a gemm's result that is added has no gemm behind it";
  for (const Op* user : users) {
    if (!IsProduct(*user) || user->operand(0) != normed) return "not only gemms read it";
    if (std::count(user->operands.begin(), user->operands.end(), Operand{const_cast<Value*>(normed), nullptr}) != 1) {
      return "a gemm reads it in its epilogue too";
    }
    if (!user->ChainAttr("prologue").empty()) return "a gemm's prologue is taken";
  }
  return nullptr;
}

// Bytes a value that norm and conversions move: as prologues, and as an op before conversions.
std::pair<int, int> BytesMoved(const std::vector<Op*>& users, const PassContext& context) {
  std::set<DType> types;
  for (const Op* user : users) types.insert(ActivationFor(WeightOf(*user)->type.encoding(), context.target, false));
  int prologues = 0, op = 8;
  for (const DType type : types) {
    const int converted = 4 + (type == DType::kF32 ? 4 : type == DType::kBF16 || type == DType::kF16 ? 2 : 1);
    prologues += converted;
    if (type != DType::kF32) op += converted;
  }
  return {prologues, op};
}

}  // namespace

absl::StatusOr<PassResult> FuseRmsNorm(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* norm = f->ops[i].get();
      if (norm->code != OpCode::kRmsNorm) continue;
      const std::vector<Op*> users = f->Users(norm->result());
      if (const char* why = Blocker(users, *norm)) {
        context.Missed(*f, *norm, why);
        continue;
      }
      const auto [prologues, op] = BytesMoved(users, context);
      for (Op* product : users) {
        product->operands[0] = norm->operands[0];
        product->AddItem("prologue", "rms_norm", {norm->operands[1]}, {norm->Float("eps")});
        context.Fused(*f, *product, fmt::format("rms_norm fused, {} bytes a value, {} as an op", prologues, op));
        ++fused;
      }
      f->Erase(norm);
      --i;
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
