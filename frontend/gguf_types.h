// The numbers and block sizes of ggml's tensor encodings (enum ggml_type and type_traits in ggml.h and ggml.c).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "ir/support/dtype.h"

namespace xjit {

struct GgmlType {
  uint32_t id;
  std::string_view name;
  int block_elems;
  int block_bytes;
  std::optional<DType> type;  // absent: not read; its size still bounds the tensor
};

inline constexpr std::array kGgmlTypes = {
    GgmlType{0, "F32", 1, 4, DType::kF32},          GgmlType{1, "F16", 1, 2, DType::kF16},
    GgmlType{2, "Q4_0", 32, 18, DType::kQ4_0},      GgmlType{3, "Q4_1", 32, 20, DType::kQ4_1},
    GgmlType{6, "Q5_0", 32, 22, DType::kQ5_0},      GgmlType{7, "Q5_1", 32, 24, DType::kQ5_1},
    GgmlType{8, "Q8_0", 32, 34, DType::kQ8_0},      GgmlType{9, "Q8_1", 32, 36, std::nullopt},
    GgmlType{10, "Q2_K", 256, 84, DType::kQ2_K},    GgmlType{11, "Q3_K", 256, 110, DType::kQ3_K},
    GgmlType{12, "Q4_K", 256, 144, DType::kQ4_K},   GgmlType{13, "Q5_K", 256, 176, DType::kQ5_K},
    GgmlType{14, "Q6_K", 256, 210, DType::kQ6_K},   GgmlType{15, "Q8_K", 256, 292, std::nullopt},
    GgmlType{16, "IQ2_XXS", 256, 66, std::nullopt}, GgmlType{17, "IQ2_XS", 256, 74, std::nullopt},
    GgmlType{18, "IQ3_XXS", 256, 98, std::nullopt}, GgmlType{19, "IQ1_S", 256, 50, std::nullopt},
    GgmlType{20, "IQ4_NL", 32, 18, DType::kIQ4_NL}, GgmlType{21, "IQ3_S", 256, 110, std::nullopt},
    GgmlType{22, "IQ2_S", 256, 82, std::nullopt},   GgmlType{23, "IQ4_XS", 256, 136, DType::kIQ4_XS},
    GgmlType{24, "I8", 1, 1, std::nullopt},         GgmlType{25, "I16", 1, 2, std::nullopt},
    GgmlType{26, "I32", 1, 4, std::nullopt},        GgmlType{27, "I64", 1, 8, std::nullopt},
    GgmlType{28, "F64", 1, 8, std::nullopt},        GgmlType{29, "IQ1_M", 256, 56, std::nullopt},
    GgmlType{30, "BF16", 1, 2, DType::kBF16},       GgmlType{34, "TQ1_0", 256, 54, std::nullopt},
    GgmlType{35, "TQ2_0", 256, 66, std::nullopt},   GgmlType{39, "MXFP4", 32, 17, DType::kMxfp4},
};

inline const GgmlType* FindGgmlType(uint32_t id) {
  for (const GgmlType& row : kGgmlTypes) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

}  // namespace xjit
