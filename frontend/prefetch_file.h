// What was measured of software prefetch, kept between loads: prefetch.txt in the user's cache folder. It is a help,
// never a condition: what it does not have is measured, what is wrong in it is passed over.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ir/support/dtype.h"
#include "ir/support/target.h"

namespace xjit {

// What was measured for products of several rows, few but more than one.
inline constexpr int kSeveralRows = 4;

// A line: key (processor, ISA and threads), tab, type, rows, hint (-1: the planner's), distance, every, depth.
struct PrefetchLine {
  DType w = DType::kF32;
  bool one_row = true;
  std::optional<PrefetchTuning> found;  // nullopt: what the planner chooses is fastest
};
// Nullopt: of another key, or with values that no measurement gives.
std::optional<PrefetchLine> ParsePrefetchLine(std::string_view line, std::string_view key);
// Without the line's end.
std::string PrefetchLineText(const PrefetchLine& line, std::string_view key);

class PrefetchFile {
 public:
  // The user's, of this processor; without a folder to keep it in, one that knows and keeps nothing.
  explicit PrefetchFile(const TargetInfo& target);
  // Reads the lines of a key, of several of one type and row count the last. An empty path, or what is no plain file
  // (reading a pipe or a device would not end): nothing is read or kept.
  PrefetchFile(std::filesystem::path path, std::string key);

  // Whether it was measured, and what was found.
  bool Find(DType w, bool one_row, std::optional<PrefetchTuning>* found) const;
  // A line is appended in one write; a folder that cannot be written loses nothing but time.
  // Find() of this object does not see it.
  void Keep(const PrefetchLine& line);

 private:
  std::filesystem::path path_;
  std::string key_;
  bool ends_line_ = true;  // the file's last line, as found
  std::map<std::pair<DType, bool>, std::optional<PrefetchTuning>> lines_;
};

}  // namespace xjit
