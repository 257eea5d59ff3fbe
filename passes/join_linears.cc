// join_linears: linears that read the same x and whose weights have the same encoding become one linear over the
// weights' rows one after the other, followed by slices; biases are joined alike. Gain: x is fetched, normed and
// quantised once, and the threads share one larger product. After canonicalize, before linear_to_gemm.
#include <algorithm>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// A linear and the add_bias that alone reads it, if there is one.
struct Member {
  Op* linear;
  Op* bias;
  Value* result() const { return bias != nullptr ? bias->result() : linear->result(); }
};

Member MemberOf(const Function& f, Op* linear) {
  Op* user = OnlyUser(f, linear->result());
  return {linear, user != nullptr && user->code == OpCode::kAddBias ? user : nullptr};
}

Weight* JoinWeights(Function& f, const std::vector<Weight*>& parts) {
  std::string name;
  Type type = parts[0]->type;
  type.dims[0].size = 0;
  std::vector<int64_t> rows;
  for (const Weight* w : parts) {
    name += (name.empty() ? "" : "+") + w->name;
    rows.push_back(w->type.dims[0].size);
    type.dims[0].size += rows.back();
  }
  Weight* joined = f.AddWeight(name, type);
  joined->part_rows = std::move(rows);
  return joined;
}

absl::Status Join(Module& module, Function& f, const std::vector<Member>& members) {
  std::vector<Weight*> weights, biases;
  std::string name;
  for (const Member& m : members) {
    weights.push_back(m.linear->weight(1));
    if (m.bias != nullptr) biases.push_back(m.bias->weight(1));
    name += (name.empty() ? "" : "_") + m.linear->weight(1)->name;
  }
  // In front of the first member: x is defined there, and every user of a member comes later.
  const Op* at = members[0].linear;
  Value* x = members[0].linear->operand(0);
  XJIT_ASSIGN_OR_RETURN(Op * op, InsertBefore(f, module, at, OpCode::kLinear,
                                              {{x, nullptr}, {nullptr, JoinWeights(f, weights)}}, {}, name));
  if (!biases.empty()) {
    XJIT_ASSIGN_OR_RETURN(op, InsertBefore(f, module, at, OpCode::kAddBias,
                                           {{op->result(), nullptr}, {nullptr, JoinWeights(f, biases)}}, {}, name));
  }
  int64_t from = 0;
  std::vector<Value*> slices;
  for (const Member& m : members) {
    const int64_t to = from + m.result()->type.cols();
    XJIT_ASSIGN_OR_RETURN(Op * slice, InsertBefore(f, module, at, OpCode::kSlice, {{op->result(), nullptr}},
                                                   {{"from", from}, {"to", to}}, m.result()->name));
    f.ReplaceUses(m.result(), slice->result());
    slices.push_back(slice->result());
    from = to;
  }
  for (size_t i = 0; i < members.size(); ++i) {
    std::string name_of_member = members[i].result()->name;
    if (members[i].bias != nullptr) f.Erase(members[i].bias);
    f.Erase(members[i].linear);
    TakeName(slices[i], std::move(name_of_member));
  }
  return absl::OkStatus();
}

bool CanJoin(PassContext& context, const Function& f, const Member& a, const Member& b) {
  if (a.linear->operand(0) != b.linear->operand(0)) return false;
  const Type& ta = a.linear->weight(1)->type;
  const Type& tb = b.linear->weight(1)->type;
  if (ta.elem != tb.elem) {
    context.Missed(f, *b.linear,
                   fmt::format("@{} is {} but @{} is {}", b.linear->weight(1)->name, Name(tb.elem),
                               a.linear->weight(1)->name, Name(ta.elem)));
    return false;
  }
  if ((a.bias != nullptr) != (b.bias != nullptr)) {
    context.Missed(f, *b.linear, "one has a bias, the other has none");
    return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<PassResult> JoinLinears(Module& module, PassContext& context) {
  int joined = 0;
  for (auto& f : module.functions) {
    std::vector<const Op*> done;
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* first = f->ops[i].get();
      if (first->code != OpCode::kLinear || !first->weight(1)->part_rows.empty() ||
          std::find(done.begin(), done.end(), first) != done.end())
        continue;
      std::vector<Member> members = {MemberOf(*f, first)};
      for (size_t j = i + 1; j < f->ops.size(); ++j) {
        if (f->ops[j]->code != OpCode::kLinear || !f->ops[j]->weight(1)->part_rows.empty()) continue;
        const Member other = MemberOf(*f, f->ops[j].get());
        if (CanJoin(context, *f, members[0], other)) members.push_back(other);
      }
      if (members.size() < 2) continue;
      context.Fused(*f, *first, fmt::format("joined with {} more", members.size() - 1));
      XJIT_RETURN_IF_ERROR(Join(module, *f, members));
      joined += static_cast<int>(members.size());
      // The joined linear now stands at i.
      done.push_back(f->ops[i].get());
    }
  }
  return PassResult::Changed(joined);
}

}  // namespace xjit
