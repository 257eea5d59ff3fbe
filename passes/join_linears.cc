// join_linears: linears that read the same x and whose weights have the same encoding, scales included, become one
// linear over the weights' rows one after the other, followed by slices; biases are joined alike. Those that feed one
// multiplication (gate and up) are joined with each other only, so that fuse_glu finds two halves, and a router with
// nothing. Slices of one symbol stay parts: where q, k and v begin is what sharding asks for. Scales stay per part, so
// blocks need not divide the rows. Gain: x is fetched, normed and quantised once, and the threads share one larger
// product. After canonicalize, before linear_to_gemm. Experts' gate and up: fuse_glu.
#include "passes/pass.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// A linear and the add_bias that alone reads it, if there is one.
struct Member {
  Op* linear;
  Op* bias;
  const Op* feeds;  // the multiplication or route that reads it, through an activation or not; else nullptr
  Value* result() const { return bias != nullptr ? bias->result() : linear->result(); }
};

const Op* Feeds(const Function& f, const Value* value) {
  const Op* user = OnlyUser(f, value);
  if (user != nullptr && (user->code == OpCode::kSilu || user->code == OpCode::kGelu))
    user = OnlyUser(f, user->result());
  const bool glu = user != nullptr && (user->code == OpCode::kMul || user->code == OpCode::kClampedSwiglu);
  return glu || (user != nullptr && user->code == OpCode::kRoute) ? user : nullptr;
}

Member MemberOf(const Function& f, Op* linear) {
  Op* user = OnlyUser(f, linear->result());
  Member m{linear, user != nullptr && user->code == OpCode::kAddBias ? user : nullptr, nullptr};
  m.feeds = Feeds(f, m.result());
  return m;
}

// Joins the members, or says why it cannot.
absl::StatusOr<const char*> Join(Module& module, Function& f, const std::vector<Member>& members) {
  std::vector<Weight*> weights, biases;
  std::string name;
  for (const Member& m : members) {
    weights.push_back(m.linear->weight(1));
    if (m.bias != nullptr) biases.push_back(m.bias->weight(1));
    const std::string& symbol = m.linear->weight(1)->name;
    if (!name.empty()) name += '_';
    name += symbol.substr(0, symbol.find('['));
  }
  Weight* weight = JoinWeights(f, weights, '+');
  Weight* bias = biases.empty() ? nullptr : JoinWeights(f, biases, '+');
  if (weight == nullptr || (bias == nullptr && !biases.empty()))
    return "there is another weight of the joined one's name";
  // In front of the first member: x is defined there, and every user of a member comes later.
  const Op* at = members[0].linear;
  Value* x = members[0].linear->operand(0);
  XJIT_ASSIGN_OR_RETURN(Op * op,
                        InsertBefore(f, module, at, OpCode::kLinear, {{x, nullptr}, {nullptr, weight}}, {}, name));
  if (bias != nullptr) {
    XJIT_ASSIGN_OR_RETURN(
        op, InsertBefore(f, module, at, OpCode::kAddBias, {{op->result(), nullptr}, {nullptr, bias}}, {}, name));
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
  return nullptr;
}

bool CanJoin(PassContext& context, const Function& f, const Member& a, const Member& b) {
  if (a.linear->operand(0) != b.linear->operand(0)) return false;
  std::string why = JoinBlocker(*a.linear->weight(1), *b.linear->weight(1));
  if (why.empty() && (a.bias != nullptr) != (b.bias != nullptr)) why = "one has a bias, the other has none";
  if (why.empty() && a.bias != nullptr) why = JoinBlocker(*a.bias->weight(1), *b.bias->weight(1));
  if (why.empty() && a.feeds != b.feeds) {
    why = fmt::format("it feeds {}, @{} feeds {}", b.feeds != nullptr ? Name(b.feeds->code) : "others",
                      a.linear->weight(1)->name, a.feeds != nullptr ? Name(a.feeds->code) : "others");
  }
  if (!why.empty()) context.Missed(f, *b.linear, why);
  return why.empty();
}

}  // namespace

absl::StatusOr<PassResult> JoinLinears(Module& module, PassContext& context) {
  int joined = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* first = f->ops[i].get();
      if (first->code != OpCode::kLinear || !first->weight(1)->part_rows.empty()) continue;
      std::vector<Member> members = {MemberOf(*f, first)};
      for (size_t j = i + 1; j < f->ops.size(); ++j) {
        if (f->ops[j]->code != OpCode::kLinear || !f->ops[j]->weight(1)->part_rows.empty()) continue;
        const Member other = MemberOf(*f, f->ops[j].get());
        if (CanJoin(context, *f, members[0], other)) members.push_back(other);
      }
      if (members.size() < 2) continue;
      XJIT_ASSIGN_OR_RETURN(const char* why, Join(module, *f, members));
      if (why != nullptr) {
        context.Missed(*f, *first, why);
        continue;
      }
      // The joined linear, which has parts, now stands at i.
      context.Fused(*f, *f->ops[i], fmt::format("{} joined", members.size()));
      joined += static_cast<int>(members.size());
    }
  }
  return PassResult::Changed(joined);
}

}  // namespace xjit
