#include "ir/builder.h"

namespace xjit {

Value* Builder::Emit(OpCode code, std::vector<Operand> operands, Attrs attrs, std::string_view name) {
  if (!status_.ok()) return nullptr;
  auto op = std::make_unique<Op>(code);
  op->operands = std::move(operands);
  for (auto& [key, value] : attrs) op->attrs.emplace(key, std::move(value));
  std::vector<Type> types;
  status_ = Prefix(CheckOp(*op, module_, &types), fmt::format("@{}", function_->name));
  if (!status_.ok()) return nullptr;
  const OpInfo& info = Info(code);
  std::vector<std::string> names;
  for (size_t i = 0; i < types.size(); ++i) {
    op->results.push_back(std::make_unique<Value>(Value{"", types[i], nullptr}));
    names.emplace_back(i == 0 && !name.empty() ? name : info.results[i]);
  }
  Op* added = function_->Add(std::move(op), std::move(names));
  return added->results.empty() ? nullptr : added->result();
}

}  // namespace xjit
