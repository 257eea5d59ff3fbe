// A file mapped into memory for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace xjit {

// Owns the mapping and the descriptor; the bytes stay where they are when the object moves. The file must not be
// cut while it is mapped: the kernel then answers reads with SIGBUS.
class MappedFile {
 public:
  // Maps the regular file at `path`. FailedPrecondition: no such file, not a regular file, no permission;
  // InvalidArgument: an empty file. The message starts with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

  // Drops the pages that hold `part` from this process's resident set; reading them again reads the page cache or
  // the disk. Pages that `part` shares with its neighbours go too. `part` outside the mapping is ignored.
  void Discard(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;

  std::string path_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace xjit
