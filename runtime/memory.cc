#include "runtime/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "ir/support/align.h"

namespace xjit {
namespace {

constexpr int64_t kPage = 4096;

}  // namespace

absl::StatusOr<HugeBuffer> HugeBuffer::Allocate(int64_t bytes, Options options) {
  if (bytes < 0 || bytes > int64_t{1} << 46) return InvalidArgument("cannot allocate {} bytes", bytes);
  HugeBuffer buffer;
  if (bytes == 0) return buffer;
  if (options.lock) {
    // A process with the right to lock anything would be killed on the way.
    const absl::StatusOr<int64_t> available = MemoryAvailable();
    if (available.ok() && bytes > *available) {
      return FailedPrecondition("cannot lock {:.1f} MiB in memory: {:.1f} MiB are available",
                                static_cast<double>(bytes) / (1 << 20), static_cast<double>(*available) / (1 << 20));
    }
  }
  const bool huge = options.huge && bytes >= kHugePage;
  const int64_t size = AlignUp(bytes, huge ? kHugePage : kPage);
  const int64_t reserve = huge ? size + kHugePage : size;
  // Untouched memory is not counted against the limit on overcommitment: a KV cache may never be filled.
  void* map = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return FailedPrecondition("no memory for {:.1f} MiB: {}", static_cast<double>(bytes) / (1 << 20),
                              std::strerror(errno));
  }
  auto* base = static_cast<std::byte*>(map);
  auto* data = base;
  if (huge) {
    const auto address = reinterpret_cast<int64_t>(base);
    data = base + (AlignUp(address, kHugePage) - address);
    if (data > base) munmap(base, data - base);
    if (base + reserve > data + size) munmap(data + size, base + reserve - (data + size));
  }
  buffer.data_ = data;
  buffer.size_ = bytes;
  buffer.mapped_ = size;
  buffer.huge_ = huge && madvise(data, size, MADV_HUGEPAGE) == 0;
  if (options.lock && mlock(data, size) != 0) {
    return FailedPrecondition("cannot lock {:.1f} MiB in memory: {} (raise the limit with ulimit -l, or do not lock)",
                              static_cast<double>(bytes) / (1 << 20), std::strerror(errno));
  }
  return buffer;
}

HugeBuffer::~HugeBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      huge_(std::exchange(other.huge_, false)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(huge_, other.huge_);
  return *this;
}

int64_t HugeBuffer::HugeBytes() const {
  const std::optional<std::string> smaps = ReadSystemFile("/proc/self/smaps");
  if (!smaps.has_value() || data_ == nullptr) return 0;
  const auto begin = reinterpret_cast<uint64_t>(data_), end = begin + static_cast<uint64_t>(mapped_);
  // A mapping is a line "55d0-55e0 rw-p ..." and lines "Key: value" up to the next. The kernel joins neighbouring
  // mappings of the same kind, so a mapping may hold more than this buffer.
  int64_t total = 0;
  bool inside = false;
  std::string_view rest = *smaps;
  while (!rest.empty()) {
    const size_t eol = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, eol);
    rest.remove_prefix(std::min(eol + 1, rest.size()));
    uint64_t from = 0, to = 0;
    const char* last = line.data() + line.size();
    const auto first = std::from_chars(line.data(), last, from, 16);
    if (first.ec == std::errc() && first.ptr != last && *first.ptr == '-' &&
        std::from_chars(first.ptr + 1, last, to, 16).ec == std::errc()) {
      inside = from < end && to > begin;
    } else if (inside) {
      total += ParseField(line, "AnonHugePages").value_or(0);
    }
  }
  return std::min(total, mapped_);
}

absl::StatusOr<int64_t> MemoryAvailable(const FileReader& read) {
  std::optional<int64_t> available = CgroupMemory(read);
  if (const std::optional<std::string> meminfo = read("/proc/meminfo")) {
    if (const std::optional<int64_t> system = ParseField(*meminfo, "MemAvailable")) {
      available = available.has_value() ? std::min(*available, *system) : *system;
    }
  }
  if (!available.has_value()) return FailedPrecondition("cannot tell how much memory is available: no /proc/meminfo");
  return *available;
}

}  // namespace xjit
