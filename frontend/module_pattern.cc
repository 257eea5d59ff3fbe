#include "frontend/module_pattern.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <tuple>
#include <utility>

#include "frontend/printable.h"
#include "ir/support/status.h"

namespace xjit {

namespace {

constexpr size_t kMaxPattern = 1024;  // characters
// Instructions: {m,n} writes its operand again and again. A pattern runs once for each module of each layer, and
// published ones have under 100.
constexpr size_t kMaxProgram = 512;
constexpr int kMaxLooks = 4;   // look-aheads, each of which may read the text once more from every position
constexpr int kMaxDepth = 50;  // of groups in groups
constexpr int64_t kMaxRepeats = 1000;

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

class PatternParser {
 public:
  PatternParser(std::string_view text, std::string_view place) : text_(text), place_(place) {}

  absl::StatusOr<ModulePattern> Parse() {
    if (text_.size() > kMaxPattern) return Error("is too long");
    XJIT_RETURN_IF_ERROR(Alternatives(0));
    if (at_ < text_.size()) return Error("has a ) without (");
    XJIT_RETURN_IF_ERROR(Add({Op::kMatch}));
    return std::move(out_);
  }

 private:
  using Op = ModulePattern::Op;
  using Instruction = ModulePattern::Instruction;
  using Set = ModulePattern::Set;

  absl::Status Error(std::string_view what) const {
    return InvalidArgument("{}: \"{}\" {}", place_, Printable(text_.substr(0, 200)), what);
  }
  absl::Status Unknown(std::string_view what) const {
    return Unimplemented("{}: \"{}\" has {}, which is not supported", place_, Printable(text_.substr(0, 200)), what);
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeText(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  uint32_t Here() const { return static_cast<uint32_t>(out_.program_.size()); }
  absl::Status Add(Instruction instruction) {
    if (out_.program_.size() >= kMaxProgram) return Error("is too large");
    out_.program_.push_back(instruction);
    return absl::OkStatus();
  }
  absl::Status AddSet(const Set& set) {
    out_.sets_.push_back(set);
    return Add({Op::kSet, static_cast<uint32_t>(out_.sets_.size() - 1)});
  }

  // Takes the code from `from` on out of the program; its targets are relative to `from` once moved by Insert.
  std::vector<Instruction> Cut(uint32_t from) {
    std::vector<Instruction> code(out_.program_.begin() + from, out_.program_.end());
    out_.program_.resize(from);
    for (Instruction& i : code) Shift(i, -static_cast<int64_t>(from));
    return code;
  }
  absl::Status Insert(const std::vector<Instruction>& code) {
    const int64_t here = Here();
    for (Instruction i : code) {
      Shift(i, here);
      XJIT_RETURN_IF_ERROR(Add(i));
    }
    return absl::OkStatus();
  }
  static void Shift(Instruction& i, int64_t by) {
    if (i.op == Op::kSet) return;
    i.x = static_cast<uint32_t>(i.x + by);
    i.y = static_cast<uint32_t>(i.y + by);
  }

  absl::Status Alternatives(int depth) {
    if (depth > kMaxDepth) return Error("nests too deeply");
    const uint32_t start = Here();
    XJIT_RETURN_IF_ERROR(Sequence(depth));
    while (Take('|')) {
      // split a, b; a; jump end; b
      const auto first = Cut(start);
      const auto size = static_cast<uint32_t>(first.size());
      XJIT_RETURN_IF_ERROR(Add({Op::kSplit, start + 1, start + size + 2}));
      XJIT_RETURN_IF_ERROR(Insert(first));
      const uint32_t jump = Here();
      XJIT_RETURN_IF_ERROR(Add({Op::kJump}));
      XJIT_RETURN_IF_ERROR(Sequence(depth));
      out_.program_[jump].x = Here();
    }
    return absl::OkStatus();
  }

  absl::Status Sequence(int depth) {
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      const uint32_t start = Here();
      XJIT_RETURN_IF_ERROR(Atom(depth));
      XJIT_RETURN_IF_ERROR(Repeats(start));
    }
    return absl::OkStatus();
  }

  absl::Status Repeats(uint32_t start) {
    while (true) {
      int64_t min = 0, max = -1;  // -1: without bound
      if (Take('?')) {
        max = 1;
      } else if (Take('+')) {
        min = 1;
      } else if (!Take('*')) {
        const size_t before = at_;
        if (!Take('{')) return absl::OkStatus();
        const auto bounds = Bounds();
        if (!bounds) {  // Python takes it as text then; the next atom is the brace
          at_ = before;
          return absl::OkStatus();
        }
        std::tie(min, max) = *bounds;
        if (min > kMaxRepeats || max > kMaxRepeats || (max >= 0 && max < min)) return Error("repeats out of bounds");
      }
      Take('?');  // lazy: the same strings match
      const auto code = Cut(start);
      for (int64_t i = 0; i < min; ++i) XJIT_RETURN_IF_ERROR(Insert(code));
      const auto size = static_cast<uint32_t>(code.size());
      if (max < 0) {
        const uint32_t loop = Here();
        XJIT_RETURN_IF_ERROR(Add({Op::kSplit, loop + 1, loop + size + 2}));
        XJIT_RETURN_IF_ERROR(Insert(code));
        XJIT_RETURN_IF_ERROR(Add({Op::kJump, loop}));
      }
      for (int64_t i = min; i < max; ++i) {
        const uint32_t here = Here();
        XJIT_RETURN_IF_ERROR(Add({Op::kSplit, here + 1, here + size + 1}));
        XJIT_RETURN_IF_ERROR(Insert(code));
      }
    }
  }

  // What follows "{": "3}", "3,}", ",5}" or "3,5}".
  std::optional<std::pair<int64_t, int64_t>> Bounds() {
    const auto number = [&]() -> std::optional<int64_t> {
      std::optional<int64_t> value;
      for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])); ++at_) {
        value = std::min<int64_t>(value.value_or(0) * 10 + (text_[at_] - '0'), kMaxRepeats + 1);
      }
      return value;
    };
    const auto min = number();
    if (Take('}')) return min ? std::optional(std::pair(*min, *min)) : std::nullopt;
    if (!Take(',')) return std::nullopt;
    const auto max = number();
    if (!Take('}')) return std::nullopt;
    return std::pair(min.value_or(0), max.value_or(-1));
  }

  absl::Status Atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Brackets();
      case '.':
        return AddSet(Set().set().reset('\n'));
      case '^':
        return Add({Op::kBegin});
      case '$':
        return Add({Op::kEnd});
      case '*':
      case '+':
      case '?':
        return Error("has nothing to repeat");
      case '\\': {
        if (Take('b')) return Add({Op::kBoundary});
        if (Take('A')) return Add({Op::kBegin});
        if (Take('Z')) return Add({Op::kEnd});
        XJIT_ASSIGN_OR_RETURN(const Set set, Escape());
        return AddSet(set);
      }
      default:
        return AddSet(Set().set(static_cast<unsigned char>(c)));
    }
  }

  absl::Status Group(int depth) {
    const uint32_t start = Here();
    std::optional<Op> look;
    if (TakeText("?=")) {
      look = Op::kAhead;
    } else if (TakeText("?!")) {
      look = Op::kNotAhead;
    } else if (!TakeText("?:") && at_ < text_.size() && text_[at_] == '?') {
      return Unknown(fmt::format("(?{}", at_ + 1 < text_.size() ? Printable(text_.substr(at_ + 1, 1)) : ""));
    }
    if (look) {
      if (looking_) return Unknown("a look-ahead in a look-ahead");
      if (++looks_ > kMaxLooks) return Unknown("more than four look-aheads");
      looking_ = true;
      XJIT_RETURN_IF_ERROR(Add({*look}));
    }
    XJIT_RETURN_IF_ERROR(Alternatives(depth + 1));
    if (!Take(')')) return Error("has a ( without )");
    if (!look) return absl::OkStatus();
    looking_ = false;
    XJIT_RETURN_IF_ERROR(Add({Op::kMatch}));
    out_.program_[start].x = Here();
    return absl::OkStatus();
  }

  // What follows a backslash.
  absl::StatusOr<Set> Escape() {
    if (at_ >= text_.size()) return Error("ends in a backslash");
    const char c = text_[at_++];
    const char kind = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    Set set;
    if (kind == 'd' || kind == 'w' || kind == 's') {
      for (int i = 0; i < 128; ++i) {
        const bool in = kind == 'd'   ? std::isdigit(i) != 0
                        : kind == 's' ? std::isspace(i) != 0
                                      : IsWord(static_cast<char>(i));
        set[static_cast<size_t>(i)] = in;
      }
      return c == kind ? set : ~set;
    }
    if (c == 'n' || c == 't' || c == 'r') return set.set(c == 'n' ? '\n' : c == 't' ? '\t' : '\r');
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) return Unknown(fmt::format("\\{}", c));
    return set.set(static_cast<unsigned char>(c));
  }

  // What follows "[".
  absl::Status Brackets() {
    const bool negated = Take('^');
    Set set;
    for (bool first = true; first || !Take(']'); first = false) {
      if (at_ >= text_.size()) return Error("has a [ without ]");
      const char low = text_[at_++];
      if (low == '\\') {
        XJIT_ASSIGN_OR_RETURN(const Set escape, Escape());
        set |= escape;
        continue;
      }
      char high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        high = text_[at_ + 1];
        at_ += 2;
        if (high == '\\') return Unknown("a range up to a backslash");
        if (static_cast<unsigned char>(high) < static_cast<unsigned char>(low)) return Error("has a range backwards");
      }
      for (int i = static_cast<unsigned char>(low); i <= static_cast<unsigned char>(high); ++i) {
        set.set(static_cast<size_t>(i));
      }
    }
    return AddSet(negated ? ~set : set);
  }

  std::string_view text_, place_;
  size_t at_ = 0;
  int looks_ = 0;
  bool looking_ = false;  // inside a look-ahead
  ModulePattern out_;
};

absl::StatusOr<ModulePattern> ModulePattern::Parse(std::string_view text, std::string_view place) {
  return PatternParser(text, place).Parse();
}

bool ModulePattern::Matches(std::string_view text, End end) const { return Run(text, 0, 0, end); }

// Every instruction is tried at most once at each position: without captures, a second try can only fail again.
bool ModulePattern::Run(std::string_view text, uint32_t start, size_t at, End end) const {
  std::vector<bool> tried(program_.size() * (text.size() + 1));
  std::vector<std::pair<uint32_t, size_t>> stack = {{start, at}};
  while (!stack.empty()) {
    auto [pc, i] = stack.back();
    stack.pop_back();
    const size_t state = pc * (text.size() + 1) + i;
    if (tried[state]) continue;
    tried[state] = true;
    const Instruction& op = program_[pc];
    switch (op.op) {
      case Op::kSet:
        if (i < text.size() && sets_[op.x][static_cast<unsigned char>(text[i])]) stack.emplace_back(pc + 1, i + 1);
        break;
      case Op::kSplit:
        stack.emplace_back(op.y, i);
        stack.emplace_back(op.x, i);
        break;
      case Op::kJump:
        stack.emplace_back(op.x, i);
        break;
      case Op::kBegin:
        if (i == 0) stack.emplace_back(pc + 1, i);
        break;
      case Op::kEnd:
        if (i == text.size()) stack.emplace_back(pc + 1, i);
        break;
      case Op::kBoundary: {
        const bool before = i > 0 && IsWord(text[i - 1]), after = i < text.size() && IsWord(text[i]);
        if (before != after) stack.emplace_back(pc + 1, i);
        break;
      }
      case Op::kAhead:
      case Op::kNotAhead:
        if (Run(text, pc + 1, i, End::kAny) == (op.op == Op::kAhead)) stack.emplace_back(op.x, i);
        break;
      case Op::kMatch:
        if (end == End::kAny || i == text.size() ||
            (end == End::kModule && (text[i] == '.' || (i > 0 && text[i - 1] == '.')))) {
          return true;
        }
        break;
    }
  }
  return false;
}

}  // namespace xjit
