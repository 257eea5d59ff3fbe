// fuse_silu_mul: silu(gate) * up, where gate and up are the halves of one joined gemm, becomes that gemm's epilogue;
// the weight's rows are interleaved by 16 so that a kernel has both columns in registers. Gain: the [m, 2 ffn]
// intermediate is never written. After join_linears and fuse_bias.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

struct Match {
  Op* mul;
  Op* silu;
  Op* gate;  // slice
  Op* up;    // slice
  Op* gemm;
};

// Fills the match, or says what is in the way; nullptr and an empty match where there is no silu at all.
const char* FindMatch(const Function& f, Op* mul, Match* m) {
  *m = {mul, nullptr, nullptr, nullptr, nullptr};
  for (int side = 0; side < 2 && m->silu == nullptr; ++side) {
    m->silu = DefOf(mul->operand(static_cast<size_t>(side)), OpCode::kSilu);
    if (m->silu != nullptr) m->up = DefOf(mul->operand(static_cast<size_t>(1 - side)), OpCode::kSlice);
  }
  if (m->silu == nullptr) return "no operand is a silu";
  m->gate = DefOf(m->silu->operand(0), OpCode::kSlice);
  if (m->gate == nullptr || m->up == nullptr) return "gate and up are not of one joined gemm";
  m->gemm = DefOf(m->gate->operand(0), OpCode::kGemm);
  if (m->gemm == nullptr || m->up->operand(0) != m->gemm->result()) return "gate and up are not of one joined gemm";
  const Weight& w = *m->gemm->weight(1);
  const int64_t half = m->gemm->result()->type.cols() / 2;
  if (w.part_rows.size() != 2 || w.part_rows[0] != w.part_rows[1] || w.interleaved())
    return "the gemm does not join two equal parts";
  if (m->gate->Int("from") != 0 || m->gate->Int("to") != half || m->up->Int("from") != half ||
      m->up->Int("to") != 2 * half) {
    return "gate and up are not the gemm's halves";
  }
  for (const ChainItem& item : m->gemm->ChainAttr("epilogue")) {
    if (item.name != "bias") return "the gemm's epilogue is taken";
    const Weight& bias = *m->gemm->operands[static_cast<size_t>(std::get<int>(item.args[0]))].weight;
    if (bias.part_rows != w.part_rows || bias.interleaved()) return "the bias does not join the same parts";
  }
  if (OnlyUser(f, m->silu->result()) != mul) return "the silu has a second user";
  if (OnlyUser(f, m->gate->result()) != m->silu) return "gate has a second user";
  if (OnlyUser(f, m->up->result()) != mul) return "up has a second user";
  if (f.Users(m->gemm->result()).size() != 2) return "the gemm has a further user";
  return nullptr;
}

Weight* Interleave(Function& f, const Weight& joined) {
  std::string name = joined.name;
  name[name.find('+')] = '|';
  Weight* w = f.AddWeight(name, joined.type);
  w->part_rows = joined.part_rows;
  return w;
}

}  // namespace

absl::StatusOr<PassResult> FuseSiluMul(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      if (f->ops[i]->code != OpCode::kMul) continue;
      Match m;
      if (const char* why = FindMatch(*f, f->ops[i].get(), &m)) {
        context.Missed(*f, *f->ops[i], why);
        continue;
      }
      m.gemm->operands[1].weight = Interleave(*f, *m.gemm->weight(1));
      if (const ChainItem* bias = m.gemm->Item("epilogue", "bias")) {
        Operand& o = m.gemm->operands[static_cast<size_t>(std::get<int>(bias->args[0]))];
        o.weight = Interleave(*f, *o.weight);
      }
      m.gemm->AddItem("epilogue", "silu_mul", {});
      m.gemm->result()->type = m.mul->result()->type;
      std::string name = m.mul->result()->name;
      f->ReplaceUses(m.mul->result(), m.gemm->result());
      for (Op* op : {m.mul, m.silu, m.gate, m.up}) f->Erase(op);
      TakeName(m.gemm->result(), std::move(name));
      context.Fused(*f, *m.gemm, "silu_mul fused");
      ++fused;
      i = static_cast<size_t>(f->IndexOf(m.gemm));
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
