// shard: the module becomes that of one rank of `tp`: query heads and the columns of MLPs and experts, the vocabulary
// of embed and lm_head are dealt to ranks as evenly as their numbers allow, and all_reduce or gather ops stand where
// ranks meet: once behind attention, once behind the MLP. Gain: each rank reads its share of the weights from its own
// memory. After all fusion (weights are cut as they have been joined), before planning. Megatron-LM's split: Shoeybi et
// al. 2019, arXiv:1909.08053, section 3.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "ir/chains.h"
#include "passes/cost.h"
#include "passes/pass.h"
#include "passes/rewrite.h"
#include "passes/shard_latent.h"
#include "passes/shard_reduce.h"
#include "passes/shard_region.h"
#include "passes/shard_split.h"

namespace xjit {
namespace {

// 1, 2, 3: the numbers of elements that ranks get.
std::vector<int64_t> Sizes(int64_t size, int64_t unit, int tp) {
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < tp; ++rank) sizes.push_back(DealtShare(size, unit, tp, rank).size());
  return sizes;
}

std::string SizesText(int64_t size, int64_t unit, int tp) {
  return fmt::format("{} of {}", fmt::join(Sizes(size, unit, tp), ", "), size);
}

bool IsLatent(const Op& op) {
  return op.code == OpCode::kMlaAttention || op.code == OpCode::kMlaExtend || op.code == OpCode::kAbsorbV ||
         op.Bool("latent");
}

// The attention behind an anchor: absorb_v's own reads the cache.
const Op* Reader(const Op* anchor) {
  while (anchor != nullptr && anchor->code == OpCode::kAbsorbV) anchor = anchor->operand(0)->def;
  return anchor;
}

class FunctionSharder {
 public:
  FunctionSharder(Module& module, Function& f, PassContext& context) : module_(module), f_(f), context_(context) {}

  absl::StatusOr<int> Run() {
    std::vector<Op*> products;
    for (const auto& op : f_.ops) {
      if (ProductWeight(*op) != nullptr) products.push_back(op.get());
    }
    for (Op* op : products) XJIT_RETURN_IF_ERROR(Product(op));
    for (size_t i = 0; i < f_.ops.size(); ++i) {
      Op* op = f_.ops[i].get();
      if (op->code == OpCode::kEmbed) XJIT_RETURN_IF_ERROR(Embed(op));
      const bool logits = op->code == OpCode::kGemm || op->code == OpCode::kLinear;
      if (logits && op->result()->type.dims[0].symbol == 'L' && !claimed_.contains(op)) {
        XJIT_RETURN_IF_ERROR(Logits(op));
      }
    }
    XJIT_ASSIGN_OR_RETURN(const int reduced, PlaceAllReduces(module_, f_, partial_, context_));
    XJIT_RETURN_IF_ERROR(RefreshTypes(module_, f_));
    return changes_ + reduced;
  }

 private:
  int tp() const { return context_.tp; }

  // A product whose columns can be shared out, with what its x is computed from.
  absl::Status Product(Op* op) {
    const bool sums = op->ChainAttr("prologue").empty() && GluItem(*op) == nullptr;
    if (!sums || claimed_.contains(op)) return absl::OkStatus();
    const Anchor anchor = FindAnchor(op->operand(0));
    if (anchor.heads != nullptr) return BehindAttention(op, anchor);
    if (!anchor.products.empty()) return BehindProducts(op, anchor);
    return absl::OkStatus();
  }

  absl::Status BehindAttention(Op* o, const Anchor& anchor) {
    const Op* reader = Reader(anchor.heads);
    if (reader == nullptr || ProductWeight(*o)->type.is_experts()) return absl::OkStatus();
    if (IsLatent(*reader)) {
      XJIT_ASSIGN_OR_RETURN(const bool own, OwnRows(o, reader));
      if (own) return absl::OkStatus();
    }
    const int64_t heads = anchor.heads->Int("heads");
    const int64_t each = anchor.heads->result()->type.cols() / heads;
    std::string why;
    const HeadShare share = Heads(
        *anchor.heads, each, ColumnBlock(ProductWeight(*o)->type.encoding(), ProductWeight(*o)->type.cols()), &why);
    if (!why.empty()) {
      context_.Missed(f_, *o, why);
      return absl::OkStatus();
    }
    if (o->operand(0)->type.cols() != heads * each) {
      context_.Missed(f_, *o, "it reads other columns than the attention's heads");
      return absl::OkStatus();
    }
    return Split(o, {{{share.heads.begin * each, share.heads.end * each}}, 1}, &share, HeadsText(share, *anchor.heads));
  }

  std::string HeadsText(const HeadShare& share, const Op& anchor) const {
    std::string text = fmt::format("heads {}..{} of {}", share.heads.begin, share.heads.end - 1, anchor.Int("heads"));
    if (IsLatent(anchor)) return text + ", the latent cache on every rank";
    return text +
           fmt::format(", KV heads {}..{} of {}", share.kv_heads.begin, share.kv_heads.end - 1, anchor.Int("kv_heads"));
  }

  // This rank's heads: whole KV heads with all that read them where there are enough, else query heads with the KV
  // heads that they read. `block`: columns of o's that cannot be parted.
  HeadShare Heads(const Op& anchor, int64_t each, int64_t block, std::string* why) const {
    HeadShare share;
    const int64_t heads = anchor.Int("heads");
    const auto unit = [&](int64_t columns) { return std::lcm(columns, block) / columns; };
    const auto few = [&](int64_t u) { return Units(heads, u) < tp(); };
    if (few(unit(each))) {
      *why = fmt::format("{} heads{} are fewer than {} ranks", heads,
                         unit(each) == 1 ? "" : fmt::format(", {} to a block of weights,", unit(each)), tp());
      return share;
    }
    if (IsLatent(anchor)) {
      share.heads = DealtShare(heads, unit(each), tp(), context_.rank);
      return share;
    }
    const int64_t kv_heads = anchor.Int("kv_heads");
    std::vector<int64_t> groups(static_cast<size_t>(kv_heads), heads / kv_heads);
    const auto given = anchor.attrs.find("groups");
    if (given != anchor.attrs.end()) groups = std::get<std::vector<int64_t>>(given->second);
    const int64_t kv_unit = unit(each * groups[0]);
    const bool whole = given == anchor.attrs.end() && Units(kv_heads, kv_unit) >= tp();
    if (whole) {
      share.kv_heads = DealtShare(kv_heads, kv_unit, tp(), context_.rank);
      share.heads = {share.kv_heads.begin * groups[0], share.kv_heads.end * groups[0]};
      share.groups.assign(static_cast<size_t>(share.kv_heads.size()), groups[0]);
      return share;
    }
    share.heads = DealtShare(heads, unit(each), tp(), context_.rank);
    share.kv_heads = {-1, -1};
    int64_t at = 0;
    for (size_t g = 0; g < groups.size(); at += groups[g], ++g) {
      const int64_t own = std::min(share.heads.end, at + groups[g]) - std::max(share.heads.begin, at);
      if (own <= 0) continue;
      if (share.kv_heads.begin < 0) share.kv_heads.begin = static_cast<int64_t>(g);
      share.kv_heads.end = static_cast<int64_t>(g) + 1;
      share.groups.push_back(own);
    }
    return share;
  }

  // Whether ranks attend for sequences of their own.
  absl::StatusOr<bool> OwnRows(Op* o, const Op* reader) {
    if (context_.sequences < tp() || context_.kv_length <= 0) return false;
    const LatentCost cost = CostOfLatent(f_, o, reader, context_);
    const std::string numbers = fmt::format(
        "a rank reads {:.1f} MB a step for its own sequences with all heads, {:.1f} MB for its heads of all "
        "{} sequences",
        cost.by_sequences / 1e6, cost.by_heads / 1e6, context_.sequences);
    if (cost.by_sequences >= cost.by_heads) {
      context_.Missed(f_, *o, fmt::format("data-parallel attention: {}", numbers));
      return false;
    }
    std::string why;
    XJIT_ASSIGN_OR_RETURN(const std::vector<Op*> ops, AttendOwnRows(module_, f_, o, reader, &why));
    if (ops.empty()) {
      context_.Missed(f_, *o, fmt::format("data-parallel attention: {}", why));
      return false;
    }
    claimed_.insert(ops.begin(), ops.end());
    context_.Fused(f_, *o, fmt::format("data-parallel attention: {}", numbers));
    ++changes_;
    return true;
  }

  absl::Status BehindProducts(Op* down, const Anchor& anchor) {
    const Weight& w = *ProductWeight(*down);
    const int64_t size = w.type.cols(), slots = down->operand(0)->type.cols() / size;
    const bool experts = w.type.is_experts();
    int64_t scales = w.type.scales.kind == Scales::Kind::kBlock ? w.type.scales.cols : 1;
    for (const Op* product : anchor.products) {
      const Scales& s = ProductWeight(*product)->type.scales;
      if (s.kind == Scales::Kind::kBlock) scales = std::lcm(scales, static_cast<int64_t>(s.rows));
    }
    const int64_t unit = DealUnit(size, ColumnBlock(w.type.encoding(), size), scales, tp());
    if (experts) {
      XJIT_ASSIGN_OR_RETURN(const bool whole, WholeExperts(down, size, unit));
      if (whole) return absl::OkStatus();
    }
    if (unit == 0) {
      context_.Missed(
          f_, *down, fmt::format("{} columns of {} are too few for {} ranks", size, ToString(w.type.encoding()), tp()));
      return absl::OkStatus();
    }
    std::string text = fmt::format("columns {}", SizesText(size, unit, tp()));
    if (scales > 1 && unit % scales != 0) {
      text += fmt::format(", which divide blocks of {} with one scale, as these would not be balanced", scales);
    }
    return Split(down, {{DealtShare(size, unit, tp(), context_.rank)}, experts ? slots : 1}, nullptr, text);
  }

  // Gives the product its columns of x, and all that x is computed from its share.
  absl::Status Split(Op* op, const Columns& columns, const HeadShare* share, std::string_view text) {
    Region region(module_, f_, claimed_);
    if (const std::string why = region.Plan(op, op->operand(0), columns, share); !why.empty()) {
      context_.Missed(f_, *op, why);
      return absl::OkStatus();
    }
    XJIT_RETURN_IF_ERROR(region.Apply());
    Operand& w = op->operands[WeightIndex(*op)];
    XJIT_ASSIGN_OR_RETURN(w.weight, SelectColumns(f_, *w.weight, columns.spans[0]));
    const auto ops = region.ops();
    claimed_.insert(ops.begin(), ops.end());
    claimed_.insert(op);
    partial_.insert(op);
    context_.Fused(f_, *op, text);
    for (const std::string& kept : region.kept()) context_.Missed(f_, *op, kept);
    ++changes_;
    return absl::OkStatus();
  }

  // Experts that the rank with the most work is expected to touch of `experts`, where a step's tokens touch the last
  // `constant` and `visited` of the others.
  double BusiestRank(int64_t experts, int64_t constant, double visited) const {
    const double p = visited / static_cast<double>(experts - constant);
    double most = 0;
    for (int rank = 0; rank < tp(); ++rank) {
      const Span share = DealtShare(experts, 1, tp(), rank);
      const auto fixed = static_cast<double>(std::clamp(share.end - (experts - constant), int64_t{0}, share.size()));
      const double own = static_cast<double>(share.size()) - fixed;
      // The largest of tp sums of `own` draws with probability p, as of normal variables: mean + deviation
      // sqrt(2 ln tp).
      const double luck = std::sqrt(own * p * (1 - p)) * std::sqrt(2 * std::log(static_cast<double>(tp())));
      most = std::max(most, fixed + std::min(own, own * p + luck));
    }
    return most;
  }

  // Whole experts where shares of columns would be too small or too uneven. Every rank then waits for the one whose
  // experts were chosen most.
  absl::StatusOr<bool> WholeExperts(Op* down, int64_t size, int64_t unit) {
    const int64_t experts = ProductWeight(*down)->type.dims[0].size;
    const int64_t slots = down->operand(1)->type.cols();
    if (experts < tp()) {
      if (unit == 0) context_.Missed(f_, *down, fmt::format("{} experts for {} ranks", experts, tp()));
      return false;
    }
    // Folded shared experts, the last ones, are every token's.
    const Op* route = DefOf(down->operand(1), OpCode::kRoute);
    const int64_t constant = route == nullptr ? 0 : std::min(route->Int("constant"), experts - 1);
    const double visited =
        ExpectedExperts(static_cast<double>(experts - constant), static_cast<double>(slots - constant),
                        static_cast<double>(context_.sequences));
    const double touched = visited + static_cast<double>(constant);
    const double busiest = BusiestRank(experts, constant, visited);
    std::string text;
    if (unit == 0) {
      text = fmt::format("{} columns of an expert are too few for {} ranks", size, tp());
    } else {
      const auto sizes = Sizes(size, unit, tp());
      const double inner = touched * static_cast<double>(sizes[0]) / static_cast<double>(size);
      text = fmt::format("the busiest rank reads {:.1f} experts whole, {:.1f} in shares of {} columns", busiest, inner,
                         sizes[0]);
      // Narrower shares do not fill two panels. What whole experts gain must outweigh that ranks then have different
      // numbers of rows too, which the count of experts does not show.
      constexpr int64_t kLeastColumns = 32;
      constexpr double kGain = 1.25;
      if (sizes.back() >= kLeastColumns && inner <= kGain * busiest) {
        context_.Missed(f_, *down, fmt::format("whole experts: {}", text));
        return false;
      }
    }
    std::vector<Op*> ops, sorts;
    if (const std::string why = ExpertOps(down, &ops, &sorts); !why.empty()) {
      context_.Missed(f_, *down, fmt::format("whole experts: {}", why));
      return false;
    }
    const Span share = DealtShare(experts, 1, tp(), context_.rank);
    for (Op* op : ops) XJIT_RETURN_IF_ERROR(TakeExperts(op, share));
    for (Op* op : sorts) {
      op->attrs["first"] = op->Int("first") + share.begin;
      op->attrs["experts"] = share.size();
      op->results[1]->type.dims[1].size = share.size() + 1;
    }
    claimed_.insert(ops.begin(), ops.end());
    partial_.insert(down);
    context_.Fused(f_, *down, fmt::format("whole experts, {}: {}", SizesText(experts, 1, tp()), text));
    ++changes_;
    return true;
  }

  // The ops on the same experts that lead to `down`, itself included, a bias behind it, and the sorts that they share.
  std::string ExpertOps(Op* down, std::vector<Op*>* ops, std::vector<Op*>* sorts) const {
    const Anchor anchor = FindAnchor(down->operand(0));
    std::set<const Value*> routes;
    for (const auto& op : f_.ops) {
      if (!IsExpertOp(*op) || claimed_.contains(op.get()) || op->operand(1) != down->operand(1)) continue;
      if (op->weight(2)->type.dims[0] != ProductWeight(*down)->type.dims[0])
        return "weights of other numbers of experts";
      ops->push_back(op.get());
      if (op->operands.size() - ChainOperands(*op) == 5) routes.insert({op->operand(3), op->operand(4)});
    }
    for (const Op* product : anchor.products) {
      if (std::find(ops->begin(), ops->end(), product) == ops->end()) return "its x is no experts' result";
    }
    if (const Op* reader = OutsideReader(*ops, *down)) {
      return fmt::format("{} reads what its x is computed from", Name(reader->code));
    }
    for (const Value* route : routes) {
      if (route->def == nullptr || route->def->code != OpCode::kMoeSort) return "its order is not of moe_sort";
      for (const Op* user : f_.Users(route)) {
        if (std::find(ops->begin(), ops->end(), user) == ops->end()) return "its order has another reader";
      }
      if (std::find(sorts->begin(), sorts->end(), route->def) == sorts->end()) sorts->push_back(route->def);
    }
    return "";
  }

  // What ops of a rank's experts compute is right in the rows of its experts only, which `down` and its bias look at:
  // an op other than these that reads it, nullptr where there is none.
  const Op* OutsideReader(const std::vector<Op*>& ops, const Op& down) const {
    std::set<const Op*> seen;
    std::vector<const Op*> left;
    for (const Op* op : ops) {
      const bool behind = op->code == OpCode::kExpertBias && op->operand(0) == down.result();
      if (op != &down && !behind) left.push_back(op);
    }
    while (!left.empty()) {
      const Op* op = left.back();
      left.pop_back();
      if (!seen.insert(op).second) continue;
      for (const Op* user : f_.Users(op->result())) {
        const bool own = std::find(ops.begin(), ops.end(), user) != ops.end();
        if (own && !ReadsBeyondFirst(*user, op->result())) continue;
        if (own || (!Info(user->code).elementwise && user->code != OpCode::kSlice)) return user;
        left.push_back(user);
      }
    }
    return nullptr;
  }

  absl::Status TakeExperts(Op* op, Span share) {
    XJIT_ASSIGN_OR_RETURN(op->operands[2].weight, SelectExperts(f_, *op->weight(2), share));
    if (const ChainItem* bias = op->Item("epilogue", "bias")) {
      Operand& o = op->operands[static_cast<size_t>(std::get<int>(bias->args[0]))];
      XJIT_ASSIGN_OR_RETURN(o.weight, SelectExperts(f_, *o.weight, share));
    }
    op->attrs["first"] = op->Int("first") + share.begin;
    return absl::OkStatus();
  }

  // Rows of the vocabulary are dealt in whole panels where there are enough.
  Span Vocabulary(int64_t size, int64_t* unit) const {
    *unit = DealUnit(size, 1, 1, tp());
    if (*unit == 0) *unit = 1;
    return DealtShare(size, *unit, tp(), context_.rank);
  }

  absl::Status Embed(Op* op) {
    const int64_t size = op->weight(1)->type.rows();
    if (size < tp() || op->Int("vocab") != 0) {
      context_.Missed(f_, *op, fmt::format("a vocabulary of {} for {} ranks", size, tp()));
      return absl::OkStatus();
    }
    int64_t unit = 1;
    const Span share = Vocabulary(size, &unit);
    XJIT_ASSIGN_OR_RETURN(op->operands[1].weight, SelectRows(f_, *op->weight(1), {share}));
    op->attrs["first"] = share.begin;
    op->attrs["vocab"] = size;
    partial_.insert(op);
    context_.Fused(f_, *op, fmt::format("rows {}", SizesText(size, unit, tp())));
    ++changes_;
    return absl::OkStatus();
  }

  absl::Status Logits(Op* op) {
    const int64_t size = op->weight(1)->type.rows();
    std::string why;
    if (size < tp()) why = fmt::format("{} rows for {} ranks", size, tp());
    if (op->Item("epilogue", "residual") != nullptr) why = "a residual in its epilogue";
    if (op->weight(1)->interleaved()) why = "its weight is interleaved";
    if (!why.empty()) {
      context_.Missed(f_, *op, why);
      return absl::OkStatus();
    }
    int64_t unit = 1;
    const Span share = Vocabulary(size, &unit);
    XJIT_ASSIGN_OR_RETURN(op->operands[1].weight, SelectRows(f_, *op->weight(1), {share}));
    if (const ChainItem* bias = op->Item("epilogue", "bias")) {
      Operand& o = op->operands[static_cast<size_t>(std::get<int>(bias->args[0]))];
      XJIT_ASSIGN_OR_RETURN(o.weight, SelectRows(f_, *o.weight, {share}));
    }
    op->result()->type.dims[1].size = share.size();
    const std::vector<Op*> readers = f_.Users(op->result());
    const Op* next = f_.ops[static_cast<size_t>(f_.IndexOf(op)) + 1].get();
    XJIT_ASSIGN_OR_RETURN(Op * all, InsertBefore(f_, module_, next, OpCode::kAllGather, {{op->result(), nullptr}},
                                                 {{"sizes", Sizes(size, unit, tp())}}, op->result()->name));
    for (Op* user : readers) {
      for (Operand& o : user->operands) {
        if (o.value == op->result()) o.value = all->result();
      }
    }
    std::swap(op->result()->name, all->result()->name);
    claimed_.insert(op);
    context_.Fused(f_, *op, fmt::format("rows {}", SizesText(size, unit, tp())));
    ++changes_;
    return absl::OkStatus();
  }

  Module& module_;
  Function& f_;
  PassContext& context_;
  std::set<const Op*> claimed_;  // shared out
  std::set<const Op*> partial_;  // whose results are to be added up
  int changes_ = 0;
};

}  // namespace

absl::StatusOr<PassResult> Shard(Module& module, PassContext& context) {
  if (context.tp == 1 || module.attrs.contains("tp")) return PassResult::Changed(0);
  if (context.tp < 1 || context.rank < 0 || context.rank >= context.tp) {
    return InvalidArgument("rank {} of {} ranks", context.rank, context.tp);
  }
  int changes = 0;
  for (auto& f : module.functions) {
    XJIT_ASSIGN_OR_RETURN(const int changed, FunctionSharder(module, *f, context).Run());
    changes += changed;
  }
  module.attrs["tp"] = static_cast<int64_t>(context.tp);
  module.attrs["rank"] = static_cast<int64_t>(context.rank);
  return PassResult::Changed(changes);
}

}  // namespace xjit
