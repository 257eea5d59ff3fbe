// fuse_rope_store: rope of q, rope of k and kv_store become one op, with the norms of each head in front of the ropes
// if there are any; it also scales q so that the softmax can run in base 2, and the attention that reads q is left with
// the scale ln 2. The table may turn the first values of a head only, and v's heads may have another size. Gain: q, k
// and v are read once and K and V are stored as the attention reads them. After fuse_rms_norm, before flash_attention.
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
  Op* q_norm = nullptr;  // of each head, both or none
  Op* k_norm = nullptr;
};

// The norm of each head in front of a rope that alone reads it, or nullptr.
Op* HeadNorm(const Function& f, const Op& rope) {
  Op* norm = DefOf(rope.operand(0), OpCode::kRmsNorm);
  if (norm == nullptr || OnlyUser(f, norm->result()) != &rope) return nullptr;
  return norm->weight(1)->type.cols() == norm->result()->type.cols() / rope.Int("heads") ? norm : nullptr;
}

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
  if (m->q->Int("offset") != 0 || m->k->Int("offset") != 0) return "not the first values of a head are rotated";
  if (OnlyUser(f, m->q->result()) != m->attention) return "the rotated q has a second user";
  if (m->q->Int("heads") != m->attention->Int("heads") || m->k->Int("heads") != store->Int("kv_heads") ||
      m->attention->Int("kv_heads") != store->Int("kv_heads")) {
    return "q or k are rotated in other heads than they are attended in";
  }
  if (m->attention->operand(1) != store->operand(2)) return "store and attention are of different steps";
  if (f.IndexOf(m->q) > f.IndexOf(store)) return "q is rotated after the store";
  if (m->q->operand(0)->type.cols() / m->q->Int("heads") != m->k->operand(0)->type.cols() / m->k->Int("heads"))
    return "heads of q and k differ in size";
  m->q_norm = HeadNorm(f, *m->q);
  m->k_norm = HeadNorm(f, *m->k);
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
      std::map<std::string, Attr, std::less<>> attrs = {{"heads", m.attention->Int("heads")},
                                                        {"kv_heads", m.store->Int("kv_heads")},
                                                        {"scale", m.attention->Float("scale")}};
      std::vector<Operand> operands = {m.q->operands[0], m.k->operands[0], m.store->operands[1], m.q->operands[1],
                                       m.store->operands[2]};
      const bool norms = m.q_norm != nullptr && m.k_norm != nullptr && m.q_norm->Float("eps") == m.k_norm->Float("eps");
      if (norms) {
        operands[0] = m.q_norm->operands[0];
        operands[1] = m.k_norm->operands[0];
        operands.push_back(m.q_norm->operands[1]);
        operands.push_back(m.k_norm->operands[1]);
        attrs["eps"] = m.q_norm->Float("eps");
      } else if (m.q_norm != nullptr || m.k_norm != nullptr) {
        context.Missed(*f, m.q_norm != nullptr ? *m.q_norm : *m.k_norm, "heads of q and k are not normed alike");
      }
      XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(*f, module, m.store, OpCode::kRopeStore, std::move(operands),
                                                  std::move(attrs), m.q->result()->name));
      m.attention->operands[0].value = op->result();
      m.attention->attrs["scale"] = std::numbers::ln2;
      std::string name = m.q->result()->name;
      for (Op* old : {m.store, m.k, m.q, norms ? m.q_norm : nullptr, norms ? m.k_norm : nullptr}) {
        if (old != nullptr) f->Erase(old);
      }
      TakeName(op->result(), std::move(name));
      context.Fused(*f, *op, norms ? "head norms, rope and KV store fused" : "rope and KV store fused");
      ++fused;
      i = static_cast<size_t>(f->IndexOf(op));
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
