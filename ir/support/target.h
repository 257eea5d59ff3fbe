// Facts about the machine that passes and kernel planners read: never the host itself, always a TargetInfo.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/dtype.h"

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

enum class PrefetchHint : uint8_t { kNone, kT0, kT1 };

// How the packed weights of few-row products are streamed, as measured on a machine: one software prefetch each
// `every` bytes, `distance` bytes ahead, where weights are of type `w`.
struct PrefetchTuning {
  DType w = DType::kF32;
  bool one_row = true;  // of one row; else of several
  PrefetchHint hint = PrefetchHint::kNone;
  int distance = 0, every = 0;
  int k_block = 0;  // depth of one pass of the kernel's loop; 0: what its planner takes
  bool operator==(const PrefetchTuning&) const = default;
  bool For(DType type, int rows) const { return w == type && one_row == (rows == 1); }
};

// A machine as planners see it: one rank's share of it, and how ranks are joined. A rank is one NUMA node. Figures that
// nobody measured are 0: a planner then declines what needs them. Read from machine files (frontend/machine_file.h).
struct TargetInfo {
  std::string name = "host";
  Isa isa = Isa::kAvx2;
  bool amx_fp16 = false;         // TDPFP16PS
  bool vbmi = false;             // vpermb, vpermi2b: tables of 128 bytes
  bool avx_vnni = false;         // vpdpbusd on ymm, where there is no AVX-512
  int threads = 1;               // worker threads a rank's program is compiled for
  int cores = 1;                 // physical cores that this process may use
  int64_t l1d_bytes = 32 << 10;  // of one core
  int64_t l2_bytes = 1 << 20;    // of one core
  int64_t l3_bytes = 32 << 20;   // of one socket
  int sockets = 1;
  std::vector<int> node_cores;    // cores of each NUMA node; empty: one node of `cores`
  int64_t node_memory_bytes = 0;  // of one NUMA node
  double node_read_gb_s = 0;      // reads of all cores of a node from its own memory, 1e9 bytes a second
  double core_read_gb_s = 0;      // of one core alone
  double link_gb_s = 0;           // between two nodes, one direction
  // Of one core with all cores busy: multiply-adds counted as two, by the fastest instruction for inputs of that type.
  double f32_gflops = 0, bf16_gflops = 0, int8_gops = 0;
  double barrier_us = 0;                 // all threads of a rank
  double all_reduce_us = 0;              // of a few KB over all ranks
  std::vector<PrefetchTuning> prefetch;  // plans take what stands here before what they know of such processors

  int nodes() const { return node_cores.empty() ? 1 : static_cast<int>(node_cores.size()); }
  bool operator==(const TargetInfo&) const = default;
};

}  // namespace xjit
