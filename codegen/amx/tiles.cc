#include "codegen/amx/tiles.h"

#include <atomic>
#include <cstring>

#include "codegen/amx/emulator.h"
#include "codegen/cpu.h"

namespace xjit {
namespace {

std::atomic<bool> prepared{false};

}  // namespace

alignas(64) const uint8_t kTileConfig[64] = {
    1,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,  //
    64, 0,  64, 0,  64, 0,  64, 0,  64, 0, 64, 0, 64, 0, 64, 0,  //
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0,  0, 0,  0, 0,  0,  //
    16, 16, 16, 16, 16, 16, 16, 16,
};

absl::Status PrepareTiles() {
  const CpuFeatures& host = HostFeatures();
  if (!HasTiles(host)) {
    XJIT_RETURN_IF_ERROR(EnableAmxEmulator());
  } else if (!host.tile_permission) {
    return FailedPrecondition("{}", kTilesRefused);
  }
  prepared.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void ConfigureTiles() {
  if (!prepared.load(std::memory_order_acquire)) return;
  // Loading would clear the tiles and takes the processor longer than looking.
  alignas(64) uint8_t now[64];
  if (AmxEmulated()) {
    EmulatedTileConfig(now);
  } else {
    asm volatile(".byte 0xc4, 0xe2, 0x79, 0x49, 0x07" : : "D"(now) : "memory");  // sttilecfg [rdi]
  }
  if (std::memcmp(now, kTileConfig, sizeof now) == 0) return;
  asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0x07" : : "D"(kTileConfig) : "memory");  // ldtilecfg [rdi]
}

}  // namespace xjit
