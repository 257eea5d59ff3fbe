#include "ir/graph.h"

#include <algorithm>
#include <charconv>

#include "ir/ops.h"
#include "ir/text.h"

namespace xjit {
namespace {

const Attr* FindAttr(const Op& op, std::string_view name) {
  if (auto it = op.attrs.find(name); it != op.attrs.end()) return &it->second;
  for (const AttrSpec& spec : Info(op.code).attrs) {
    if (spec.name == name && spec.fallback.has_value()) return &*spec.fallback;
  }
  for (const AttrSpec& spec : PlanAttrs()) {
    if (spec.name == name && spec.fallback.has_value()) return &*spec.fallback;
  }
  return nullptr;
}

template <typename T>
T AttrOr(const Op& op, std::string_view name, T otherwise) {
  const Attr* attr = FindAttr(op, name);
  if (attr == nullptr) return otherwise;
  const T* value = std::get_if<T>(attr);
  if constexpr (std::is_same_v<T, double>) {
    // Text may write a whole number where a float is meant.
    if (const auto* whole = std::get_if<int64_t>(attr)) return static_cast<double>(*whole);
  }
  return value != nullptr ? *value : otherwise;
}

}  // namespace

std::vector<Weight::Part> Weight::parts() const {
  std::vector<Part> list;
  size_t begin = 0;
  size_t index = 0;
  while (begin <= name.size()) {
    size_t end = name.find_first_of("+|", begin);
    if (end == std::string::npos) end = name.size();
    list.push_back({name.substr(begin, end - begin), index < part_rows.size() ? part_rows[index] : type.rows()});
    begin = end + 1;
    ++index;
  }
  return list;
}

int64_t Op::Int(std::string_view name) const { return AttrOr<int64_t>(*this, name, 0); }
double Op::Float(std::string_view name) const { return AttrOr<double>(*this, name, 0.0); }
bool Op::Bool(std::string_view name) const { return AttrOr<bool>(*this, name, false); }
std::string Op::Str(std::string_view name) const { return AttrOr<std::string>(*this, name, ""); }

const Chain& Op::ChainAttr(std::string_view name) const {
  static const Chain kEmpty;
  const Attr* attr = FindAttr(*this, name);
  const Chain* chain = attr == nullptr ? nullptr : std::get_if<Chain>(attr);
  return chain == nullptr ? kEmpty : *chain;
}

const ChainItem* Op::Item(std::string_view chain, std::string_view name) const {
  for (const ChainItem& item : ChainAttr(chain)) {
    if (item.name == name) return &item;
  }
  return nullptr;
}

void Op::AddItem(std::string_view chain, std::string_view name, std::vector<Operand> args,
                 std::vector<double> numbers) {
  Chain items = ChainAttr(chain);
  ChainItem item{std::string(name), {}};
  for (const Operand& arg : args) {
    item.args.emplace_back(static_cast<int>(operands.size()));
    operands.push_back(arg);
  }
  for (double number : numbers) item.args.emplace_back(number);
  items.push_back(std::move(item));
  attrs[std::string(chain)] = std::move(items);
}

Value* Function::AddArg(std::string_view arg_name, Type type) {
  args.push_back(std::make_unique<Value>(Value{FreeName(arg_name), std::move(type), nullptr}));
  return args.back().get();
}

Weight* Function::FindWeight(std::string_view weight_name) const {
  for (const auto& w : weights) {
    if (w->name == weight_name) return w.get();
  }
  return nullptr;
}

Weight* Function::AddWeight(std::string_view weight_name, Type type) {
  if (Weight* found = FindWeight(weight_name)) return found;
  weights.push_back(std::make_unique<Weight>(Weight{std::string(weight_name), std::move(type), {}, {}}));
  return weights.back().get();
}

Op* Function::Add(std::unique_ptr<Op> op, std::vector<std::string> result_names, const Op* before) {
  for (size_t i = 0; i < op->results.size(); ++i) {
    Value& value = *op->results[i];
    value.def = op.get();
    value.name = FreeName(i < result_names.size() ? result_names[i] : "v");
  }
  Op* raw = op.get();
  const int at = before == nullptr ? -1 : IndexOf(before);
  ops.insert(at < 0 ? ops.end() : ops.begin() + at, std::move(op));
  return raw;
}

void Function::Erase(const Op* op) {
  std::erase_if(ops, [op](const std::unique_ptr<Op>& o) { return o.get() == op; });
}

std::string Function::FreeName(std::string_view base) const {
  auto taken = [this](std::string_view candidate) {
    for (const auto& a : args) {
      if (a->name == candidate) return true;
    }
    for (const auto& op : ops) {
      for (const auto& r : op->results) {
        if (r->name == candidate) return true;
      }
    }
    return false;
  };
  if (!taken(base)) return std::string(base);
  for (int i = 1;; ++i) {
    std::string candidate = fmt::format("{}{}", base, i);
    if (!taken(candidate)) return candidate;
  }
}

std::vector<Op*> Function::Users(const Value* value) const {
  std::vector<Op*> users;
  for (const auto& op : ops) {
    const bool uses =
        std::any_of(op->operands.begin(), op->operands.end(), [value](const Operand& o) { return o.value == value; });
    if (uses) users.push_back(op.get());
  }
  return users;
}

void Function::ReplaceUses(const Value* from, Value* to) {
  for (const auto& op : ops) {
    for (Operand& o : op->operands) {
      if (o.value == from) o.value = to;
    }
  }
}

int Function::IndexOf(const Op* op) const {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].get() == op) return static_cast<int>(i);
  }
  return -1;
}

void Function::DropUnusedWeights() {
  std::erase_if(weights, [this](const std::unique_ptr<Weight>& w) {
    for (const auto& op : ops) {
      for (const Operand& o : op->operands) {
        if (o.weight == w.get()) return false;
      }
    }
    return true;
  });
}

Function* Module::Find(std::string_view function) const {
  for (const auto& f : functions) {
    if (f->name == function) return f.get();
  }
  return nullptr;
}

Function* Module::AddFunction(std::string_view function) {
  functions.push_back(std::make_unique<Function>(std::string(function)));
  return functions.back().get();
}

std::unique_ptr<Module> Module::Clone() const {
  // parse(print(m)) == m is the language's promise, so the text is the one copying mechanism.
  auto copy = ParseModule(PrintModule(*this), "clone");
  return copy.ok() ? *std::move(copy) : nullptr;
}

absl::StatusOr<std::vector<ScheduleRun>> ParseSchedule(std::string_view text) {
  std::vector<ScheduleRun> runs;
  auto number = [](std::string_view s, int64_t* out) {
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), *out);
    return error == std::errc() && end == s.data() + s.size();
  };
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    const size_t colon = item.find(':');
    if (item.empty() || item.front() != '@' || colon == std::string_view::npos) {
      return InvalidArgument("schedule item '{}' is not '@function:first-last'", item);
    }
    ScheduleRun run{std::string(item.substr(1, colon - 1)), 0, 0};
    const std::string_view range = item.substr(colon + 1);
    const size_t dash = range.find('-');
    if (!number(range.substr(0, dash), &run.first) ||
        (dash != std::string_view::npos && !number(range.substr(dash + 1), &run.last))) {
      return InvalidArgument("schedule item '{}' is not '@function:first-last'", item);
    }
    if (dash == std::string_view::npos) run.last = run.first;
    runs.push_back(std::move(run));
  }
  return runs;
}

std::string ScheduleText(const std::vector<ScheduleRun>& runs) {
  std::string text;
  for (const ScheduleRun& run : runs) {
    if (!text.empty()) text += ", ";
    text += run.first == run.last ? fmt::format("@{}:{}", run.function, run.first)
                                  : fmt::format("@{}:{}-{}", run.function, run.first, run.last);
  }
  return text;
}

}  // namespace xjit
