// IR text as tokens, and what a recursive descent asks of them. Any bytes may come in; what is no token is one of kind
// kBad, and the end repeats forever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ir/graph.h"
#include "ir/support/status.h"

namespace xjit {

struct Token {
  enum class Kind : uint8_t { kEnd, kWord, kValue, kSymbol, kNumber, kString, kPunct, kBad };
  Kind kind = Kind::kEnd;
  bool first = false;  // on its line
  std::string text;    // without '%', '@' or quotes, escapes replaced; of kBad: what is wrong, or the byte
  Loc loc;
};

// Copies are cheap: a parser looks ahead with one.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token Next();

 private:
  bool At(size_t ahead, char c) const { return at_ + ahead < text_.size() && text_[at_ + ahead] == c; }
  char Advance();
  // True if a line began.
  bool SkipSpace();
  void TakeName(Token* token);
  void TakeNumber(Token* token);
  void TakeString(Token* token);

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
};

// The token at hand, what may be expected of it, and the place of the last error.
class TokenStream {
 public:
  explicit TokenStream(std::string_view text) : lexer_(text) { token_ = lexer_.Next(); }

  const Token& token() const { return token_; }
  bool Is(Token::Kind kind) const { return token_.kind == kind; }
  bool IsPunct(std::string_view p) const { return Is(Token::Kind::kPunct) && token_.text == p; }
  bool IsWord(std::string_view w) const { return Is(Token::Kind::kWord) && token_.text == w; }
  // The tokens behind the one at hand.
  Lexer Ahead() const { return lexer_; }
  // Braces that were opened and not closed since `depth` was last set.
  int depth = 0;

  Token Take();
  bool TakePunct(std::string_view p);
  absl::Status Expect(std::string_view p);
  absl::Status ExpectWord(std::string_view w);
  absl::StatusOr<std::string> Symbol();
  // Of 64 bits.
  absl::StatusOr<int64_t> Integer();
  // A whole number, or one with a point or an exponent that is within the range of a double; inf, -inf, nan.
  absl::StatusOr<Attr> Number();
  bool IsNumber() const { return Is(Token::Kind::kNumber) || IsWord("inf") || IsWord("nan"); }

  // The status of every error is made here; error_loc() is the place of the last.
  template <typename... Args>
  absl::Status ErrorAt(Loc loc, fmt::format_string<Args...> format, Args&&... args) {
    error_loc_ = loc;
    return InvalidArgument("{}", fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) {
    return ErrorAt(token_.loc, "{}, found {}", fmt::format(format, std::forward<Args>(args)...), Found());
  }
  Loc error_loc() const { return error_loc_; }

 private:
  std::string Found() const;

  Lexer lexer_;
  Token token_;
  Loc error_loc_;
};

// Whether a text can be a function's or a module's name: letters, digits, '_' and '.'.
bool IsPlainName(std::string_view text);

}  // namespace xjit
