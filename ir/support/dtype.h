// Element types of values and encodings of weights: one list, with the size of a block of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace xjit {

// A plain type has blocks of one element. A GGUF encoding stores `block_elems` consecutive elements of a row in
// `block_bytes` bytes, laid out as ggml's block_* structs.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kMxfp4,  // 32 values of FP4 E2M1 and an exponent (OCP Microscaling Formats 1.0)
  // Elements of encodings whose scales lie outside (ir/support/encoding.h).
  kI8,
  kF8E4M3,
  kI4,
  // Activations rounded to int8 with one scale a row: not a weight encoding.
  kI8Act,
  // Activations rounded to int8 in blocks of 32: not a weight encoding; see ir/support/q8_layout.h.
  kQ8Act,
};
inline constexpr int kNumDTypes = static_cast<int>(DType::kQ8Act) + 1;

struct DTypeInfo {
  std::string_view name;  // the spelling in IR text, kernel names and flags: "f32", "q4_k", "q8act"
  int block_elems;
  int block_bytes;
  bool quantized;  // a GGUF block encoding
};

const DTypeInfo& Info(DType type);
inline std::string_view Name(DType type) { return Info(type).name; }
inline bool IsQuantized(DType type) { return Info(type).quantized; }
std::optional<DType> ParseDType(std::string_view name);

// Bytes of a row of `elems` elements; `elems` must be a multiple of the block.
inline int64_t RowBytes(DType type, int64_t elems) { return elems / Info(type).block_elems * Info(type).block_bytes; }

}  // namespace xjit
