// A static bar for AMX kernels: how busy the tile multiplier can be in a kernel's inner loop, counted from its own
// instructions. llvm-mca has no model of the tile unit, and most machines have none to measure on.
//
// The table is of Sapphire Rapids and its successors, for tiles of 16 rows of 64 bytes:
//   tile product       16 cycles of the multiplier; the next product into the same tile starts 52 cycles later or more
//   tile load          8 cycles of both load ports; from L2 also 1024 bytes at 48 bytes a cycle; 8 uops
//   tile store         16 cycles of the store port; 16 uops
//   front end          6 uops a cycle
//   vectors (512 bit)  arithmetic on ports 0 and 5, shuffles on port 5 alone, where a tile product is issued too;
//                      loads two a cycle, stores one a cycle
// Sources: usstq/mm_amx README (16, 8, 48 bytes; 75% of peak measured when A and B come from L2), Intel 64 and IA-32
// Architectures Optimization Reference Manual, chapter on AMX (52; 8 and 16 follow from a line a row). Uops of tile
// loads and stores are assumed, a line pair and a line each. Where the whole loop is not in order by one of these, they
// overlap: an iteration takes as long as the most loaded of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/status.h"

namespace xjit {

// A tile load of the loop, as the caller is asked where its tile lies. Registers are numbered as in the encoding, rax 0
// to r15 15; -1: none.
struct TileLoad {
  int tile = 0;
  int base = -1, index = -1;
  int64_t disp = 0;
};

struct TileLoopHints {
  // Whether that tile comes from L2, else from L1. A kernel's plan knows: B tiles by their tile number or the register
  // that walks B. Not set: all from L2.
  std::function<bool(const TileLoad&)> from_l2;
};

// One iteration.
struct TilePortReport {
  size_t begin = 0, end = 0;  // bytes of the text: [begin, end)
  int instructions = 0, uops = 0;
  int products = 0, loads = 0, l2_loads = 0, stores = 0;
  int vectors = 0;  // vector instructions that take port 0 or 5

  // Cycles that each resource asks for, and what an iteration takes: the most.
  double multiplier = 0, latency = 0, load_ports = 0, l2 = 0, store_ports = 0, vector_ports = 0, front_end = 0;
  double cycles = 0;
  std::string_view limit;  // the resource's name

  double busy() const { return multiplier / cycles; }  // share of cycles in which the tile multiplier works
  double l2_tiles_per_product() const { return static_cast<double>(l2_loads) / products; }
  std::string ToString() const;  // one line
};

// Every innermost loop with tile products, in the order of the text: the shortest body (backward jump and its target)
// around each product. Instructions that a forward jump may skip count. InvalidArgument: bytes that are no instruction,
// or a call inside such a loop.
absl::StatusOr<std::vector<TilePortReport>> AnalyzeTileLoops(std::span<const uint8_t> text, const TileLoopHints& hints);

// Of these the one with the most products; InvalidArgument where there is none.
absl::StatusOr<TilePortReport> AnalyzeTileLoop(std::span<const uint8_t> text, const TileLoopHints& hints);

}  // namespace xjit
