#include "passes/rewrite.h"

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
  for (const Type& type : types) op->results.push_back(std::make_unique<Value>(Value{"", type, nullptr}));
  return f.Add(std::move(op), {std::string(name)}, before);
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

}  // namespace xjit
