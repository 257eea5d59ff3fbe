// Builds functions op by op, with types inferred: what a model file calls. The first error is kept and every later call
// is ignored, so that a model reads as a list of equations and is checked once, at the end.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/ops.h"

namespace xjit {

class Builder {
 public:
  using Attrs = std::vector<std::pair<std::string, Attr>>;

  explicit Builder(Module* module) : module_(module) {}

  void Begin(std::string_view function) { function_ = module_->AddFunction(function); }
  Value* Arg(std::string_view name, Type type) { return function_->AddArg(name, std::move(type)); }
  Operand W(std::string_view name, Type type) { return {nullptr, function_->AddWeight(name, std::move(type))}; }

  // The op's first result; named `name`, or as the op table says.
  Value* Emit(OpCode code, std::vector<Operand> operands, Attrs attrs = {}, std::string_view name = "");

  Value* Embed(Value* ids, Operand table) { return Emit(OpCode::kEmbed, {{ids}, table}); }
  Value* RmsNorm(Value* x, Operand gain, double eps) { return Emit(OpCode::kRmsNorm, {{x}, gain}, {{"eps", eps}}); }
  Value* Linear(Value* x, Operand w, std::string_view name) { return Emit(OpCode::kLinear, {{x}, w}, {}, name); }
  Value* AddBias(Value* x, Operand bias, std::string_view name) {
    return Emit(OpCode::kAddBias, {{x}, bias}, {}, name);
  }
  Value* Add(Value* a, Value* b, std::string_view name) { return Emit(OpCode::kAdd, {{a}, {b}}, {}, name); }
  Value* Mul(Value* a, Value* b, std::string_view name) { return Emit(OpCode::kMul, {{a}, {b}}, {}, name); }
  Value* Silu(Value* x) { return Emit(OpCode::kSilu, {{x}}); }
  Value* RopeTable(Value* step, Operand inv_freq, double scale) {
    return Emit(OpCode::kRopeTable, {{step}, inv_freq}, {{"scale", scale}});
  }
  Value* Rope(Value* x, Value* table, int64_t heads, std::string_view name) {
    return Emit(OpCode::kRope, {{x}, {table}}, {{"heads", heads}}, name);
  }
  void KvStore(Value* k, Value* v, Value* step, int64_t kv_heads) {
    Emit(OpCode::kKvStore, {{k}, {v}, {step}}, {{"kv_heads", kv_heads}});
  }
  Value* Attention(Value* q, Value* step, int64_t heads, int64_t kv_heads, double scale, int64_t window) {
    Attrs attrs = {{"heads", heads}, {"kv_heads", kv_heads}, {"scale", scale}};
    if (window > 0) attrs.emplace_back("window", window);
    return Emit(OpCode::kAttention, {{q}, {step}}, std::move(attrs));
  }
  Value* SelectRows(Value* x, Value* step) { return Emit(OpCode::kSelectRows, {{x}, {step}}); }
  Value* Repeat(std::vector<Operand> args, const std::vector<ScheduleRun>& runs) {
    return Emit(OpCode::kRepeat, std::move(args), {{"schedule", ScheduleText(runs)}});
  }
  void Return(Value* value) { Emit(OpCode::kReturn, {{value}}); }

  const absl::Status& status() const { return status_; }

 private:
  Module* module_;
  Function* function_ = nullptr;
  absl::Status status_;
};

}  // namespace xjit
