// Rows of a checkpoint's weights for the interpreter.
#include <algorithm>

#include "frontend/weights.h"

namespace xjit {

absl::StatusOr<const CheckpointRows::Known*> CheckpointRows::Find(int64_t layer, const Weight& w) {
  if (last_ != known_.end() && last_->first.first == layer && last_->first.second == w.name) return &last_->second;
  std::pair<int64_t, std::string> key(layer, w.name);
  auto it = known_.find(key);
  if (it == known_.end()) {
    Known known;
    XJIT_ASSIGN_OR_RETURN(known.rows, WeightRows::Of(w));
    if (WeightNames::IsComputed(w.name)) {
      XJIT_ASSIGN_OR_RETURN(known.computed, names_.Compute(w.name));
    } else {
      XJIT_ASSIGN_OR_RETURN(known.sources, names_.Sources(layer, w, known.rows));
    }
    it = known_.emplace(std::move(key), std::move(known)).first;
  }
  last_ = it;
  return &it->second;
}

absl::Status CheckpointRows::Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) {
  XJIT_ASSIGN_OR_RETURN(const Known* known, Find(layer, w));
  if (static_cast<int64_t>(out.size()) != w.type.cols()) {
    return Internal("weights: a row of '@{}' has {} values, not {}", w.name, w.type.cols(), out.size());
  }
  if (known->sources.empty()) {
    if (known->computed.size() != out.size()) {
      return Internal("weights: '@{}' has {} values, not {}", w.name, known->computed.size(), out.size());
    }
    std::copy(known->computed.begin(), known->computed.end(), out.begin());
    return absl::OkStatus();
  }
  const auto source_of = [known](const WeightRows::Source& at) -> const WeightNames::Source& {
    return known->sources[static_cast<size_t>(at.ref - known->rows.refs().data())];
  };
  if (w.type.dims.size() == 1) {
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = known->rows.At(static_cast<int64_t>(i));
      source_of(at).Row(0, at.row, 0, 1, &out[i]);
    }
    return absl::OkStatus();
  }
  const auto at = known->rows.At(n);
  const WeightNames::Source& source = source_of(at);
  XJIT_RETURN_IF_ERROR(Prefix(source.CheckRow(at.expert, at.row), names_.checkpoint().path()));
  const int64_t begin = at.columns.begin, end = at.columns.end < 0 ? source.stored.columns : at.columns.end;
  if (at.columns.Count(end) != w.type.cols()) {
    return InvalidArgument("weights: '@{}' takes {} columns of {}", w.name, at.columns.Count(end),
                           source.stored.columns);
  }
  if (at.columns.step == 1) {
    source.Row(at.expert, at.row, begin, end, out.data());
    return absl::OkStatus();
  }
  scratch_.resize(static_cast<size_t>(end - begin));
  source.Row(at.expert, at.row, begin, end, scratch_.data());
  for (size_t i = 0; i < out.size(); ++i) out[i] = scratch_[i * static_cast<size_t>(at.columns.step)];
  return absl::OkStatus();
}

}  // namespace xjit
