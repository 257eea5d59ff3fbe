#include "frontend/prefetch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "codegen/cpu.h"

namespace xjit {
namespace {

std::filesystem::path UserPath() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && std::filesystem::path(cache).is_absolute()) {
    return std::filesystem::path(cache) / "xjit" / "prefetch.txt";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return std::filesystem::path(home) / ".cache" / "xjit" / "prefetch.txt";
}

std::string KeyOf(const TargetInfo& target) {
  std::string cpu = CpuName();
  std::replace(cpu.begin(), cpu.end(), '\t', ' ');
  return fmt::format("{}, {}, {} threads", cpu, Name(target.isa), target.threads);
}

// Distances and densities are displacements and steps of an emitted loop: nobody's edits may become an endless loop of
// prefetches or a wild address. 64 KiB ahead is more than an L1 holds: no measurement gives it.
constexpr int kMostBytes = 65536;
constexpr int kMostDepth = 256;  // eight blocks: a loop's body has no more (gemm_plan_vnni.cc)

}  // namespace

std::optional<PrefetchLine> ParsePrefetchLine(std::string_view line, std::string_view key) {
  const size_t tab = line.find('\t');
  if (tab == std::string_view::npos || line.substr(0, tab) != key) return std::nullopt;
  std::istringstream fields{std::string(line.substr(tab + 1))};
  std::string type;
  int rows = 0, hint = 0, distance = 0, every = 0, depth = 0;
  if (!(fields >> type >> rows >> hint >> distance >> every >> depth)) return std::nullopt;
  const auto w = ParseDType(type);
  const bool prefetches = hint > static_cast<int>(PrefetchHint::kNone);
  if (!w || (rows != 1 && rows != kSeveralRows) || hint < -1 || hint > static_cast<int>(PrefetchHint::kT1) ||
      distance < 0 || distance > kMostBytes || every < (prefetches ? 64 : 0) || every > kMostBytes || depth < 0 ||
      depth > kMostDepth) {
    return std::nullopt;
  }
  PrefetchLine parsed{.w = *w, .one_row = rows == 1, .found = std::nullopt};
  if (hint >= 0) {
    parsed.found = {.w = *w,
                    .one_row = rows == 1,
                    .hint = static_cast<PrefetchHint>(hint),
                    .distance = distance,
                    .every = every,
                    .k_block = depth};
  }
  return parsed;
}

std::string PrefetchLineText(const PrefetchLine& line, std::string_view key) {
  const std::optional<PrefetchTuning>& t = line.found;
  return fmt::format("{}\t{} {} {} {} {} {}", key, Name(line.w), line.one_row ? 1 : kSeveralRows,
                     t ? static_cast<int>(t->hint) : -1, t ? t->distance : 0, t ? t->every : 0, t ? t->k_block : 0);
}

PrefetchFile::PrefetchFile(const TargetInfo& target) : PrefetchFile(UserPath(), KeyOf(target)) {}

PrefetchFile::PrefetchFile(std::filesystem::path path, std::string key) : path_(std::move(path)), key_(std::move(key)) {
  std::error_code error;
  if (!path_.empty() && std::filesystem::exists(path_, error) && !std::filesystem::is_regular_file(path_, error)) {
    path_.clear();
  }
  std::ifstream in(path_);
  for (std::string text; std::getline(in, text);) {
    ends_line_ = !in.eof();
    if (const auto line = ParsePrefetchLine(text, key_)) lines_[{line->w, line->one_row}] = line->found;
  }
}

bool PrefetchFile::Find(DType w, bool one_row, std::optional<PrefetchTuning>* found) const {
  const auto it = lines_.find({w, one_row});
  if (it == lines_.end()) return false;
  *found = it->second;
  return true;
}

void PrefetchFile::Keep(const PrefetchLine& line) {
  if (path_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  std::ofstream out(path_, std::ios::app);
  out << fmt::format("{}{}\n", ends_line_ ? "" : "\n", PrefetchLineText(line, key_));
  ends_line_ = true;
}

}  // namespace xjit
