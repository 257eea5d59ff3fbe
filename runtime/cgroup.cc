#include "runtime/cgroup.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace xjit {
namespace {

std::string_view Trim(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = s.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return s.substr(first, s.find_last_not_of(kSpace) - first + 1);
}

std::vector<std::string_view> Split(std::string_view s, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = s.find(separator);
    parts.push_back(s.substr(0, at));
    if (at == std::string_view::npos) return parts;
    s.remove_prefix(at + 1);
  }
}

bool Contains(std::string_view list, std::string_view word) {
  for (std::string_view part : Split(list, ',')) {
    if (part == word) return true;
  }
  return false;
}

std::optional<int64_t> ParseInt(std::string_view s) {
  s = Trim(s);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

// mountinfo writes space, tab, newline and backslash as \040, \011, \012 and \134 (proc(5)).
std::string Unescape(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    const auto octal = [&](size_t k) { return k < s.size() && s[k] >= '0' && s[k] <= '7'; };
    if (s[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((s[i + 1] - '0') * 64 + (s[i + 2] - '0') * 8 + (s[i + 3] - '0'));
      i += 3;
    } else {
      out += s[i];
    }
  }
  return out;
}

template <typename T>
void KeepSmallest(std::optional<T>& best, std::optional<T> value) {
  if (value.has_value() && (!best.has_value() || *value < *best)) best = value;
}

std::vector<CgroupDir> Dirs(const FileReader& read, std::string_view controller) {
  const std::optional<std::string> cgroup = read("/proc/self/cgroup");
  const std::optional<std::string> mountinfo = read("/proc/self/mountinfo");
  if (!cgroup.has_value() || !mountinfo.has_value()) return {};
  return CgroupDirs(*cgroup, *mountinfo, controller);
}

}  // namespace

std::optional<std::string> ReadSystemFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return std::nullopt;
  return std::move(text).str();
}

std::optional<double> ParseCfsQuota(std::string_view quota, std::string_view period) {
  const std::optional<int64_t> q = ParseInt(quota), p = ParseInt(period);
  if (!q.has_value() || !p.has_value() || *q <= 0 || *p <= 0) return std::nullopt;
  return static_cast<double>(*q) / static_cast<double>(*p);
}

std::optional<double> ParseCpuMax(std::string_view text) {
  text = Trim(text);
  const size_t space = text.find(' ');
  // The period may be left out when the file is written, never when it is read.
  if (space == std::string_view::npos) return std::nullopt;
  return ParseCfsQuota(text.substr(0, space), text.substr(space));
}

std::optional<int64_t> ParseLimit(std::string_view text) {
  const std::optional<int64_t> value = ParseInt(text);
  if (!value.has_value() || *value < 0 || *value >= int64_t{1} << 60) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseField(std::string_view text, std::string_view key) {
  for (std::string_view line : Split(text, '\n')) {
    if (line.substr(0, key.size()) != key) continue;
    std::string_view rest = line.substr(key.size());
    if (!rest.empty() && rest.front() == ':') rest.remove_prefix(1);
    if (rest.empty() || (rest.front() != ' ' && rest.front() != '\t')) continue;
    rest = Trim(rest);
    int64_t unit = 1;
    if (rest.size() > 2 && rest.substr(rest.size() - 2) == "kB") {
      unit = 1024;
      rest.remove_suffix(2);
    }
    const std::optional<int64_t> value = ParseInt(rest);
    if (!value.has_value() || *value < 0 || *value > INT64_MAX / unit) return std::nullopt;
    return *value * unit;
  }
  return std::nullopt;
}

std::vector<CgroupDir> CgroupDirs(std::string_view cgroup, std::string_view mountinfo, std::string_view controller) {
  // A line of cgroup is "id:controllers:path"; v2 is "0::path". A hybrid machine has both, and a controller lives in
  // the hierarchy that names it.
  std::string v1_path, v2_path;
  bool has_v1 = false, has_v2 = false;
  for (std::string_view line : Split(cgroup, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      has_v2 = true;
      v2_path = line.substr(second + 1);
    } else if (Contains(controllers, controller)) {
      has_v1 = true;
      v1_path = line.substr(second + 1);
    }
  }

  std::vector<CgroupDir> dirs;
  for (std::string_view line : Split(mountinfo, '\n')) {
    // "36 35 98:0 /root /mount options [optional ...] - type source super_options"
    const std::vector<std::string_view> fields = Split(line, ' ');
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (dash - fields.begin() < 6 || fields.end() - dash < 4) continue;
    const bool v2 = dash[1] == "cgroup2" && has_v2;
    const bool v1 = dash[1] == "cgroup" && has_v1 && Contains(dash[3], controller);
    if (!v1 && !v2) continue;
    const std::string root = Unescape(fields[3]), mount = Unescape(fields[4]);
    std::string path = v2 ? v2_path : v1_path;
    // In a container without a namespace of its own, the path is the host's and the mount shows a part of it.
    if (root != "/") {
      const bool below =
          path.substr(0, root.size()) == root && (path.size() == root.size() || path[root.size()] == '/');
      path = below ? path.substr(root.size()) : "";
    }
    if (path.find("/..") != std::string::npos) path = "";  // outside of the namespace: its parents are not to be seen
    while (!path.empty() && path.back() == '/') path.pop_back();
    while (!path.empty()) {
      dirs.push_back({mount + path, v2});
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    dirs.push_back({mount, v2});
  }
  return dirs;
}

std::optional<double> CgroupCpus(const FileReader& read) {
  std::optional<double> best;
  for (const CgroupDir& dir : Dirs(read, "cpu")) {
    if (dir.v2) {
      if (const auto text = read(dir.path + "/cpu.max")) KeepSmallest(best, ParseCpuMax(*text));
    } else {
      const auto quota = read(dir.path + "/cpu.cfs_quota_us"), period = read(dir.path + "/cpu.cfs_period_us");
      if (quota.has_value() && period.has_value()) KeepSmallest(best, ParseCfsQuota(*quota, *period));
    }
  }
  return best;
}

std::optional<int64_t> CgroupMemory(const FileReader& read) {
  std::optional<int64_t> best;
  for (const CgroupDir& dir : Dirs(read, "memory")) {
    const auto limit_text = read(dir.path + (dir.v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    const auto usage_text = read(dir.path + (dir.v2 ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!limit_text.has_value() || !usage_text.has_value()) continue;
    const std::optional<int64_t> limit = ParseLimit(*limit_text), usage = ParseLimit(*usage_text);
    if (!limit.has_value() || !usage.has_value()) continue;
    int64_t used = *usage;
    // File cache on the inactive list goes first when memory is short; a model file just read is there.
    if (const auto stat = read(dir.path + "/memory.stat")) {
      used -= std::min(used, ParseField(*stat, dir.v2 ? "inactive_file" : "total_inactive_file").value_or(0));
    }
    KeepSmallest<int64_t>(best, std::max<int64_t>(*limit - used, 0));
  }
  return best;
}

}  // namespace xjit
