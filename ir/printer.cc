// Prints modules, functions and ops as the text that the parser reads.
#include <cmath>
#include <set>

#include "ir/ops.h"
#include "ir/text.h"

namespace xjit {
namespace {

// The shortest decimal that reads back as the same double, always with a point or an exponent.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".einf") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  return out + "\"";
}

class Printer {
 public:
  std::string text;
  std::set<const Weight*> typed;  // weights whose type has been printed in this function

  std::string OperandText(const Operand& operand) {
    if (operand.value != nullptr) return "%" + operand.value->name;
    if (operand.weight == nullptr) return "<none>";
    const Weight& w = *operand.weight;
    std::string out = "@" + w.name;
    if (typed.insert(&w).second) {
      out += "<";
      for (size_t i = 0; i < w.type.dims.size(); ++i) {
        const bool experts = i == 0 && w.type.is_experts(),
                   rows = i + (w.type.dims.size() > 1 ? 2 : 1) == w.type.dims.size();
        const auto& counts = experts ? w.stack_experts : w.part_rows;
        if ((experts || rows) && !counts.empty()) {
          out += fmt::format("{} x ", fmt::join(counts, experts ? "&" : w.interleaved() ? "|" : "+"));
        } else {
          out += fmt::format("{} x ", w.type.dims[i].size);
        }
      }
      out += ToString(w.type.encoding()) + ">";
    }
    return out;
  }

  std::string AttrText(const Attr& attr, const Op* op) {
    if (const auto* i = std::get_if<int64_t>(&attr)) return fmt::format("{}", *i);
    if (const auto* f = std::get_if<double>(&attr)) return FloatText(*f);
    if (const auto* b = std::get_if<bool>(&attr)) return *b ? "true" : "false";
    if (const auto* s = std::get_if<std::string>(&attr)) return Quoted(*s);
    if (const auto* v = std::get_if<std::vector<int64_t>>(&attr)) return fmt::format("[{}]", fmt::join(*v, ", "));
    std::string out = "[";
    for (const ChainItem& item : std::get<Chain>(attr)) {
      if (out.size() > 1) out += ", ";
      out += item.name;
      if (item.args.empty()) continue;
      out += "(";
      for (size_t i = 0; i < item.args.size(); ++i) {
        if (i > 0) out += ", ";
        const int* index = std::get_if<int>(&item.args[i]);
        out += index == nullptr ? FloatText(std::get<double>(item.args[i]))
                                : OperandText(op->operands[static_cast<size_t>(*index)]);
      }
      out += ")";
    }
    return out + "]";
  }

  std::string AttrsText(const std::map<std::string, Attr, std::less<>>& attrs, const Op* op) {
    std::string out;
    for (const auto& [name, attr] : attrs) {
      if (const auto* chain = std::get_if<Chain>(&attr); chain != nullptr && chain->empty()) continue;
      out += fmt::format("{}{} = {}", out.empty() ? " {" : ", ", name, AttrText(attr, op));
    }
    return out.empty() ? out : out + "}";
  }

  void PrintOp(const Op& op) {
    for (size_t i = 0; i < op.results.size(); ++i) {
      text += fmt::format("{}%{}", i > 0 ? ", " : "", op.results[i]->name);
    }
    if (!op.results.empty()) text += " = ";
    text += Name(op.code);
    const size_t shown = op.operands.size() - ChainOperands(op);
    for (size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : " ") + OperandText(op.operands[i]);
    text += AttrsText(op.attrs, &op);
    for (size_t i = 0; i < op.results.size(); ++i) {
      text += (i == 0 ? " : " : ", ") + ToString(op.results[i]->type);
    }
  }

  void PrintFunction(const Function& f, std::string_view indent) {
    typed.clear();
    text += fmt::format("{}func @{}(", indent, f.name);
    for (size_t i = 0; i < f.args.size(); ++i) {
      text += fmt::format("{}%{}: {}", i > 0 ? ", " : "", f.args[i]->name, ToString(f.args[i]->type));
    }
    text += ")";
    if (!f.ops.empty() && f.ops.back()->code == OpCode::kReturn && !f.ops.back()->operands.empty()) {
      text += " -> ";
      for (size_t i = 0; i < f.ops.back()->operands.size(); ++i) {
        text += (i > 0 ? ", " : "") + ToString(f.ops.back()->operand(i)->type);
      }
    }
    text += " {\n";
    for (const auto& op : f.ops) {
      text += fmt::format("{}  ", indent);
      PrintOp(*op);
      text += "\n";
    }
    text += fmt::format("{}}}\n", indent);
  }
};

}  // namespace

std::string PrintAttr(const Attr& attr) { return Printer().AttrText(attr, nullptr); }

std::string PrintOp(const Op& op) {
  Printer printer;
  printer.PrintOp(op);
  return printer.text;
}

std::string PrintFunction(const Function& function) {
  Printer printer;
  printer.PrintFunction(function, "");
  return printer.text;
}

std::string PrintModule(const Module& module) {
  Printer printer;
  printer.text = fmt::format("module @{}{} {{\n", module.name, printer.AttrsText(module.attrs, nullptr));
  for (const auto& f : module.functions) printer.PrintFunction(*f, "  ");
  printer.text += "}\n";
  return printer.text;
}

}  // namespace xjit
