// plan_prologues: decides what each gemm reads (int8 blocks, bf16 or f32, by weight encoding and ISA) and makes each
// distinct prologue one prepare op; likewise the types of q and of the KV cache. For few rows a prologue is private:
// every thread computes it for itself, which costs less than a barrier. After every fuse_ pass, before plan_memory.
#include <algorithm>

#include "codegen/kernels.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// A row of 1536 floats is normed and quantised in about 0.15 us, a barrier with its wait costs 0.2 to 1 us, and sharing
// the work needs one: up to this many values it is cheaper that every thread does it all.
constexpr int64_t kPrivateValues = 16384;
// Private stores write the same KV bytes from every thread; beyond a few threads the lines' travelling costs more than
// a barrier.
constexpr int kPrivateStoreThreads = 4;

bool Private(const PassContext& context, const Type& type, int64_t cols) {
  return (type.dims[0].symbol == 'L' ? context.logit_rows : context.rows) * cols <= kPrivateValues;
}

absl::Status PlanGemm(Module& module, Function& f, Op* gemm, PassContext& context) {
  const DType act = ActivationFor(gemm->weight(1)->type.elem, context.target.isa);
  const Chain prologue = gemm->ChainAttr("prologue");
  if (prologue.empty() && act == DType::kF32) return absl::OkStatus();
  Value* x = gemm->operand(0);
  // Prologue operands move to the prepare op; epilogue operands stay, at new places.
  auto prepare = std::make_unique<Op>(OpCode::kPrepare);
  prepare->operands = {{x, nullptr}};
  prepare->attrs["out"] = std::string(Name(act));
  for (const ChainItem& item : prologue) {
    prepare->AddItem("prologue", item.name, {gemm->operands[static_cast<size_t>(std::get<int>(item.args[0]))]},
                     {std::get<double>(item.args[1])});
  }
  const bool is_private = Private(context, x->type, x->type.cols());
  if (is_private) prepare->attrs["private"] = true;
  Value* prepared = nullptr;
  for (const auto& op : f.ops) {
    if (op.get() == gemm) break;
    if (op->code == OpCode::kPrepare && op->operands == prepare->operands && op->attrs == prepare->attrs)
      prepared = op->result();
  }
  if (prepared == nullptr) {
    XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(f, module, gemm, OpCode::kPrepare, prepare->operands, prepare->attrs,
                                                fmt::format("{}_in", gemm->result()->name)));
    prepared = op->result();
    context.Fused(f, *op,
                  fmt::format("{} for @{}{}", Name(act), gemm->weight(1)->name, is_private ? ", private" : ", shared"));
  }
  const std::vector<Operand> operands = gemm->operands;
  const Chain epilogue = gemm->ChainAttr("epilogue");
  gemm->operands = {{prepared, nullptr}, operands[1]};
  gemm->attrs.erase("prologue");
  gemm->attrs.erase("epilogue");
  for (const ChainItem& item : epilogue) {
    std::vector<Operand> args;
    for (const auto& arg : item.args) args.push_back(operands[static_cast<size_t>(std::get<int>(arg))]);
    gemm->AddItem("epilogue", item.name, args);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PassResult> PlanPrologues(Module& module, PassContext& context) {
  int changed = 0;
  module.attrs["isa"] = std::string(Name(context.target.isa));
  module.attrs["threads"] = int64_t{context.target.threads};
  module.attrs["rows"] = context.rows;
  module.attrs["logit_rows"] = context.logit_rows;
  const bool dot = context.target.isa >= Isa::kAvx512Bf16 && context.kv_dtype == DType::kBF16;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (op->code == OpCode::kGemm) {
        XJIT_RETURN_IF_ERROR(PlanGemm(module, *f, op, context));
        i = static_cast<size_t>(f->IndexOf(op));
        ++changed;
      } else if (op->code == OpCode::kRopeStore) {
        const auto users = f->Users(op->result());
        const bool flash = std::all_of(users.begin(), users.end(),
                                       [](const Op* user) { return user->code == OpCode::kFlashAttention; });
        op->attrs["q"] = std::string(dot && flash ? "bf16" : "f32");
        op->attrs["kv"] = std::string(Name(context.kv_dtype));
        op->result()->type.elem = dot && flash ? DType::kBF16 : DType::kF32;
        const int64_t cols = op->operand(0)->type.cols() + 2 * op->operand(1)->type.cols();
        if (Private(context, op->operand(0)->type, cols) && context.target.threads <= kPrivateStoreThreads)
          op->attrs["private"] = true;
        ++changed;
      } else if (op->code == OpCode::kFlashAttention) {
        op->attrs["kv"] = std::string(Name(context.kv_dtype));
        ++changed;
      }
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
