#include "passes/shard_region.h"

#include <algorithm>

#include "ir/chains.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

int64_t Cols(const Value* v) { return v->type.cols(); }

// Columns of a value beside each other, touching ones as one.
std::vector<Span> Union(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](Span a, Span b) { return a.begin < b.begin; });
  std::vector<Span> all;
  for (const Span& s : spans) {
    if (!all.empty() && s.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, s.end);
    } else {
      all.push_back(s);
    }
  }
  return all;
}

// Where [span) lies among the columns that are held; begin < 0: not all of it is, or not in one piece.
Span Local(const std::vector<Span>& held, Span span) {
  int64_t at = 0;
  for (const Span& s : held) {
    if (span.begin >= s.begin && span.end <= s.end) return {at + span.begin - s.begin, at + span.end - s.begin};
    at += s.size();
  }
  return {-1, -1};
}

// In units of `each` columns; begin < 0: not whole units of one run.
Span InUnits(const Columns& columns, int64_t each) {
  if (columns.slots != 1 || columns.spans.size() != 1 || each < 1) return {-1, -1};
  const Span s = columns.spans[0];
  if (s.begin % each != 0 || s.end % each != 0) return {-1, -1};
  return {s.begin / each, s.end / each};
}

Columns Of(Span units, int64_t each) { return {{{units.begin * each, units.end * each}}, 1}; }

bool IsAttention(OpCode code) { return code == OpCode::kAttention || code == OpCode::kFlashAttention; }
bool IsExpanded(OpCode code) { return code == OpCode::kMlaAttention || code == OpCode::kMlaExtend; }
bool IsStore(OpCode code) {
  return code == OpCode::kKvStore || code == OpCode::kRopeStore || code == OpCode::kKvStoreLatent ||
         code == OpCode::kLatentStore;
}

bool Attends(const Op& op) { return IsAttention(op.code) || IsExpanded(op.code); }

}  // namespace

Weight* ProductWeight(const Op& op) {
  return IsProduct(op) || op.code == OpCode::kLinear || op.code == OpCode::kExpertLinear ? WeightOf(op) : nullptr;
}

bool ReadsBeyondFirst(const Op& op, const Value* value) {
  return std::any_of(op.operands.begin() + 1, op.operands.end(),
                     [value](const Operand& o) { return o.value == value; });
}

bool IsExpertOp(const Op& op) {
  return op.code == OpCode::kGroupedGemm || op.code == OpCode::kExpertLinear || op.code == OpCode::kExpertBias;
}

Op* StoreOf(const Function& f, const Op* reader) {
  Op* store = nullptr;
  for (const auto& op : f.ops) {
    if (op.get() == reader) return store;
    if (IsStore(op->code)) store = op.get();
  }
  return nullptr;
}

Anchor FindAnchor(const Value* x) {
  Anchor anchor;
  std::set<const Op*> seen;
  std::vector<const Value*> left = {x};
  while (!left.empty()) {
    Op* op = left.back()->def;
    left.pop_back();
    if (op == nullptr || !seen.insert(op).second) continue;
    if (Attends(*op) || op->code == OpCode::kAbsorbV) {
      if (anchor.heads == nullptr) anchor.heads = op;
    } else if (ProductWeight(*op) != nullptr) {
      if (op->Item("epilogue", "combine") == nullptr) anchor.products.push_back(op);
    } else if (op->code == OpCode::kExpertBias || op->code == OpCode::kSlice) {
      left.push_back(op->operand(0));
    } else if (Info(op->code).elementwise) {
      for (const Operand& o : op->operands) {
        if (o.value != nullptr) left.push_back(o.value);
      }
    }
  }
  return anchor;
}

std::string Region::Demand(Op* user, Value* value, const Columns& columns) {
  if (value->def != nullptr && claimed_.contains(value->def)) {
    return fmt::format("%{} is already shared out in another way", value->name);
  }
  auto& demands = demands_[value];
  for (const auto& [reader, other] : demands) {
    if (reader == user && other != columns)
      return fmt::format("different columns of %{} are read at once", value->name);
  }
  demands.emplace_back(user, columns);
  return "";
}

// The columns of a value that a rank is to hold: all that the region's ops and slices outside of it want.
std::string Region::Settle(const Value* value, Columns* want) const {
  std::vector<Span> spans;
  const auto& demands = demands_.at(value);
  want->slots = demands[0].second.slots;
  for (const auto& [user, columns] : demands) {
    if (columns.slots != want->slots) return "it is read with and without slots";
    spans.insert(spans.end(), columns.spans.begin(), columns.spans.end());
  }
  for (const Op* user : f_.Users(value)) {
    if (std::any_of(demands.begin(), demands.end(), [user](const auto& d) { return d.first == user; })) continue;
    if (user->code != OpCode::kSlice || want->slots != 1) return fmt::format("{} needs all of it", Name(user->code));
    // Of columns that are dealt some rank would hold both its own and these: ranks must decide alike.
    const Span other{user->Int("from"), user->Int("to")};
    for (const auto& [reader, columns] : demands) {
      if (reader->code != OpCode::kSlice || (reader->Int("from") < other.end && other.begin < reader->Int("to"))) {
        return "a slice needs columns that are dealt to ranks";
      }
    }
    spans.push_back(other);
  }
  want->spans = Union(std::move(spans));
  for (const auto& [user, columns] : demands) {
    if (user->code != OpCode::kSlice && columns != *want) return "readers need different columns of it";
  }
  return "";
}

std::string Region::Plan(Op* user, Value* x, Columns want, const HeadShare* share) {
  share_ = share;
  const Anchor anchor = FindAnchor(x);
  if (ReadsBeyondFirst(*user, x)) return "what it adds is its x";
  if (std::string why = Demand(user, x, want); !why.empty()) return why;
  int anchored = 0;
  for (int i = f_.IndexOf(user) - 1; i >= 0; --i) {
    Op* op = f_.ops[static_cast<size_t>(i)].get();
    Value* result = op->results.empty() ? nullptr : op->result();
    const bool wanted = result != nullptr && demands_.contains(result);
    if (!wanted && !stores_.contains(op)) continue;
    Columns held;
    std::string why = wanted ? Settle(result, &held) : "";
    const bool all = why.empty() && held.slots == 1 && held.spans == std::vector<Span>{{0, result ? Cols(result) : 0}};
    if (why.empty() && wanted && !all) {
      held_[result] = held;
      Demands demands;
      why = Visit(op, &demands);
      if (why.empty()) {
        for (const auto& [value, columns] : demands) {
          if (std::string claimed = Demand(op, value, columns); !claimed.empty()) return claimed;
        }
      }
    } else if (why.empty() && !wanted) {
      Demands demands;
      why = VisitStore(op, &demands);
      for (const auto& [value, columns] : demands) {
        if (std::string claimed = Demand(op, value, columns); !claimed.empty()) return claimed;
      }
    }
    const bool is_anchor = op == anchor.heads || std::count(anchor.products.begin(), anchor.products.end(), op) > 0;
    if (!why.empty() && (stores_.contains(op) || Attends(*op))) return why;
    if (why.empty() && !all) {
      ops_.insert(ops_.begin(), op);
      if (is_anchor) ++anchored;
      continue;
    }
    // Every rank computes all of it; those who need a part take a slice.
    if (!all) {
      held_.erase(result);
      kept_.push_back(fmt::format("%{} is computed by every rank: {}", result->name, why));
    }
  }
  for (const auto& [value, demands] : demands_) {
    if (held_.contains(value)) continue;
    for (const auto& [reader, columns] : demands) {
      if (reader->code == OpCode::kSlice || (columns.slots == 1 && columns.spans.size() == 1)) continue;
      return fmt::format("%{} is computed by every rank and read in pieces", value->name);
    }
  }
  if (anchored == 0) return kept_.empty() ? "nothing that it is computed from can be shared out" : kept_.back();
  for (const auto& [value, held] : held_) {
    for (Op* reader : f_.Users(value)) {
      const auto& demands = demands_[value];
      if (std::none_of(demands.begin(), demands.end(), [reader](const auto& d) { return d.first == reader; })) {
        slices_.push_back(reader);
      }
    }
  }
  return "";
}

std::string Region::Visit(Op* op, Demands* demands) {
  const Columns& want = held_.at(op->result());
  if (claimed_.contains(op)) return "it is already shared out in another way";
  if (stores_.contains(op) || op->code == OpCode::kRopeStore || op->code == OpCode::kLatentStore) {
    return VisitStore(op, demands);
  }
  if (Attends(*op) || op->code == OpCode::kAbsorbQ || op->code == OpCode::kAbsorbV || op->code == OpCode::kRope) {
    return VisitHeads(op, want, demands);
  }
  if (ProductWeight(*op) != nullptr) return VisitProduct(*op, want);
  switch (op->code) {
    case OpCode::kSlice: {
      Columns source{{}, want.slots};
      if (want.slots != 1) return "a slice of slots";
      for (const Span& s : want.spans) source.spans.push_back({s.begin + op->Int("from"), s.end + op->Int("from")});
      demands->emplace_back(op->operand(0), source);
      return "";
    }
    case OpCode::kRmsNorm: {
      const int64_t gain = op->weight(1)->type.cols();
      if (gain == Cols(op->result()) || want.slots != 1) return "a norm needs all columns";
      for (const Span& s : want.spans) {
        if (s.begin % gain != 0 || s.end % gain != 0) return "a norm needs all columns of a head";
      }
      demands->emplace_back(op->operand(0), want);
      return "";
    }
    case OpCode::kExpertBias:
      if (want.slots != op->operand(1)->type.cols()) {
        return "its slots are not the product's";
      }
      demands->emplace_back(op->operand(0), want);
      return "";
    default:
      if (!Info(op->code).elementwise) return fmt::format("{} is not computed column by column", Name(op->code));
      if (op->code == OpCode::kAddBias && want.slots != 1) return "a bias for all slots";
      for (size_t i = 0; i < op->operands.size(); ++i) {
        Value* value = op->operand(i);
        if (value != nullptr && (i == 0 || value != op->operand(0))) demands->emplace_back(value, want);
      }
      return "";
  }
}

std::string Region::VisitProduct(const Op& op, const Columns& want) {
  const Weight& w = *ProductWeight(op);
  for (const std::string_view item : {"residual", "combine"}) {
    if (op.Item("epilogue", item) != nullptr) return fmt::format("{} in its epilogue", item);
  }
  if (w.interleaved() && want.spans.size() != 1) return "several runs of rows of an interleaved weight";
  const int64_t slots = w.type.is_experts() ? op.operand(1)->type.cols() : 1;
  if (want.slots != slots) return "its slots are not the reader's";
  return "";
}

std::string Region::VisitHeads(Op* op, const Columns& want, Demands* demands) {
  const int64_t heads = op->Int("heads"), each = Cols(op->result()) / heads;
  const Span own = InUnits(want, each);
  if (own.begin < 0) return "not whole heads are wanted";
  demands->emplace_back(op->operand(0), Of(own, Cols(op->operand(0)) / heads));
  if (!Attends(*op)) return "";
  const bool latent = IsExpanded(op->code) || op->Bool("latent");
  if (!latent && (share_ == nullptr || share_->heads != own)) return "its heads are not those of the other attention";
  Op* store = StoreOf(f_, op);
  if (store == nullptr) return "no KV store in this function";
  if (claimed_.contains(store)) return "the cache is shared out in another way";
  if (!latent) stores_.insert(store);
  return "";
}

std::string Region::VisitStore(Op* op, Demands* demands) {
  // All that read what it stores must be in the region.
  for (const auto& reader : f_.ops) {
    if (!Attends(*reader) || StoreOf(f_, reader.get()) != op) continue;
    if (std::find(ops_.begin(), ops_.end(), reader.get()) == ops_.end()) return "several attentions read the cache";
  }
  if (!op->results.empty()) {
    const int64_t heads = op->Int("heads");
    const Span own = InUnits(held_.at(op->result()), Cols(op->result()) / heads);
    if (own.begin < 0) return "not whole heads are wanted";
    demands->emplace_back(op->operand(0), Of(own, Cols(op->operand(0)) / heads));
    if (op->code == OpCode::kLatentStore) return "";
  }
  if (share_ == nullptr) return "its readers have no heads";
  const int64_t kv_heads = op->Int("kv_heads");
  const size_t k = op->code == OpCode::kRopeStore ? 1 : 0;
  for (const size_t i : {k, k + 1}) {
    demands->emplace_back(op->operand(i), Of(share_->kv_heads, Cols(op->operand(i)) / kv_heads));
  }
  return "";
}

absl::Status Region::Apply() {
  for (Op* op : slices_) XJIT_RETURN_IF_ERROR(ApplySlice(op));
  for (Op* op : ops_) XJIT_RETURN_IF_ERROR(ApplyTo(op));
  ops_.insert(ops_.end(), slices_.begin(), slices_.end());
  // What ranks compute as a whole is cut where a part is read.
  for (const auto& [value, demands] : demands_) {
    if (held_.contains(value)) continue;
    for (const auto& [reader, columns] : demands) {
      if (reader->code == OpCode::kSlice) continue;
      const Span s = columns.spans[0];
      if (s == Span{0, Cols(value)}) continue;
      auto* user = const_cast<Op*>(reader);
      XJIT_ASSIGN_OR_RETURN(Op * slice,
                            InsertBefore(f_, module_, user, OpCode::kSlice, {{const_cast<Value*>(value), nullptr}},
                                         {{"from", s.begin}, {"to", s.end}}, value->name));
      for (Operand& o : user->operands) {
        if (o.value == value) o.value = slice->result();
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Region::ApplySlice(Op* op) {
  const auto held = held_.find(op->operand(0));
  Span span{op->Int("from"), op->Int("to")};
  if (const auto own = held_.find(op->result()); own != held_.end()) {
    const auto& spans = own->second.spans;
    if (spans.size() != 1) return Internal("slice %{}: several runs of columns", op->result()->name);
    span = {span.begin + spans[0].begin, span.begin + spans[0].end};
  }
  if (held != held_.end()) span = Local(held->second.spans, span);
  if (span.begin < 0) return Internal("slice %{}: its columns are not held together", op->result()->name);
  op->attrs["from"] = span.begin;
  op->attrs["to"] = span.end;
  return absl::OkStatus();
}

absl::Status Region::ApplyWeights(Op* op, const Columns& want) {
  const auto select = [&](Operand& o) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(o.weight, SelectRows(f_, *o.weight, want.spans));
    return absl::OkStatus();
  };
  if (op->code == OpCode::kAddBias) return select(op->operands[1]);
  if (op->code == OpCode::kExpertBias) return select(op->operands[2]);
  XJIT_RETURN_IF_ERROR(select(op->operands[WeightIndex(*op)]));
  if (const ChainItem* bias = op->Item("epilogue", "bias")) {
    return select(op->operands[static_cast<size_t>(std::get<int>(bias->args[0]))]);
  }
  return absl::OkStatus();
}

absl::Status Region::ApplyHeads(Op* op) {
  const int64_t heads = op->Int("heads");
  const Value* q = op->code == OpCode::kLatentStore || op->code == OpCode::kRopeStore ? op->result() : nullptr;
  const Value* sized = q != nullptr ? q : op->result();
  const Span own = InUnits(held_.at(sized), Cols(sized) / heads);
  op->attrs["heads"] = own.size();
  if (op->code == OpCode::kRopeStore) op->attrs["kv_heads"] = share_->kv_heads.size();
  if (IsAttention(op->code) && !op->Bool("latent")) {
    op->attrs["kv_heads"] = share_->kv_heads.size();
    op->attrs.erase("groups");
    const auto& groups = share_->groups;
    if (std::any_of(groups.begin(), groups.end(), [&](int64_t g) { return g != groups[0]; })) {
      op->attrs["groups"] = groups;
    }
    if (op->operands.size() > 2) {
      XJIT_ASSIGN_OR_RETURN(op->operands[2].weight, SelectRows(f_, *op->weight(2), {own}));
    }
  }
  if (op->code == OpCode::kAbsorbQ || op->code == OpCode::kAbsorbV || IsExpanded(op->code)) {
    Operand& kv_b = op->operands[IsExpanded(op->code) ? 2 : 1];
    const int64_t rows = op->Int("nope_dim") + op->Int("v_dim");
    XJIT_ASSIGN_OR_RETURN(kv_b.weight, SelectRows(f_, *kv_b.weight, {{own.begin * rows, own.end * rows}}));
  }
  return absl::OkStatus();
}

absl::Status Region::ApplyTo(Op* op) {
  if (op->code == OpCode::kSlice) return ApplySlice(op);
  if (op->code == OpCode::kKvStore) {
    op->attrs["kv_heads"] = share_->kv_heads.size();
    return absl::OkStatus();
  }
  if (op->Has("heads")) return ApplyHeads(op);
  if (ProductWeight(*op) != nullptr || op->code == OpCode::kAddBias || op->code == OpCode::kExpertBias) {
    return ApplyWeights(op, held_.at(op->result()));
  }
  return absl::OkStatus();
}

}  // namespace xjit
