// How a dimension is dealt to ranks, and weights cut to a rank's share.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "ir/support/align.h"

namespace xjit {

// Elements [begin, end) of a dimension.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Span&) const = default;
};

// `size` elements in units of `unit` (the last may be partial) dealt to ranks as evenly as possible, larger shares
// first.
Span DealtShare(int64_t size, int64_t unit, int ranks, int rank);
// Units there are to deal.
inline int64_t Units(int64_t size, int64_t unit) { return CeilDiv(size, unit); }

// Elements along k, of `columns` in all, that share a scale or a block of bytes: a share of columns is a multiple of
// them.
int64_t ColumnBlock(const Encoding& encoding, int64_t columns);

// The unit in which `size` columns of the hidden dimension of an MLP are dealt, 0 where there are fewer units than
// ranks. `block`: what a share must be a multiple of; `scales`: what it should be a multiple of, as far as the largest
// share then is at most 2% above what it could be.
int64_t DealUnit(int64_t size, int64_t block, int64_t scales, int ranks);

// Elements of the rows of w, which are its parts' one after the other (of an interleaved weight: of each part), in
// order. The weight that holds them is added to the function.
absl::StatusOr<Weight*> SelectRows(Function& f, const Weight& w, const std::vector<Span>& rows);
absl::StatusOr<Weight*> SelectColumns(Function& f, const Weight& w, Span columns);
absl::StatusOr<Weight*> SelectExperts(Function& f, const Weight& w, Span experts);

}  // namespace xjit
