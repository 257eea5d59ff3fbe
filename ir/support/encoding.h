// How a weight is stored: an element type and, where elements are scaled from outside their bytes, the scales' layout.
// GGUF encodings carry their scales in their blocks and need nothing more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/support/dtype.h"

namespace xjit {

// Which elements of a matrix [n, k] share a scale. The last block of a row or column may be partial.
struct Scales {
  enum class Kind : uint8_t {
    kNone,
    kTensor,   // one
    kChannel,  // one a row
    kGroup,    // one for `cols` consecutive elements of a row
    kBlock,    // one for a block of `rows` x `cols`
  };
  Kind kind = Kind::kNone;
  int32_t rows = 0;
  int32_t cols = 0;
  bool zeros = false;      // kGroup: each group has a zero point too (else the middle of the range is zero)
  bool act_order = false;  // kGroup: a table says which group an element of k belongs to
  // i8: the scheme was made for activations that stay floats (W8A16). Without it they are rounded to int8 too, with a
  // scale a token (W8A8).
  bool weight_only = false;
  bool operator==(const Scales&) const = default;
  auto operator<=>(const Scales&) const = default;
};

struct Encoding {
  DType type = DType::kF32;
  Scales scales;

  Encoding() = default;
  Encoding(DType t) : type(t) {}  // NOLINT: a plain element type is an encoding
  Encoding(DType t, Scales s) : type(t), scales(s) {}
  bool operator==(const Encoding&) const = default;
  auto operator<=>(const Encoding&) const = default;

  static Encoding Int8() { return {DType::kI8, {.kind = Scales::Kind::kChannel}}; }
  static Encoding Fp8Blocks() { return {DType::kF8E4M3, {.kind = Scales::Kind::kBlock, .rows = 128, .cols = 128}}; }
  static Encoding Int4(int32_t group, bool zeros, bool act_order = false) {
    return {DType::kI4, {.kind = Scales::Kind::kGroup, .cols = group, .zeros = zeros, .act_order = act_order}};
  }
};

// "bf16", "q4_k", "i8<channel>", "i8<channel, weight_only>", "f8e4m3<128x128>", "f8e4m3<tensor>", "i4<group 128, zeros,
// act_order>".
std::string ToString(const Encoding& encoding);
// The inverse; nullopt: not an encoding.
std::optional<Encoding> ParseEncoding(std::string_view text);

// Bytes of an [n, k] matrix with its scales (f32; f16 for groups) and zero points, without padding.
int64_t EncodedBytes(const Encoding& encoding, int64_t n, int64_t k);

}  // namespace xjit
