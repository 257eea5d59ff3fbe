// Tile instructions made usable in this process, and the one tile configuration that AMX kernels run with.
#pragma once

#include <cstdint>

#include "ir/support/status.h"

namespace xjit {

// Eight tiles of 16 rows of 64 bytes, in the form of ldtilecfg (Intel SDM vol. 1, 18.3).
extern const uint8_t kTileConfig[64];

// From here on tile instructions can be executed: by the processor, else by the software emulator. FailedPrecondition
// where neither can.
absl::Status PrepareTiles();

// Gives the calling thread kTileConfig, which AMX kernels neither load nor change. Each thread calls it before its
// first kernel, and may before each: it costs some tens of cycles when nothing is to do. Does nothing before
// PrepareTiles().
void ConfigureTiles();

}  // namespace xjit
