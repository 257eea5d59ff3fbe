// The one tile instruction that Zydis 4.0 does not know.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace xjit {

struct TdpFp16 {
  static constexpr int kLength = 5;
  int dest = 0, a = 0, b = 0;
};

// tdpfp16ps at the beginning of `code`: VEX.128.F2.0F38.W0 5C 11:rrr:bbb, tiles below 8.
inline std::optional<TdpFp16> DecodeTdpFp16(std::span<const uint8_t> code) {
  if (code.size() < TdpFp16::kLength || code[0] != 0xC4 || code[1] != 0xE2 || (code[2] & 0x87) != 3 ||
      code[3] != 0x5C || code[4] < 0xC0 || (code[2] & 0x40) == 0) {
    return std::nullopt;
  }
  return TdpFp16{.dest = code[4] >> 3 & 7, .a = code[4] & 7, .b = ~(code[2] >> 3) & 7};
}

}  // namespace xjit
