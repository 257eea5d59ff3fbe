// What tests of the IR share: weights out of a hash, a random source, structural comparison, and random valid modules.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "ir/interpreter.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "ir/weight_rows.h"

namespace xjit::testing {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers everywhere, unlike the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  // In [0, n).
  size_t Below(size_t n) { return static_cast<size_t>(Next() % n); }
  template <typename T>
  const T& Pick(const std::vector<T>& list) {
    return list[Below(list.size())];
  }
  // In [-1, 1).
  float Unit() { return static_cast<float>(static_cast<int64_t>(Next()) >> 40) * 0x1p-23f; }
  std::vector<float> Floats(int64_t n) {
    std::vector<float> out(static_cast<size_t>(n));
    for (float& f : out) f = Unit();
    return out;
  }

 private:
  uint64_t state_;
};

inline TensorData RandomRows(Random& random, int64_t rows, int64_t cols) {
  return {.rows = rows, .cols = cols, .f = random.Floats(rows * cols), .ids = {}};
}

// Weights that depend on the symbol, the layer, the expert, the row and the column alone: slices, joins and stacks have
// the values of what they are made of.
class HashWeights : public WeightSource {
 public:
  absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) override {
    XJIT_ASSIGN_OR_RETURN(const WeightRows rows, WeightRows::Of(w));
    const bool vector = w.type.dims.size() == 1;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto from = rows.At(vector ? static_cast<int64_t>(i) : n);
      const int64_t column = vector ? 0 : from.columns.At(static_cast<int64_t>(i));
      out[i] = Value(from.ref->symbol, layer, from.expert << 32 | from.row, column);
    }
    return absl::OkStatus();
  }
  static float Value(std::string_view name, int64_t layer, int64_t row, int64_t column) {
    uint64_t h = 1469598103934665603ull;  // FNV-1a
    for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    for (int64_t v : {layer, row, column}) h = Random(h ^ static_cast<uint64_t>(v)).Next();
    return Random(h).Unit();
  }
};

inline std::unique_ptr<Module> Parse(std::string_view text) {
  auto module = ParseModule(text, "t.xir");
  EXPECT_TRUE(module.ok()) << module.status() << "\n" << text;
  return module.ok() ? *std::move(module) : nullptr;
}
inline std::string ParseError(std::string_view text) {
  const auto module = ParseModule(text, "t.xir");
  return module.ok() ? "" : std::string(Message(module.status()));
}

// What differs between two modules, "" where nothing does. Locations are not compared.
inline std::string Difference(const Function& a, const Function& b) {
  if (a.name != b.name) return fmt::format("@{} and @{}", a.name, b.name);
  if (a.args.size() != b.args.size() || a.ops.size() != b.ops.size()) return fmt::format("@{}: sizes", a.name);
  for (size_t i = 0; i < a.args.size(); ++i) {
    if (a.args[i]->name != b.args[i]->name || a.args[i]->type != b.args[i]->type) return "%" + a.args[i]->name;
  }
  for (size_t i = 0; i < a.ops.size(); ++i) {
    const Op &x = *a.ops[i], &y = *b.ops[i];
    const std::string where = fmt::format("@{}: op {}: {}", a.name, i, Name(x.code));
    if (x.code != y.code || x.operands.size() != y.operands.size() || x.results.size() != y.results.size())
      return where;
    for (size_t j = 0; j < x.operands.size(); ++j) {
      const Operand &p = x.operands[j], &q = y.operands[j];
      if ((p.value != nullptr) != (q.value != nullptr)) return where + ": operand kinds";
      if (p.value != nullptr && p.value->name != q.value->name) return where + ": operands";
      if (p.weight != nullptr && (p.weight->name != q.weight->name || p.weight->type != q.weight->type ||
                                  p.weight->parts() != q.weight->parts())) {
        return where + ": weights";
      }
    }
    for (size_t j = 0; j < x.results.size(); ++j) {
      if (x.result(j)->name != y.result(j)->name || x.result(j)->type != y.result(j)->type) return where + ": results";
    }
    for (const auto& [name, value] : x.attrs) {
      // An empty chain is the default, which text leaves out.
      if (const auto* chain = std::get_if<Chain>(&value); chain != nullptr && chain->empty()) continue;
      const auto it = y.attrs.find(name);
      if (it == y.attrs.end() || it->second != value) return where + ": attribute " + name;
    }
  }
  return "";
}
inline std::string Difference(const Module& a, const Module& b) {
  if (a.name != b.name || a.attrs != b.attrs || a.functions.size() != b.functions.size()) return "module";
  for (size_t i = 0; i < a.functions.size(); ++i) {
    if (std::string d = Difference(*a.functions[i], *b.functions[i]); !d.empty()) return d;
  }
  return "";
}

// A decoder with a random layer: norms, products in random encodings, gated units, slices, biases, residuals and
// attention, in random order, each reading any value made before. The model's own shape stays small.
class RandomGraph {
 public:
  // A layer has one cache: with more than one attention, each overwrites what the one before stored, so that only a
  // step that begins at position 0 means something.
  // Without `experts` no router decides anything, so that small differences stay small.
  explicit RandomGraph(uint64_t seed, int max_attentions = 1, bool experts = true)
      : random_(seed), attentions_left_(max_attentions), experts_(experts) {}

  std::unique_ptr<Module> Build() {
    auto module = std::make_unique<Module>();
    module->name = "random";
    Builder b(module.get());
    hidden_ = random_.Pick<int64_t>({64, 128});
    head_dim_ = random_.Pick<int64_t>({16, 32});
    BuildLayer(b);
    b.Begin("step");
    Value* ids = b.Arg("ids", Type::Tensor({Dim::Symbol('T')}, DType::kI32));
    Value* step = b.Arg("step", Type::Step());
    Value* x = b.Embed(ids, b.W("embed", Type::Tensor({{48, 0}, {hidden_, 0}}, DType::kQ8_0)));
    Value* rope = b.RopeTable(step, b.W("inv_freq", Vector(head_dim_ / 2)), 1.0);
    x = b.Repeat({{x}, {rope}, {step}}, {{"layer", 0, static_cast<int64_t>(random_.Below(3))}});
    const bool select_first = random_.Below(2) == 0;
    if (select_first) x = b.SelectRows(x, step);
    x = b.RmsNorm(x, b.W("final_norm", Vector(hidden_)), 1e-5);
    x = b.Linear(x, b.W("embed", Type::Tensor({{48, 0}, {hidden_, 0}}, DType::kQ8_0)), "logits");
    if (random_.Below(3) == 0) x = Unary(b, x);
    b.Return(select_first ? x : b.SelectRows(x, step));
    EXPECT_TRUE(b.status().ok()) << b.status();
    return module;
  }

 private:
  static Type Vector(int64_t n) { return Type::Tensor({{n, 0}}, DType::kF32); }
  std::string Symbol(std::string_view base) { return fmt::format("{}{}", base, symbols_++); }
  DType Encoding(int64_t k) {
    std::vector<DType> list = {DType::kF32, DType::kF16, DType::kBF16};
    if (k % 32 == 0) list.insert(list.end(), {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1});
    return random_.Pick(list);
  }
  Value* Any() { return random_.Pick(pool_); }
  Value* Linear(Builder& b, Value* x, int64_t n, std::string_view name) {
    const int64_t k = x->type.cols();
    Value* y = b.Linear(x, b.W(Symbol(name), Type::Tensor({{n, 0}, {k, 0}}, Encoding(k))), name);
    if (random_.Below(4) == 0) y = b.AddBias(y, b.W(Symbol("bias"), Vector(n)), name);
    return y;
  }
  // Now and then of groups of columns.
  Value* Norm(Builder& b, Value* x) {
    const int64_t cols = x->type.cols(), group = cols % 16 == 0 && random_.Below(4) == 0 ? 16 : cols;
    return b.RmsNorm(x, b.W(Symbol("norm"), Vector(group)), 1e-5);
  }

  Value* Attention(Builder& b, Value* rope, Value* step) {
    const int64_t kv_heads = random_.Pick<int64_t>({1, 2}), heads = kv_heads * random_.Pick<int64_t>({1, 2, 3});
    Value* x = Norm(b, Any());
    Value* q = b.Rope(Linear(b, x, heads * head_dim_, "q"), rope, heads, "qr");
    Value* k = b.Rope(Linear(b, x, kv_heads * head_dim_, "k"), rope, kv_heads, "kr");
    const int64_t v_dim = random_.Below(4) == 0 ? 16 : head_dim_;
    Value* v = Linear(b, x, kv_heads * v_dim, "v");
    b.KvStore(k, v, step, kv_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(head_dim_));
    Builder::Attrs attrs = {{"heads", heads}, {"kv_heads", kv_heads}, {"scale", scale}};
    if (v_dim != head_dim_) attrs.emplace_back("v_dim", v_dim);
    if (random_.Below(2) == 0) attrs.emplace_back("window", int64_t{2});
    if (random_.Below(4) == 0) attrs.emplace_back("soft_cap", 5.0);
    if (kv_heads == 2 && heads > 2 && random_.Below(2) == 0) {
      attrs.emplace_back("groups", std::vector<int64_t>{1, heads - 1});
    }
    std::vector<Operand> operands = {{q}, {step}};
    if (random_.Below(3) == 0) operands.push_back(b.W(Symbol("sinks"), Vector(heads)));
    return b.Emit(OpCode::kAttention, operands, std::move(attrs));
  }
  Value* LatentAttention(Builder& b, Value* rope, Value* step) {
    constexpr int64_t kNope = 16, kV = 16, kLatent = 32;
    const int64_t heads = random_.Pick<int64_t>({1, 2, 4}), rotated = head_dim_;
    Value* x = Norm(b, Any());
    Value* q = Linear(b, x, heads * (kNope + rotated), "q");
    q = b.Emit(OpCode::kRope, {{q}, {rope}}, {{"heads", heads}, {"offset", kNope}}, "qr");
    Value* c = Norm(b, Linear(b, x, kLatent, "c"));
    Value* k = b.Rope(Linear(b, x, rotated, "k_pe"), rope, 1, "kr");
    b.Emit(OpCode::kKvStoreLatent, {{c}, {k}, {step}});
    const Operand kv_b =
        b.W(Symbol("kv_b"), Type::Tensor({{heads * (kNope + kV), 0}, {kLatent, 0}}, Encoding(kLatent)));
    return b.Emit(OpCode::kMlaAttention, {{q}, {step}, kv_b},
                  {{"heads", heads}, {"nope_dim", kNope}, {"v_dim", kV}, {"scale", 0.2}});
  }
  // f(gate) * up, of any kind.
  Value* Glu(Builder& b, Value* gate, Value* up) { return Glu(b, gate, up, random_.Below(4)); }
  static Value* Glu(Builder& b, Value* gate, Value* up, size_t kind) {
    switch (kind) {
      case 0:
        return b.Emit(OpCode::kClampedSwiglu, {{gate}, {up}}, {{"limit", 1.5}, {"alpha", 1.702}}, "f");
      case 1:
        return b.Mul(b.Emit(OpCode::kGelu, {{gate}}), up, "f");
      default:
        return b.Mul(b.Silu(gate), up, "f");
    }
  }
  // Experts of [n, k], the last one a symbol of its own where it is shared.
  Operand Experts(Builder& b, std::string_view name, int64_t routed, int64_t shared, int64_t n, int64_t k,
                  DType encoding) {
    std::string symbol = Symbol(name);
    if (shared > 0) symbol += "&" + Symbol("shared");
    const Operand w = b.W(symbol, Type::Tensor({{routed + shared, 0}, {n, 0}, {k, 0}}, encoding));
    if (shared > 0) w.weight->stack_experts = {routed, shared};
    return w;
  }
  Value* Moe(Builder& b, Value* x) {
    constexpr int64_t kExperts = 4, kColumns = 32;
    const int64_t top_k = random_.Pick<int64_t>({1, 2}), shared = random_.Pick<int64_t>({0, 1}), k = x->type.cols();
    Value* logits = Linear(b, x, kExperts, "logits");
    std::vector<Operand> operands = {{logits}};
    if (random_.Below(2) == 0) operands.push_back(b.W(Symbol("router_bias"), Vector(kExperts)));
    Builder::Attrs attrs = {{"top_k", top_k},
                            {"score", random_.Pick<std::string>({"softmax", "sigmoid", "softmax_chosen"})},
                            {"normalize", random_.Below(2) == 0},
                            {"scale", 1.5}};
    if (shared > 0) attrs.emplace_back("constant", shared);
    Value* experts = b.Emit(OpCode::kRoute, operands, std::move(attrs));
    if (experts == nullptr) return nullptr;
    Value* weights = experts->def->result(1);
    bool biased = true;
    const auto product = [&](std::string_view name, Value* v, int64_t n, int64_t depth, DType encoding) {
      Value* y = b.Emit(OpCode::kExpertLinear, {{v}, {experts}, Experts(b, name, kExperts, shared, n, depth, encoding)},
                        {}, name);
      if (!biased || random_.Below(3) != 0) return y;
      const Operand bias = b.W(Symbol("bias"), Type::Tensor({{kExperts + shared, 0}, {n, 0}, {1, 0}}, DType::kF32));
      return b.Emit(OpCode::kExpertBias, {{y}, {experts}, bias}, {}, name);
    };
    const DType encoding = Encoding(k), down_encoding = Encoding(kColumns);
    const size_t kind = random_.Below(4);
    // Now and then a shared expert as models write it, once or twice as wide.
    const int64_t beside = shared == 0 ? random_.Pick<int64_t>({0, 1, 2}) : 0;
    biased = beside == 0;
    Value* gate = product("gate", x, kColumns, k, encoding);
    Value* up = product("up", x, kColumns, k, encoding);
    Value* down = product("down", Glu(b, gate, up, kind), k, kColumns, down_encoding);
    Value* sum = b.Emit(OpCode::kCombine, {{down}, {weights}});
    if (beside == 0) return sum;
    const Type wide = Type::Tensor({{beside * kColumns, 0}, {k, 0}}, encoding);
    Value* shared_gate = b.Linear(x, b.W(Symbol("shared_gate"), wide), "gate");
    Value* shared_up = b.Linear(x, b.W(Symbol("shared_up"), wide), "up");
    const Type back = Type::Tensor({{k, 0}, {beside * kColumns, 0}}, down_encoding);
    Value* one = b.Linear(Glu(b, shared_gate, shared_up, kind), b.W(Symbol("shared_down"), back), "down");
    return b.Add(sum, one, "sum");
  }
  Value* Unary(Builder& b, Value* x) {
    switch (random_.Below(4)) {
      case 0:
        return b.Emit(OpCode::kGelu, {{x}});
      case 1:
        return b.Emit(OpCode::kSoftCap, {{x}}, {{"cap", 2.0}});
      case 2:
        return b.Emit(OpCode::kScale, {{x}}, {{"by", 0.75}});
      default:
        return b.Silu(x);
    }
  }
  Value* Gated(Builder& b, Value* x) {
    const int64_t n = random_.Pick<int64_t>({32, 64});
    const DType encoding = Encoding(x->type.cols());
    Type type = Type::Tensor({{n, 0}, {x->type.cols(), 0}}, encoding);
    Value* gate = b.Linear(x, b.W(Symbol("gate"), type), "gate");
    Value* up = b.Linear(x, b.W(Symbol("up"), type), "up");
    return Glu(b, gate, up);
  }
  Value* Pair(Builder& b) {
    Value* a = Any();
    std::vector<Value*> same;
    for (Value* v : pool_) {
      if (v->type == a->type) same.push_back(v);
    }
    Value* c = random_.Pick(same);
    return random_.Below(3) == 0 ? b.Mul(a, c, "m") : b.Add(a, c, "sum");
  }
  Value* Slice(Builder& b) {
    Value* x = Any();
    const int64_t cols = x->type.cols(), units = cols / 16;
    const int64_t from = 16 * static_cast<int64_t>(random_.Below(static_cast<size_t>(units)));
    const int64_t to = from + 16 * (1 + static_cast<int64_t>(random_.Below(static_cast<size_t>((cols - from) / 16))));
    return b.Emit(OpCode::kSlice, {{x}}, {{"from", from}, {"to", to}});
  }

  void BuildLayer(Builder& b) {
    b.Begin("layer");
    Value* x = b.Arg("x", Type::Rows(Dim::Symbol('T'), hidden_));
    Value* rope = b.Arg("rope", Type::Rows(Dim::Symbol('T'), head_dim_));
    Value* step = b.Arg("step", Type::Step());
    pool_ = {x};
    const size_t count = 4 + random_.Below(8);
    for (size_t i = 0; i < count; ++i) {
      Value* made = nullptr;
      switch (random_.Below(9)) {
        case 0:
          made = Norm(b, Any());
          break;
        case 1:
          made = Unary(b, Any());
          break;
        case 2:
          made = Pair(b);
          break;
        case 3:
          made = Slice(b);
          break;
        case 4:
          made = Gated(b, Any());
          break;
        case 5:
          if (attentions_left_-- > 0) {
            made = random_.Below(3) == 0 ? LatentAttention(b, rope, step) : Attention(b, rope, step);
          }
          break;
        case 6:
          if (experts_) made = Moe(b, Norm(b, Any()));
          break;
        default:
          made = Linear(b, Any(), random_.Pick<int64_t>({32, 64, 96}), "y");
          if (random_.Below(4) == 0) made = b.Emit(OpCode::kScale, {{made}}, {{"by", 0.75}});
          break;
      }
      if (made != nullptr) pool_.push_back(made);
    }
    Value* y = Linear(b, Norm(b, pool_.back()), hidden_, "out");
    b.Return(b.Add(x, y, "y"));
  }

  Random random_;
  int attentions_left_;
  bool experts_;
  int64_t hidden_ = 0, head_dim_ = 0;
  int symbols_ = 0;
  std::vector<Value*> pool_;
};

}  // namespace xjit::testing
