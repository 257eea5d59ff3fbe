#include "frontend/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "ir/support/status.h"

namespace xjit {

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO must not wait for its writer; it has no effect on regular files.
  file.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return FailedPrecondition("{}: cannot open: {}", path, std::strerror(errno));
  struct stat info;
  if (fstat(file.fd_, &info) != 0) return FailedPrecondition("{}: cannot stat: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return FailedPrecondition("{}: is a folder, expected a file", path);
  if (!S_ISREG(info.st_mode)) return FailedPrecondition("{}: is not a regular file", path);
  if (info.st_size <= 0) return InvalidArgument("{}: the file is empty", path);
  const auto size = static_cast<size_t>(info.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd_, 0);
  if (map == MAP_FAILED) return FailedPrecondition("{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  file.data_ = static_cast<const std::byte*>(map);
  file.size_ = size;
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) close(fd_);
}

void MappedFile::Discard(std::span<const std::byte> part) const {
  const auto base = reinterpret_cast<uintptr_t>(data_);
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  if (part.empty() || begin < base || begin - base >= size_ || part.size() > size_ - (begin - base)) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = begin / page * page;
  // The end is not rounded: the kernel does, and the mapping's last page is ours.
  madvise(reinterpret_cast<void*>(first), begin + part.size() - first, MADV_DONTNEED);
}

}  // namespace xjit
