// plan_prologues: decides what each product reads (int8 blocks, int8 rows, bf16 or f32, by weight encoding and ISA) and
// makes each distinct prologue one prepare op; likewise the types of q and of the KV cache. For few rows a prologue is
// private: every thread computes it for itself, which costs less than a barrier; for many it may leave strips of rows.
// A weight whose depth was sorted by group has a prepare op of its own, which sorts the columns alike. What only the
// experts' down products read is rounded by the product of gate and up that makes it. After every fuse_ pass, before
// plan_memory.
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

DType Activation(const Op& product, const PassContext& context) {
  return ActivationFor(WeightOf(product)->type.encoding(), context.target, ManyRows(product, context));
}

// Of experts each one's columns are sorted, which a row that several of them read cannot be.
bool SortsColumns(const Op& product) {
  return product.code == OpCode::kGemm && WeightOf(product)->type.scales.act_order;
}

// Rows side by side in a row of x: one for each slot where the experts' rows come apart.
int64_t Slots(const Op& product) { return product.operand(0)->type.cols() / WeightOf(product)->type.cols(); }

// The grouped_gemm that may write x as its readers want it: with gate and up multiplied in its registers, it rounds a
// slot's row where it is. nullptr: x is wanted otherwise too.
Op* TailFor(const Function& f, const Op& product, DType act, const PassContext& context) {
  const Value* x = product.operand(0);
  Op* producer = DefOf(x, OpCode::kGroupedGemm);
  if (producer == nullptr || producer->Item("epilogue", "combine") != nullptr) return nullptr;
  for (const Op* user : f.Users(x)) {
    const auto uses = std::count(user->operands.begin(), user->operands.end(), Operand{const_cast<Value*>(x), nullptr});
    if (user->code != OpCode::kGroupedGemm || user->operand(0) != x || uses != 1 ||
        !user->ChainAttr("prologue").empty() || Activation(*user, context) != act ||
        Slots(*user) != producer->operand(1)->type.cols()) {
      return nullptr;
    }
  }
  return producer;
}

// The cache's type, and that of the queries that a store leaves: bf16 where attentions multiply pairs. Other readers
// want the type that they have.
void PlanStore(const Function& f, Op* store, const PassContext& context) {
  const auto users = f.Users(store->result());
  const bool attends = std::all_of(users.begin(), users.end(), [](const Op* user) {
    return user->code == OpCode::kFlashAttention || user->code == OpCode::kMlaExtend;
  });
  const bool dot = context.target.isa >= Isa::kAvx512Bf16 && context.kv_dtype == DType::kBF16;
  DType& q = store->result()->type.elem;
  if (attends) q = dot ? DType::kBF16 : DType::kF32;
  store->attrs["q"] = std::string(Name(q));
  store->attrs["kv"] = std::string(Name(context.kv_dtype));
}

absl::Status PlanProduct(Module& module, Function& f, Op* product, PassContext& context) {
  const DType act = Activation(*product, context);
  const Chain prologue = product->ChainAttr("prologue");
  Value* x = product->operand(0);
  const bool sorts = SortsColumns(*product);
  if (x->type.elem != DType::kF32 || (prologue.empty() && act == DType::kF32 && !sorts)) return absl::OkStatus();
  if (Op* producer = TailFor(f, *product, act, context)) {
    producer->attrs["out"] = std::string(Name(act));
    producer->result()->type.elem = act;
    context.Fused(f, *producer, fmt::format("{} for @{}, by the product itself", Name(act), WeightOf(*product)->name));
    return absl::OkStatus();
  }
  // Prologue operands move to the prepare op.
  auto prepare = std::make_unique<Op>(OpCode::kPrepare);
  prepare->operands = {{x, nullptr}};
  prepare->attrs["out"] = std::string(Name(act));
  if (Slots(*product) > 1) prepare->attrs["slots"] = Slots(*product);
  if (product->code == OpCode::kGemm && StripsFor(act, ManyRows(*product, context))) prepare->attrs["strips"] = true;
  if (sorts) prepare->attrs["order_of"] = WeightOf(*product)->name;
  for (const ChainItem& item : prologue) {
    prepare->AddItem("prologue", item.name, {product->operands[static_cast<size_t>(std::get<int>(item.args[0]))]},
                     {std::get<double>(item.args[1])});
  }
  const bool is_private = Private(context, x->type, x->type.cols());
  if (is_private) prepare->attrs["private"] = true;
  Value* prepared = nullptr;
  for (const auto& op : f.ops) {
    if (op.get() == product) break;
    if (op->code == OpCode::kPrepare && op->operands == prepare->operands && op->attrs == prepare->attrs)
      prepared = op->result();
  }
  if (prepared == nullptr) {
    XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(f, module, product, OpCode::kPrepare, prepare->operands, prepare->attrs,
                                                fmt::format("{}_in", product->result()->name)));
    prepared = op->result();
    context.Fused(
        f, *op,
        fmt::format("{} for @{}{}", Name(act), WeightOf(*product)->name, is_private ? ", private" : ", shared"));
  }
  DropChain(product, "prologue");
  product->operands[0].value = prepared;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PassResult> PlanPrologues(Module& module, PassContext& context) {
  int changed = 0;
  module.attrs["isa"] = std::string(Name(context.target.isa));
  module.attrs["threads"] = int64_t{context.target.threads};
  module.attrs["rows"] = context.rows;
  module.attrs["logit_rows"] = context.logit_rows;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (IsProduct(*op)) {
        XJIT_RETURN_IF_ERROR(PlanProduct(module, *f, op, context));
        i = static_cast<size_t>(f->IndexOf(op));
        ++changed;
      } else if (op->code == OpCode::kRopeStore) {
        PlanStore(*f, op, context);
        const int64_t cols = op->operand(0)->type.cols() + 2 * op->operand(1)->type.cols();
        if (Private(context, op->operand(0)->type, cols) && context.target.threads <= kPrivateStoreThreads)
          op->attrs["private"] = true;
        ++changed;
      } else if (op->code == OpCode::kFlashAttention) {
        op->attrs["kv"] = std::string(Name(context.kv_dtype));
        // One row a sequence: its KV is split over threads. Else blocks of rows share each KV block. This is how the
        // cost model sees the step; the kernel that runs does both, as the step that it is given asks.
        op->attrs["form"] = std::string(context.rows == context.sequences ? "decode" : "extend");
        ++changed;
      } else if (op->code == OpCode::kLatentStore) {
        PlanStore(*f, op, context);
        ++changed;
      } else if (op->code == OpCode::kMlaExtend) {
        op->attrs["kv"] = std::string(Name(context.kv_dtype));
        ++changed;
      }
    }
  }
  return PassResult::Changed(changed);
}

}  // namespace xjit
