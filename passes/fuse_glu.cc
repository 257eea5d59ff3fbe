// fuse_glu: gate and up multiplied (silu(gate) * up, gelu(gate) * up, clamped_swiglu) become the epilogue of the
// product that makes both; the weight's rows are interleaved by 16 so that a kernel has both columns in registers. gate
// and up are the halves of one joined gemm, or two grouped_gemms of the same x and experts, which are joined here: no
// slice of columns could tell the halves of several slots apart. Gain: the [m, 2 ffn] intermediate is never written.
// After join_linears, group_experts and fuse_bias.
#include "ir/chains.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

struct Match {
  Op* mul = nullptr;  // or clamped_swiglu
  Op* act = nullptr;  // silu or gelu; none of clamped_swiglu
  Op* gate = nullptr;
  Op* up = nullptr;       // slices, or grouped_gemms
  Op* product = nullptr;  // what makes both; of grouped_gemms the gate
};

Op* Activation(const Value* value) {
  Op* silu = DefOf(value, OpCode::kSilu);
  return silu != nullptr ? silu : DefOf(value, OpCode::kGelu);
}

const char* GluName(const Match& m) {
  if (m.act == nullptr) return "clamped_swiglu";
  return m.act->code == OpCode::kSilu ? "silu_mul" : "gelu_mul";
}

const Weight* BiasOf(const Op& product) {
  const ChainItem* bias = product.Item("epilogue", "bias");
  return bias == nullptr ? nullptr : ItemOperand(product, *bias).weight;
}

std::string HalvesBlocker(const Function& f, Match* m) {
  const char* apart = "gate and up are not of one joined gemm";
  m->product = DefOf(m->gate->operand(0), OpCode::kGemm);
  if (m->product == nullptr || m->up->operand(0) != m->product->result()) return apart;
  const Weight& w = *m->product->weight(1);
  const int64_t half = m->product->result()->type.cols() / 2;
  if (w.part_rows.size() != 2 || w.part_rows[0] != w.part_rows[1] || w.interleaved())
    return "the gemm does not join two equal parts";
  if (m->gate->Int("from") != 0 || m->gate->Int("to") != half || m->up->Int("from") != half ||
      m->up->Int("to") != 2 * half) {
    return "gate and up are not the gemm's halves";
  }
  if (const char* why = EpilogueBlocker(*m->product, GluName(*m))) return why;
  if (const Weight* bias = BiasOf(*m->product);
      bias != nullptr && (bias->part_rows != w.part_rows || bias->interleaved())) {
    return "the bias does not join the same parts";
  }
  if (f.Users(m->product->result()).size() != 2) return "the gemm has a further user";
  return "";
}

std::string ExpertsBlocker(Match* m) {
  m->product = m->gate;
  const Op &gate = *m->gate, &up = *m->up;
  const size_t fixed = gate.operands.size() - ChainOperands(gate);
  bool same = fixed == up.operands.size() - ChainOperands(up) && SameShare(gate, up);
  for (size_t i = 0; same && i < fixed; ++i) same = i == 2 || gate.operands[i] == up.operands[i];
  if (!same) return "gate and up read other rows or experts";
  if (std::string why = JoinBlocker(*gate.weight(2), *up.weight(2)); !why.empty()) return why;
  if (gate.weight(2)->type != up.weight(2)->type) return "gate and up differ in rows";
  for (const Op* op : {&gate, &up}) {
    if (!op->ChainAttr("prologue").empty()) return "the gemm's prologue is taken";
    if (const char* why = EpilogueBlocker(*op, GluName(*m))) return why;
  }
  const Weight *gate_bias = BiasOf(gate), *up_bias = BiasOf(up);
  if ((gate_bias == nullptr) != (up_bias == nullptr)) return "one has a bias, the other has none";
  return gate_bias == nullptr ? "" : JoinBlocker(*gate_bias, *up_bias);
}

// Fills the match, or says what is in the way.
std::string FindMatch(const Function& f, Op* mul, Match* m) {
  m->mul = mul;
  Value *gate = mul->operand(0), *up = mul->operand(1);
  if (mul->code == OpCode::kMul) {
    m->act = Activation(gate);
    if (m->act == nullptr) {
      std::swap(gate, up);
      m->act = Activation(gate);
    }
    if (m->act == nullptr) return "no operand is a silu or gelu";
    gate = m->act->operand(0);
    if (OnlyUser(f, m->act->result()) != mul) return "the activation has a second user";
  }
  m->gate = gate->def;
  m->up = up->def;
  const char* apart = "gate and up are not of one joined gemm";
  if (m->gate == nullptr || m->up == nullptr || m->gate == m->up || m->gate->code != m->up->code) return apart;
  std::string why = m->gate->code == OpCode::kSlice         ? HalvesBlocker(f, m)
                    : m->gate->code == OpCode::kGroupedGemm ? ExpertsBlocker(m)
                                                            : apart;
  if (!why.empty()) return why;
  if (OnlyUser(f, gate) != (m->act != nullptr ? m->act : mul)) return "gate has a second user";
  if (OnlyUser(f, up) != mul) return "up has a second user";
  return "";
}

// The weight whose parts alternate: of a joined one, or of two.
Weight* Interleave(Function& f, Weight* gate, Weight* up) {
  if (up != nullptr) return JoinWeights(f, {gate, up}, '|');
  std::string name = gate->name;
  name[name.find('+')] = '|';
  if (const Weight* found = f.FindWeight(name);
      found != nullptr && (found->type != gate->type || found->part_rows != gate->part_rows)) {
    return nullptr;
  }
  Weight* w = f.AddWeight(name, gate->type);
  w->part_rows = gate->part_rows;
  return w;
}

bool Rewrite(Function& f, const Match& m) {
  Op* product = m.product;
  Op* other = m.gate->code == OpCode::kGroupedGemm ? m.up : nullptr;
  Weight* w = Interleave(f, WeightOf(*product), other == nullptr ? nullptr : WeightOf(*other));
  if (w == nullptr) return false;
  if (const ChainItem* item = product->Item("epilogue", "bias")) {
    Operand& o = product->operands[static_cast<size_t>(std::get<int>(item->args[0]))];
    Weight* bias = Interleave(f, o.weight, other == nullptr ? nullptr : const_cast<Weight*>(BiasOf(*other)));
    if (bias == nullptr) return false;
    o.weight = bias;
  }
  product->operands[WeightIndex(*product)].weight = w;
  std::vector<double> numbers;
  if (m.act == nullptr) numbers = {m.mul->Float("limit"), m.mul->Float("alpha")};
  product->AddItem("epilogue", GluName(m), {}, numbers);
  FoldInto(f, m.mul, product);
  for (Op* op : {m.act, m.up, other == nullptr ? m.gate : nullptr}) {
    if (op != nullptr) f.Erase(op);
  }
  return true;
}

}  // namespace

absl::StatusOr<PassResult> FuseGlu(Module& module, PassContext& context) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      if (f->ops[i]->code != OpCode::kMul && f->ops[i]->code != OpCode::kClampedSwiglu) continue;
      Match m;
      if (const std::string why = FindMatch(*f, f->ops[i].get(), &m); !why.empty()) {
        context.Missed(*f, *f->ops[i], why);
        continue;
      }
      const char* name = GluName(m);
      if (!Rewrite(*f, m)) {
        context.Missed(*f, *f->ops[i], "there is another weight of the interleaved one's name");
        continue;
      }
      context.Fused(*f, *m.product, fmt::format("{} fused", name));
      ++fused;
      i = static_cast<size_t>(f->IndexOf(m.product));
    }
  }
  return PassResult::Changed(fused);
}

}  // namespace xjit
