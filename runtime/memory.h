// Large zeroed memory from the system, on 2 MiB pages where it gives them, and how much there is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/support/status.h"
#include "runtime/cgroup.h"

namespace xjit {

// Anonymous memory, zeroed, touched by nobody yet: a page belongs to the NUMA node of the thread that writes it first.
class HugeBuffer {
 public:
  struct Options {
    // Ask for 2 MiB pages (madvise): decode reads weights 25-50% faster with them. No error where they are refused.
    bool huge = true;
    // Keep in memory (mlock), which also touches all of it now; FailedPrecondition when a limit forbids it
    // or less is available.
    bool lock = false;
  };
  static constexpr int64_t kHugePage = int64_t{2} << 20;

  // Aligned to 2 MiB when it is that large and `huge`, else to a page. FailedPrecondition when there is no memory,
  // InvalidArgument for a negative size. No bytes are a null buffer.
  static absl::StatusOr<HugeBuffer> Allocate(int64_t bytes, Options options);
  static absl::StatusOr<HugeBuffer> Allocate(int64_t bytes) { return Allocate(bytes, Options()); }

  HugeBuffer() = default;
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  // Whether the system agreed to use 2 MiB pages; HugeBytes() tells whether it did.
  bool huge() const { return huge_; }
  // Bytes of the buffer that are on 2 MiB pages now, from /proc/self/smaps: takes milliseconds.
  int64_t HugeBytes() const;

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t mapped_ = 0;
  bool huge_ = false;
};

// Bytes that can still be used without swapping or being killed: the least of MemAvailable and what each control group
// has left. FailedPrecondition when the system does not tell.
absl::StatusOr<int64_t> MemoryAvailable(const FileReader& read = ReadSystemFile);

}  // namespace xjit
