#include "tools/opt_list.h"

#include "ir/ops.h"
#include "ir/text.h"
#include "passes/pass.h"

namespace xjit::tools {
namespace {

std::string_view AttrKind(const Attr& example) {
  constexpr std::string_view kKinds[] = {"int", "float", "bool", "string", "list", "chain"};
  static_assert(std::size(kKinds) == std::variant_size_v<Attr>);
  return kKinds[example.index()];
}

std::string_view EffectText(Effects effects) {
  switch (effects) {
    case Effects::kPure:
      return "";
    case Effects::kReadsKv:
      return "reads the KV cache";
    case Effects::kWritesKv:
      return "writes the KV cache";
  }
  return "";
}

// A text within a cell of a table.
std::string Cell(std::string_view text) {
  std::string cell;
  for (char c : text) cell += c == '|' ? "\\|" : std::string(1, c);
  return cell;
}

bool IsWeight(OperandKind kind) {
  return kind == OperandKind::kMatrix || kind == OperandKind::kVector || kind == OperandKind::kExperts;
}

// "%y = gemm %x, @w", with '?' behind what may be absent and '...' behind what repeats.
std::string Signature(const OpInfo& info) {
  std::string text;
  for (const std::string_view result : info.results) text += fmt::format("{}%{}", text.empty() ? "" : ", ", result);
  if (!text.empty()) text += " = ";
  text += info.name;
  const size_t fixed = info.operands.size() - static_cast<size_t>(info.optional);
  for (size_t i = 0; i < info.operands.size(); ++i) {
    const bool repeats = info.variadic && i + 1 == info.operands.size();
    text +=
        fmt::format("{}{}{}{}", i == 0 ? " " : ", ", IsWeight(info.operands[i].kind) ? "@" : "%", info.operands[i].name,
                    repeats      ? "..."
                    : i >= fixed ? "?"
                                 : "");
  }
  return text;
}

std::string AttrLine(const AttrSpec& spec) {
  if (!spec.fallback.has_value()) return fmt::format("`{}`: {}, must be given", spec.name, AttrKind(*spec.kind));
  return fmt::format("`{}`: {} = {}", spec.name, AttrKind(*spec.fallback), PrintAttr(*spec.fallback));
}

std::string OpSection(const OpInfo& info) {
  std::string text = fmt::format("### {}\n`{}`  \n{}.\n\n", info.name, Signature(info), info.doc);
  for (const OperandSpec& operand : info.operands) {
    // Ops of any number of operands check them on their own.
    if (!info.variadic) text += fmt::format("- `{}`: {}\n", operand.name, KindName(operand.kind));
  }
  for (const AttrSpec& spec : info.attrs) text += fmt::format("- {{{}}}\n", AttrLine(spec));
  if (info.effects != Effects::kPure) text += fmt::format("- {}\n", EffectText(info.effects));
  return text + "\n";
}

}  // namespace

std::string PassList() {
  std::string text;
  std::string_view stage;
  for (const PassInfo& pass : Passes()) {
    if (StageName(pass.stage) != stage) {
      stage = StageName(pass.stage);
      text += fmt::format("{}:\n", stage);
    }
    text += fmt::format("  {:<18} {}\n", pass.name, pass.doc);
  }
  return text;
}

std::string OpList() {
  std::string text;
  for (int i = 0; i < NumOps(); ++i) {
    const OpInfo& info = Info(static_cast<OpCode>(i));
    text += fmt::format("{:<16} {}\n", info.name, info.doc);
  }
  return text;
}

std::string LanguageTables() {
  std::string text = "## Element types\n| type | values a block | bytes a block | |\n|---|---|---|---|\n";
  for (int i = 0; i < kNumDTypes; ++i) {
    const DTypeInfo& info = Info(static_cast<DType>(i));
    text += fmt::format("| `{}` | {} | {} | {} |\n", info.name, info.block_elems, info.block_bytes,
                        info.quantized ? "GGUF, scales inside" : "");
  }
  text += "\n## Ops\n`?`: may be left out; `...`: any number. Attributes stand in braces with their defaults.\n\n";
  for (int i = 0; i < NumOps(); ++i) text += OpSection(Info(static_cast<OpCode>(i)));
  text += "## Chain items\nOperands come before numbers; an item stands once in a chain.\n\n";
  text += "| chain | item | operands | numbers | |\n|---|---|---|---|---|\n";
  for (const ChainItemSpec& item : ChainItems()) {
    text += fmt::format("| {} | `{}` | {} | {} | {} |\n", item.chain, item.name, item.operands, item.numbers,
                        Cell(item.doc));
  }
  text += "\n## Plan attributes\nAny op may carry them; passes of the planned stage write them.\n\n";
  for (const AttrSpec& spec : PlanAttrs()) {
    text += fmt::format("- `{}`: {}\n", spec.name, AttrKind(spec.fallback.has_value() ? *spec.fallback : *spec.kind));
  }
  return text;
}

}  // namespace xjit::tools
