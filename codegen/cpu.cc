#include "codegen/cpu.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "codegen/amx/tiles.h"

namespace xjit {
namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Cpuid(uint32_t leaf, uint32_t subleaf = 0) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

constexpr bool All(uint64_t word, uint64_t bits) { return (word & bits) == bits; }
constexpr uint64_t Bit(int i) { return uint64_t{1} << i; }

constexpr uint64_t kAvxState = Bit(1) | Bit(2);             // XMM, upper YMM
constexpr uint64_t kZmmState = Bit(5) | Bit(6) | Bit(7);    // opmasks, upper ZMM0-15, ZMM16-31
constexpr uint64_t kTileState = Bit(17) | Bit(18);          // TILECFG, TILEDATA
constexpr uint64_t kAmxBits = Bit(22) | Bit(24) | Bit(25);  // AMX-BF16, AMX-TILE, AMX-INT8

uint64_t ReadXcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

bool AskForTiles() {
  constexpr long kArchReqXcompPerm = 0x1023, kXtileData = 18;  // linux/arch/x86/include/uapi/asm/prctl.h
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) == 0;
}

CpuFeatures ReadFeatures() {
  CpuFeatures f;
  f.leaf1_ecx = Cpuid(1).ecx;
  const Cpuid leaf7(7);
  f.leaf7_ebx = leaf7.ebx;
  f.leaf7_ecx = leaf7.ecx;
  f.leaf7_edx = leaf7.edx;
  if (leaf7.eax >= 1) f.leaf7_1_eax = Cpuid(7, 1).eax;
  if (All(f.leaf1_ecx, Bit(27))) f.xcr0 = ReadXcr0();
  if (HasTiles(f)) f.tile_permission = AskForTiles();
  return f;
}

std::string_view Spoken(Isa isa) {
  constexpr std::array<std::string_view, kNumIsas> kSpoken = {"AVX2", "AVX-512", "AVX-512 VNNI", "AVX-512 BF16", "AMX"};
  return kSpoken[static_cast<size_t>(isa)];
}

absl::Status CanRun(Isa isa, const CpuFeatures& host) {
  const std::optional<Isa> own = IsaOf(host), most = RunnableIsa(host);
  if (!own) return FailedPrecondition("this machine's processor has no AVX2 with FMA and F16C, the least xjit needs");
  if (isa <= *most) return absl::OkStatus();
  const std::string has = IsaList(*own);
  if (isa != Isa::kAmx) return FailedPrecondition("this machine has no {}; it has {}", Spoken(isa), has);
  if (HasTiles(host) && own == Isa::kAvx512Bf16) return FailedPrecondition("{}; there are {}", kTilesRefused, has);
  return FailedPrecondition("this machine has no AMX, whose emulator needs {}; it has {}", Spoken(Isa::kAvx512Bf16),
                            has);
}

// Size of the data or unified cache of a level; 0 when the leaf lists none. The leaves of Intel and AMD have the same
// form (SDM vol. 2, CPUID leaf 4; AMD APM vol. 3, Fn8000_001D).
int64_t CacheBytes(uint32_t leaf, uint32_t level) {
  for (uint32_t i = 0; i < 16; ++i) {
    const Cpuid c(leaf, i);
    const uint32_t type = c.eax & 31;
    if (type == 0) break;
    if (type == 2 || (c.eax >> 5 & 7) != level) continue;  // 2: instructions only
    const int64_t ways = (c.ebx >> 22) + 1, partitions = (c.ebx >> 12 & 1023) + 1, line = (c.ebx & 4095) + 1;
    return ways * partitions * line * (int64_t{c.ecx} + 1);
  }
  return 0;
}

}  // namespace

std::optional<Isa> IsaOf(const CpuFeatures& f) {
  constexpr uint64_t kFmaAvxF16c = Bit(12) | Bit(28) | Bit(29);
  if (!All(f.leaf1_ecx, kFmaAvxF16c) || !All(f.leaf7_ebx, Bit(5)) || !All(f.xcr0, kAvxState)) return std::nullopt;
  constexpr uint64_t kFoundation = Bit(16) | Bit(17) | Bit(30) | Bit(31);  // F, DQ, BW, VL
  if (!All(f.leaf7_ebx, kFoundation) || !All(f.xcr0, kZmmState)) return Isa::kAvx2;
  if (!All(f.leaf7_ecx, Bit(11))) return Isa::kAvx512;
  if (!All(f.leaf7_1_eax, Bit(5))) return Isa::kAvx512Vnni;
  if (!HasTiles(f) || !f.tile_permission) return Isa::kAvx512Bf16;
  return Isa::kAmx;
}

bool HasTiles(const CpuFeatures& f) { return All(f.leaf7_edx, kAmxBits) && All(f.xcr0, kTileState); }
bool HasAmxFp16(const CpuFeatures& f) { return HasTiles(f) && All(f.leaf7_1_eax, Bit(21)); }

const CpuFeatures& HostFeatures() {
  static const CpuFeatures features = ReadFeatures();
  return features;
}

Isa HostIsa() { return IsaOf(HostFeatures()).value_or(Isa::kAvx2); }

std::optional<Isa> RunnableIsa(const CpuFeatures& f) {
  const std::optional<Isa> isa = IsaOf(f);
  return isa == Isa::kAvx512Bf16 && !HasTiles(f) ? Isa::kAmx : isa;
}

Isa RunnableIsa() { return RunnableIsa(HostFeatures()).value_or(Isa::kAvx2); }

absl::Status PrepareIsa(Isa isa) {
  XJIT_RETURN_IF_ERROR(CanRun(isa, HostFeatures()));
  return isa == Isa::kAmx ? PrepareTiles() : absl::OkStatus();
}

absl::StatusOr<IsaChoice> ChooseIsa(std::optional<std::string_view> name, std::string_view given,
                                    const CpuFeatures& host) {
  const std::optional<Isa> own = IsaOf(host);
  if (!own) return CanRun(Isa::kAvx2, host);
  if (!name || *name == "auto") {
    const bool refused = own == Isa::kAvx512Bf16 && HasTiles(host) && !host.tile_permission;
    return IsaChoice{*own, refused ? fmt::format("{}, falling back to {}", kTilesRefused, Name(*own)) : ""};
  }
  const std::optional<Isa> isa = ParseIsa(*name);
  if (!isa) {
    return InvalidArgument("{}: not an ISA; known are auto, {}", given, IsaList(static_cast<Isa>(kNumIsas - 1)));
  }
  XJIT_RETURN_IF_ERROR(Prefix(CanRun(*isa, host), given));
  if (*isa <= *own) return IsaChoice{*isa, ""};
  return IsaChoice{*isa, fmt::format("{}: this machine has no AMX, running under the software emulator (slow)", given)};
}

absl::StatusOr<IsaChoice> ChooseIsa(std::optional<std::string_view> flag) {
  const bool asked = flag && *flag != "auto";
  const char* env = flag ? nullptr : std::getenv("XJIT_ISA");
  std::string given;
  if (flag) {
    given = fmt::format("--isa {}", *flag);
  } else if (env != nullptr && *env != '\0') {
    flag = env;
    given = fmt::format("XJIT_ISA={}", env);
  }
  auto chosen = ChooseIsa(flag, given, HostFeatures());
  if (!chosen.ok()) return asked ? AsUsage(chosen.status()) : chosen.status();
  IsaChoice choice = *std::move(chosen);
  XJIT_RETURN_IF_ERROR(Prefix(PrepareIsa(choice.isa), given));
  return choice;
}

std::string CpuName() {
  constexpr uint32_t kFirst = 0x80000002;
  if (Cpuid(0x80000000).eax < kFirst + 2) return "unknown";
  char text[49] = {};
  for (uint32_t i = 0; i < 3; ++i) {
    const Cpuid c(kFirst + i);
    const uint32_t words[4] = {c.eax, c.ebx, c.ecx, c.edx};
    std::memcpy(text + 16 * i, words, 16);
  }
  std::string_view name = text;
  while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  return name.empty() ? "unknown" : std::string(name);
}

TargetInfo HostCpu() { return HostCpu(HostIsa()); }

TargetInfo HostCpu(Isa isa) {
  const CpuFeatures& host = HostFeatures();
  TargetInfo target;
  target.isa = isa;
  target.amx_fp16 = isa == Isa::kAmx && (HasAmxFp16(host) || !HasTiles(host));  // the emulator has it
  target.vbmi = isa >= Isa::kAvx512 && All(host.leaf7_ecx, Bit(1));
  target.avx_vnni = All(host.leaf7_1_eax, Bit(4));
  uint32_t leaf = 4;
  if (CacheBytes(leaf, 1) == 0 && Cpuid(0x80000000).eax >= 0x8000001D) leaf = 0x8000001D;
  if (const int64_t bytes = CacheBytes(leaf, 1); bytes > 0) target.l1d_bytes = bytes;
  if (const int64_t bytes = CacheBytes(leaf, 2); bytes > 0) target.l2_bytes = bytes;
  if (const int64_t bytes = CacheBytes(leaf, 3); bytes > 0) target.l3_bytes = bytes;
  return target;
}

}  // namespace xjit
