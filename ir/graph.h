// The graph: a module of functions, a function of ops in SSA form. What an op is and may be is in ops.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/support/status.h"
#include "ir/type.h"

namespace xjit {

class Op;
class Function;
class Module;

enum class OpCode : uint8_t {
#define XJIT_OP(code, name) k##code,
#include "ir/ops.inc"
#undef XJIT_OP
};

// Where something stands in IR text; 0 where it was built by code.
struct Loc {
  int line = 0;
  int column = 0;
};

// A result of an op or an argument of a function.
struct Value {
  std::string name;  // without '%', unique in its function
  Type type;
  Op* def = nullptr;  // nullptr: an argument
};

// A symbol of the checkpoint as one function uses it; inside a layer function it stands for that layer's own. What its
// name may be made of is in ir/weight_rows.h: parts joined by '+' or interleaved by '|', experts stacked by '&', slices
// in brackets.
// A joined weight is its parts' rows one after the other; an interleaved one alternates 16 rows of each part.
struct Weight {
  struct Part {
    std::string name;  // with its slices and stacked experts
    int64_t rows = 0;  // of each expert
    bool operator==(const Part&) const = default;
  };
  std::string name;  // without '@'
  Type type;         // [n, k] for a matrix, [n] for a vector, [experts, n, k] for the matrices of experts
  std::vector<Part> parts() const;
  bool interleaved() const { return name.find('|') != std::string::npos; }
  std::vector<int64_t> part_rows;      // of a joined weight; empty otherwise
  std::vector<int64_t> stack_experts;  // experts of each stacked symbol; empty where there is one symbol
};

struct Operand {
  Value* value = nullptr;
  Weight* weight = nullptr;
  bool operator==(const Operand&) const = default;
};

// One link of a prologue or epilogue: a name and arguments, which are operands of the op (by index) or numbers.
struct ChainItem {
  using Arg = std::variant<int, double>;
  std::string name;
  std::vector<Arg> args;
  bool operator==(const ChainItem&) const = default;
};
using Chain = std::vector<ChainItem>;

using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, Chain>;

class Op {
 public:
  OpCode code;
  std::vector<Operand> operands;
  std::map<std::string, Attr, std::less<>> attrs;
  std::vector<std::unique_ptr<Value>> results;
  Loc loc;

  explicit Op(OpCode c) : code(c) {}

  Value* operand(size_t i) const { return operands[i].value; }
  Weight* weight(size_t i) const { return operands[i].weight; }
  Value* result(size_t i = 0) const { return results[i].get(); }

  // An attribute's value, or the op table's default where the op has none of that name.
  int64_t Int(std::string_view name) const;
  double Float(std::string_view name) const;
  bool Bool(std::string_view name) const;
  std::string Str(std::string_view name) const;
  const Chain& ChainAttr(std::string_view name) const;
  bool Has(std::string_view name) const { return attrs.find(name) != attrs.end(); }
  // The item of that name in the chain attribute, or nullptr.
  const ChainItem* Item(std::string_view chain, std::string_view name) const;
  // Appends an item whose arguments are operands (added to the op) and then numbers.
  void AddItem(std::string_view chain, std::string_view name, std::vector<Operand> args,
               std::vector<double> numbers = {});
};

class Function {
 public:
  explicit Function(std::string name) : name(std::move(name)) {}
  std::string name;
  std::vector<std::unique_ptr<Value>> args;
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<std::unique_ptr<Op>> ops;  // in order; the last is return

  Value* AddArg(std::string_view name, Type type);
  // The weight of that name, made with `type` where there is none yet.
  Weight* AddWeight(std::string_view name, Type type);
  Weight* FindWeight(std::string_view name) const;

  // Puts an op at the end, or before `before`. Results get free names from `result_names`.
  Op* Add(std::unique_ptr<Op> op, std::vector<std::string> result_names, const Op* before = nullptr);
  void Erase(const Op* op);
  // A name that no value has yet: `base`, or base with a number.
  std::string FreeName(std::string_view base) const;

  // Ops that use the value, each once, in order.
  std::vector<Op*> Users(const Value* value) const;
  void ReplaceUses(const Value* from, Value* to);
  int IndexOf(const Op* op) const;
  // Drops weights that no op uses.
  void DropUnusedWeights();
};

class Module {
 public:
  std::string name;
  std::map<std::string, Attr, std::less<>> attrs;
  std::vector<std::unique_ptr<Function>> functions;

  Function* Find(std::string_view name) const;
  Function* AddFunction(std::string_view name);
  std::unique_ptr<Module> Clone() const;
};

// "@layer:0-2, @last:3" as a repeat op's schedule: functions and the layers each is called for, in order.
struct ScheduleRun {
  std::string function;
  int64_t first = 0;
  int64_t last = 0;
  bool operator==(const ScheduleRun&) const = default;
};
absl::StatusOr<std::vector<ScheduleRun>> ParseSchedule(std::string_view text);
std::string ScheduleText(const std::vector<ScheduleRun>& runs);

}  // namespace xjit
