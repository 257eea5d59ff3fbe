// fuse_latent_store: rope of q's heads and of k_pe, the norm of c, kv_store_latent and the softmax scale become one op,
// which leaves q scaled for a softmax in base 2. q is turned behind absorption, which passes its last p columns
// through. Gain: c, k_pe and q are read once and the latent is stored as the attention reads it. After choose_mla,
// before flash_attention.
#include <cmath>
#include <numbers>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

struct Match {
  Op* store = nullptr;
  Op* reader = nullptr;  // attention over the latent, or mla_extend
  Op* scale = nullptr;   // of q, in front of mla_extend
  Op* absorb = nullptr;  // absorb_q
  Op* q = nullptr;       // rope
  Op* k = nullptr;       // rope
  Op* norm = nullptr;    // of c; may be absent
};

const char* FindMatch(const Function& f, Op* store, Match* m) {
  m->store = store;
  for (size_t i = static_cast<size_t>(f.IndexOf(store)) + 1; i < f.ops.size(); ++i) {
    Op* op = f.ops[i].get();
    if (op->code == OpCode::kKvStoreLatent) break;
    if (op->code != OpCode::kMlaExtend && (op->code != OpCode::kAttention || !op->Bool("latent"))) continue;
    if (m->reader != nullptr) return "several attentions read the cache";
    m->reader = op;
  }
  if (m->reader == nullptr) return "no latent attention follows";
  if (m->reader->operand(1) != store->operand(2)) return "store and attention are of different steps";
  m->k = DefOf(store->operand(1), OpCode::kRope);
  if (m->k == nullptr || m->k->Int("heads") != 1 || m->k->Int("offset") != 0 ||
      m->k->operand(1)->type.cols() != m->k->result()->type.cols()) {
    return "k_pe is not rotated as one head";
  }
  if (OnlyUser(f, m->k->result()) != store) return "the rotated k_pe has a second user";
  Value* q = m->reader->operand(0);
  const Op* next = m->reader;
  if (m->reader->code == OpCode::kMlaExtend) {
    m->scale = DefOf(q, OpCode::kScale);
    if (m->scale == nullptr) return "q is not scaled";
    if (OnlyUser(f, q) != next) return "the scaled q has a second user";
    next = m->scale;
  } else {
    m->absorb = DefOf(q, OpCode::kAbsorbQ);
    if (m->absorb == nullptr) return "q is not absorbed";
    if (OnlyUser(f, q) != next) return "the absorbed q has a second user";
    next = m->absorb;
  }
  m->q = DefOf(next->operand(0), OpCode::kRope);
  const Op* sized = m->absorb != nullptr ? m->absorb : m->reader;
  if (m->q == nullptr || m->q->Int("heads") != sized->Int("heads") || m->q->Int("offset") != sized->Int("nope_dim")) {
    return "q's heads are not rotated behind nope_dim";
  }
  if (OnlyUser(f, m->q->result()) != next) return "the rotated q has a second user";
  if (m->q->operand(1) != m->k->operand(1)) return "q and k_pe are rotated by different tables";
  const int64_t p = m->q->result()->type.cols() / m->q->Int("heads") - m->q->Int("offset");
  if (m->k->result()->type.cols() != p) return "q and k_pe differ in what is rotated";
  m->norm = DefOf(store->operand(0), OpCode::kRmsNorm);
  if (m->norm != nullptr &&
      (OnlyUser(f, m->norm->result()) != store || m->norm->weight(1)->type.cols() != m->norm->result()->type.cols())) {
    m->norm = nullptr;
  }
  return nullptr;
}

absl::Status Fuse(Module& module, Function& f, const Match& m, PassContext& context) {
  if (m.absorb != nullptr) {
    m.absorb->operands[0] = m.q->operands[0];
  }
  const Operand q = m.absorb != nullptr ? Operand{m.absorb->result(), nullptr} : m.q->operands[0];
  const int64_t offset = m.absorb != nullptr ? m.reader->Int("v_dim") : m.reader->Int("nope_dim");
  const double scale = m.absorb != nullptr ? m.reader->Float("scale") : m.scale->Float("by") / std::numbers::log2e;
  std::vector<Operand> operands = {q, m.norm != nullptr ? m.norm->operands[0] : m.store->operands[0], m.k->operands[0],
                                   m.q->operands[1], m.store->operands[2]};
  std::map<std::string, Attr, std::less<>> attrs = {
      {"heads", m.reader->Int("heads")}, {"nope_dim", offset}, {"scale", scale}};
  if (m.norm != nullptr) {
    operands.push_back(m.norm->operands[1]);
    attrs["eps"] = m.norm->Float("eps");
  }
  // In front of the attention all of them are there.
  XJIT_ASSIGN_OR_RETURN(Op * op,
                        InsertBefore(f, module, m.reader, OpCode::kLatentStore, operands, attrs, m.q->result()->name));
  m.reader->operands[0].value = op->result();
  if (m.absorb != nullptr) m.reader->attrs["scale"] = std::numbers::ln2;
  std::string name = m.q->result()->name;
  for (Op* old : {m.store, m.scale, m.q, m.k, m.norm}) {
    if (old != nullptr) f.Erase(old);
  }
  TakeName(op->result(), std::move(name));
  context.Fused(f, *op, m.norm != nullptr ? "norm, rope and latent store fused" : "rope and latent store fused");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PassResult> FuseLatentStore(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      if (f->ops[i]->code != OpCode::kKvStoreLatent) continue;
      Match m;
      if (const char* why = FindMatch(*f, f->ops[i].get(), &m)) {
        context.Missed(*f, *f->ops[i], why);
        continue;
      }
      XJIT_RETURN_IF_ERROR(Fuse(module, *f, m, context));
      ++fused;
      i = static_cast<size_t>(f->IndexOf(m.reader));
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
