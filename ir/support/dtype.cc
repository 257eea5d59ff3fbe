#include "ir/support/dtype.h"

#include <array>

namespace xjit {
namespace {

constexpr std::array<DTypeInfo, kNumDTypes> kInfo = {{
    {"f32", 1, 4, false},     {"f16", 1, 2, false},     {"bf16", 1, 2, false},    {"i32", 1, 4, false},
    {"q8_0", 32, 34, true},   {"q4_0", 32, 18, true},   {"q4_1", 32, 20, true},   {"q5_0", 32, 22, true},
    {"q5_1", 32, 24, true},   {"q4_k", 256, 144, true}, {"q5_k", 256, 176, true}, {"q6_k", 256, 210, true},
    {"q2_k", 256, 84, true},  {"q3_k", 256, 110, true}, {"iq4_nl", 32, 18, true}, {"iq4_xs", 256, 136, true},
    {"mxfp4", 32, 17, true},  {"i8", 1, 1, false},      {"f8e4m3", 1, 1, false},  {"i4", 2, 1, false},
    {"i8act", 1, 1, false},    // without the row's scale
    {"q8act", 32, 52, false},  // without the row's padding: ir/support/q8_layout.h
}};

}  // namespace

const DTypeInfo& Info(DType type) { return kInfo[static_cast<size_t>(type)]; }

std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kInfo[static_cast<size_t>(i)].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace xjit
