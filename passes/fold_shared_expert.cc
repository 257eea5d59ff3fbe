// fold_shared_expert: a shared expert, a gated MLP beside the experts whose result is added to theirs, becomes one more
// expert that every token is sent to with weight 1: its weights are stacked behind the experts'. One c times as wide as
// an expert becomes c experts, slices of its rows (gate, up) and columns (down). Gain: two products, a pass over their
// intermediate and the barriers between them less; its work fills the experts' parallel loop. Before join_linears.
#include <algorithm>

#include "ir/support/dtype.h"
#include "ir/weight_rows.h"
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// down(act(gate x) * up x), of linears or expert_linears.
struct Mlp {
  Op* down = nullptr;
  Op* mul = nullptr;  // or clamped_swiglu
  Op* act = nullptr;  // nullptr with clamped_swiglu
  Op* gate = nullptr;
  Op* up = nullptr;
  std::vector<Op*> products() const { return {gate, up, down}; }
};

const char* kNoMlp = "it is not of gate, up and down alone";

const char* MatchMlp(const Function& f, Op* down, OpCode linear, Mlp* m) {
  m->down = down;
  m->mul = down->operand(0)->def;
  if (m->mul == nullptr || OnlyUser(f, m->mul->result()) != down) return kNoMlp;
  Value *gate = nullptr, *up = nullptr;
  if (m->mul->code == OpCode::kClampedSwiglu) {
    gate = m->mul->operand(0);
    up = m->mul->operand(1);
  } else if (m->mul->code == OpCode::kMul) {
    const auto is_act = [](const Value* v) {
      return v->def != nullptr && (v->def->code == OpCode::kSilu || v->def->code == OpCode::kGelu);
    };
    const size_t side = is_act(m->mul->operand(0)) ? 0 : 1;
    if (!is_act(m->mul->operand(side))) return kNoMlp;
    m->act = m->mul->operand(side)->def;
    if (OnlyUser(f, m->act->result()) != m->mul) return kNoMlp;
    gate = m->act->operand(0);
    up = m->mul->operand(1 - side);
  } else {
    return kNoMlp;
  }
  m->gate = DefOf(gate, linear);
  m->up = DefOf(up, linear);
  if (m->gate == nullptr || m->up == nullptr || m->gate == m->up) return kNoMlp;
  if (OnlyUser(f, gate) == nullptr || OnlyUser(f, up) == nullptr) return kNoMlp;
  return nullptr;
}

bool SameActivation(const Mlp& a, const Mlp& b) {
  if (a.mul->code != b.mul->code) return false;
  if (a.act == nullptr) return b.act == nullptr && a.mul->attrs == b.mul->attrs;
  return b.act != nullptr && a.act->code == b.act->code;
}

// Whether a matrix may be cut every `step` rows or columns without cutting what shares a scale or a block.
bool Divides(const Encoding& e, int64_t step, bool rows) {
  if (rows) return e.scales.kind != Scales::Kind::kBlock || step % e.scales.rows == 0;
  if (step % Info(e.type).block_elems != 0 || e.scales.act_order) return false;
  return (e.scales.kind != Scales::Kind::kBlock && e.scales.kind != Scales::Kind::kGroup) || step % e.scales.cols == 0;
}

struct Match {
  Op* add = nullptr;
  Op* combine = nullptr;
  Op* route = nullptr;
  Mlp experts, shared;
  int64_t copies = 0;  // the shared expert's width in experts
};

std::string WeightsBlocker(Match* m) {
  const int64_t n = m->experts.gate->weight(2)->type.rows();
  const int64_t width = m->shared.gate->weight(1)->type.rows();
  if (width % n != 0) return fmt::format("it is {} wide, an expert {}", width, n);
  m->copies = width / n;
  for (size_t i = 0; i < 3; ++i) {
    const Weight& all = *m->experts.products()[i]->weight(2);
    const Weight& one = *m->shared.products()[i]->weight(1);
    if (!all.part_rows.empty() || !all.stack_experts.empty() || !one.part_rows.empty())
      return fmt::format("@{} or @{} is joined already", all.name, one.name);
    if (all.type.encoding() != one.type.encoding()) {
      return fmt::format("@{} is {} but @{} is {}", one.name, ToString(one.type.encoding()), all.name,
                         ToString(all.type.encoding()));
    }
    const bool rows = i < 2;
    const int64_t factor_rows = rows ? m->copies : 1, factor_cols = rows ? 1 : m->copies;
    if (one.type.rows() != all.type.rows() * factor_rows || one.type.cols() != all.type.cols() * factor_cols)
      return fmt::format("@{} and @{} differ in shape", one.name, all.name);
    if (all.type.dims[0] != m->experts.gate->weight(2)->type.dims[0]) return "the experts' weights differ in number";
    if (m->copies > 1 && !Divides(one.type.encoding(), n, rows))
      return fmt::format("blocks of {} do not end every {} of @{}", ToString(one.type.encoding()), n, one.name);
  }
  return "";
}

std::string FindMatch(const Function& f, Op* add, Match* m) {
  m->add = add;
  Value* shared = add->operand(1);
  m->combine = DefOf(add->operand(0), OpCode::kCombine);
  if (m->combine == nullptr) {
    m->combine = DefOf(add->operand(1), OpCode::kCombine);
    shared = add->operand(0);
  }
  Op* expert_down = DefOf(m->combine->operand(0), OpCode::kExpertLinear);
  Op* shared_down = DefOf(shared, OpCode::kLinear);
  if (shared_down == nullptr) return "what is added to the experts is no linear";
  if (OnlyUser(f, shared) != add || OnlyUser(f, m->combine->result()) != add)
    return "experts or shared expert have a second user";
  if (expert_down == nullptr || OnlyUser(f, expert_down->result()) != m->combine) return "no expert_linear is combined";
  if (const char* why = MatchMlp(f, expert_down, OpCode::kExpertLinear, &m->experts)) return why;
  if (const char* why = MatchMlp(f, shared_down, OpCode::kLinear, &m->shared)) return why;
  if (!SameActivation(m->experts, m->shared)) return "experts and shared expert differ in their activation";
  const Value *x = m->experts.gate->operand(0), *chosen = m->experts.gate->operand(1);
  for (const Op* op : {m->experts.gate, m->experts.up, m->shared.gate, m->shared.up}) {
    if (op->operand(0) != x) return "experts and shared expert read different inputs";
  }
  m->route = DefOf(chosen, OpCode::kRoute);
  if (m->route == nullptr || m->combine->operand(1) != m->route->result(1)) return "no route chooses the experts";
  if (m->route->result(0) != chosen || f.Users(m->route->result(1)).size() != 1 || f.Users(chosen).size() != 3)
    return "the route has a further user";
  // The route's numbers are those of the experts that it scores.
  if (m->route->Int("constant") != 0) return "the route has constant experts already";
  if (m->route->operand(0)->type.cols() != m->experts.gate->weight(2)->type.dims[0].size)
    return "the route scores other experts";
  for (const Op* op : m->experts.products()) {
    if (op->operand(1) != chosen || op->Has("first")) return "the experts' products are of different experts";
  }
  return WeightsBlocker(m);
}

// The experts' weight with the shared one stacked behind, in `copies` slices of dimension `dim`; nullptr: the function
// has another weight of that name.
absl::StatusOr<Weight*> Stack(Function& f, const Weight& all, const Weight& one, int64_t copies, int dim) {
  std::string name = all.name;
  Type type = all.type;
  std::vector<int64_t> stacks = {type.dims[0].size};
  const int64_t size = one.type.dims[static_cast<size_t>(dim)].size / copies;
  for (int64_t c = 0; c < copies; ++c) {
    std::string slice = one.name;
    if (copies > 1) {
      XJIT_ASSIGN_OR_RETURN(slice, SliceWeightName(one.name, 2, dim, c * size, (c + 1) * size));
    }
    name += fmt::format("&{}", slice);
    stacks.push_back(1);
  }
  type.dims[0].size += copies;
  if (const Weight* found = f.FindWeight(name);
      found != nullptr && (found->type != type || found->stack_experts != stacks)) {
    return nullptr;
  }
  Weight* stacked = f.AddWeight(name, type);
  stacked->stack_experts = std::move(stacks);
  return stacked;
}

absl::StatusOr<bool> Fold(const Module& module, Function& f, const Match& m) {
  std::vector<Weight*> stacked;
  for (size_t i = 0; i < 3; ++i) {
    XJIT_ASSIGN_OR_RETURN(Weight * w, Stack(f, *m.experts.products()[i]->weight(2), *m.shared.products()[i]->weight(1),
                                            m.copies, i < 2 ? 0 : 1));
    if (w == nullptr) return false;
    stacked.push_back(w);
  }
  for (size_t i = 0; i < 3; ++i) m.experts.products()[i]->operands[2].weight = stacked[i];
  m.route->attrs["constant"] = m.copies;
  FoldInto(f, m.add, m.combine);
  for (const Op* op : {m.shared.down, m.shared.mul, m.shared.act, m.shared.gate, m.shared.up}) {
    if (op != nullptr) f.Erase(op);
  }
  XJIT_RETURN_IF_ERROR(RefreshTypes(module, f));
  return true;
}

}  // namespace

absl::StatusOr<PassResult> FoldSharedExpert(Module& module, PassContext& context) {
  int folded = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* add = f->ops[i].get();
      if (add->code != OpCode::kAdd) continue;
      if (DefOf(add->operand(0), OpCode::kCombine) == nullptr && DefOf(add->operand(1), OpCode::kCombine) == nullptr)
        continue;
      Match m;
      std::string why = FindMatch(*f, add, &m);
      if (why.empty()) {
        XJIT_ASSIGN_OR_RETURN(const bool done, Fold(module, *f, m));
        if (!done) why = "there is another weight of the stacked one's name";
      }
      if (!why.empty()) {
        context.Missed(*f, *add, why);
        continue;
      }
      context.Fused(*f, *m.combine, fmt::format("the shared expert is {} more", m.copies));
      ++folded;
      i = static_cast<size_t>(f->IndexOf(m.combine));
    }
  }
  return PassResult::Changed(folded);
}

}  // namespace xjit
