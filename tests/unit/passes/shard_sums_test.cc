// Sharding of sums: where ranks' parts are added up in graphs whose values have several readers. Models read a product
// once; these read it before and behind its bias, its scale, its soft cap and the residuals that it joins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "passes/check.h"
#include "passes/pass.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;
using testing::Random;

// What all ranks of `tp` compute, against the whole; "" where it agrees.
std::string Differs(std::string_view text, PassStage from, PassContext context, uint64_t seed,
                    std::map<std::string, int, std::less<>>* changes = nullptr) {
  const auto whole = Parse(text);
  if (whole == nullptr) return "no module";
  const auto want = Observe(*whole, seed, context.sequences);
  if (!want.ok()) return fmt::format("whole: {}", Message(want.status()));
  PassRunOptions options;
  options.after = [changes](std::string_view pass, int n, const Module&) {
    if (changes != nullptr) (*changes)[std::string(pass)] += n;
    return absl::OkStatus();
  };
  std::vector<std::unique_ptr<Module>> ranks;
  for (context.rank = 0; context.rank < context.tp; ++context.rank) {
    ranks.push_back(Parse(text));
    const absl::Status status = RunPipeline(*ranks.back(), from, PassStage::kSharded, context, options);
    if (!status.ok()) return fmt::format("rank {}: {}", context.rank, Message(status));
  }
  const auto got = ObserveRanks(ranks, seed, context.sequences);
  if (!got.ok()) return fmt::format("{}\n{}", Message(got.status()), PrintModule(*ranks[0]));
  for (size_t rank = 0; rank < got->size(); ++rank) {
    const absl::Status same = CompareObserved(*want, (*got)[rank], CheckBound(PassStage::kSharded), whole.get());
    if (!same.ok()) return fmt::format("rank {}: {}\n{}", rank, Message(same), PrintModule(*ranks[rank]));
  }
  return "";
}

// A function of 32 columns whose steps read any values made before them.
class SumsWriter {
 public:
  explicit SumsWriter(Random& random) : random_(random) {}

  std::string Module() {
    pool_ = {"x", "u"};
    if (Rarely()) pool_.push_back(Op("embed %ids, @{}<{} x 32 x f32>", Symbol(), random_.Pick<int64_t>({5, 45, 224})));
    gemms_ = random_.Below(2) == 0;
    attentions_ = random_.Below(3);
    const size_t steps = 4 + random_.Below(14);
    for (size_t i = 0; i < steps; ++i) Step();
    // The last value and some of those before it.
    std::vector<std::string> results = {pool_.back()};
    for (size_t i = random_.Below(4); i > 0; --i) results.push_back(random_.Pick(pool_));
    std::string types, values;
    for (const std::string& result : results) {
      const char* separator = values.empty() ? "" : ", ";
      values += fmt::format("{}%{}", separator, result);
      types += fmt::format("{}tensor<T x 32 x f32>", separator);
    }
    if (random_.Below(3) == 0) {
      const int64_t n = random_.Pick<int64_t>({3, 45, 224});
      text_ += fmt::format("%last = select_rows %{}, %step\n%logits = linear %last, @head<{} x 32 x f32>\n", Any(), n);
      values += ", %logits";
      types += fmt::format(", tensor<L x {} x f32>", n);
    }
    return fmt::format(
        "module @m {{\nfunc @f(%ids: tensor<T x i32>, %x: tensor<T x 32 x f32>, %u: tensor<T x 32 x f32>, %step: "
        "!step) -> {} {{\n"
        "{}return {}\n}}\n}}\n",
        types, text_, values);
  }

 private:
  std::string Name() { return fmt::format("v{}", values_++); }
  std::string Symbol() { return fmt::format("w{}", symbols_++); }
  std::string Late(const std::vector<std::string>& of) {
    return of[of.size() - 1 - random_.Below(std::min<size_t>(of.size(), 3))];
  }
  // Late values more often: chains, not bushes; and products, for these are what is added up.
  std::string Any() {
    if (!products_.empty() && random_.Below(2) == 0) return Late(products_);
    return random_.Below(2) == 0 ? random_.Pick(pool_) : Late(pool_);
  }
  void Product(std::string y) {
    products_.push_back(y);
    pool_.push_back(std::move(y));
  }
  bool Rarely() { return random_.Below(4) == 0; }
  template <typename... Args>
  std::string Op(fmt::format_string<Args...> format, Args&&... args) {
    std::string name = Name();
    text_ += fmt::format("%{} = ", name) + fmt::format(format, std::forward<Args>(args)...) + "\n";
    return name;
  }
  // A symbol is of one shape; biases of the hidden size are shared by several sums.
  std::string Bias(const std::string& y, int64_t n) {
    const std::string symbol = n == 32 && random_.Below(2) == 0 ? "shared_bias" : Symbol();
    return Op("add_bias %{}, @{}<{} x f32>", y, symbol, n);
  }
  std::string Linear(const std::string& x, int64_t n, int64_t k, std::string_view type = "f32") {
    std::string y = Op("{} %{}, @{}<{} x {} x {}>", gemms_ ? "gemm" : "linear", x, Symbol(), n, k, type);
    return Rarely() ? Bias(y, n) : y;
  }
  std::string Norm(const std::string& x) { return Op("rms_norm %{}, @{}<32 x f32>", x, Symbol()); }
  // Of any columns, one by one.
  std::string Unary(const std::string& x) {
    switch (random_.Below(4)) {
      case 0:
        return Op("scale %{} {{by = {:.1f}}}", x, random_.Pick<double>({0.5, 1.5, 2.0}));
      case 1:
        return Op("soft_cap %{} {{cap = {:.1f}}}", x, random_.Pick<double>({1.0, 5.0}));
      case 2:
        return Op("gelu %{}", x);
      default:
        return Op("silu %{}", x);
    }
  }
  // A product back to 32 columns, now and then two of the same x.
  void Down(const std::string& x, int64_t k) {
    const std::string type = k % 32 == 0 ? random_.Pick<std::string>({"f32", "q8_0", "i4<group 32>"}) : "f32";
    for (size_t i = random_.Below(12) == 0 ? 2 : 1; i > 0; --i) Product(Linear(x, 32, k, type));
  }
  // What lies before a product is read elsewhere too.
  void Keep(const std::string& x, int64_t columns) {
    if (columns == 32 && Rarely()) pool_.push_back(x);
  }
  std::string Hidden(const std::string& x, int64_t n) {
    if (Rarely()) return Unary(Linear(x, n, 32));
    const std::string gate = Linear(x, n, 32), up = Linear(x, n, 32);
    if (Rarely()) return Op("clamped_swiglu %{}, %{} {{alpha = 1.7, limit = 1.5}}", gate, up);
    return Op("mul %{}, %{}", Op("{} %{}", Rarely() ? "gelu" : "silu", gate), up);
  }
  void Mlp(const std::string& x) {
    const int64_t n = random_.Pick<int64_t>({32, 96, 112, 130, 224});
    std::string f = Hidden(x, n);
    if (Rarely()) f = Unary(f);
    if (Rarely()) f = Bias(f, n);
    if (Rarely()) f = Op("add %{}, %{}", f, Hidden(x, n));
    Down(f, n);
    Keep(f, n);
  }
  void Attention(const std::string& x) {
    const int64_t kv = 1 + static_cast<int64_t>(random_.Below(4));
    const int64_t heads = kv * (1 + static_cast<int64_t>(random_.Below(3)));
    const std::string q = Linear(x, heads * 8, 32), k = Linear(x, kv * 8, 32), v = Linear(x, kv * 8, 32);
    text_ += fmt::format("kv_store %{}, %{}, %step {{kv_heads = {}}}\n", k, v, kv);
    std::string a = Op("attention %{}, %step {{heads = {}, kv_heads = {}, scale = 0.3}}", q, heads, kv);
    if (Rarely()) a = Unary(a);
    Down(a, heads * 8);
    Keep(a, heads * 8);
  }
  void Experts(const std::string& x) {
    const int64_t experts = 2 + static_cast<int64_t>(random_.Below(7)), n = random_.Pick<int64_t>({32, 112, 128});
    const std::string logits = Linear(x, experts, 32), e = Name(), w = Name();
    const int64_t top_k = 1 + static_cast<int64_t>(random_.Below(2));
    text_ += fmt::format("%{}, %{} = route %{} {{top_k = {}}}\n", e, w, logits, top_k);
    const auto product = [&](const std::string& v, int64_t rows, int64_t k) {
      const std::string y = Op("expert_linear %{}, %{}, @{}<{} x {} x {} x f32>", v, e, Symbol(), experts, rows, k);
      if (!Rarely()) return y;
      return Op("expert_bias %{}, %{}, @{}<{} x {} x 1 x f32>", y, e, Symbol(), experts, rows);
    };
    const std::string f = Op("mul %{}, %{}", Op("silu %{}", product(x, n, 32)), product(x, n, 32));
    for (size_t i = random_.Below(12) == 0 ? 2 : 1; i > 0; --i) {
      const std::string y = product(f, 32, n);
      for (size_t j = Rarely() ? 2 : 1; j > 0; --j) Product(Op("combine %{}, %{}", y, w));
      Keep(y, 32 * top_k);
    }
    Keep(f, n * top_k);
  }

  // Two products that are not added up yet, and what lies between them and the ops that need their sums.
  void Tangle() {
    Mlp(Norm(Any()));
    Mlp(Norm(Any()));
    std::vector<std::string> own(pool_.end() - 2, pool_.end());
    for (size_t i = 3 + random_.Below(4); i > 0; --i) {
      const std::string a = random_.Pick(own), b = random_.Pick(own);
      switch (random_.Below(6)) {
        case 0:
        case 1:
          own.push_back(Bias(a, 32));
          break;
        case 2:
          own.push_back(Unary(a));
          break;
        case 3:
          pool_.push_back(Norm(a));
          break;
        default:
          own.push_back(Op("add %{}, %{}", a, Rarely() ? Any() : b));
      }
    }
    pool_.insert(pool_.end(), own.begin() + 2, own.end());
  }

  void Step() {
    switch (random_.Below(14)) {
      case 0:
        return Tangle();
      case 1:
      case 2:
        return Mlp(Rarely() ? Any() : Norm(Any()));
      case 3:
        if (attentions_ == 0) return;
        --attentions_;
        return Attention(Norm(Any()));
      case 4:
        return Experts(Norm(Any()));
      case 5:
        return pool_.push_back(Bias(Any(), 32));
      case 6:
        return pool_.push_back(Norm(Any()));
      case 7:
        return pool_.push_back(Unary(Any()));
      case 8:
        return pool_.push_back(Op("scale %{} {{by = {:.1f}}}", Any(), random_.Pick<double>({0.5, 1.5, 2.0})));
      case 9:
        return pool_.push_back(Op("mul %{}, %{}", Norm(Any()), Unary(Any())));
      default:
        return pool_.push_back(Op("add %{}, %{}", Any(), Any()));
    }
  }

  Random& random_;
  std::string text_;
  std::vector<std::string> pool_, products_;  // of 32 columns
  bool gemms_ = false;
  size_t attentions_ = 0;
  int values_ = 0, symbols_ = 0;
};

// XJIT_SHARD_SEEDS=20000: that many instead, from XJIT_SHARD_SEED on.
TEST(ShardSums, RanksTogetherComputeTheWhole) {
  const auto number = [](const char* name, uint64_t fallback) {
    const char* text = std::getenv(name);
    return text == nullptr ? fallback : std::strtoull(text, nullptr, 10);
  };
  std::map<std::string, int, std::less<>> changes;
  const uint64_t first = number("XJIT_SHARD_SEED", 0), count = number("XJIT_SHARD_SEEDS", 300);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Random random(seed);
    PassContext context;
    context.tp = 1 + static_cast<int>(random.Below(7));
    context.sequences = random.Pick<int64_t>({1, 3});
    context.rows = random.Pick<int64_t>({1, 400});
    const PassStage from = random.Below(2) == 0 ? PassStage::kFused : PassStage::kGraph;
    const std::string text = SumsWriter(random).Module();
    const std::string why = Differs(text, from, context, seed, &changes);
    ASSERT_TRUE(why.empty()) << why << "seed " << seed << ", tp " << context.tp
                             << (from == PassStage::kGraph ? ", fused" : "") << "\n"
                             << text;
  }
  EXPECT_GT(changes["shard"], 0);
  EXPECT_GT(changes["fuse_all_reduce"], 0);
}

// What it has found.
// ---------------------------------------------------------------------------------------------------

std::string Of(std::string_view ops, std::string_view result) {
  return fmt::format(
      "module @m {{\nfunc @f(%x: tensor<T x 32 x f32>) -> tensor<T x 32 x f32>, tensor<T x 32 x f32> {{\n"
      "%g = linear %x, @g<96 x 32 x f32>\n%f = gelu %g\n%g2 = linear %x, @g2<96 x 32 x f32>\n%f2 = gelu "
      "%g2\n{}\nreturn {}\n}}\n}}\n",
      ops, result);
}

void ExpectTheWhole(const std::string& text) {
  for (const PassStage from : {PassStage::kFused, PassStage::kGraph}) {
    for (int tp = 1; tp <= 4; ++tp) {
      PassContext context;
      context.tp = tp;
      const std::string why = Differs(text, from, context, 1);
      EXPECT_TRUE(why.empty()) << why << "\ntp " << tp << "\n" << text;
    }
  }
}

// The sum of %p and %c must not be stored in the parts of %p: its all_reduce, already placed, reads them.
TEST(ShardSums, ReducedPartsAreNotAddedInto) {
  const std::string text =
      Of("%c = gemm %f2, @c<32 x 96 x f32>\n%p = gemm %f, @p<32 x 96 x f32>\n%y = add_bias %p, @b<32 x f32>\n"
         "%n = rms_norm %y, @norm<32 x f32>\n%z = add %p, %c",
         "%n, %z");
  ExpectTheWhole(text);
}

// A sum with itself behind its bias has the same parts twice: no product adds itself.
TEST(ShardSums, PartsAreAddedToThemselves) {
  ExpectTheWhole(Of("%p = gemm %f, @p<32 x 96 x f32>\n%y = add_bias %p, @b<32 x f32>\n%z = add %p, %y", "%z, %x"));
}

// A product of 32 columns whose residual is its x, of which a rank would have a share.
TEST(ShardSums, ResidualOfItsX) {
  ExpectTheWhole(
      Of("%h = gemm %x, @h<32 x 32 x f32>\n%a = gelu %h\n"
         "%z = gemm %a, @d<32 x 32 x f32> {epilogue = [residual(%a)]}",
         "%z, %x"));
}

// The slice is of the first rank's columns: the others must not share out less than it does.
TEST(ShardSums, SliceOfOneRanksColumns) {
  ExpectTheWhole(
      Of("%h = gemm %x, @h<64 x 32 x f32>\n%a = gelu %h\n%s = slice %a {from = 0, to = 32}\n"
         "%z = gemm %a, @d<32 x 64 x f32>",
         "%z, %s"));
}

// A rank with whole experts has the others' rows of nothing that these compute.
TEST(ShardSums, ExpertsWithSeveralReaders) {
  const std::string experts =
      "%r = linear %x, @router<4 x 32 x f32>\n%e, %w = route %r {top_k = 1}\n"
      "%eg = expert_linear %x, %e, @gate<4 x 32 x 32 x f32>\n%ef = silu %eg\n"
      "%d = expert_linear %ef, %e, @down<4 x 32 x 32 x f32>\n%y = combine %d, %w\n";
  ExpectTheWhole(
      Of(experts + "%d2 = expert_linear %ef, %e, @other<4 x 32 x 32 x f32>\n%z = combine %d2, %w", "%y, %z"));
  ExpectTheWhole(Of(experts + "%z = add %y, %ef", "%y, %z"));
}

}  // namespace
}  // namespace xjit
