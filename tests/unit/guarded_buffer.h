// Memory for kernel tests: the bytes end (or begin) right at an inaccessible page, so that emitted code, which no
// sanitizer sees into, faults when it reads or writes past them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace xjit::testing {

class GuardedBuffer {
 public:
  enum class Edge { kEnd, kBegin };

  // `bytes` usable bytes, filled with `fill`; at kEnd their end is at the guard page (start aligned as far as size allows).
  explicit GuardedBuffer(size_t bytes, uint8_t fill = 0, Edge edge = Edge::kEnd) : bytes_(bytes) {
    const size_t body = (bytes + 4095) / 4096 * 4096;
    map_bytes_ = body + 2 * 4096;
    map_ = static_cast<uint8_t*>(mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map_ == MAP_FAILED) std::abort();
    mprotect(map_, 4096, PROT_NONE);
    mprotect(map_ + 4096 + body, 4096, PROT_NONE);
    data_ = map_ + 4096 + (edge == Edge::kEnd ? body - bytes : 0);
    std::memset(data_, fill, bytes);
  }
  ~GuardedBuffer() { munmap(map_, map_bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  template <typename T>
  T* as() { return reinterpret_cast<T*>(data_); }
  uint8_t* data() { return data_; }
  size_t size() const { return bytes_; }

 private:
  uint8_t* map_;
  uint8_t* data_;
  size_t map_bytes_;
  size_t bytes_;
};

}  // namespace xjit::testing
