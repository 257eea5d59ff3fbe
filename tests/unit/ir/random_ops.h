// Random modules of every op, made from the op table alone: operands of the right kind and random attributes are tried
// until the op's own check accepts them. They mean nothing; they are well formed, which is what text and verifier are
// about. An op that never comes out needs a hint in Text() or Whole() below, or its check accepts too little.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/ir/ir_testing.h"

namespace xjit::testing {

class RandomOps {
 public:
  explicit RandomOps(uint64_t seed) : random_(seed) {}

  std::unique_ptr<Module> Build() {
    auto module = std::make_unique<Module>();
    module->name = "random";
    module_ = module.get();
    for (const std::string_view name : {"isa", "threads", "tp"}) {
      if (random_.Below(2) == 0) module_->attrs[std::string(name)] = AnyAttr();
    }
    const size_t functions = 1 + random_.Below(3);
    for (size_t i = 0; i < functions; ++i) BuildFunction(fmt::format("f{}", i));
    return module;
  }

 private:
  // Few sizes, so that shapes often agree.
  int64_t Size() { return random_.Pick<int64_t>({1, 2, 4, 16, 32, 32, 64, 64}); }
  Dim Rows() { return Dim::Symbol(kDimSymbols[random_.Below(8) == 0 ? random_.Below(kDimSymbols.size()) : 0]); }
  std::string Symbol() { return fmt::format("{}{}", random_.Pick<std::string>({"w", "blk.q", "v_"}), symbols_++); }

  Attr AnyAttr() {
    switch (random_.Below(6)) {
      case 0:
        return static_cast<int64_t>(random_.Next());
      case 1:
        return static_cast<double>(random_.Unit());
      case 2:
        return random_.Below(2) == 0;
      case 3:
        return std::string("a \"b\"\n\\c // d");
      case 4:
        return std::vector<int64_t>{};
      default:
        return std::vector<int64_t>{Whole(), -1, Whole()};
    }
  }

  int64_t Whole() { return random_.Pick<int64_t>({0, 1, 1, 1, 1, 2, 2, 3, 4, 16, 16, 16, 32}); }
  double Float() { return random_.Pick<double>({0.0, 1.0, 0.25, 1e-6, 30.0, 1.702}); }
  // Words that attributes of ops accept.
  std::string Text() {
    return random_.Pick<std::string>({"f32", "f32", "bf16", "bf16", "q8act", "i8act", "", "extend", "decode", "softmax",
                                      "sigmoid", "softmax_chosen"});
  }
  std::string Schedule() {
    std::vector<ScheduleRun> runs;
    int64_t layer = 0;
    for (size_t i = 1 + random_.Below(2); i > 0; --i) {
      const int64_t last = layer + static_cast<int64_t>(random_.Below(3));
      runs.push_back({callee_->name, layer, last});
      layer = last + 1;
    }
    return ScheduleText(runs);
  }

  Attr Value(const AttrSpec& spec) {
    const Attr& example = spec.fallback.has_value() ? *spec.fallback : *spec.kind;
    if (spec.name == "schedule") return Schedule();
    if (std::holds_alternative<int64_t>(example)) return Whole();
    if (std::holds_alternative<double>(example)) return Float();
    if (std::holds_alternative<bool>(example)) return random_.Below(2) == 0;
    if (std::holds_alternative<std::string>(example)) return Text();
    std::vector<int64_t> list(random_.Below(4));
    for (int64_t& v : list) v = Whole();
    return list;
  }

  // Weights: of any encoding, sliced, joined, interleaved, stacked.
  xjit::Encoding AnyEncoding() {
    const auto type = static_cast<DType>(random_.Below(static_cast<size_t>(kNumDTypes)));
    switch (random_.Below(6)) {
      case 0:
        return {DType::kI8, {.kind = Scales::Kind::kChannel, .weight_only = random_.Below(2) == 0}};
      case 1:
        return xjit::Encoding::Fp8Blocks();
      case 2:
        return {DType::kF8E4M3, {.kind = Scales::Kind::kTensor}};
      case 3:
        return xjit::Encoding::Int4(random_.Pick<int32_t>({32, 128}), random_.Below(2) == 0, random_.Below(2) == 0);
      default:
        return type;
    }
  }
  // A symbol, with a random slice of `sizes` now and then.
  std::string Ref(const std::vector<int64_t>& sizes) {
    std::string name = Symbol();
    if (random_.Below(3) != 0) return name;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(random_.Below(5)), step = 1 + static_cast<int64_t>(random_.Below(2));
      const std::string range = random_.Below(2) == 0 ? ":"
                                : step == 1           ? fmt::format("{}:{}", begin, begin + sizes[i])
                                                      : fmt::format("{}:{}:{}", begin, begin + sizes[i] * step, step);
      name += fmt::format("{}{}", i == 0 ? "[" : ",", range);
    }
    return name + "]";
  }
  xjit::Weight MakeWeight(std::vector<int64_t> sizes, const xjit::Encoding& encoding) {
    xjit::Weight weight;
    const size_t row_dim = sizes.size() == 1 ? 0 : sizes.size() - 2;
    const int64_t rows = sizes[row_dim];
    // Part and experts of each ref.
    std::vector<int64_t> parts = {rows}, stacks = {sizes.size() == 3 ? sizes[0] : 1};
    const bool interleaves = random_.Below(2) == 0;
    if (rows % 2 == 0 && random_.Below(3) == 0) {
      parts = interleaves || random_.Below(2) == 0 ? std::vector<int64_t>{rows / 2, rows / 2}
                                                   : std::vector<int64_t>{1, rows - 1};
      weight.part_rows = parts;
    }
    if (sizes.size() == 3 && sizes[0] > 1 && random_.Below(2) == 0) {
      stacks = {sizes[0] - 1, 1};
      weight.stack_experts = stacks;
    }
    for (size_t p = 0; p < parts.size(); ++p) {
      for (size_t s = 0; s < stacks.size(); ++s) {
        std::vector<int64_t> own = sizes;
        own[row_dim] = parts[p];
        if (own.size() == 3) own[0] = stacks[s];
        // One expert behind an '&' may be a matrix.
        if (s > 0 && random_.Below(2) == 0) own.erase(own.begin());
        weight.name += fmt::format("{}{}", s > 0 ? "&" : p == 0 ? "" : interleaves ? "|" : "+", Ref(own));
      }
    }
    std::vector<Dim> dims;
    for (int64_t size : sizes) dims.push_back({size, 0});
    weight.type = Type::Weight(dims, encoding);
    return weight;
  }
  Operand AnyWeight(OperandKind kind) {
    std::vector<xjit::Weight*> fits;
    const size_t rank = kind == OperandKind::kVector ? 1 : kind == OperandKind::kMatrix ? 2 : 3;
    for (const auto& w : function_->weights) {
      if (w->type.dims.size() == rank) fits.push_back(w.get());
    }
    if (!fits.empty() && random_.Below(3) == 0) return {nullptr, random_.Pick(fits)};
    std::vector<int64_t> sizes(rank);
    for (int64_t& size : sizes) size = Size();
    // A bias of experts is one of f32.
    const bool plain = rank == 1 || (rank == 3 && random_.Below(3) == 0);
    if (plain && rank == 3) sizes[2] = 1;
    function_->weights.push_back(
        std::make_unique<xjit::Weight>(MakeWeight(sizes, plain ? xjit::Encoding(DType::kF32) : AnyEncoding())));
    return {nullptr, function_->weights.back().get()};
  }
  Operand AnyOperand(OperandKind kind) {
    switch (kind) {
      case OperandKind::kMatrix:
      case OperandKind::kVector:
      case OperandKind::kExperts:
        return AnyWeight(kind);
      default:
        break;
    }
    std::vector<xjit::Value*> fits;
    for (xjit::Value* v : pool_) {
      const bool matrix = v->type.is_matrix(), ids = v->type.elem == DType::kI32;
      if (kind == OperandKind::kStep     ? v->type.is_step()
          : kind == OperandKind::kIds    ? v->type.is_tensor() && !matrix
          : kind == OperandKind::kRoutes ? matrix && ids
          : kind == OperandKind::kFloat  ? matrix && v->type.elem == DType::kF32
                                         : matrix && !ids) {
        fits.push_back(v);
      }
    }
    return {random_.Pick(fits), nullptr};
  }
  // Any value or weight, for chains.
  Operand Something() {
    return random_.Below(2) == 0 ? Operand{random_.Pick(pool_), nullptr} : AnyWeight(OperandKind::kVector);
  }

  // What an op is to have, decided before the tries: they would prefer what is easy.
  struct Wish {
    size_t optional = 0;
    std::string_view item;
  };
  Wish AnyWish(const OpInfo& info) {
    Wish wish{random_.Below(static_cast<size_t>(info.optional) + 1), ""};
    std::vector<std::string_view> items;
    for (const AttrSpec& spec : info.attrs) {
      for (const ChainItemSpec& item : ChainItems()) {
        if (item.chain == spec.name) items.push_back(item.name);
      }
    }
    if (!items.empty() && random_.Below(4) != 0) wish.item = random_.Pick(items);
    return wish;
  }

  std::unique_ptr<Op> Try(const OpInfo& info, const Wish& wish) {
    auto op = std::make_unique<Op>(info.code);
    size_t count = info.operands.size() - wish.optional;
    // Of ops that take any number: what a repeated function takes, some values otherwise.
    if (info.variadic) count = random_.Below(3);
    if (info.code == OpCode::kRepeat) {
      callee_ = module_->functions[random_.Below(module_->functions.size())].get();
      for (const auto& arg : callee_->args) {
        std::vector<xjit::Value*> fits;
        for (xjit::Value* v : pool_) {
          if (v->type == arg->type) fits.push_back(v);
        }
        if (fits.empty()) return nullptr;
        op->operands.push_back({random_.Pick(fits), nullptr});
      }
      count = 0;
    }
    for (size_t i = 0; i < count; ++i)
      op->operands.push_back(AnyOperand(info.operands[std::min(i, info.operands.size() - 1)].kind));
    // By name, as text lists them: the order of the operands that chains bring.
    std::vector<AttrSpec> specs(info.attrs.begin(), info.attrs.end());
    std::sort(specs.begin(), specs.end(), [](const AttrSpec& a, const AttrSpec& b) { return a.name < b.name; });
    for (const AttrSpec& spec : specs) {
      if (spec.fallback.has_value() && std::holds_alternative<Chain>(*spec.fallback)) {
        for (const ChainItemSpec& item : ChainItems()) {
          if (item.chain != spec.name || (item.name != wish.item && random_.Below(12) != 0)) continue;
          std::vector<Operand> args;
          for (int i = 0; i < item.operands; ++i) args.push_back(Something());
          std::vector<double> numbers;
          for (int i = 0; i < item.numbers; ++i) numbers.push_back(Float());
          op->AddItem(item.chain, item.name, args, numbers);
        }
      } else if (!spec.fallback.has_value() || random_.Below(3) == 0) {
        op->attrs[std::string(spec.name)] = Value(spec);
      }
    }
    for (const AttrSpec& spec : PlanAttrs()) {
      if (random_.Below(8) == 0) op->attrs[std::string(spec.name)] = Value(spec);
    }
    std::vector<Type> types;
    if (!CheckOp(*op, module_, &types).ok()) return nullptr;
    for (const Type& type : types) op->results.push_back(std::make_unique<xjit::Value>(xjit::Value{"", type, nullptr}));
    return op;
  }

  void BuildFunction(const std::string& name) {
    auto owned = std::make_unique<Function>(name);
    function_ = owned.get();
    pool_.clear();
    const auto arg = [&](std::string_view base, Type type) {
      pool_.push_back(function_->AddArg(base, std::move(type)));
    };
    arg("x", Type::Rows(Dim::Symbol('T'), 32));
    arg("step", Type::Step());
    arg("ids", Type::Tensor({Dim::Symbol('T')}, DType::kI32));
    for (int64_t size : {1, 2, 4, 16, 16, 32, 32, 64}) arg("x", Type::Rows(Rows(), size));
    for (int64_t size : {1, 2}) arg("slots", Type::Rows(Rows(), size, DType::kI32));
    for (int64_t experts : {1, 2, 4}) {
      arg("offsets", Type::Tensor({{1, 0}, {experts + 1, 0}}, DType::kI32));
    }
    for (DType type : {DType::kBF16, DType::kQ8Act, DType::kI8Act}) arg("a", Type::Rows(Rows(), 32, type));
    const size_t count = 8 + random_.Below(24);
    for (size_t i = 0; i < count; ++i) {
      const OpInfo& info = Info(static_cast<OpCode>(random_.Below(static_cast<size_t>(NumOps()))));
      if (info.code == OpCode::kReturn || (info.code == OpCode::kRepeat && module_->functions.empty())) continue;
      constexpr int kTries = 2000;
      const Wish wish = AnyWish(info);
      std::unique_ptr<Op> op;
      const size_t weights = function_->weights.size();
      for (int t = 0; t < kTries && op == nullptr; ++t) {
        function_->weights.resize(weights);
        op = Try(info, wish);
      }
      if (op == nullptr) continue;
      const Op* added = function_->Add(std::move(op), {info.results.begin(), info.results.end()});
      function_->DropUnusedWeights();
      for (const auto& r : added->results) pool_.push_back(r.get());
    }
    // What may be repeated returns what it takes.
    std::vector<xjit::Value*> same;
    for (xjit::Value* v : pool_) {
      if (v->type == pool_.front()->type) same.push_back(v);
    }
    auto ret = std::make_unique<Op>(OpCode::kReturn);
    ret->operands.push_back({random_.Pick(same), nullptr});
    if (random_.Below(4) == 0) ret->operands.push_back({pool_.front(), nullptr});
    function_->Add(std::move(ret), {});
    module_->functions.push_back(std::move(owned));
  }

  Random random_;
  Module* module_ = nullptr;
  Function* function_ = nullptr;
  const Function* callee_ = nullptr;
  int symbols_ = 0;
  std::vector<xjit::Value*> pool_;
};

}  // namespace xjit::testing
