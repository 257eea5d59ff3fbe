#include "ir/lexer.h"

#include <algorithm>
#include <charconv>

namespace xjit {
namespace {

// By ASCII, whatever the locale.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool IsWord(char c) { return IsLetter(c) || IsDigit(c) || c == '.'; }

}  // namespace

bool IsPlainName(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsWord); }

char Lexer::Advance() {
  const char c = text_[at_++];
  if (c == '\n') {
    ++line_;
    column_ = 1;
  } else {
    ++column_;
  }
  return c;
}

bool Lexer::SkipSpace() {
  bool first = at_ == 0;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '/' && At(1, '/')) {
      while (at_ < text_.size() && text_[at_] != '\n') Advance();
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      first = first || c == '\n';
      Advance();
    } else {
      break;
    }
  }
  return first;
}

// A weight's name joins parts and slices them (ir/weight_rows.h); a value's is a word.
void Lexer::TakeName(Token* token) {
  const char sigil = Advance();
  token->kind = sigil == '%' ? Token::Kind::kValue : Token::Kind::kSymbol;
  bool slice = false;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    const bool joins = sigil == '@' && (c == '+' || c == '|' || c == '&');
    const bool slices = sigil == '@' && (slice ? c == ':' || c == ',' || c == ']' : c == '[');
    if (!IsWord(c) && !joins && !slices) break;
    slice = c == '[' || (slice && c != ']');
    token->text += Advance();
  }
  if (token->text.empty()) {
    token->kind = Token::Kind::kBad;
    token->text = std::string(1, sigil);
  }
}

void Lexer::TakeNumber(Token* token) {
  token->kind = Token::Kind::kNumber;
  token->text += Advance();
  while (at_ < text_.size()) {
    const char c = text_[at_], last = token->text.back();
    const bool exponent_sign = (c == '-' || c == '+') && (last == 'e' || last == 'E');
    if (!IsWord(c) && !exponent_sign) break;
    token->text += Advance();
  }
}

void Lexer::TakeString(Token* token) {
  token->kind = Token::Kind::kString;
  Advance();
  const auto bad = [token](std::string_view what) {
    token->kind = Token::Kind::kBad;
    token->text = what;
  };
  while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
    char c = Advance();
    if (c == '\\') {
      if (!At(0, '"') && !At(0, '\\') && !At(0, 'n')) return bad("an escape that is none of \\\", \\\\ and \\n");
      c = Advance();
      if (c == 'n') c = '\n';
    }
    token->text += c;
  }
  if (!At(0, '"')) return bad("a string without its end");
  Advance();
}

Token Lexer::Next() {
  Token token;
  token.first = SkipSpace();
  token.loc = {line_, column_};
  if (at_ >= text_.size()) return token;
  const char c = text_[at_];
  if (c == '%' || c == '@') {
    TakeName(&token);
  } else if (IsLetter(c) || c == '!') {
    token.kind = Token::Kind::kWord;
    do {
      token.text += Advance();
    } while (at_ < text_.size() && IsWord(text_[at_]));
  } else if (IsDigit(c) || (c == '-' && at_ + 1 < text_.size() && (IsDigit(text_[at_ + 1]) || At(1, 'i')))) {
    TakeNumber(&token);
  } else if (c == '"') {
    TakeString(&token);
  } else if (c == '-' && At(1, '>')) {
    token.kind = Token::Kind::kPunct;
    token.text = "->";
    Advance();
    Advance();
  } else {
    const bool known = std::string_view("{}()<>[],:=+|&").find(c) != std::string_view::npos;
    token.kind = known ? Token::Kind::kPunct : Token::Kind::kBad;
    token.text = std::string(1, Advance());
  }
  return token;
}

std::string TokenStream::Found() const {
  switch (token_.kind) {
    case Token::Kind::kEnd:
      return "the end of the text";
    case Token::Kind::kValue:
      return fmt::format("'%{}'", token_.text);
    case Token::Kind::kSymbol:
      return fmt::format("'@{}'", token_.text);
    default:
      return fmt::format("'{}'", token_.text);
  }
}

Token TokenStream::Take() {
  depth += IsPunct("{") ? 1 : IsPunct("}") ? -1 : 0;
  Token taken = std::move(token_);
  token_ = lexer_.Next();
  return taken;
}

bool TokenStream::TakePunct(std::string_view p) {
  if (!IsPunct(p)) return false;
  Take();
  return true;
}

absl::Status TokenStream::Expect(std::string_view p) {
  return TakePunct(p) ? absl::OkStatus() : Error("expected '{}'", p);
}

absl::Status TokenStream::ExpectWord(std::string_view w) {
  if (!IsWord(w)) return Error("expected '{}'", w);
  Take();
  return absl::OkStatus();
}

absl::StatusOr<std::string> TokenStream::Symbol() {
  if (!Is(Token::Kind::kSymbol)) return Error("expected a '@name'");
  return Take().text;
}

absl::StatusOr<int64_t> TokenStream::Integer() {
  int64_t value = 0;
  const std::string& s = token_.text;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (!Is(Token::Kind::kNumber) || error == std::errc::invalid_argument || end != s.data() + s.size()) {
    return Error("expected a whole number");
  }
  if (error != std::errc()) return Error("expected a whole number of 64 bits");
  Take();
  return value;
}

absl::StatusOr<Attr> TokenStream::Number() {
  const std::string& s = token_.text;
  if (s.find_first_of(".eEn") == std::string::npos) {
    XJIT_ASSIGN_OR_RETURN(const int64_t whole, Integer());
    return Attr(whole);
  }
  double value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error == std::errc::invalid_argument || end != s.data() + s.size()) return Error("expected a number");
  if (error != std::errc()) return Error("expected a number in the range of a double");
  Take();
  return Attr(value);
}

}  // namespace xjit
