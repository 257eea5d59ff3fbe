// Types of the IR: tensors with constant or symbolic dimensions, and the step (which tokens, which sequences).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/dtype.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"

namespace xjit {

// The symbols that stand for a size: see Dim.
inline constexpr std::string_view kDimSymbols = "TLR";
inline bool IsDimSymbol(std::string_view text) {
  return text.size() == 1 && kDimSymbols.find(text[0]) != std::string_view::npos;
}

// A constant size, or one of the symbols that only a step knows: 'T' tokens in this step, 'L' rows that need logits,
// 'R' tokens of a rank's own sequences.
struct Dim {
  int64_t size = 0;
  char symbol = 0;
  static Dim Symbol(char s) { return {0, s}; }
  bool symbolic() const { return symbol != 0; }
  bool operator==(const Dim&) const = default;
};

struct Type {
  enum class Kind : uint8_t { kNone, kTensor, kStep };
  Kind kind = Kind::kNone;
  DType elem = DType::kF32;
  std::vector<Dim> dims;
  Scales scales;  // of a weight

  static Type Tensor(std::vector<Dim> dims, DType elem) { return {Kind::kTensor, elem, std::move(dims), {}}; }
  static Type Weight(std::vector<Dim> dims, const Encoding& e) {
    return {Kind::kTensor, e.type, std::move(dims), e.scales};
  }
  static Type Step() { return {Kind::kStep, DType::kF32, {}, {}}; }
  // [rows, cols] of f32, the shape of every activation.
  static Type Rows(Dim rows, int64_t cols, DType elem = DType::kF32) { return Tensor({rows, Dim{cols, 0}}, elem); }

  bool is_tensor() const { return kind == Kind::kTensor; }
  bool is_step() const { return kind == Kind::kStep; }
  bool is_matrix() const { return is_tensor() && dims.size() == 2; }
  // [experts, n, k].
  bool is_experts() const { return is_tensor() && dims.size() == 3; }
  Encoding encoding() const { return {elem, scales}; }
  // n of a weight [n, k] or [experts, n, k]; the size of a vector.
  int64_t rows() const { return dims.empty() ? 0 : dims[dims.size() == 1 ? 0 : dims.size() - 2].size; }
  // The constant last dimension of a tensor of any rank, 0 where there is none.
  int64_t cols() const { return dims.empty() ? 0 : dims.back().size; }
  bool operator==(const Type&) const = default;
};

// "tensor<T x 576 x f32>", "!step".
std::string ToString(const Type& type);
// "T x 576 x f32": what stands between the angle brackets.
std::string DimsToString(const Type& type);

}  // namespace xjit
