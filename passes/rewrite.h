// Small pieces that several passes need.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/ops.h"

namespace xjit {

class PassContext;

// Makes an op before `before` with inferred results; the first is named `name`, others as the op table says.
absl::StatusOr<Op*> InsertBefore(Function& f, const Module& module, const Op* before, OpCode code,
                                 std::vector<Operand> operands, std::map<std::string, Attr, std::less<>> attrs,
                                 std::string_view name);

// The only op that uses the value, or nullptr where none or several do (a second use by the same op counts as several).
Op* OnlyUser(const Function& f, const Value* value);

// The op that makes the value if it is of that kind, else nullptr.
inline Op* DefOf(const Value* value, OpCode code) {
  return value != nullptr && value->def != nullptr && value->def->code == code ? value->def : nullptr;
}

// gemm and grouped_gemm, which have a prologue and an epilogue, and where their weight stands.
inline bool IsProduct(const Op& op) { return op.code == OpCode::kGemm || op.code == OpCode::kGroupedGemm; }
inline size_t WeightIndex(const Op& op) {
  return op.code == OpCode::kGroupedGemm || op.code == OpCode::kExpertLinear ? 2 : 1;
}
inline Weight* WeightOf(const Op& op) { return op.weight(WeightIndex(op)); }
// The product that makes the value, or nullptr.
inline Op* ProductOf(const Value* value) {
  return value != nullptr && value->def != nullptr && IsProduct(*value->def) ? value->def : nullptr;
}

// Whether the product's input has more rows than kernels of few rows take: its type and layout follow from that.
bool ManyRows(const Op& product, const PassContext& context);

// Gives `to` the name of `from` (which must be gone or renamed by then): a rewritten value keeps the name people know.
inline void TakeName(Value* to, std::string name) { to->name = std::move(name); }

// What `user` computed of the producer's result the producer now computes itself: it takes over name, type and uses.
void FoldInto(Function& f, Op* user, Op* producer);

// Why the item cannot be appended to the product's epilogue, whose items have an order; nullptr: it can.
const char* EpilogueBlocker(const Op& product, std::string_view item);

// Removes a chain and the operands that only its items have.
void DropChain(Op* op, std::string_view chain);

// That both hold the same share of the experts (attribute `first`).
bool SameShare(const Op& a, const Op& b);

// The weights' rows one after the other ('+') or interleaved ('|'). nullptr where the function has another weight of
// that name.
Weight* JoinWeights(Function& f, const std::vector<Weight*>& parts, char separator);
// What keeps two weights from being joined, "@k is q6_k but @q is q4_k"; empty: nothing.
std::string JoinBlocker(const Weight& a, const Weight& b);

// Infers the type of every result again, where operands or attributes of some op have changed.
absl::Status RefreshTypes(const Module& module, Function& f);

// Moves ops of that kind that alone read a gemm into its epilogue, as an item of one number, the op's attribute.
int FuseNumber(Module& module, PassContext& context, OpCode code, std::string_view item, std::string_view number);

}  // namespace xjit
