#include "ir/support/target.h"

#include <array>

namespace xjit {
namespace {
constexpr std::array<std::string_view, kNumIsas> kNames = {"avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"};
}  // namespace

std::string_view Name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

std::optional<Isa> ParseIsa(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

std::string IsaList(Isa top) {
  std::string list;
  for (size_t i = 0; i <= static_cast<size_t>(top); ++i) {
    if (i > 0) list += ", ";
    list += kNames[i];
  }
  return list;
}

}  // namespace xjit
