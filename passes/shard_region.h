// A region: the ops between products whose rows are dealt to ranks and one whose columns are. Every rank works on its
// own columns of the values in it, and only the last product's results have to be added up.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "passes/pass.h"
#include "passes/shard_split.h"

namespace xjit {

// Columns of a value that a rank holds: the same of each of its slots.
struct Columns {
  std::vector<Span> spans;  // ascending, apart
  int64_t slots = 1;
  bool operator==(const Columns&) const = default;
};

// A rank's query heads, the KV heads that they read, and how many read each.
struct HeadShare {
  Span heads;
  Span kv_heads;
  std::vector<int64_t> groups;
};

// What a value is computed from, through ops that work on columns one by one: an attention, or products.
struct Anchor {
  Op* heads = nullptr;        // attention in some form, or absorb_v
  std::vector<Op*> products;  // whose results are of columns
};
Anchor FindAnchor(const Value* x);

// The weight operand of a product, nullptr of other ops.
Weight* ProductWeight(const Op& op);
bool IsExpertOp(const Op& op);
// Whether an operand but the first is the value.
bool ReadsBeyondFirst(const Op& op, const Value* value);
// The op that wrote the cache which `reader` reads: the last store before it.
Op* StoreOf(const Function& f, const Op* reader);

class Region {
 public:
  // `claimed`: ops that are part of other regions.
  Region(Module& module, Function& f, const std::set<const Op*>& claimed) : module_(module), f_(f), claimed_(claimed) {}

  // Finds what has to be done so that `user` gets columns `want` of x; `share` is the anchor's, where it has heads. The
  // answer is what is in the way, or "".
  std::string Plan(Op* user, Value* x, Columns want, const HeadShare* share);
  // Does it. Types of results are left as they are.
  absl::Status Apply();

  std::vector<Op*> ops() const { return ops_; }
  // Values that every rank computes as a whole although it needs a part: "%k: ...".
  const std::vector<std::string>& kept() const { return kept_; }

 private:
  using Demands = std::vector<std::pair<Value*, Columns>>;

  std::string Visit(Op* op, Demands* demands);
  std::string VisitProduct(const Op& op, const Columns& want);
  std::string VisitHeads(Op* op, const Columns& want, Demands* demands);
  std::string VisitStore(Op* op, Demands* demands);
  std::string Settle(const Value* value, Columns* want) const;
  std::string Demand(Op* user, Value* value, const Columns& columns);
  absl::Status ApplyTo(Op* op);
  absl::Status ApplySlice(Op* op);
  absl::Status ApplyWeights(Op* op, const Columns& want);
  absl::Status ApplyHeads(Op* op);

  Module& module_;
  Function& f_;
  const std::set<const Op*>& claimed_;
  const HeadShare* share_ = nullptr;
  std::map<const Value*, std::vector<std::pair<const Op*, Columns>>> demands_;  // by value: who wants what
  std::map<const Value*, Columns> held_;                                        // values of which a rank holds a part
  std::set<const Op*> stores_;
  std::vector<Op*> ops_;     // to be rewritten
  std::vector<Op*> slices_;  // of values in the region, read outside
  std::vector<std::string> kept_;
};

}  // namespace xjit
