// Regular expressions over module names, as quantisation configs have them: Python's syntax, of untrusted origin.
// std::regex throws, recurses and may take exponential time; this needs at most pattern times text steps.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace xjit {

class ModulePattern {
 public:
  // Literals, . [sets] \d \w \s and their negations, ( ) (?: ) (?= ) (?! ) | * + ? {m,n} and their lazy forms, ^ $ \b.
  // InvalidArgument where the text is not an expression, Unimplemented for the rest of Python's. `place` is for
  // messages.
  static absl::StatusOr<ModulePattern> Parse(std::string_view text, std::string_view place);

  // Which ends count: any, as re.match; only the text's, as re.fullmatch; or a module's: before or behind a dot too.
  enum class End : uint8_t { kAny, kText, kModule };
  // Whether a match starts at the text's first character.
  bool Matches(std::string_view text, End end = End::kAny) const;

  // Of its program, to which the time of a match is proportional.
  size_t size() const { return program_.size(); }

 private:
  friend class PatternParser;
  enum class Op : uint8_t { kSet, kSplit, kJump, kBegin, kEnd, kBoundary, kAhead, kNotAhead, kMatch };
  struct Instruction {
    Op op = Op::kMatch;
    uint32_t x = 0, y = 0;  // kSet: which; kSplit: both ways; kJump: where; kAhead: the first behind its kMatch
  };
  using Set = std::bitset<256>;

  bool Run(std::string_view text, uint32_t start, size_t at, End end) const;

  std::vector<Instruction> program_;
  std::vector<Set> sets_;
};

}  // namespace xjit
