// Builds functions op by op, with types inferred: what a model file calls. The first error is kept and every later call
// is ignored, so that a model reads as a list of equations and is checked once, at the end.
#pragma once

#include <initializer_list>
#include <optional>
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
  Value* Rope(Value* x, Value* table, int64_t heads, std::string_view name, int64_t offset = 0) {
    Attrs attrs = {{"heads", heads}};
    if (offset != 0) attrs.emplace_back("offset", offset);
    return Emit(OpCode::kRope, {{x}, {table}}, std::move(attrs), name);
  }
  void KvStore(Value* k, Value* v, Value* step, int64_t kv_heads) {
    Emit(OpCode::kKvStore, {{k}, {v}, {step}}, {{"kv_heads", kv_heads}});
  }
  struct AttentionArgs {
    int64_t heads = 0, kv_heads = 0;
    double scale = 1;
    int64_t window = 0;   // 0: none
    double soft_cap = 0;  // 0: none
    std::optional<Operand> sinks = std::nullopt;
  };
  Value* Attention(Value* q, Value* step, const AttentionArgs& args) {
    Attrs attrs = {{"heads", args.heads}, {"kv_heads", args.kv_heads}, {"scale", args.scale}};
    if (args.window > 0) attrs.emplace_back("window", args.window);
    if (args.soft_cap > 0) attrs.emplace_back("soft_cap", args.soft_cap);
    std::vector<Operand> operands = {{q}, {step}};
    if (args.sinks) operands.push_back(*args.sinks);
    return Emit(OpCode::kAttention, std::move(operands), std::move(attrs));
  }
  void KvStoreLatent(Value* c, Value* k_pe, Value* step) { Emit(OpCode::kKvStoreLatent, {{c}, {k_pe}, {step}}); }
  Value* MlaAttention(Value* q, Value* step, Operand kv_b, int64_t heads, int64_t nope_dim, int64_t v_dim,
                      double scale) {
    return Emit(OpCode::kMlaAttention, {{q}, {step}, kv_b},
                {{"heads", heads}, {"nope_dim", nope_dim}, {"v_dim", v_dim}, {"scale", scale}});
  }
  Value* Slice(Value* x, int64_t from, int64_t to, std::string_view name) {
    return Emit(OpCode::kSlice, {{x}}, {{"from", from}, {"to", to}}, name);
  }
  Value* Scale(Value* x, double by) { return Emit(OpCode::kScale, {{x}}, {{"by", by}}); }
  Value* SoftCap(Value* x, double cap) { return Emit(OpCode::kSoftCap, {{x}}, {{"cap", cap}}); }
  Value* Gelu(Value* x) { return Emit(OpCode::kGelu, {{x}}); }
  Value* ClampedSwiglu(Value* gate, Value* up, double limit, double alpha, std::string_view name) {
    return Emit(OpCode::kClampedSwiglu, {{gate}, {up}}, {{"limit", limit}, {"alpha", alpha}}, name);
  }
  // The chosen experts and their weights.
  std::pair<Value*, Value*> Route(Value* logits, std::optional<Operand> bias, Attrs attrs) {
    std::vector<Operand> operands = {{logits}};
    if (bias) operands.push_back(*bias);
    Value* experts = Emit(OpCode::kRoute, std::move(operands), std::move(attrs));
    return {experts, experts == nullptr ? nullptr : experts->def->result(1)};
  }
  Value* ExpertLinear(Value* x, Value* experts, Operand w, std::string_view name) {
    return Emit(OpCode::kExpertLinear, {{x}, {experts}, w}, {}, name);
  }
  Value* ExpertBias(Value* y, Value* experts, Operand bias, std::string_view name) {
    return Emit(OpCode::kExpertBias, {{y}, {experts}, bias}, {}, name);
  }
  Value* Combine(Value* y, Value* weights) { return Emit(OpCode::kCombine, {{y}, {weights}}); }
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
