// Small pieces that several passes need.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/ops.h"

namespace xjit {

// Makes an op before `before` with inferred results named `name`.
absl::StatusOr<Op*> InsertBefore(Function& f, const Module& module, const Op* before, OpCode code,
                                 std::vector<Operand> operands, std::map<std::string, Attr, std::less<>> attrs,
                                 std::string_view name);

// The only op that uses the value, or nullptr where none or several do (a second use by the same op counts as several).
Op* OnlyUser(const Function& f, const Value* value);

// The op that makes the value if it is of that kind, else nullptr.
inline Op* DefOf(const Value* value, OpCode code) {
  return value != nullptr && value->def != nullptr && value->def->code == code ? value->def : nullptr;
}

// Gives `to` the name of `from` (which must be gone or renamed by then): a rewritten value keeps the name people know.
inline void TakeName(Value* to, std::string name) { to->name = std::move(name); }

}  // namespace xjit
