#include "ir/weight_rows.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace xjit {
namespace {

std::vector<std::string_view> Split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const size_t end = text.find_first_of(separators);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

bool ParseWhole(std::string_view text, int64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() && *value >= 0 &&
         *value <= int64_t{1} << 40;
}

bool ParseRange(std::string_view text, WeightRange* range) {
  if (text == ":") return true;
  const auto numbers = Split(text, ":");
  if (numbers.size() < 2 || numbers.size() > 3) return false;
  if (!ParseWhole(numbers[0], &range->begin) || !ParseWhole(numbers[1], &range->end)) return false;
  if (numbers.size() == 3 && !ParseWhole(numbers[2], &range->step)) return false;
  return range->begin < range->end && range->step > 0;
}

std::string ToString(const WeightRange& range) {
  if (range.whole()) return ":";
  return range.step == 1 ? fmt::format("{}:{}", range.begin, range.end)
                         : fmt::format("{}:{}:{}", range.begin, range.end, range.step);
}

// Whether a ref of a weight of rank 3 is a matrix; `stacked`: its place among those joined by '&', `experts`: how many
// it counts for.
bool IsOneMatrix(const WeightRef& ref, size_t stacked, int64_t experts) {
  return ref.ranges.size() == 2 || (ref.ranges.empty() && stacked > 0 && experts == 1);
}

}  // namespace

absl::StatusOr<WeightRef> ParseWeightRef(std::string_view text) {
  const size_t open = text.find('[');
  WeightRef ref{std::string(text.substr(0, open)), {}};
  if (ref.symbol.empty()) return InvalidArgument("'@{}' has a part without a name", text);
  if (open == std::string_view::npos) return ref;
  if (!text.ends_with(']')) return InvalidArgument("'@{}' has a slice without its end", text);
  for (const std::string_view piece : Split(text.substr(open + 1, text.size() - open - 2), ",")) {
    ref.ranges.emplace_back();
    if (!ParseRange(piece, &ref.ranges.back())) {
      return InvalidArgument("'@{}': '{}' is not a range (write begin:end, begin:end:step or :)", text, piece);
    }
  }
  if (ref.ranges.size() > 3) return InvalidArgument("'@{}' has {} ranges, at most 3", text, ref.ranges.size());
  return ref;
}

std::string ToString(const WeightRef& ref) {
  if (std::all_of(ref.ranges.begin(), ref.ranges.end(), [](const WeightRange& r) { return r.whole(); }) &&
      ref.ranges.size() != 2) {
    return ref.symbol;
  }
  std::string text = ref.symbol;
  for (size_t i = 0; i < ref.ranges.size(); ++i) {
    text += i == 0 ? '[' : ',';
    text += ToString(ref.ranges[i]);
  }
  text += ']';
  return text;
}

absl::StatusOr<std::string> SliceWeightName(std::string_view name, int rank, int dim, int64_t begin, int64_t end,
                                            std::span<const int64_t> stack_experts) {
  const auto pieces = Split(name, "&");
  if (pieces.size() != std::max<size_t>(stack_experts.size(), 1)) {
    return Internal("'@{}' stacks {} symbols but has {} counts of experts", name, pieces.size(), stack_experts.size());
  }
  std::string out;
  for (size_t i = 0; i < pieces.size(); ++i) {
    XJIT_ASSIGN_OR_RETURN(WeightRef ref, ParseWeightRef(pieces[i]));
    const bool matrix = rank == 3 && IsOneMatrix(ref, i, i < stack_experts.size() ? stack_experts[i] : 0);
    const int own_rank = matrix ? 2 : rank, own_dim = matrix ? dim - 1 : dim;
    if (own_dim >= 0) {
      ref.ranges.resize(static_cast<size_t>(own_rank));
      WeightRange& range = ref.ranges[static_cast<size_t>(own_dim)];
      range = {range.At(begin), range.At(end - 1) + 1, range.step};
    }
    if (i > 0) out += '&';
    out += ToString(ref);
  }
  return out;
}

absl::StatusOr<WeightRows> WeightRows::Of(const Weight& weight) {
  WeightRows rows;
  rows.rows_ = weight.type.rows();
  rows.experts_ = weight.type.is_experts();
  rows.stack_experts_ = weight.stack_experts;
  if (rows.stack_experts_.empty()) rows.stack_experts_ = {rows.experts_ ? weight.type.dims[0].size : 1};
  for (const Weight::Part& part : weight.parts()) {
    rows.part_rows_.push_back(part.rows);
    const auto pieces = Split(part.name, "&");
    if (pieces.size() != rows.stack_experts_.size()) {
      return InvalidArgument("'@{}' stacks {} symbols but has {} counts of experts", weight.name, pieces.size(),
                             rows.stack_experts_.size());
    }
    for (const std::string_view piece : pieces) {
      XJIT_ASSIGN_OR_RETURN(WeightRef ref, ParseWeightRef(piece));
      rows.refs_.push_back(std::move(ref));
    }
  }
  return rows;
}

WeightRows::Source WeightRows::At(int64_t n) const {
  Source source;
  int64_t expert = n / rows_, row = n % rows_;
  while (source.part + 1 < part_rows_.size() && row >= part_rows_[source.part]) row -= part_rows_[source.part++];
  size_t stacked = 0;
  while (stacked + 1 < stack_experts_.size() && expert >= stack_experts_[stacked]) expert -= stack_experts_[stacked++];
  source.ref = &refs_[source.part * stack_experts_.size() + stacked];
  source.matrix = !experts_ || IsOneMatrix(*source.ref, stacked, stack_experts_[stacked]);
  source.expert = source.matrix ? 0 : source.ref->experts().At(expert);
  source.row = source.ref->rows().At(row);
  source.columns = source.ref->columns();
  return source;
}

absl::Status CheckWeight(const Weight& weight) {
  const auto parts = weight.parts();
  const int64_t counts = std::max<int64_t>(static_cast<int64_t>(weight.part_rows.size()), 1);
  if (static_cast<int64_t>(parts.size()) != counts) {
    return InvalidArgument("'@{}' has {} parts but {} row counts", weight.name, parts.size(), counts);
  }
  if (weight.name.find('+') != std::string::npos && weight.interleaved()) {
    return InvalidArgument("'@{}' is joined and interleaved at once", weight.name);
  }
  if (!weight.stack_experts.empty() && !weight.type.is_experts()) {
    return InvalidArgument("'@{}' stacks experts but is no weight [experts, n, k]", weight.name);
  }
  const auto sum = [](const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); };
  if (!weight.part_rows.empty() && sum(weight.part_rows) != weight.type.rows()) {
    return InvalidArgument("'@{}' has parts of {} rows in a type of {}", weight.name, sum(weight.part_rows),
                           weight.type.rows());
  }
  if (!weight.stack_experts.empty() && sum(weight.stack_experts) != weight.type.dims[0].size) {
    return InvalidArgument("'@{}' stacks {} experts in a type of {}", weight.name, sum(weight.stack_experts),
                           weight.type.dims[0].size);
  }
  XJIT_ASSIGN_OR_RETURN(const WeightRows rows, WeightRows::Of(weight));
  const size_t stacked = std::max<size_t>(weight.stack_experts.size(), 1), rank = weight.type.dims.size();
  for (size_t i = 0; i < rows.refs().size(); ++i) {
    const WeightRef& ref = rows.refs()[i];
    if (ref.ranges.empty()) continue;
    const int64_t experts =
        weight.stack_experts.empty() ? (rank == 3 ? weight.type.dims[0].size : 1) : weight.stack_experts[i % stacked];
    const bool rank_fits = ref.ranges.size() == rank || (rank == 3 && ref.ranges.size() == 2 && experts == 1);
    if (!rank_fits) return InvalidArgument("'@{}' has {} ranges", ToString(ref), ref.ranges.size());
    const int64_t want = parts[i / stacked].rows;
    if (!ref.rows().whole() && ref.rows().Count(want) != want) {
      return InvalidArgument("'@{}' is not {} rows", ToString(ref), want);
    }
    if (rank > 1 && !ref.columns().whole() && ref.columns().Count(0) != weight.type.cols()) {
      return InvalidArgument("'@{}' is not {} columns", ToString(ref), weight.type.cols());
    }
    if (rank == 3 && ref.ranges.size() == 3 && !ref.experts().whole() && ref.experts().Count(0) != experts) {
      return InvalidArgument("'@{}' is not {} experts", ToString(ref), experts);
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
