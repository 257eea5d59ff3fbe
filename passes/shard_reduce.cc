#include "passes/shard_reduce.h"

#include <algorithm>
#include <map>

#include "ir/chains.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// A value that is the sum over ranks of `local`, then + bias, * scale, + residuals.
struct Sum {
  Value* local = nullptr;
  Weight* bias = nullptr;
  double scale = 1;
  std::vector<Value*> residuals;
  bool plain() const { return bias == nullptr && scale == 1 && residuals.empty(); }
};

class Placer {
 public:
  Placer(Module& module, Function& f, const std::set<const Op*>& partial, PassContext& context)
      : module_(module), f_(f), partial_(partial), context_(context) {}

  absl::StatusOr<int> Run() {
    for (at_ = 0; at_ < f_.ops.size(); ++at_) {
      Op* op = f_.ops[at_].get();
      if (partial_.contains(op)) {
        XJIT_RETURN_IF_ERROR(SplitEpilogue(op));
        XJIT_RETURN_IF_ERROR(ReduceOperands(op));
        sums_[op->result()] = {op->result(), nullptr, 1, {}};
        continue;
      }
      if (!Reads(*op)) continue;
      XJIT_ASSIGN_OR_RETURN(const bool passed, Pass(op));
      if (!passed) XJIT_RETURN_IF_ERROR(ReduceOperands(op));
    }
    for (const Op* op : dead_) f_.Erase(op);
    return count_;
  }

 private:
  const Sum* Find(const Value* value) const {
    const auto it = sums_.find(value);
    return it == sums_.end() ? nullptr : &it->second;
  }
  bool Reads(const Op& op) const {
    return std::any_of(op.operands.begin(), op.operands.end(), [&](const Operand& o) { return Find(o.value); });
  }

  // What a product does after its sum becomes ops of its own, in their order.
  absl::Status SplitEpilogue(Op* op) {
    if (op->code != OpCode::kGemm && op->code != OpCode::kGroupedGemm) return absl::OkStatus();
    const Op* before = f_.ops[at_ + 1].get();
    Value* value = op->result();
    const std::string base = value->name;
    const Chain items = op->ChainAttr("epilogue");
    std::vector<Op*> made;
    for (const ChainItem& item : items) {
      if (item.name == "combine") continue;
      if (item.name == "bias" && op->code == OpCode::kGroupedGemm) {
        // Weighed by combine: one rank adds it. Experts that are a rank's alone keep theirs.
        if (context_.rank != 0 && !op->Has("first")) RemoveItem(op, "epilogue", "bias");
        continue;
      }
      OpCode code = OpCode::kAdd;
      std::vector<Operand> operands = {{value, nullptr}};
      std::map<std::string, Attr, std::less<>> attrs;
      if (item.name == "scale" || item.name == "soft_cap") {
        code = item.name == "scale" ? OpCode::kScale : OpCode::kSoftCap;
        attrs[item.name == "scale" ? "by" : "cap"] = ItemNumber(item, 0);
      } else {
        if (item.name == "bias") code = OpCode::kAddBias;
        const auto now = op->Item("epilogue", item.name);
        operands.push_back(ItemOperand(*op, *now));
        if (item.name == "residual") std::swap(operands[0], operands[1]);
      }
      RemoveItem(op, "epilogue", item.name);
      XJIT_ASSIGN_OR_RETURN(Op * next, InsertBefore(f_, module_, before, code, operands, attrs, base));
      made.push_back(next);
      value = next->result();
    }
    if (made.empty()) return absl::OkStatus();
    // Readers of the product read the last of them.
    for (const auto& user : f_.ops) {
      if (std::find(made.begin(), made.end(), user.get()) != made.end()) continue;
      for (Operand& o : user->operands) {
        if (o.value == op->result()) o.value = value;
      }
    }
    std::swap(op->result()->name, value->name);
    return absl::OkStatus();
  }

  // Carries the sum through an op that is linear in it. False: it needs the whole sum.
  absl::StatusOr<bool> Pass(Op* op) {
    switch (op->code) {
      case OpCode::kAdd: {
        if (op->operand(0) == op->operand(1)) return false;
        const Sum* a = Find(op->operand(0));
        const Sum* b = Find(op->operand(1));
        if (a != nullptr && b != nullptr) return AddSums(op, *a, *b);
        Sum sum = a != nullptr ? *a : *b;
        sum.residuals.push_back(op->operand(a != nullptr ? 1 : 0));
        Replace(op, std::move(sum));
        return true;
      }
      case OpCode::kAddBias: {
        Sum sum = *Find(op->operand(0));
        if (!sum.plain()) return false;
        sum.bias = op->weight(1);
        Replace(op, std::move(sum));
        return true;
      }
      case OpCode::kScale: {
        Sum sum = *Find(op->operand(0));
        if (!sum.residuals.empty() || sum.scale != 1) return false;
        sum.scale = op->Float("by");
        Replace(op, std::move(sum));
        return true;
      }
      case OpCode::kExpertBias: {
        const Sum sum = *Find(op->operand(0));
        if (!sum.plain()) return false;
        if (context_.rank != 0 && !op->Has("first")) {
          Replace(op, sum);
        } else {
          op->operands[0].value = sum.local;
          sums_[op->result()] = {op->result(), nullptr, 1, {}};
        }
        return true;
      }
      case OpCode::kCombine:
      case OpCode::kSelectRows: {
        const Sum* sum = Find(op->operand(0));
        if (sum == nullptr || !sum->plain() || (op->code == OpCode::kCombine && Find(op->operand(1)))) return false;
        op->operands[0].value = sum->local;
        sums_[op->result()] = {op->result(), nullptr, 1, {}};
        return true;
      }
      default:
        return false;
    }
  }

  // Two sums are added where they are parts, so that one all_reduce serves both.
  absl::StatusOr<bool> AddSums(Op* op, Sum a, Sum b) {
    if ((a.bias != nullptr && (a.scale != 1 || b.bias != nullptr)) || (b.bias != nullptr && b.scale != 1)) return false;
    XJIT_RETURN_IF_ERROR(ScaleLocally(op, &a));
    XJIT_RETURN_IF_ERROR(ScaleLocally(op, &b));
    Sum sum{op->result(), a.bias != nullptr ? a.bias : b.bias, 1, a.residuals};
    sum.residuals.insert(sum.residuals.end(), b.residuals.begin(), b.residuals.end());
    // The later product adds the earlier one as it stores.
    if (f_.IndexOf(a.local->def) > f_.IndexOf(b.local->def)) std::swap(a, b);
    Op* later = b.local->def;
    const bool chain = later->code == OpCode::kGemm || later->Item("epilogue", "combine") != nullptr;
    if (chain && a.local != b.local && later->Item("epilogue", "residual") == nullptr && partial_.contains(later) &&
        AloneIn(b.local, op)) {
      later->AddItem("epilogue", "residual", {{a.local, nullptr}});
      sum.local = b.local;
      Replace(op, std::move(sum));
      return true;
    }
    op->operands = {{a.local, nullptr}, {b.local, nullptr}};
    sums_[op->result()] = std::move(sum);
    return true;
  }

  // Whether nothing but `op` reads the value, or will once the sums that are still carried are placed.
  bool AloneIn(const Value* value, const Op* op) const {
    for (const auto& reader : f_.ops) {
      if (reader.get() == op || dead_.contains(reader.get())) continue;
      for (const Operand& o : reader->operands) {
        if (o.value == value) return false;
      }
    }
    for (const auto& [carried, sum] : sums_) {
      if (sum.local != value) continue;
      for (size_t i = at_; i < f_.ops.size(); ++i) {
        if (f_.ops[i].get() == op) continue;
        for (const Operand& o : f_.ops[i]->operands) {
          if (o.value == carried) return false;
        }
      }
    }
    return true;
  }

  absl::Status ScaleLocally(const Op* before, Sum* sum) {
    if (sum->scale == 1) return absl::OkStatus();
    const size_t ops = f_.ops.size();
    XJIT_ASSIGN_OR_RETURN(Op * scale, InsertBefore(f_, module_, before, OpCode::kScale, {{sum->local, nullptr}},
                                                   {{"by", sum->scale}}, sum->local->name));
    at_ += f_.ops.size() - ops;
    sum->local = scale->result();
    sum->scale = 1;
    return absl::OkStatus();
  }

  // The op's result is carried as a sum; it has no reader once all have been seen to.
  void Replace(Op* op, Sum sum) {
    sums_[op->result()] = std::move(sum);
    dead_.insert(op);
  }

  absl::Status ReduceOperands(Op* op) {
    for (size_t i = 0; i < op->operands.size(); ++i) {
      if (Find(op->operand(i)) != nullptr) XJIT_RETURN_IF_ERROR(Reduce(op->operand(i), op));
    }
    return absl::OkStatus();
  }

  // Puts the sum of `value` before `reader`, which stands at at_.
  absl::Status Reduce(Value* value, Op* reader) {
    Sum sum = sums_.at(value);
    sums_.erase(value);
    Op op(OpCode::kAllReduce);
    op.operands = {{sum.local, nullptr}};
    if (sum.bias != nullptr) op.AddItem("epilogue", "bias", {{nullptr, sum.bias}});
    if (sum.scale != 1) op.AddItem("epilogue", "scale", {}, {sum.scale});
    if (!sum.residuals.empty()) op.AddItem("epilogue", "residual", {{sum.residuals[0], nullptr}});
    std::string name = value->name;
    const bool gone = dead_.contains(value->def);
    if (gone) value->name = f_.FreeName(fmt::format("{}_dead", name));
    XJIT_ASSIGN_OR_RETURN(Op * made,
                          InsertBefore(f_, module_, reader, OpCode::kAllReduce, op.operands, op.attrs, name));
    ++at_;
    ++count_;
    Value* result = made->result();
    for (size_t i = 1; i < sum.residuals.size(); ++i) {
      XJIT_ASSIGN_OR_RETURN(Op * add, InsertBefore(f_, module_, reader, OpCode::kAdd,
                                                   {{result, nullptr}, {sum.residuals[i], nullptr}}, {}, name));
      ++at_;
      result = add->result();
    }
    for (size_t i = static_cast<size_t>(f_.IndexOf(reader)); i < f_.ops.size(); ++i) {
      for (Operand& o : f_.ops[i]->operands) {
        if (o.value == value) o.value = result;
      }
    }
    context_.Fused(f_, *made, fmt::format("ranks' parts of %{} are added up here", sum.local->name));
    return absl::OkStatus();
  }

  Module& module_;
  Function& f_;
  const std::set<const Op*>& partial_;
  PassContext& context_;
  std::map<const Value*, Sum> sums_;
  std::set<const Op*> dead_;
  size_t at_ = 0;
  int count_ = 0;
};

}  // namespace

absl::StatusOr<int> PlaceAllReduces(Module& module, Function& f, const std::set<const Op*>& partial,
                                    PassContext& context) {
  return Placer(module, f, partial, context).Run();
}

void RemoveItem(Op* op, std::string_view chain, std::string_view name) {
  Chain items = op->ChainAttr(chain);
  const auto it = std::find_if(items.begin(), items.end(), [name](const ChainItem& i) { return i.name == name; });
  if (it == items.end()) return;
  std::vector<int> gone;
  for (const auto& arg : it->args) {
    if (const int* index = std::get_if<int>(&arg)) gone.push_back(*index);
  }
  items.erase(it);
  op->attrs[std::string(chain)] = std::move(items);
  std::sort(gone.rbegin(), gone.rend());
  for (const int index : gone) {
    op->operands.erase(op->operands.begin() + index);
    for (const char* each : {"prologue", "epilogue"}) {
      const auto attr = op->attrs.find(std::string_view(each));
      if (attr == op->attrs.end()) continue;
      for (ChainItem& item : std::get<Chain>(attr->second)) {
        for (auto& arg : item.args) {
          if (int* i = std::get_if<int>(&arg); i != nullptr && *i > index) --*i;
        }
      }
    }
  }
}

}  // namespace xjit
