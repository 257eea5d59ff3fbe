// What this machine reaches: memory read bandwidth and the peaks of dot products, by emitted loops. The roofs that
// `xjit bench`, `bench-op` and `machine` hold results against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

// Reads [p, p + bytes), whole 64-byte lines in strictly ascending order, and returns the xor of all its 8-byte words.
// Bytes behind the last whole line are left out. Any thread may call it.
using ReadBytesFn = uint64_t (*)(const void* p, size_t bytes);
// As wide as the host's vectors; emitted once a process.
absl::StatusOr<ReadBytesFn> ReadBytesFunction();

// Memory to read from: 2 MiB pages where the system gives them, every page written.
class StreamBuffer {
 public:
  static absl::StatusOr<StreamBuffer> Create(int64_t bytes);
  StreamBuffer(StreamBuffer&& other) noexcept;
  StreamBuffer& operator=(StreamBuffer&&) = delete;
  ~StreamBuffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // The `part`-th of `parts` contiguous shares, whole lines.
  std::span<const std::byte> Part(int part, int parts) const;

 private:
  StreamBuffer(void* map, size_t map_bytes, std::byte* data, int64_t bytes)
      : map_(map), map_bytes_(map_bytes), data_(data), bytes_(bytes) {}
  void* map_;
  size_t map_bytes_;
  std::byte* data_;
  int64_t bytes_;
};

struct ReadBandwidthOptions {
  int64_t bytes = 0;               // of all threads; 0: four times the L3, at least 256 MiB
  int rounds = 7;                  // passes over the buffer, after one that is not timed
  std::span<const int> cpus = {};  // thread t runs on cpus[t]; empty: wherever the system puts it
};
struct ReadBandwidth {
  double best = 0;    // GB/s (1e9 bytes), all threads together, of the fastest pass
  double median = 0;  // of the middle one
};
// `threads` threads each read a share of one buffer at the same time. A machine shared with others changes its speed
// within seconds: compare only with what was measured in between.
absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(int threads, const ReadBandwidthOptions& options = {});

enum class PeakKind : uint8_t { kF32Fma, kBf16Dot, kInt8Dot };
std::string_view Name(PeakKind kind);  // "f32 fma", "bf16 dot", "int8 dot"

// GFLOP/s or GOP/s (a multiplication and an addition are two) of one thread, in a loop that touches no memory, best of
// several runs of about 2 ms: vfmadd231ps, vdpbf16ps, and vpdpbusd or below avx512_vnni vpmaddubsw, vpmaddwd, vpaddd,
// in the widest vectors of `isa`. FailedPrecondition: an ISA that the host lacks. InvalidArgument: one without such a
// product.
absl::StatusOr<double> MeasurePeak(PeakKind kind, Isa isa);

}  // namespace xjit
