#include "passes/shard_split.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "ir/weight_rows.h"

namespace xjit {
namespace {

// Panels of kernels are 16 rows of a weight, and q8act blocks 32 columns of the next product: a share in 32s has no
// tails in either.
constexpr int64_t kPreferred = 32, kLeast = 16;

Span Intersect(Span a, Span b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

absl::StatusOr<std::string> SliceName(const std::string& name, size_t rank, size_t dim, Span span, int64_t size,
                                      std::span<const int64_t> stack_experts) {
  if (span == Span{0, size}) return name;
  return SliceWeightName(name, static_cast<int>(rank), static_cast<int>(dim), span.begin, span.end, stack_experts);
}

std::string Joined(const std::vector<std::string>& names, char separator) {
  std::string text;
  for (const std::string& name : names) {
    if (!text.empty()) text += separator;
    text += name;
  }
  return text;
}

Weight* AddLike(Function& f, const Weight& like, std::string_view name, Type type, std::vector<int64_t> part_rows,
                std::vector<int64_t> stack_experts) {
  if (name == like.name) return f.FindWeight(name);
  Weight* w = f.AddWeight(name, std::move(type));
  w->part_rows = std::move(part_rows);
  w->stack_experts = std::move(stack_experts);
  return w;
}

}  // namespace

Span DealtShare(int64_t size, int64_t unit, int ranks, int rank) {
  const int64_t units = Units(size, unit), each = units / ranks, more = units % ranks;
  const auto begin = [&](int64_t r) { return std::min(size, (r * each + std::min(r, more)) * unit); };
  return {begin(rank), begin(rank + 1)};
}

int64_t ColumnBlock(const Encoding& encoding, int64_t columns) {
  const Scales& s = encoding.scales;
  // A group of the whole row is a scale of the row: every share takes it. Where an order of activation says which group
  // a column is of, groups are not runs of columns.
  if (s.kind == Scales::Kind::kGroup && s.cols < columns) return s.act_order ? 1 : s.cols;
  return Info(encoding.type).block_elems;
}

int64_t DealUnit(int64_t size, int64_t block, int64_t scales, int ranks) {
  const auto unit = [&](int64_t of) { return std::lcm(of, block); };
  const auto largest = [&](int64_t of) { return DealtShare(size, of, ranks, 0).size(); };
  if (scales > 1) {
    const int64_t whole = unit(std::lcm(scales, kPreferred));
    // A block cut in two costs a kernel one shorter block and no byte; columns more cost the busiest rank their bytes.
    if (Units(size, whole) >= ranks && largest(whole) * 50 <= largest(unit(kPreferred)) * 51) return whole;
  }
  for (const int64_t of : {kPreferred, kLeast}) {
    if (Units(size, unit(of)) >= ranks) return unit(of);
  }
  return 0;
}

absl::StatusOr<Weight*> SelectRows(Function& f, const Weight& w, const std::vector<Span>& rows) {
  const size_t rank = w.type.dims.size(), dim = rank == 1 ? 0 : rank - 2;
  std::vector<std::string> names;
  std::vector<int64_t> part_rows;
  int64_t at = 0;
  for (const Weight::Part& part : w.parts()) {
    for (const Span& span : rows) {
      Span own = span;
      if (!w.interleaved()) {
        own = Intersect(span, {at, at + part.rows});
        own = {own.begin - at, own.end - at};
      }
      if (own.size() <= 0) continue;
      XJIT_ASSIGN_OR_RETURN(std::string name, SliceName(part.name, rank, dim, own, part.rows, w.stack_experts));
      names.push_back(std::move(name));
      part_rows.push_back(own.size());
    }
    at += part.rows;
  }
  Type type = w.type;
  type.dims[dim].size = std::accumulate(part_rows.begin(), part_rows.end(), int64_t{0});
  if (part_rows.size() == 1) part_rows.clear();
  return AddLike(f, w, Joined(names, w.interleaved() ? '|' : '+'), std::move(type), std::move(part_rows),
                 w.stack_experts);
}

absl::StatusOr<Weight*> SelectColumns(Function& f, const Weight& w, Span columns) {
  const size_t rank = w.type.dims.size();
  std::vector<std::string> names;
  for (const Weight::Part& part : w.parts()) {
    XJIT_ASSIGN_OR_RETURN(std::string name,
                          SliceName(part.name, rank, rank - 1, columns, w.type.cols(), w.stack_experts));
    names.push_back(std::move(name));
  }
  Type type = w.type;
  type.dims.back().size = columns.size();
  // A group of the whole row stays one.
  if (type.scales.kind == Scales::Kind::kGroup && type.scales.cols >= w.type.cols()) {
    type.scales.cols = static_cast<int32_t>(std::min<int64_t>(type.scales.cols, columns.size()));
  }
  return AddLike(f, w, Joined(names, w.interleaved() ? '|' : '+'), std::move(type), w.part_rows, w.stack_experts);
}

absl::StatusOr<Weight*> SelectExperts(Function& f, const Weight& w, Span experts) {
  std::vector<std::string> names;
  std::vector<int64_t> counts, stacked = w.stack_experts;
  if (stacked.empty()) stacked = {w.type.dims[0].size};
  for (const Weight::Part& part : w.parts()) {
    std::vector<std::string> refs;
    counts.clear();
    int64_t at = 0;
    std::string_view rest = part.name;
    for (const int64_t count : stacked) {
      const size_t end = std::min(rest.find('&'), rest.size());
      const std::string ref(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
      const Span own = Intersect(experts, {at, at + count});
      if (own.size() > 0) {
        XJIT_ASSIGN_OR_RETURN(std::string name, SliceName(ref, 3, 0, {own.begin - at, own.end - at}, count, {}));
        // A matrix is known as one by its place behind an '&' or by its two ranges.
        if (at > 0 && refs.empty() && count == 1 && name.find('[') == std::string::npos) name += "[:,:]";
        refs.push_back(std::move(name));
        counts.push_back(own.size());
      }
      at += count;
    }
    names.push_back(Joined(refs, '&'));
  }
  if (counts.size() == 1) counts.clear();
  Type type = w.type;
  type.dims[0].size = experts.size();
  return AddLike(f, w, Joined(names, w.interleaved() ? '|' : '+'), std::move(type), w.part_rows, std::move(counts));
}

}  // namespace xjit
