// Parses IR text: a hand-written lexer and recursive descent, one function a construct.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "ir/ops.h"
#include "ir/text.h"
#include "ir/weight_rows.h"

namespace xjit {
namespace {

struct Token {
  enum class Kind : uint8_t { kEnd, kWord, kValue, kSymbol, kNumber, kString, kPunct, kBad };
  Kind kind = Kind::kEnd;
  std::string text;  // without '%', '@' or quotes
  Loc loc;
};

bool IsWordStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '!'; }
bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Token Next() {
    SkipSpace();
    Token token;
    token.loc = {line_, column_};
    if (at_ >= text_.size()) return token;
    const char c = text_[at_];
    if (c == '%' || c == '@') {
      Advance();
      token.kind = c == '%' ? Token::Kind::kValue : Token::Kind::kSymbol;
      // A weight's name joins parts and slices them: ir/weight_rows.h.
      bool slice = false;
      while (at_ < text_.size()) {
        const char next = text_[at_];
        const bool joins = c == '@' && (next == '+' || next == '|' || next == '&');
        const bool slices = c == '@' && (slice ? next == ':' || next == ',' || next == ']' : next == '[');
        if (!IsWord(next) && !joins && !slices) break;
        slice = next == '[' || (slice && next != ']');
        token.text += Advance();
      }
      if (token.text.empty()) token.kind = Token::Kind::kBad, token.text = std::string(1, c);
    } else if (IsWordStart(c)) {
      token.kind = Token::Kind::kWord;
      token.text += Advance();
      while (at_ < text_.size() && IsWord(text_[at_])) token.text += Advance();
    } else if (IsDigit(c) ||
               (c == '-' && at_ + 1 < text_.size() && (IsDigit(text_[at_ + 1]) || text_[at_ + 1] == 'i'))) {
      token.kind = Token::Kind::kNumber;
      token.text += Advance();
      while (at_ < text_.size() && (IsWord(text_[at_]) || ((text_[at_] == '-' || text_[at_] == '+') &&
                                                           (token.text.back() == 'e' || token.text.back() == 'E')))) {
        token.text += Advance();
      }
    } else if (c == '"') {
      token.kind = Token::Kind::kString;
      Advance();
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
        if (text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n') Advance();
        token.text += Advance();
      }
      if (at_ >= text_.size() || text_[at_] != '"') {
        token.kind = Token::Kind::kBad;
        token.text = "a string without its end";
      } else {
        Advance();
      }
    } else if (c == '-' && at_ + 1 < text_.size() && text_[at_ + 1] == '>') {
      token.kind = Token::Kind::kPunct;
      token.text = "->";
      Advance();
      Advance();
    } else {
      token.kind = std::string_view("{}()<>[],:=+|&").find(c) != std::string_view::npos ? Token::Kind::kPunct
                                                                                        : Token::Kind::kBad;
      token.text = std::string(1, Advance());
    }
    return token;
  }

 private:
  char Advance() {
    const char c = text_[at_++];
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
    return c;
  }
  void SkipSpace() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/') {
        while (at_ < text_.size() && text_[at_] != '\n') Advance();
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        Advance();
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : lexer_(text), file_(file) { token_ = lexer_.Next(); }

  absl::StatusOr<std::unique_ptr<Module>> Run() {
    auto module = std::make_unique<Module>();
    module_ = module.get();
    XJIT_RETURN_IF_ERROR(ExpectWord("module"));
    XJIT_ASSIGN_OR_RETURN(module->name, Symbol());
    if (IsPunct("{")) {
      // The attribute list and the body both begin with '{': a body begins with 'func' or ends at once.
      Take();
      if (!IsWord("func") && !IsPunct("}")) {
        XJIT_RETURN_IF_ERROR(AttrsAfterBrace(&module->attrs, nullptr));
        XJIT_RETURN_IF_ERROR(Expect("{"));
      }
    } else {
      return Error("expected '{{'");
    }
    while (IsWord("func")) XJIT_RETURN_IF_ERROR(ParseFunction());
    XJIT_RETURN_IF_ERROR(Expect("}"));
    if (token_.kind != Token::Kind::kEnd) return Error("text after the module's end");
    return module;
  }

 private:
  template <typename... Args>
  absl::Status ErrorAt(Loc loc, fmt::format_string<Args...> format, Args&&... args) {
    return InvalidArgument("{}:{}:{}: {}", file_, loc.line, loc.column,
                           fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  absl::Status Error(fmt::format_string<Args...> format, Args&&... args) {
    return ErrorAt(token_.loc, "{}, found {}", fmt::format(format, std::forward<Args>(args)...), Found());
  }
  std::string Found() const {
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

  Token Take() {
    Token taken = std::move(token_);
    token_ = lexer_.Next();
    return taken;
  }
  bool IsPunct(std::string_view p) const { return token_.kind == Token::Kind::kPunct && token_.text == p; }
  bool IsWord(std::string_view w) const { return token_.kind == Token::Kind::kWord && token_.text == w; }
  bool TakePunct(std::string_view p) {
    if (!IsPunct(p)) return false;
    Take();
    return true;
  }
  absl::Status Expect(std::string_view p) {
    if (!TakePunct(p)) return Error("expected '{}'", p);
    return absl::OkStatus();
  }
  absl::Status ExpectWord(std::string_view w) {
    if (!IsWord(w)) return Error("expected '{}'", w);
    Take();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Symbol() {
    if (token_.kind != Token::Kind::kSymbol) return Error("expected a '@name'");
    return Take().text;
  }
  absl::StatusOr<int64_t> Integer() {
    int64_t value = 0;
    const std::string& s = token_.text;
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
    if (token_.kind != Token::Kind::kNumber || error != std::errc() || end != s.data() + s.size()) {
      return Error("expected a whole number");
    }
    Take();
    return value;
  }

  // T x 576 x f32, up to '>'. A joined weight's rows are a sum, 576+192+192 or 96|96, and stacked experts are one, 8&1.
  absl::Status Dims(Type* type, Weight* joined) {
    type->kind = Type::Kind::kTensor;
    for (;;) {
      if (token_.kind == Token::Kind::kNumber) {
        int64_t total = 0;
        std::vector<int64_t> parts;
        bool stacks = false;
        do {
          const Loc loc = token_.loc;
          XJIT_ASSIGN_OR_RETURN(const int64_t size, Integer());
          if (size <= 0 || size > int64_t{1} << 40) return ErrorAt(loc, "dimension {} is out of range", size);
          parts.push_back(size);
          total += size;
          if (joined == nullptr) break;
          if (parts.size() == 1) stacks = IsPunct("&");
        } while (stacks ? TakePunct("&") : TakePunct("+") || TakePunct("|"));
        if (parts.size() > 1) {
          std::vector<int64_t>& counts = stacks ? joined->stack_experts : joined->part_rows;
          if (!counts.empty()) return Error("a weight's rows and its experts may be sums, nothing else");
          counts = std::move(parts);
        }
        type->dims.push_back({total, 0});
      } else if (joined == nullptr && token_.kind == Token::Kind::kWord &&
                 (token_.text == "T" || token_.text == "L" || token_.text == "R")) {
        type->dims.push_back(Dim::Symbol(Take().text[0]));
      } else if (token_.kind == Token::Kind::kWord) {
        const auto elem = ParseDType(token_.text);
        if (!elem.has_value()) return Error("unknown element type or dimension");
        type->elem = *elem;
        Take();
        if (TakePunct("<")) XJIT_RETURN_IF_ERROR(ParseScales(&type->scales));
        return Expect(">");
      } else {
        return Error("expected a dimension or an element type");
      }
      XJIT_RETURN_IF_ERROR(ExpectWord("x"));
    }
  }

  // What stands behind an encoding's '<', and the '>' after it: channel, tensor, 128x128, group 128, zeros.
  absl::Status ParseScales(Scales* scales) {
    const Loc loc = token_.loc;
    std::string text;
    while (token_.kind == Token::Kind::kWord || token_.kind == Token::Kind::kNumber || IsPunct(",")) {
      text += (text.empty() || IsPunct(",") ? "" : " ") + token_.text;
      Take();
    }
    const auto encoding = ParseEncoding(fmt::format("i8<{}>", text));
    if (!encoding.has_value())
      return ErrorAt(loc, "'{}' are no scales (channel, tensor, 128x128, group 128, zeros)", text);
    *scales = encoding->scales;
    return Expect(">");
  }

  absl::StatusOr<Type> ParseType() {
    if (IsWord("!step")) {
      Take();
      return Type::Step();
    }
    XJIT_RETURN_IF_ERROR(ExpectWord("tensor"));
    XJIT_RETURN_IF_ERROR(Expect("<"));
    Type type;
    XJIT_RETURN_IF_ERROR(Dims(&type, nullptr));
    return type;
  }

  absl::StatusOr<Operand> ParseOperand() {
    const Loc loc = token_.loc;
    if (token_.kind == Token::Kind::kValue) {
      const std::string name = Take().text;
      auto it = values_.find(name);
      if (it == values_.end()) return ErrorAt(loc, "'%{}' is not defined before this use", name);
      return Operand{it->second, nullptr};
    }
    if (token_.kind == Token::Kind::kSymbol) {
      const std::string name = Take().text;
      Weight* weight = function_->FindWeight(name);
      if (TakePunct("<")) {
        Weight written{name, {}, {}, {}};
        XJIT_RETURN_IF_ERROR(Dims(&written.type, &written));
        if (weight != nullptr && weight->type != written.type) {
          return ErrorAt(loc, "'@{}' is {} here but {} before", name, DimsToString(written.type),
                         DimsToString(weight->type));
        }
        if (weight != nullptr &&
            (weight->part_rows != written.part_rows || weight->stack_experts != written.stack_experts)) {
          return ErrorAt(loc, "'@{}' has other parts here than before", name);
        }
        if (const absl::Status status = CheckWeight(written); !status.ok()) return ErrorAt(loc, "{}", Message(status));
        weight = function_->AddWeight(name, written.type);
        weight->part_rows = written.part_rows;
        weight->stack_experts = written.stack_experts;
      }
      if (weight == nullptr)
        return ErrorAt(loc, "'@{}' has no shape at its first use (write @{}<n x k x type>)", name, name);
      return Operand{nullptr, weight};
    }
    return Error("expected a %value or a @weight");
  }

  // name = value, ... up to and with '}'; the '{' is taken. `op` receives the operands of chains.
  absl::Status AttrsAfterBrace(std::map<std::string, Attr, std::less<>>* attrs, Op* op) {
    while (!TakePunct("}")) {
      if (!attrs->empty()) XJIT_RETURN_IF_ERROR(Expect(","));
      if (token_.kind != Token::Kind::kWord) return Error("expected an attribute's name");
      const Token name = Take();
      if (attrs->contains(name.text)) return ErrorAt(name.loc, "attribute '{}' is given twice", name.text);
      XJIT_RETURN_IF_ERROR(Expect("="));
      XJIT_ASSIGN_OR_RETURN(Attr value, ParseAttr(op));
      attrs->emplace(name.text, std::move(value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Attr> Number() {
    const std::string text = token_.text;
    if (text.find_first_of(".eEn") == std::string::npos) {
      XJIT_ASSIGN_OR_RETURN(const int64_t value, Integer());
      return Attr(value);
    }
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end != text.c_str() + text.size()) return Error("expected a number");
    Take();
    return Attr(value);
  }

  absl::StatusOr<Attr> ParseAttr(Op* op) {
    switch (token_.kind) {
      case Token::Kind::kNumber:
        return Number();
      case Token::Kind::kString:
        return Attr(Take().text);
      case Token::Kind::kWord:
        if (token_.text == "true" || token_.text == "false") return Attr(Take().text == "true");
        if (token_.text == "inf" || token_.text == "nan") return Attr(std::strtod(Take().text.c_str(), nullptr));
        break;
      default:
        break;
    }
    if (!TakePunct("[")) return Error("expected a number, a string, true, false or a list");
    if (token_.kind == Token::Kind::kNumber) {
      std::vector<int64_t> list;
      do {
        XJIT_ASSIGN_OR_RETURN(const int64_t value, Integer());
        list.push_back(value);
      } while (TakePunct(","));
      XJIT_RETURN_IF_ERROR(Expect("]"));
      return Attr(std::move(list));
    }
    Chain chain;
    while (!TakePunct("]")) {
      if (!chain.empty()) XJIT_RETURN_IF_ERROR(Expect(","));
      if (token_.kind != Token::Kind::kWord || op == nullptr) return Error("expected a chain item's name");
      ChainItem item{Take().text, {}};
      if (TakePunct("(")) {
        do {
          if (IsWord("inf") || IsWord("nan")) {
            item.args.emplace_back(std::strtod(Take().text.c_str(), nullptr));
          } else if (token_.kind == Token::Kind::kNumber) {
            XJIT_ASSIGN_OR_RETURN(const Attr number, Number());
            const auto* whole = std::get_if<int64_t>(&number);
            item.args.emplace_back(whole != nullptr ? static_cast<double>(*whole) : std::get<double>(number));
          } else {
            XJIT_ASSIGN_OR_RETURN(const Operand operand, ParseOperand());
            item.args.emplace_back(static_cast<int>(op->operands.size()));
            op->operands.push_back(operand);
          }
        } while (TakePunct(","));
        XJIT_RETURN_IF_ERROR(Expect(")"));
      }
      chain.push_back(std::move(item));
    }
    return Attr(std::move(chain));
  }

  absl::Status ParseOp() {
    std::vector<Token> names;
    while (token_.kind == Token::Kind::kValue) {
      names.push_back(Take());
      if (!TakePunct(",")) break;
    }
    if (!names.empty()) XJIT_RETURN_IF_ERROR(Expect("="));
    if (token_.kind != Token::Kind::kWord) return Error("expected an op's name");
    const Token word = Take();
    const auto code = ParseOpCode(word.text);
    if (!code.has_value()) return ErrorAt(word.loc, "unknown op '{}'", word.text);
    auto op = std::make_unique<Op>(*code);
    op->loc = word.loc;
    if (token_.kind == Token::Kind::kValue || token_.kind == Token::Kind::kSymbol) {
      do {
        // A result of the next line begins like an operand; operands are separated by commas, so a new line is no
        // comma.
        XJIT_ASSIGN_OR_RETURN(const Operand operand, ParseOperand());
        op->operands.push_back(operand);
      } while (TakePunct(","));
    }
    if (TakePunct("{")) XJIT_RETURN_IF_ERROR(AttrsAfterBrace(&op->attrs, op.get()));
    std::vector<Type> written;
    if (TakePunct(":")) {
      do {
        XJIT_ASSIGN_OR_RETURN(Type type, ParseType());
        written.push_back(std::move(type));
      } while (TakePunct(","));
    }
    std::vector<Type> types;
    if (const absl::Status status = CheckOp(*op, module_, &types); !status.ok()) {
      return ErrorAt(op->loc, "{}", Message(status));
    }
    if (types.size() != names.size()) {
      return ErrorAt(word.loc, "{} gives {} results, {} are named", word.text, types.size(), names.size());
    }
    if (!written.empty() && written != types) {
      return ErrorAt(word.loc, "{}: the result is {}, not {}", word.text,
                     types.empty() ? "nothing" : ToString(types[0]), ToString(written[0]));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (values_.contains(names[i].text)) return ErrorAt(names[i].loc, "'%{}' is defined twice", names[i].text);
      op->results.push_back(std::make_unique<Value>(Value{names[i].text, types[i], op.get()}));
      values_[names[i].text] = op->results.back().get();
    }
    function_->ops.push_back(std::move(op));
    return absl::OkStatus();
  }

  absl::Status ParseFunction() {
    Take();  // func
    const Loc loc = token_.loc;
    XJIT_ASSIGN_OR_RETURN(const std::string name, Symbol());
    if (module_->Find(name) != nullptr) return ErrorAt(loc, "function '@{}' is defined twice", name);
    function_ = module_->AddFunction(name);
    values_.clear();
    XJIT_RETURN_IF_ERROR(Expect("("));
    while (!TakePunct(")")) {
      if (!function_->args.empty()) XJIT_RETURN_IF_ERROR(Expect(","));
      if (token_.kind != Token::Kind::kValue) return Error("expected an argument '%name: type'");
      const Token arg = Take();
      if (values_.contains(arg.text)) return ErrorAt(arg.loc, "'%{}' is defined twice", arg.text);
      XJIT_RETURN_IF_ERROR(Expect(":"));
      XJIT_ASSIGN_OR_RETURN(Type type, ParseType());
      values_[arg.text] = function_->AddArg(arg.text, std::move(type));
    }
    std::vector<Type> results;
    if (TakePunct("->")) {
      do {
        XJIT_ASSIGN_OR_RETURN(Type type, ParseType());
        results.push_back(std::move(type));
      } while (TakePunct(","));
    }
    XJIT_RETURN_IF_ERROR(Expect("{"));
    while (!IsPunct("}")) {
      if (token_.kind == Token::Kind::kEnd) return Error("expected '}}' at the end of '@{}'", name);
      XJIT_RETURN_IF_ERROR(ParseOp());
    }
    if (function_->ops.empty() || function_->ops.back()->code != OpCode::kReturn) {
      return Error("'@{}' does not end with return", name);
    }
    const Op& ret = *function_->ops.back();
    std::vector<Type> returned;
    for (const Operand& o : ret.operands) returned.push_back(o.value->type);
    if (returned != results) {
      return ErrorAt(ret.loc, "'@{}' returns {} but declares {}", name,
                     returned.empty() ? "nothing" : ToString(returned[0]),
                     results.empty() ? "nothing" : ToString(results[0]));
    }
    return Expect("}");
  }

  Lexer lexer_;
  std::string file_;
  Token token_;
  Module* module_ = nullptr;
  Function* function_ = nullptr;
  std::map<std::string, Value*, std::less<>> values_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string_view file) {
  return Parser(text, file).Run();
}

}  // namespace xjit
