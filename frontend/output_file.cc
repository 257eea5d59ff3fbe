#include "frontend/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace xjit {
namespace {

namespace fs = std::filesystem;

absl::Status CannotWrite(const std::string& path, int error) {
  return FailedPrecondition("{}: cannot write: {}", path, std::strerror(error));
}

// The file that bytes go to first: beside the target's real place, or the target itself where it is no regular file.
struct Destination {
  std::string target;
  std::string part;
  bool direct = false;
};

Destination DestinationOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) return {path, path, true};
  const fs::path real = fs::exists(status) ? fs::canonical(path, error) : fs::path(path);
  const std::string target = error ? path : real.string();
  return {target, fmt::format("{}.{}.part", target, getpid()), false};
}

}  // namespace

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  const Destination to = DestinationOf(path);
  std::FILE* file = std::fopen(to.part.c_str(), "we");
  if (file == nullptr) return CannotWrite(path, errno);
  int error = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && !to.direct && std::rename(to.part.c_str(), to.target.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  if (!to.direct) std::remove(to.part.c_str());
  return CannotWrite(path, error);
}

absl::Status CheckNotInput(const std::string& path, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (fs::equivalent(path, input, error) && !error && fs::is_regular_file(path, error)) {
      return InvalidArgument("{}: is read by this very command (write to another file)", path);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWritable(const std::string& path) {
  const Destination to = DestinationOf(path);
  std::FILE* file = std::fopen(to.part.c_str(), to.direct ? "re+" : "we");
  if (file == nullptr) return CannotWrite(path, errno);
  std::fclose(file);
  if (!to.direct) std::remove(to.part.c_str());
  return absl::OkStatus();
}

}  // namespace xjit
