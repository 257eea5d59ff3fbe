#include "passes/shard_latent.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/chains.h"
#include "passes/cost_ops.h"
#include "passes/rewrite.h"
#include "passes/shard_reduce.h"
#include "passes/shard_region.h"

namespace xjit {
namespace {

// o and all that it and the store of its cache are computed from, up to the step's table of angles.
std::set<const Op*> Upstream(const Function& f, const Op* o, const Op* reader) {
  std::set<const Op*> ops;
  std::vector<const Op*> left = {o, StoreOf(f, reader)};
  while (!left.empty()) {
    const Op* op = left.back();
    left.pop_back();
    if (op == nullptr || op->code == OpCode::kRopeTable || op->code == OpCode::kEmbed || !ops.insert(op).second) {
      continue;
    }
    const ChainItem* residual = op == o ? op->Item("epilogue", "residual") : nullptr;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const Value* value = op->operand(i);
      if (value == nullptr || value->def == nullptr) continue;
      if (residual != nullptr && std::get<int>(residual->args[0]) == static_cast<int>(i)) continue;
      left.push_back(value->def);
    }
  }
  return ops;
}

}  // namespace

LatentCost CostOfLatent(const Function& f, const Op* o, const Op* reader, const PassContext& context) {
  // Heads share out o, kv_b and what makes q; what makes the latent is every rank's.
  std::map<const Weight*, bool> shared;
  for (const Op* op : Upstream(f, o, reader)) {
    for (const Operand& operand : op->operands) {
      if (operand.weight != nullptr && operand.weight->type.is_matrix()) {
        const bool q = op->code != OpCode::kGemm && op->code != OpCode::kLinear;
        shared[operand.weight] = shared[operand.weight] || q || op == o;
      }
    }
  }
  // The product that makes the heads of q is the nearest one before the attention.
  const Value* q = reader->operand(0);
  while (q->def != nullptr && ProductWeight(*q->def) == nullptr) q = q->def->operand(0);
  if (q->def != nullptr) shared[ProductWeight(*q->def)] = true;
  double split = 0, whole = 0;
  for (const auto& [w, heads] : shared) {
    (heads ? split : whole) += static_cast<double>(EncodedBytes(w->type.encoding(), w->type.rows(), w->type.cols()));
  }
  const int64_t heads = reader->Int("heads");
  int64_t row = reader->operand(0)->type.cols() / heads;
  if (!reader->Bool("latent")) {
    // Of the expanded form: r of kv_b, and what a head of q has beyond nope_dim.
    row = reader->weight(2)->type.cols() + row - reader->Int("nope_dim");
  }
  const double sequences = static_cast<double>(context.sequences);
  const double cache =
      static_cast<double>(context.kv_length) * KvRowBytes(context.kv_dtype, static_cast<double>(row), 1);
  const double most = static_cast<double>(OwnSequences(context));
  return {whole + split / context.tp + sequences * cache, whole + split + most * cache};
}

absl::StatusOr<std::vector<Op*>> AttendOwnRows(Module& module, Function& f, Op* o, const Op* reader, std::string* why) {
  const std::set<const Op*> upstream = Upstream(f, o, reader);
  std::vector<Op*> ops;
  for (const auto& op : f.ops) {
    if (upstream.contains(op.get())) ops.push_back(op.get());
  }
  for (const Op* op : ops) {
    for (const auto& result : op->results) {
      if (result->type.dims[0].symbol != 'T') *why = fmt::format("%{} has no row for each token", result->name);
      for (const Op* user : f.Users(result.get())) {
        if (op != o && !upstream.contains(user)) *why = fmt::format("%{} is read elsewhere", result->name);
      }
    }
  }
  if (!why->empty()) return std::vector<Op*>{};
  std::vector<Operand> residual;
  if (const ChainItem* item = o->Item("epilogue", "residual")) {
    residual.push_back(ItemOperand(*o, *item));
    RemoveItem(o, "epilogue", "residual");
  }
  Value* step = reader->operand(1);
  std::map<Value*, Value*> own;
  for (Op* op : ops) {
    for (size_t i = 0; i < op->operands.size(); ++i) {
      Value* value = op->operand(i);
      if (value == nullptr || !value->type.is_tensor() || (value->def != nullptr && upstream.contains(value->def)) ||
          (value->def != nullptr && value->def->code == OpCode::kOwnRows)) {
        continue;
      }
      if (own[value] == nullptr) {
        XJIT_ASSIGN_OR_RETURN(Op * rows, InsertBefore(f, module, op, OpCode::kOwnRows,
                                                      {{value, nullptr}, {step, nullptr}}, {}, value->name + "_own"));
        own[value] = rows->result();
      }
      op->operands[i].value = own[value];
    }
  }
  for (Op* op : ops) {
    std::vector<Type> types;
    XJIT_RETURN_IF_ERROR(AtOp(*op, CheckOp(*op, &module, &types)));
    for (size_t i = 0; i < types.size(); ++i) op->results[i]->type = types[i];
  }
  const std::vector<Op*> readers = f.Users(o->result());
  const Op* next = f.ops[static_cast<size_t>(f.IndexOf(o)) + 1].get();
  XJIT_ASSIGN_OR_RETURN(Op * all, InsertBefore(f, module, next, OpCode::kGatherRows,
                                               {{o->result(), nullptr}, {step, nullptr}}, {}, o->result()->name));
  if (!residual.empty()) {
    XJIT_ASSIGN_OR_RETURN(all, InsertBefore(f, module, next, OpCode::kAdd, {residual[0], {all->result(), nullptr}}, {},
                                            o->result()->name));
  }
  for (Op* user : readers) {
    for (Operand& operand : user->operands) {
      if (operand.value == o->result()) operand.value = all->result();
    }
  }
  std::swap(o->result()->name, all->result()->name);
  return ops;
}

}  // namespace xjit
