// Parses IR text: recursive descent, one function a construct, no recursion deeper than the grammar. After an error it
// goes on at the next op or function.
#include <algorithm>
#include <map>
#include <set>

#include "ir/lexer.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "ir/weight_rows.h"

namespace xjit {
namespace {

// What verifier and passes do grows with the square of these; a model has a few functions of some tens of ops.
constexpr size_t kMostFunctions = 1 << 12;
constexpr size_t kMostOps = 1 << 14;  // of a function
// No tensor has more dimensions: [experts, n, k].
constexpr size_t kMostDims = 3;
// Elements of a tensor's constant dimensions: far more than any memory holds, and sums of bytes stay below overflow.
constexpr int64_t kMostElements = int64_t{1} << 50;
constexpr int64_t kMostSize = int64_t{1} << 40;
// A message shows a name or an unexpected token only so far.
constexpr size_t kMostMessage = 500;

// One line of printable characters; bytes above ASCII are taken for UTF-8.
std::string Printable(std::string_view message) {
  std::string line;
  for (char c : message.substr(0, kMostMessage)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return message.size() > kMostMessage ? line + "..." : line;
}

class Parser {
 public:
  Parser(std::string_view text, std::vector<Diagnostic>* diagnostics) : in_(text), diagnostics_(diagnostics) {}

  std::unique_ptr<Module> Run() {
    diagnostics_->clear();
    auto module = std::make_unique<Module>();
    module_ = module.get();
    if (!Kept(ParseModuleHeader())) SkipToFunction();
    while (!Full()) {
      // What is missing at the end of a broken text says nothing new.
      if (in_.Is(Token::Kind::kEnd) && !diagnostics_->empty()) break;
      if (in_.IsWord("func")) {
        ParseFunction();
      } else if (Kept(ParseModuleEnd())) {
        break;
      } else {
        SkipToFunction();
      }
    }
    return diagnostics_->empty() ? std::move(module) : nullptr;
  }

 private:
  // Errors. ----------------------------------------------------------------------------------------------------------

  bool Full() const { return diagnostics_->size() >= kMostDiagnostics; }
  // Keeps an error for the user; true if there is none.
  bool Kept(const absl::Status& status) {
    if (!status.ok() && !Full()) diagnostics_->push_back({in_.error_loc(), Printable(Message(status))});
    return status.ok();
  }
  bool AtFunction() const { return in_.IsWord("func") && in_.Ahead().Next().kind == Token::Kind::kSymbol; }
  // Whether a new line begins with an op. Results, and words that are followed as no attribute or chain item is.
  bool AtOp() const {
    if (!in_.token().first) return false;
    Lexer ahead = in_.Ahead();
    Token next = ahead.Next();
    const auto punct = [&next](std::string_view p) { return next.kind == Token::Kind::kPunct && next.text == p; };
    if (in_.Is(Token::Kind::kWord)) {
      return next.kind == Token::Kind::kValue || next.kind == Token::Kind::kSymbol || punct("{") || punct("}");
    }
    constexpr int kMostResults = 4;
    for (int i = 0; in_.Is(Token::Kind::kValue) && i < kMostResults && punct(","); ++i) {
      if (ahead.Next().kind != Token::Kind::kValue) return false;
      next = ahead.Next();
    }
    return in_.Is(Token::Kind::kValue) && punct("=");
  }
  void SkipToFunction() {
    while (!in_.Is(Token::Kind::kEnd) && !AtFunction()) in_.Take();
  }
  // To the next op or the function's end. Weights on the way have no shape where they are used later.
  void SkipToOp() {
    while (!in_.Is(Token::Kind::kEnd) && !AtOp() && !AtFunction() && !(in_.IsPunct("}") && in_.depth <= 0)) {
      if (in_.Is(Token::Kind::kSymbol)) broken_weights_.insert(in_.token().text);
      in_.Take();
    }
  }

  // Types. -----------------------------------------------------------------------------------------------------------

  // 576, or of a weight a sum: rows 576+192+192 or 96|96, experts 8&1.
  absl::StatusOr<int64_t> Size(Weight* weight) {
    int64_t total = 0;
    std::vector<int64_t> parts;
    bool stacks = false;
    do {
      const Loc loc = in_.token().loc;
      XJIT_ASSIGN_OR_RETURN(const int64_t size, in_.Integer());
      if (size <= 0 || size > kMostSize - total) return in_.ErrorAt(loc, "dimension {} is out of range", size);
      parts.push_back(size);
      total += size;
      if (weight == nullptr) return total;
      if (parts.size() == 1) stacks = in_.IsPunct("&");
    } while (stacks ? in_.TakePunct("&") : in_.TakePunct("+") || in_.TakePunct("|"));
    if (parts.size() > 1) {
      std::vector<int64_t>& counts = stacks ? weight->stack_experts : weight->part_rows;
      if (!counts.empty()) return in_.Error("a weight's rows and its experts may be sums, nothing else");
      counts = std::move(parts);
    }
    return total;
  }

  // T x 576 x f32>, the '<' is taken.
  absl::Status Dims(Type* type, Weight* weight) {
    const Loc begin = in_.token().loc;
    type->kind = Type::Kind::kTensor;
    int64_t elements = 1;
    for (;;) {
      if (in_.Is(Token::Kind::kNumber)) {
        XJIT_ASSIGN_OR_RETURN(const int64_t size, Size(weight));
        if (size > kMostElements / elements) return in_.ErrorAt(begin, "a tensor of too many elements");
        elements *= size;
        type->dims.push_back({size, 0});
      } else if (weight == nullptr && in_.Is(Token::Kind::kWord) && IsDimSymbol(in_.token().text)) {
        type->dims.push_back(Dim::Symbol(in_.Take().text[0]));
      } else if (in_.Is(Token::Kind::kWord)) {
        const auto elem = ParseDType(in_.token().text);
        if (!elem.has_value()) return in_.Error("unknown element type or dimension");
        type->elem = *elem;
        in_.Take();
        if (in_.TakePunct("<")) XJIT_RETURN_IF_ERROR(ParseScales(type->elem, &type->scales));
        return in_.Expect(">");
      } else {
        return in_.Error("expected a dimension or an element type");
      }
      if (type->dims.size() > kMostDims) return in_.ErrorAt(begin, "a tensor of more than {} dimensions", kMostDims);
      XJIT_RETURN_IF_ERROR(in_.ExpectWord("x"));
    }
  }

  // What stands behind an encoding's '<', and the '>' after it: channel, tensor, 128x128, group 128, zeros.
  absl::Status ParseScales(DType elem, Scales* scales) {
    const Loc loc = in_.token().loc;
    std::string text;
    while (in_.Is(Token::Kind::kWord) || in_.Is(Token::Kind::kNumber) || in_.IsPunct(",")) {
      const bool close = text.empty() || in_.IsPunct(",");
      text += fmt::format("{}{}", close ? "" : " ", in_.Take().text);
    }
    const auto encoding = ParseEncoding(fmt::format("{}<{}>", Name(elem), text));
    if (!encoding.has_value())
      return in_.ErrorAt(loc, "'{}' are no scales (channel, tensor, 128x128, group 128, zeros)", text);
    *scales = encoding->scales;
    return in_.Expect(">");
  }

  absl::StatusOr<Type> ParseType() {
    if (in_.IsWord("!step")) {
      in_.Take();
      return Type::Step();
    }
    XJIT_RETURN_IF_ERROR(in_.ExpectWord("tensor"));
    XJIT_RETURN_IF_ERROR(in_.Expect("<"));
    Type type;
    XJIT_RETURN_IF_ERROR(Dims(&type, nullptr));
    return type;
  }

  absl::StatusOr<std::vector<Type>> ParseTypes() {
    std::vector<Type> types;
    do {
      XJIT_ASSIGN_OR_RETURN(Type type, ParseType());
      types.push_back(std::move(type));
    } while (in_.TakePunct(","));
    return types;
  }

  // Operands and attributes. -----------------------------------------------------------------------------------------

  // An empty operand where an error that was reported took the definition away; the op is poisoned then.
  absl::StatusOr<Operand> ParseOperand() {
    const Token token = in_.token();
    if (token.kind == Token::Kind::kValue) {
      in_.Take();
      if (auto it = values_.find(token.text); it != values_.end()) {
        poisoned_ = poisoned_ || it->second == nullptr;
        return Operand{it->second, nullptr};
      }
      if (undefined_.insert(token.text).second) {
        return in_.ErrorAt(token.loc, "'%{}' is not defined before this use", token.text);
      }
      poisoned_ = true;
      return Operand{};
    }
    if (token.kind == Token::Kind::kSymbol) {
      in_.Take();
      const auto found = weights_.find(token.text);
      if (!in_.IsPunct("<")) {
        if (found != weights_.end()) return Operand{nullptr, found->second};
        if (broken_weights_.insert(token.text).second) {
          return in_.ErrorAt(token.loc, "'@{}' has no shape at its first use (write @{}<n x k x type>)", token.text,
                             token.text);
        }
        poisoned_ = true;
        return Operand{};
      }
      // Whatever goes wrong with the shape is said here, not at later uses.
      broken_weights_.insert(token.text);
      XJIT_ASSIGN_OR_RETURN(Weight * weight, ParseWeight(token, found == weights_.end() ? nullptr : found->second));
      return Operand{nullptr, weight};
    }
    return in_.Error("expected a %value or a @weight");
  }

  // A weight's type in '<>'; `before` is the weight as an earlier use wrote it.
  absl::StatusOr<Weight*> ParseWeight(const Token& name, Weight* before) {
    Weight written{name.text, {}, {}, {}};
    XJIT_RETURN_IF_ERROR(in_.Expect("<"));
    XJIT_RETURN_IF_ERROR(Dims(&written.type, &written));
    if (before != nullptr) {
      if (before->type != written.type) {
        return in_.ErrorAt(name.loc, "'@{}' is {} here but {} before", name.text, DimsToString(written.type),
                           DimsToString(before->type));
      }
      if (before->part_rows != written.part_rows || before->stack_experts != written.stack_experts) {
        return in_.ErrorAt(name.loc, "'@{}' has other parts here than before", name.text);
      }
      return before;
    }
    if (const absl::Status status = CheckWeight(written); !status.ok()) {
      return in_.ErrorAt(name.loc, "{}", Message(status));
    }
    function_->weights.push_back(std::make_unique<Weight>(std::move(written)));
    return weights_[name.text] = function_->weights.back().get();
  }

  // name = value, ... up to and with '}'; the '{' is taken. `op` receives the operands of chains.
  absl::Status AttrsAfterBrace(std::map<std::string, Attr, std::less<>>* attrs, Op* op) {
    while (!in_.TakePunct("}")) {
      if (!attrs->empty()) XJIT_RETURN_IF_ERROR(in_.Expect(","));
      if (!in_.Is(Token::Kind::kWord)) return in_.Error("expected an attribute's name");
      const Token name = in_.Take();
      if (attrs->contains(name.text)) return in_.ErrorAt(name.loc, "attribute '{}' is given twice", name.text);
      XJIT_RETURN_IF_ERROR(in_.Expect("="));
      XJIT_ASSIGN_OR_RETURN(Attr value, ParseAttr(name.text, op));
      attrs->emplace(name.text, std::move(value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Attr> ParseAttr(std::string_view name, Op* op) {
    if (in_.IsNumber()) return in_.Number();
    if (in_.Is(Token::Kind::kString)) return Attr(in_.Take().text);
    if (in_.IsWord("true") || in_.IsWord("false")) return Attr(in_.Take().text == "true");
    if (!in_.TakePunct("[")) return in_.Error("expected a number, a string, true, false or a list");
    if (in_.IsPunct("]") && (op == nullptr || !IsChain(*op, name))) {
      in_.Take();
      return Attr(std::vector<int64_t>{});
    }
    if (in_.Is(Token::Kind::kNumber)) {
      std::vector<int64_t> list;
      do {
        XJIT_ASSIGN_OR_RETURN(const int64_t value, in_.Integer());
        list.push_back(value);
      } while (in_.TakePunct(","));
      XJIT_RETURN_IF_ERROR(in_.Expect("]"));
      return Attr(std::move(list));
    }
    Chain chain;
    while (!in_.TakePunct("]")) {
      if (!chain.empty()) XJIT_RETURN_IF_ERROR(in_.Expect(","));
      XJIT_ASSIGN_OR_RETURN(ChainItem item, ParseChainItem(op));
      chain.push_back(std::move(item));
    }
    return Attr(std::move(chain));
  }

  static bool IsChain(const Op& op, std::string_view attr) {
    const auto& specs = Info(op.code).attrs;
    return std::any_of(specs.begin(), specs.end(), [attr](const AttrSpec& spec) {
      return spec.name == attr && spec.fallback.has_value() && std::holds_alternative<Chain>(*spec.fallback);
    });
  }

  absl::StatusOr<ChainItem> ParseChainItem(Op* op) {
    if (!in_.Is(Token::Kind::kWord) || op == nullptr) return in_.Error("expected a chain item's name");
    ChainItem item{in_.Take().text, {}};
    if (!in_.TakePunct("(")) return item;
    do {
      if (in_.IsNumber()) {
        XJIT_ASSIGN_OR_RETURN(const Attr number, in_.Number());
        const auto* whole = std::get_if<int64_t>(&number);
        item.args.emplace_back(whole != nullptr ? static_cast<double>(*whole) : std::get<double>(number));
      } else {
        XJIT_ASSIGN_OR_RETURN(const Operand operand, ParseOperand());
        item.args.emplace_back(static_cast<int>(op->operands.size()));
        op->operands.push_back(operand);
      }
    } while (in_.TakePunct(","));
    XJIT_RETURN_IF_ERROR(in_.Expect(")"));
    return item;
  }

  // Ops. -------------------------------------------------------------------------------------------------------------

  absl::Status ParseOp(std::vector<Token>* names) {
    while (in_.Is(Token::Kind::kValue)) {
      names->push_back(in_.Take());
      if (!in_.TakePunct(",")) break;
    }
    if (!names->empty()) XJIT_RETURN_IF_ERROR(in_.Expect("="));
    if (!in_.Is(Token::Kind::kWord)) return in_.Error("expected an op's name");
    const Token word = in_.Take();
    const auto code = ParseOpCode(word.text);
    if (!code.has_value()) return in_.ErrorAt(word.loc, "unknown op '{}'", word.text);
    auto op = std::make_unique<Op>(*code);
    op->loc = word.loc;
    if (in_.Is(Token::Kind::kValue) || in_.Is(Token::Kind::kSymbol)) {
      do {
        // A result of the next line begins like an operand; operands are separated by commas, so a new line is no
        // comma.
        XJIT_ASSIGN_OR_RETURN(const Operand operand, ParseOperand());
        op->operands.push_back(operand);
      } while (in_.TakePunct(","));
    }
    if (in_.TakePunct("{")) XJIT_RETURN_IF_ERROR(AttrsAfterBrace(&op->attrs, op.get()));
    std::vector<Type> written;
    if (in_.TakePunct(":")) {
      XJIT_ASSIGN_OR_RETURN(written, ParseTypes());
    }
    return Define(std::move(op), *names, written);
  }

  // Checks an op, names its results and puts it at the function's end.
  absl::Status Define(std::unique_ptr<Op> op, const std::vector<Token>& names, const std::vector<Type>& written) {
    std::vector<Type> types;
    if (!poisoned_) {
      const std::string_view op_name = Name(op->code);
      if (const absl::Status status = CheckOp(*op, module_, &types); !status.ok()) {
        poisoned_ = CallsBroken(*op);
        if (!poisoned_) return in_.ErrorAt(op->loc, "{}", Message(status));
      } else if (types.size() != names.size()) {
        return in_.ErrorAt(op->loc, "{} gives {} results, {} are named", op_name, types.size(), names.size());
      } else if (!written.empty() && written != types) {
        return in_.ErrorAt(op->loc, "{}: the result is {}, not {}", op_name, TypesText(types), TypesText(written));
      }
    }
    for (const Token& name : names) {
      if (!values_.emplace(name.text, nullptr).second) {
        return in_.ErrorAt(name.loc, "'%{}' is defined twice", name.text);
      }
    }
    if (poisoned_) {
      broken_functions_.insert(function_->name);
      return absl::OkStatus();
    }
    for (size_t i = 0; i < names.size(); ++i) {
      op->results.push_back(std::make_unique<Value>(Value{names[i].text, types[i], op.get()}));
      values_[names[i].text] = op->results.back().get();
    }
    function_->ops.push_back(std::move(op));
    return absl::OkStatus();
  }

  static std::string TypesText(const std::vector<Type>& types) {
    std::string text;
    for (const Type& type : types) text += fmt::format("{}{}", text.empty() ? "" : ", ", ToString(type));
    return text.empty() ? "nothing" : text;
  }

  // Whether an op repeats a function that has errors of its own.
  bool CallsBroken(const Op& op) const {
    if (op.code != OpCode::kRepeat) return false;
    const auto runs = ParseSchedule(op.Str("schedule"));
    return runs.ok() && std::any_of(runs->begin(), runs->end(), [this](const ScheduleRun& run) {
             return broken_functions_.contains(run.function);
           });
  }

  // Functions and the module. ----------------------------------------------------------------------------------------

  absl::Status ParseHeader(std::string* name, std::vector<Type>* results) {
    const Loc loc = in_.token().loc;
    XJIT_ASSIGN_OR_RETURN(const std::string symbol, in_.Symbol());
    if (!IsPlainName(symbol)) return in_.ErrorAt(loc, "'@{}' is no name of a function", symbol);
    if (module_->functions.size() >= kMostFunctions) return in_.ErrorAt(loc, "more than {} functions", kMostFunctions);
    if (!functions_.insert(symbol).second) return in_.ErrorAt(loc, "function '@{}' is defined twice", symbol);
    *name = symbol;
    function_ = module_->AddFunction(symbol);
    XJIT_RETURN_IF_ERROR(in_.Expect("("));
    while (!in_.TakePunct(")")) {
      if (!function_->args.empty()) XJIT_RETURN_IF_ERROR(in_.Expect(","));
      if (!in_.Is(Token::Kind::kValue)) return in_.Error("expected an argument '%name: type'");
      const Token arg = in_.Take();
      if (values_.contains(arg.text)) return in_.ErrorAt(arg.loc, "'%{}' is defined twice", arg.text);
      XJIT_RETURN_IF_ERROR(in_.Expect(":"));
      XJIT_ASSIGN_OR_RETURN(Type type, ParseType());
      function_->args.push_back(std::make_unique<Value>(Value{arg.text, std::move(type), nullptr}));
      values_[arg.text] = function_->args.back().get();
    }
    if (in_.TakePunct("->")) {
      XJIT_ASSIGN_OR_RETURN(*results, ParseTypes());
    }
    return in_.Expect("{");
  }

  void ParseFunction() {
    const size_t errors = diagnostics_->size();
    std::string name;
    std::vector<Type> results;
    values_.clear();
    weights_.clear();
    undefined_.clear();
    broken_weights_.clear();
    in_.Take();  // func
    if (!Kept(ParseHeader(&name, &results))) {
      broken_functions_.insert(name);
      return SkipToFunction();
    }
    while (!Full() && !in_.IsPunct("}") && !in_.Is(Token::Kind::kEnd) && !AtFunction()) {
      in_.depth = 0;
      poisoned_ = false;
      std::vector<Token> names;
      absl::Status status = ParseOp(&names);
      if (status.ok() && function_->ops.size() > kMostOps) {
        Kept(in_.ErrorAt(in_.token().loc, "'@{}' has more than {} ops", name, kMostOps));
        broken_functions_.insert(name);
        return SkipToFunction();
      }
      if (Kept(status)) continue;
      // A name that stands for an earlier value keeps it.
      for (const Token& result : names) values_.emplace(result.text, nullptr);
      SkipToOp();
    }
    if (Full()) return;
    if (diagnostics_->size() > errors) broken_functions_.insert(name);
    if (!in_.IsPunct("}")) {
      Kept(in_.Error("expected '}}' at the end of '@{}'", name));
      broken_functions_.insert(name);
      return;
    }
    if (!broken_functions_.contains(name)) Kept(CheckReturn(name, results));
    in_.Take();
  }

  absl::Status CheckReturn(std::string_view name, const std::vector<Type>& results) {
    if (function_->ops.empty() || function_->ops.back()->code != OpCode::kReturn) {
      return in_.Error("'@{}' does not end with return", name);
    }
    const Op& ret = *function_->ops.back();
    std::vector<Type> returned;
    for (const Operand& o : ret.operands) returned.push_back(o.value->type);
    if (returned == results) return absl::OkStatus();
    return in_.ErrorAt(ret.loc, "'@{}' returns {} but declares {}", name, TypesText(returned), TypesText(results));
  }

  absl::Status ParseModuleHeader() {
    XJIT_RETURN_IF_ERROR(in_.ExpectWord("module"));
    const Loc loc = in_.token().loc;
    XJIT_ASSIGN_OR_RETURN(module_->name, in_.Symbol());
    if (!IsPlainName(module_->name)) return in_.ErrorAt(loc, "'@{}' is no name of a module", module_->name);
    XJIT_RETURN_IF_ERROR(in_.Expect("{"));
    // The attribute list and the body both begin with '{': a body begins with a function or ends at once.
    const Token next = in_.Ahead().Next();
    const bool func_attribute = next.kind == Token::Kind::kPunct && next.text == "=";
    if ((in_.IsWord("func") && !func_attribute) || in_.IsPunct("}")) return absl::OkStatus();
    XJIT_RETURN_IF_ERROR(AttrsAfterBrace(&module_->attrs, nullptr));
    return in_.Expect("{");
  }

  absl::Status ParseModuleEnd() {
    XJIT_RETURN_IF_ERROR(in_.Expect("}"));
    if (!in_.Is(Token::Kind::kEnd)) return in_.ErrorAt(in_.token().loc, "text after the module's end");
    return absl::OkStatus();
  }

  TokenStream in_;
  std::vector<Diagnostic>* diagnostics_;
  Module* module_ = nullptr;
  std::set<std::string, std::less<>> functions_;
  std::set<std::string, std::less<>> broken_functions_;  // with errors, or ops that others' errors leave out
  // Of the function at hand; a value that a broken op should have defined is nullptr.
  Function* function_ = nullptr;
  std::map<std::string, Value*, std::less<>> values_;
  std::map<std::string, Weight*, std::less<>> weights_;
  std::set<std::string, std::less<>> undefined_;
  std::set<std::string, std::less<>> broken_weights_;
  bool poisoned_ = false;  // the op at hand uses something broken
};

}  // namespace

std::string CountText(const std::vector<Diagnostic>& diagnostics) {
  if (diagnostics.size() >= kMostDiagnostics) return fmt::format("the first {} errors", kMostDiagnostics);
  return fmt::format("{} error{}", diagnostics.size(), diagnostics.size() == 1 ? "" : "s");
}

std::unique_ptr<Module> ParseModuleDiagnostics(std::string_view text, std::vector<Diagnostic>* diagnostics) {
  return Parser(text, diagnostics).Run();
}

absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string_view text, std::string_view file) {
  std::vector<Diagnostic> diagnostics;
  auto module = ParseModuleDiagnostics(text, &diagnostics);
  if (module != nullptr) return module;
  // The first five and a count: what one line holds.
  constexpr size_t kShown = 5;
  std::string message;
  for (size_t i = 0; i < std::min(diagnostics.size(), kShown); ++i) {
    const Diagnostic& d = diagnostics[i];
    message += fmt::format("{}{}:{}:{}: {}", i == 0 ? "" : "; ", file, d.loc.line, d.loc.column, d.what);
  }
  if (diagnostics.size() > 1) message += fmt::format(" ({})", CountText(diagnostics));
  return InvalidArgument("{}", message);
}

}  // namespace xjit
