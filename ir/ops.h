// The op table: what each op takes, gives and means. Builder, parser, printer, verifier and interpreter all read it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace xjit {

class EvalContext;

enum class OperandKind : uint8_t {
  kFloat,    // an f32 tensor [rows, cols]
  kAct,      // a tensor [rows, cols] of f32, bf16, f16, q8act or i8act
  kIds,      // i32 [rows]
  kRoutes,   // i32 [rows, cols]: experts, slots or offsets
  kStep,     // !step
  kMatrix,   // a weight [n, k], any encoding
  kVector,   // a weight [n] of f32
  kExperts,  // a weight [experts, n, k], any encoding
};

enum class Effects : uint8_t { kPure, kReadsKv, kWritesKv };

// "an f32 tensor [rows, columns]".
std::string_view KindName(OperandKind kind);

struct OperandSpec {
  std::string_view name;
  OperandKind kind;
};

struct AttrSpec {
  std::string_view name;
  std::optional<Attr> fallback;  // none: the attribute must be given
  std::optional<Attr> kind;      // an example of the type, where there is no fallback
};
inline AttrSpec IntAttr(std::string_view name) { return {name, std::nullopt, Attr(int64_t{0})}; }
inline AttrSpec IntAttr(std::string_view name, int64_t fallback) { return {name, Attr(fallback), std::nullopt}; }
inline AttrSpec FloatAttr(std::string_view name) { return {name, std::nullopt, Attr(0.0)}; }
inline AttrSpec FloatAttr(std::string_view name, double fallback) { return {name, Attr(fallback), std::nullopt}; }
inline AttrSpec StrAttr(std::string_view name) { return {name, std::nullopt, Attr(std::string())}; }
inline AttrSpec StrAttr(std::string_view name, std::string fallback) {
  return {name, Attr(std::move(fallback)), std::nullopt};
}
inline AttrSpec BoolAttr(std::string_view name) { return {name, Attr(false), std::nullopt}; }
inline AttrSpec ListAttr(std::string_view name) { return {name, Attr(std::vector<int64_t>{}), std::nullopt}; }
inline AttrSpec ChainAttr(std::string_view name) { return {name, Attr(Chain{}), std::nullopt}; }

struct OpInfo {
  OpCode code{};
  std::string_view name;
  std::vector<OperandSpec> operands;
  // The last operand spec repeats, any number of times (return, repeat); chains may add operands behind the fixed ones.
  bool variadic = false;
  // So many of the last operands may be absent.
  int optional = 0;
  std::vector<AttrSpec> attrs;
  std::vector<std::string_view> results;  // default names; empty: no result
  Effects effects = Effects::kPure;
  // Element (row, column) of the result depends on that element of the operands alone, and on the column's of a vector:
  // passes may compute any rows or columns of it on their own.
  bool elementwise = false;
  // Result types from operands and attributes; may look functions up in the module (repeat).
  absl::Status (*infer)(const Op& op, const Module* module, std::vector<Type>* types) = nullptr;
  // What infer does not see; nullptr: nothing more to check.
  absl::Status (*verify)(const Op& op, const Module* module) = nullptr;
  // Computes the results in f32 with plain loops (ir/interpreter.h); nullptr: the interpreter does it (repeat, return).
  absl::Status (*reference)(const Op& op, EvalContext& eval) = nullptr;
  std::string_view doc;
};

const OpInfo& Info(OpCode code);
inline std::string_view Name(OpCode code) { return Info(code).name; }
std::optional<OpCode> ParseOpCode(std::string_view name);
int NumOps();
// Chain items: name, how many operand arguments, how many numbers behind them, what they do.
struct ChainItemSpec {
  std::string_view chain;  // "prologue" or "epilogue"
  std::string_view name;
  int operands;
  int numbers;
  std::string_view doc;
};
const std::vector<ChainItemSpec>& ChainItems();

// Attributes that any op may carry once it has been planned, written by passes/plan_*.
const std::vector<AttrSpec>& PlanAttrs();

// One definition an op: Define##Code() lives in ir/ops_<family>.cc.
#define XJIT_OP(code, name) OpInfo Define##code();
#include "ir/ops.inc"
#undef XJIT_OP

// How many of the op's last operands belong to items of its chains.
size_t ChainOperands(const Op& op);

// Verifies an op against the table and infers its result types.
absl::Status CheckOp(const Op& op, const Module* module, std::vector<Type>* types);

// An error at an op: "12:5: gemm: ..." where it came from text, "gemm %y: ..." where code built it.
absl::Status AtOp(const Op& op, const absl::Status& status);

}  // namespace xjit
