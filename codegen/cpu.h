// What this machine's processor can do: CPUID, XGETBV and the operating system's permission for tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// The words that decide the ISA. Intel SDM vol. 2, CPUID; vol. 1, 13.3 (XCR0).
struct CpuFeatures {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_ecx = 0;
  uint32_t leaf7_edx = 0;
  uint32_t leaf7_1_eax = 0;
  uint64_t xcr0 = 0;             // 0 without OSXSAVE
  bool tile_permission = false;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) was granted
};

// The highest level whose instructions exist and whose registers the operating system saves; nullopt below AVX2 + FMA +
// F16C.
std::optional<Isa> IsaOf(const CpuFeatures& features);

// The processor has AMX-TILE, AMX-BF16 and AMX-INT8 and the system saves tiles, whether or not it has granted their
// use.
bool HasTiles(const CpuFeatures& features);
bool HasAmxFp16(const CpuFeatures& features);

// Of the host, read once. Asks the system for tile data where the processor has AMX (Linux, once a process): the first
// call comes before any thread is made.
const CpuFeatures& HostFeatures();
// The host's level; kAvx2 where it has not even that (ChooseIsa says so).
Isa HostIsa();

// The highest level whose kernels can run on a machine: its own, or kAmx where it is avx512_bf16 without AMX, which the
// software emulator adds. nullopt below AVX2.
std::optional<Isa> RunnableIsa(const CpuFeatures& features);
// The host's; kAvx2 where it has not even that.
Isa RunnableIsa();
// Kernels of that level can be called from now on; installs the AMX emulator where that takes it. FailedPrecondition:
// this machine cannot run them.
absl::Status PrepareIsa(Isa isa);

inline constexpr std::string_view kTilesRefused = "the system refuses AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM)";

struct IsaChoice {
  Isa isa;
  std::string notice;  // one line for the user: tiles that are emulated, or refused by the system; else empty
};
// The level to compile for. `flag` (of --isa), else the environment's XJIT_ISA, caps it; neither, or "auto", is the
// host's own level. Prepares it. InvalidArgument: a name that is not a level. FailedPrecondition: a level that cannot
// run here.
absl::StatusOr<IsaChoice> ChooseIsa(std::optional<std::string_view> flag);
// The same for a given host, without the environment, and preparing nothing; `given` is how the user said it ("--isa
// amx").
absl::StatusOr<IsaChoice> ChooseIsa(std::optional<std::string_view> name, std::string_view given,
                                    const CpuFeatures& host);

// The brand string: "AMD EPYC 9655 96-Core Processor"; "unknown" where there is none.
std::string CpuName();

// name "host", the host's ISA and its cache sizes (CPUID leaf 4, AMD: 0x8000001D; TargetInfo's defaults where the
// processor does not tell). Threads, cores and NUMA nodes are left at 1: what the process may use is not CPUID's to
// say.
TargetInfo HostCpu();
// The host as a machine of that level: features beside the level are what its processor, or the AMX emulator, has.
TargetInfo HostCpu(Isa isa);

}  // namespace xjit
