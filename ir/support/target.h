// Facts about the machine that passes and kernel planners read: never the host itself, always a TargetInfo.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xjit {

// Each level includes the ones before it. kAvx512Bf16 has VNNI; kAvx512Vnni has no vdpbf16ps.
enum class Isa : uint8_t {
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // + vpdpbusd
  kAvx512Bf16,  // + vdpbf16ps
  kAmx,         // + AMX-TILE, AMX-BF16, AMX-INT8
};
inline constexpr int kNumIsas = 5;

std::string_view Name(Isa isa);
std::optional<Isa> ParseIsa(std::string_view name);
// The names of the levels up to `top`, as an error lists them: "avx2, avx512".
std::string IsaList(Isa top);

struct TargetInfo {
  std::string name = "host";
  Isa isa = Isa::kAvx2;
  int threads = 1;               // worker threads the program is compiled for
  int cores = 1;                 // physical cores that this process may use
  int64_t l1d_bytes = 32 << 10;  // of one core
  int64_t l2_bytes = 1 << 20;    // of one core
  int64_t l3_bytes = 32 << 20;   // of one socket
  bool operator==(const TargetInfo&) const = default;
};

}  // namespace xjit
