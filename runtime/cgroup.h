// What Linux control groups (v1 and v2, with all parents) leave a process of processors and memory. Files are read
// through a function, so that everything here is tested on texts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace xjit {

// The contents of a file, or nothing when it cannot be read.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> ReadSystemFile(const std::string& path);

// cpu.max of v2, "150000 100000" or "max 100000": processors, or nothing when there is no limit or the text is odd.
std::optional<double> ParseCpuMax(std::string_view text);
// cpu.cfs_quota_us and cpu.cfs_period_us of v1: "-1" is no limit.
std::optional<double> ParseCfsQuota(std::string_view quota, std::string_view period);
// A number of bytes alone on a line; nothing for "max", for odd text, and from 2^60 on, which v1 writes for no limit.
std::optional<int64_t> ParseLimit(std::string_view text);
// The bytes after `key` in lines such as "MemAvailable:  123 kB" and "inactive_file 4096".
std::optional<int64_t> ParseField(std::string_view text, std::string_view key);

struct CgroupDir {
  std::string path;
  bool v2 = false;
  bool operator==(const CgroupDir&) const = default;
};
// Where the limits of `controller` ("cpu", "memory") for this process are, innermost first: its group and all parents
// that are mounted, from the texts of /proc/self/cgroup and /proc/self/mountinfo.
std::vector<CgroupDir> CgroupDirs(std::string_view cgroup, std::string_view mountinfo, std::string_view controller);

// The smallest processor quota of all groups, in processors; nothing without one.
std::optional<double> CgroupCpus(const FileReader& read = ReadSystemFile);
// The smallest of limit - usage over all groups, where clean file cache does not count as used.
std::optional<int64_t> CgroupMemory(const FileReader& read = ReadSystemFile);

}  // namespace xjit
