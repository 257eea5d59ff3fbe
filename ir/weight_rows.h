// What a weight's name says: which rows, columns and experts of which symbols of the checkpoint it is made of.
//
//   name  := part ('+' part)* | part ('|' part)*    joined rows | rows interleaved by 16
//   part  := ref ('&' ref)*                         experts one after the other
//   ref   := symbol slice?
//   slice := '[' range (',' range)* ']'             one range for each dimension of the symbol, as numpy writes it
//   range := ':' | begin ':' end | begin ':' end ':' step
//
// "q+k+v", "gate|up", "qkv[0:64,:]", "o[:,0:2816]", "gate_exps[:,0:352,:]&shared_gate[0:352,:]". In a weight of rank 3,
// a ref with two ranges, and a ref with none that counts for one expert behind an '&', is a matrix: that expert.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/support/align.h"
#include "ir/support/status.h"

namespace xjit {

struct WeightRange {
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end, whatever it is
  int64_t step = 1;
  bool whole() const { return begin == 0 && end < 0 && step == 1; }
  // Number of elements; `size` is the dimension's where the range is open.
  int64_t Count(int64_t size) const { return CeilDiv((end < 0 ? size : end) - begin, step); }
  int64_t At(int64_t i) const { return begin + i * step; }
  bool operator==(const WeightRange&) const = default;
};

struct WeightRef {
  std::string symbol;
  std::vector<WeightRange> ranges;  // none: all of it

  // Of the rows, the columns, the experts; whole where nothing is said. A vector has rows only.
  WeightRange rows() const { return FromEnd(ranges.size() == 1 ? 0 : 1); }
  WeightRange columns() const { return ranges.size() < 2 ? WeightRange{} : FromEnd(0); }
  WeightRange experts() const { return FromEnd(2); }
  bool operator==(const WeightRef&) const = default;

 private:
  WeightRange FromEnd(size_t i) const { return i < ranges.size() ? ranges[ranges.size() - 1 - i] : WeightRange{}; }
};

// "q[0:64,:]"; InvalidArgument with what is wrong.
absl::StatusOr<WeightRef> ParseWeightRef(std::string_view text);
std::string ToString(const WeightRef& ref);

// `name` with elements [begin, end) of dimension `dim` of a weight of `rank` dimensions, for every ref of a name
// without '+' and '|'; slices of slices compose. `stack_experts` as the weight has them. A ref that is a matrix within
// a rank 3 weight is left out of slices of experts.
absl::StatusOr<std::string> SliceWeightName(std::string_view name, int rank, int dim, int64_t begin, int64_t end,
                                            std::span<const int64_t> stack_experts = {});

// Where the rows of a weight come from. Parses the name once: keep it while asking for many rows.
class WeightRows {
 public:
  struct Source {
    size_t part = 0;
    const WeightRef* ref = nullptr;
    bool matrix = false;  // the symbol has no dimension of experts
    int64_t expert = 0;   // in the symbol's own numbering, as are
    int64_t row = 0;      // (of a vector: the element)
    WeightRange columns;
  };
  static absl::StatusOr<WeightRows> Of(const Weight& weight);

  // Row n of the flat [experts x rows]; of a vector element n.
  Source At(int64_t n) const;
  // All refs, part by part.
  std::span<const WeightRef> refs() const { return refs_; }

 private:
  std::vector<WeightRef> refs_;
  std::vector<int64_t> part_rows_, stack_experts_;
  int64_t rows_ = 0;
  bool experts_ = false;
};

// That the name parses and agrees with the type: parts, stacked experts, ranges.
absl::Status CheckWeight(const Weight& weight);

}  // namespace xjit
