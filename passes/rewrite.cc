#include "passes/rewrite.h"

#include <algorithm>
#include <array>

#include "codegen/gemm/gemm_desc.h"
#include "passes/pass.h"

namespace xjit {

absl::StatusOr<Op*> InsertBefore(Function& f, const Module& module, const Op* before, OpCode code,
                                 std::vector<Operand> operands, std::map<std::string, Attr, std::less<>> attrs,
                                 std::string_view name) {
  auto op = std::make_unique<Op>(code);
  op->operands = std::move(operands);
  op->attrs = std::move(attrs);
  if (before != nullptr) op->loc = before->loc;
  std::vector<Type> types;
  XJIT_RETURN_IF_ERROR(CheckOp(*op, &module, &types));
  std::vector<std::string> names;
  for (const Type& type : types) {
    names.emplace_back(names.empty() ? name : Info(code).results[names.size()]);
    op->results.push_back(std::make_unique<Value>(Value{"", type, nullptr}));
  }
  return f.Add(std::move(op), std::move(names), before);
}

bool ManyRows(const Op& product, const PassContext& context) {
  const bool logits = product.operand(0)->type.dims[0].symbol == 'L';
  return (logits ? context.logit_rows : context.rows) > kMaxFewRows;
}

Op* OnlyUser(const Function& f, const Value* value) {
  Op* user = nullptr;
  int uses = 0;
  for (const auto& op : f.ops) {
    for (const Operand& o : op->operands) {
      if (o.value == value) {
        user = op.get();
        ++uses;
      }
    }
  }
  return uses == 1 ? user : nullptr;
}

void FoldInto(Function& f, Op* user, Op* producer) {
  std::string name = user->result()->name;
  producer->result()->type = user->result()->type;
  f.ReplaceUses(user->result(), producer->result());
  f.Erase(user);
  TakeName(producer->result(), std::move(name));
}

const char* EpilogueBlocker(const Op& product, std::string_view item) {
  const auto rank = [](std::string_view name) {
    constexpr std::array<std::string_view, 5> kOrder = {"bias", "soft_cap", "scale", "combine", "residual"};
    const auto at = std::find(kOrder.begin(), kOrder.end(), name) - kOrder.begin();
    // What multiplies gate and up stands between the bias and the rest.
    return at == 0 ? 0 : at == static_cast<std::ptrdiff_t>(kOrder.size()) ? 1 : static_cast<int>(at) + 1;
  };
  const bool grouped = product.code == OpCode::kGroupedGemm;
  if (grouped && (item == "soft_cap" || item == "scale")) return "a grouped_gemm has no such epilogue";
  if (grouped && item == "residual" && product.Item("epilogue", "combine") == nullptr)
    return "the experts' rows are not combined yet";
  if (product.result()->type.elem != DType::kF32) return "the gemm is planned already";
  const Chain& chain = product.ChainAttr("epilogue");
  if (chain.empty() || rank(chain.back().name) < rank(item)) return nullptr;
  return chain.back().name == "residual" ? "the gemm has a residual already" : "the gemm's epilogue is taken";
}

void DropChain(Op* op, std::string_view chain) {
  std::vector<bool> drop(op->operands.size(), false);
  for (const ChainItem& item : op->ChainAttr(chain)) {
    for (const auto& arg : item.args) {
      if (const int* index = std::get_if<int>(&arg)) drop[static_cast<size_t>(*index)] = true;
    }
  }
  std::vector<int> moved(op->operands.size(), 0);
  std::vector<Operand> kept;
  for (size_t i = 0; i < op->operands.size(); ++i) {
    moved[i] = static_cast<int>(kept.size());
    if (!drop[i]) kept.push_back(op->operands[i]);
  }
  op->operands = std::move(kept);
  if (const auto it = op->attrs.find(chain); it != op->attrs.end()) op->attrs.erase(it);
  for (auto& [name, attr] : op->attrs) {
    auto* items = std::get_if<Chain>(&attr);
    if (items == nullptr) continue;
    for (ChainItem& item : *items) {
      for (auto& arg : item.args) {
        if (int* index = std::get_if<int>(&arg)) *index = moved[static_cast<size_t>(*index)];
      }
    }
  }
}

bool SameShare(const Op& a, const Op& b) {
  return a.Has("first") == b.Has("first") && a.Int("first") == b.Int("first");
}

Weight* JoinWeights(Function& f, const std::vector<Weight*>& parts, char separator) {
  std::string name;
  Type type = parts[0]->type;
  Dim& rows = type.dims[type.dims.size() == 1 ? 0 : type.dims.size() - 2];
  rows.size = 0;
  std::vector<int64_t> part_rows;
  for (const Weight* w : parts) {
    if (!name.empty()) name += separator;
    name += w->name;
    part_rows.push_back(w->type.rows());
    rows.size += part_rows.back();
  }
  if (const Weight* found = f.FindWeight(name);
      found != nullptr &&
      (found->type != type || found->part_rows != part_rows || found->stack_experts != parts[0]->stack_experts)) {
    return nullptr;
  }
  Weight* joined = f.AddWeight(name, type);
  joined->part_rows = std::move(part_rows);
  joined->stack_experts = parts[0]->stack_experts;
  return joined;
}

std::string JoinBlocker(const Weight& a, const Weight& b) {
  if (a.type.encoding() != b.type.encoding()) {
    return fmt::format("@{} is {} but @{} is {}", b.name, ToString(b.type.encoding()), a.name,
                       ToString(a.type.encoding()));
  }
  if (a.type.scales.act_order) return fmt::format("@{} and @{} have orders of columns of their own", a.name, b.name);
  if (a.stack_experts != b.stack_experts) return fmt::format("@{} and @{} stack other experts", a.name, b.name);
  if (!a.part_rows.empty() || !b.part_rows.empty()) return fmt::format("@{} or @{} is joined already", a.name, b.name);
  return "";
}

absl::Status RefreshTypes(const Module& module, Function& f) {
  for (const auto& op : f.ops) {
    std::vector<Type> types;
    XJIT_RETURN_IF_ERROR(AtOp(*op, CheckOp(*op, &module, &types)));
    for (size_t i = 0; i < op->results.size(); ++i) op->results[i]->type = types[i];
  }
  return absl::OkStatus();
}

int FuseNumber(Module& module, PassContext& context, OpCode code, std::string_view item, std::string_view number) {
  int fused = 0;
  for (auto& f : module.functions) {
    for (size_t i = 0; i < f->ops.size(); ++i) {
      Op* op = f->ops[i].get();
      if (op->code != code) continue;
      Op* product = ProductOf(op->operand(0));
      const char* why = product == nullptr                      ? "its operand is not a gemm"
                        : OnlyUser(*f, product->result()) != op ? "the gemm has a second user"
                                                                : EpilogueBlocker(*product, item);
      if (why != nullptr) {
        context.Missed(*f, *op, why);
        continue;
      }
      product->AddItem("epilogue", item, {}, {op->Float(number)});
      FoldInto(*f, op, product);
      context.Fused(*f, *product, fmt::format("{} fused", item));
      ++fused;
      --i;
    }
  }
  return fused;
}

}  // namespace xjit
