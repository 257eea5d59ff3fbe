// fuse_rope_store: rope of q, rope of k and kv_store become one op, which also scales q so that the softmax can run in
// base 2; the attention that reads q is left with the scale ln 2. Gain: q, k and v are read once and K and V are stored
// as the attention reads them. Before flash_attention.
#include <numbers>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

struct Match {
  Op* store;
  Op* k;  // rope
  Op* q;  // rope
  Op* attention;
};

const char* FindMatch(const Function& f, Op* store, Match* m) {
  *m = {store, DefOf(store->operand(0), OpCode::kRope), nullptr, nullptr};
  if (m->k == nullptr) return "k is not rotated";
  if (OnlyUser(f, m->k->result()) != store) return "the rotated k has a second user";
  for (size_t i = static_cast<size_t>(f.IndexOf(store)) + 1; i < f.ops.size(); ++i) {
    if (f.ops[i]->code == OpCode::kKvStore) break;
    if (f.ops[i]->code == OpCode::kAttention) {
      if (m->attention != nullptr) return "several attentions read the cache";
      m->attention = f.ops[i].get();
    }
  }
  if (m->attention == nullptr) return "no attention follows";
  m->q = DefOf(m->attention->operand(0), OpCode::kRope);
  if (m->q == nullptr) return "q is not rotated";
  if (m->q->operand(1) != m->k->operand(1)) return "q and k are rotated by different tables";
  if (OnlyUser(f, m->q->result()) != m->attention) return "the rotated q has a second user";
  if (m->q->Int("heads") != m->attention->Int("heads") || m->k->Int("heads") != store->Int("kv_heads") ||
      m->attention->Int("kv_heads") != store->Int("kv_heads")) {
    return "q or k are rotated in other heads than they are attended in";
  }
  if (m->attention->operand(1) != store->operand(2)) return "store and attention are of different steps";
  if (f.IndexOf(m->q) > f.IndexOf(store)) return "q is rotated after the store";
  return nullptr;
}

}  // namespace

absl::StatusOr<PassResult> FuseRopeStore(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      if (f->ops[i]->code != OpCode::kKvStore) continue;
      Match m;
      if (const char* why = FindMatch(*f, f->ops[i].get(), &m)) {
        context.Missed(*f, *f->ops[i], why);
        continue;
      }
      XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(*f, module, m.store, OpCode::kRopeStore,
                                                  {m.q->operands[0], m.k->operands[0], m.store->operands[1],
                                                   m.q->operands[1], m.store->operands[2]},
                                                  {{"heads", m.attention->Int("heads")},
                                                   {"kv_heads", m.store->Int("kv_heads")},
                                                   {"scale", m.attention->Float("scale")}},
                                                  m.q->result()->name));
      m.attention->operands[0].value = op->result();
      m.attention->attrs["scale"] = std::numbers::ln2;
      std::string name = m.q->result()->name;
      for (Op* old : {m.store, m.k, m.q}) f->Erase(old);
      TakeName(op->result(), std::move(name));
      context.Fused(*f, *op, "rope and KV store fused");
      ++fused;
      i = static_cast<size_t>(f->IndexOf(op));
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
