// Sharding: ranks together compute what the whole model does, every weight is somebody's, and ranks meet twice a layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ir/weight_rows.h"
#include "passes/check.h"
#include "passes/pass.h"
#include "passes/shard_split.h"
#include "tests/unit/ir/ir_testing.h"
#include "tests/unit/ir/random_ops.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Parse;
using testing::Random;

TEST(Split, DealsUnitsEvenlyAndLargerSharesFirst) {
  for (int64_t size : {1, 5, 32, 33, 97, 128, 151936}) {
    for (int64_t unit : {1, 2, 16, 32}) {
      for (int ranks = 1; ranks <= 7; ++ranks) {
        SCOPED_TRACE(fmt::format("{} in {} to {}", size, unit, ranks));
        int64_t at = 0, before = size;
        for (int rank = 0; rank < ranks; ++rank) {
          const Span share = DealtShare(size, unit, ranks, rank);
          EXPECT_EQ(share.begin, at);
          EXPECT_LE(share.size(), before);
          // At most one unit less than the first has.
          EXPECT_GE(Units(share.size(), unit) + 1, Units(DealtShare(size, unit, ranks, 0).size(), unit));
          EXPECT_TRUE(share.begin % unit == 0 || share.size() == 0);
          before = share.size();
          at = share.end;
        }
        EXPECT_EQ(at, size);
      }
    }
  }
}

TEST(Split, ColumnsAreDealtInWhatTheirEncodingAllows) {
  EXPECT_EQ(DealUnit(2048, 1, 1, 6), 32);
  EXPECT_EQ(DealUnit(96, 1, 1, 6), 16);  // panels of 16 where 32s are too few
  EXPECT_EQ(DealUnit(80, 1, 1, 6), 0);
  EXPECT_EQ(DealUnit(18432, 1, 128, 6), 128);
  EXPECT_EQ(DealUnit(2048, 1, 128, 6), 32);   // 352 columns at most, 384 in 128s
  EXPECT_EQ(DealUnit(2048, 1, 128, 8), 128);  // 256 either way
  EXPECT_EQ(DealUnit(2048, ColumnBlock(DType::kQ4_K, 2048), 1, 6), 256);
  EXPECT_EQ(DealUnit(1024, ColumnBlock(DType::kQ4_K, 2048), 1, 6), 0);
  EXPECT_EQ(DealUnit(18944, ColumnBlock(Encoding::Int4(128, true), 18944), 1, 6), 128);
  EXPECT_EQ(ColumnBlock(Encoding::Int4(128, true, true), 1024), 1);
  // One group a row is every share's.
  EXPECT_EQ(DealUnit(1024, ColumnBlock(Encoding::Int4(1024, true), 1024), 1, 6), 32);
}

TEST(Split, WeightsAreCutInTheirSymbolsNumbering) {
  Function f("f");
  const auto add = [&](std::string name, std::vector<Dim> dims, std::vector<int64_t> rows, std::vector<int64_t> stack) {
    Weight* w = f.AddWeight(name, Type::Tensor(std::move(dims), DType::kBF16));
    w->part_rows = std::move(rows);
    w->stack_experts = std::move(stack);
    return w;
  };
  const auto cut = [](const absl::StatusOr<Weight*>& w) {
    if (!w.ok()) return std::string(Message(w.status()));
    EXPECT_TRUE(CheckWeight(**w).ok()) << CheckWeight(**w);
    return fmt::format("{} {}", (*w)->name, DimsToString((*w)->type));
  };
  const Weight* qkv = add("q+k+v", {{96, 0}, {64, 0}}, {64, 16, 16}, {});
  EXPECT_EQ(cut(SelectRows(f, *qkv, {{16, 32}, {64, 80}, {88, 96}})), "q[16:32,:]+k+v[8:16,:] 40 x 64 x bf16");
  EXPECT_EQ(cut(SelectRows(f, *qkv, {{0, 96}})), "q+k+v 96 x 64 x bf16");
  EXPECT_EQ(cut(SelectRows(f, *qkv, {{16, 32}})), "q[16:32,:] 16 x 64 x bf16");
  const Weight* gate_up = add("gate|up", {{128, 0}, {64, 0}}, {64, 64}, {});
  EXPECT_EQ(cut(SelectRows(f, *gate_up, {{32, 64}})), "gate[32:64,:]|up[32:64,:] 64 x 64 x bf16");
  const Weight* bias = add("b", {{64, 0}}, {}, {});
  EXPECT_EQ(cut(SelectRows(f, *bias, {{32, 64}})), "b[32:64] 32 x bf16");
  // Slices of slices.
  const Weight* part = add("kv[0:64:2,:]", {{32, 0}, {64, 0}}, {}, {});
  EXPECT_EQ(cut(SelectRows(f, *part, {{16, 32}})), "kv[32:63:2,:] 16 x 64 x bf16");
  EXPECT_EQ(cut(SelectColumns(f, *part, {8, 16})), "kv[0:64:2,8:16] 32 x 8 x bf16");
  Weight* row = add("r", {{64, 0}, {128, 0}}, {}, {});
  row->type = Type::Weight(row->type.dims, Encoding::Int4(128, false));
  const auto share = SelectColumns(f, *row, {32, 96});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(ToString((*share)->type.encoding()), "i4<group 64>");
  row->type.scales.cols = 32;
  EXPECT_EQ(ToString((*SelectColumns(f, *row, {64, 128}))->type.encoding()), "i4<group 32>");
  const Weight* stacked = add("a&b", {{4, 0}, {32, 0}, {64, 0}}, {}, {2, 2});
  EXPECT_EQ(cut(SelectRows(f, *stacked, {{0, 16}})), "a[:,0:16,:]&b[:,0:16,:] 4 x 16 x 64 x bf16");
  EXPECT_EQ(cut(SelectExperts(f, *stacked, {1, 3})), "a[1:2,:,:]&b[0:1,:,:] 2 x 32 x 64 x bf16");
  const Weight* experts = add("g&s|u&t", {{9, 0}, {64, 0}, {32, 0}}, {32, 32}, {8, 1});
  EXPECT_EQ(cut(SelectRows(f, *experts, {{0, 16}})), "g[:,0:16,:]&s[0:16,:]|u[:,0:16,:]&t[0:16,:] 9 x 32 x 32 x bf16");
  EXPECT_EQ(cut(SelectExperts(f, *experts, {4, 6})), "g[4:6,:,:]|u[4:6,:,:] 2 x 64 x 32 x bf16");
  EXPECT_EQ(cut(SelectExperts(f, *experts, {7, 9})), "g[7:8,:,:]&s|u[7:8,:,:]&t 2 x 64 x 32 x bf16");
  EXPECT_EQ(cut(SelectExperts(f, *experts, {8, 9})), "s[:,:]|t[:,:] 1 x 64 x 32 x bf16");
}

// A small model of one kind of layer.
struct Config {
  bool latent = false, bias = false, sinks = false, head_norms = false, post_norms = false, experts = false,
       shared = false, tied = true, fused = true;
  int64_t heads = 6, kv_heads = 2, head_dim = 8, ffn = 96, num_experts = 7, top_k = 2, sequences = 1, kv_length = 0,
          rows = 4;
  int tp = 2;

  std::string Text() const {
    return fmt::format(
        "latent {} bias {} sinks {} head_norms {} post_norms {} experts {} shared {} tied {} fused {}; "
        "{}/{} heads, ffn {}, {} experts, {} sequences of {}, {} rows, tp {}",
        latent, bias, sinks, head_norms, post_norms, experts, shared, tied, fused, heads, kv_heads, ffn, num_experts,
        sequences, kv_length, rows, tp);
  }
};

class Writer {
 public:
  explicit Writer(const Config& c) : c_(c) {}

  std::string Module() {
    text_ = fmt::format(
        "module @m {{\nfunc @layer(%x: tensor<T x 32 x f32>, %rope: tensor<T x {} x f32>, %step: !step) "
        "-> tensor<T x 32 x f32> {{\n%n = rms_norm %x, @attn_norm<32 x f32>\n",
        c_.head_dim);
    c_.latent ? Latent() : Heads();
    Linear("o0", "a", "o", 32, c_.heads * c_.head_dim, c_.bias);
    Add("h", "x", "o0", "post_attn_norm");
    Line("%m = rms_norm %h, @ffn_norm<32 x f32>");
    if (c_.experts) {
      Experts();
      if (c_.shared) {
        Mlp("shared_", "m");
        Line("%y1 = add %y, %shared_down0");
      }
      Add("z", "h", c_.shared ? "y1" : "y", "post_ffn_norm");
    } else {
      Mlp("", "m");
      Add("z", "h", "down0", "post_ffn_norm");
    }
    text_ += fmt::format(
        "return %z\n}}\nfunc @step(%ids: tensor<T x i32>, %step: !step) -> tensor<L x 45 x f32> {{\n"
        "%x0 = embed %ids, @embed<45 x 32 x f32>\n%x = scale %x0 {{by = 3.0}}\n"
        "%rope = rope_table %step, @inv_freq<{} x f32>\n"
        "%x1 = repeat %x, %rope, %step {{schedule = \"@layer:0-1\"}}\n"
        "%last = select_rows %x1, %step\n%n = rms_norm %last, @final_norm<32 x f32>\n"
        "%l = linear %n, @{}<45 x 32 x f32>\n%logits = soft_cap %l {{cap = 5.0}}\nreturn %logits\n}}\n}}\n",
        c_.head_dim / 2, c_.tied ? "embed" : "lm_head");
    return text_;
  }

 private:
  void Line(const std::string& line) { text_ += line + "\n"; }
  void Linear(const std::string& y, const std::string& x, const std::string& w, int64_t n, int64_t k, bool bias) {
    Line(fmt::format("%{}{} = linear %{}, @{}<{} x {} x f32>", y, bias ? "_raw" : "", x, w, n, k));
    if (bias) Line(fmt::format("%{} = add_bias %{}_raw, @{}_bias<{} x f32>", y, y, w, n));
  }
  void Add(const std::string& y, const std::string& x, const std::string& d, const std::string& norm) {
    if (c_.post_norms) Line(fmt::format("%{}_pn = rms_norm %{}, @{}<32 x f32>", y, d, norm));
    Line(fmt::format("%{} = add %{}, %{}", y, x, c_.post_norms ? y + "_pn" : d));
  }
  void Heads() {
    const std::pair<const char*, int64_t> parts[] = {{"q", c_.heads}, {"k", c_.kv_heads}, {"v", c_.kv_heads}};
    for (const auto& [name, heads] : parts) Linear(name, "n", name, heads * c_.head_dim, 32, c_.bias);
    for (const auto& [name, heads] : {parts[0], parts[1]}) {
      const std::string norm = c_.head_norms ? "n" : "";
      if (c_.head_norms) Line(fmt::format("%{}n = rms_norm %{}, @{}_norm<{} x f32>", name, name, name, c_.head_dim));
      Line(fmt::format("%{}r = rope %{}{}, %rope {{heads = {}}}", name, name, norm, heads));
    }
    Line(fmt::format("kv_store %kr, %v, %step {{kv_heads = {}}}", c_.kv_heads));
    Line(fmt::format("%a = attention %qr, %step{} {{heads = {}, kv_heads = {}, scale = 0.3, window = 3}}",
                     c_.sinks ? fmt::format(", @sinks<{} x f32>", c_.heads) : "", c_.heads, c_.kv_heads));
  }
  // nope = v = p = head_dim, r = 16; without a low rank of q where there are biases.
  void Latent() {
    const int64_t d = c_.head_dim;
    if (!c_.bias) {
      Linear("qa", "n", "q_a", 24, 32, false);
      Line("%qn = rms_norm %qa, @q_a_norm<24 x f32>");
    }
    Linear("q", c_.bias ? "n" : "qn", "q", c_.heads * 2 * d, c_.bias ? 32 : 24, false);
    Linear("c0", "n", "kv_a", 16, 32, false);
    Linear("k0", "n", "k_pe", d, 32, false);
    Line("%c = rms_norm %c0, @kv_norm<16 x f32>");
    Line(fmt::format("%qr = rope %q, %rope {{heads = {}, offset = {}}}", c_.heads, d));
    Line("%kr = rope %k0, %rope {heads = 1}\nkv_store_latent %c, %kr, %step");
    Line(
        fmt::format("%a = mla_attention %qr, %step, @kv_b<{} x 16 x f32> {{heads = {}, nope_dim = {}, v_dim = {}, "
                    "scale = 0.3}}",
                    c_.heads * 2 * d, c_.heads, d, d));
  }
  void Mlp(const std::string& of, const std::string& x) {
    for (const char* part : {"gate", "up"}) Linear(of + part, x, of + part, c_.ffn, 32, c_.bias);
    Line(fmt::format("%{}s = silu %{}gate\n%{}f = mul %{}s, %{}up", of, of, of, of, of));
    Linear(of + "down0", of + "f", of + "down", 32, c_.ffn, c_.bias && of.empty());
  }
  void Experts() {
    const int64_t e = c_.num_experts;
    Linear("logits", "m", "router", e, 32, false);
    Line(fmt::format("%e, %w = route %logits {{top_k = {}}}", c_.top_k));
    const auto product = [&](const std::string& y, const std::string& x, const std::string& w, int64_t n, int64_t k) {
      Line(fmt::format("%{}{} = expert_linear %{}, %e, @{}<{} x {} x {} x f32>", y, c_.bias ? "_raw" : "", x, w, e, n,
                       k));
      if (c_.bias) Line(fmt::format("%{} = expert_bias %{}_raw, %e, @{}_bias<{} x {} x 1 x f32>", y, y, w, e, n));
    };
    product("eg", "m", "gate_exps", c_.ffn, 32);
    product("eu", "m", "up_exps", c_.ffn, 32);
    Line("%es = silu %eg\n%ef = mul %es, %eu");
    product("ed", "ef", "down_exps", 32, c_.ffn);
    Line("%y = combine %ed, %w");
  }

  Config c_;
  std::string text_;
};

Config RandomConfig(Random& random) {
  Config c;
  for (bool* flag :
       {&c.latent, &c.bias, &c.sinks, &c.head_norms, &c.post_norms, &c.experts, &c.shared, &c.tied, &c.fused}) {
    *flag = random.Below(2) == 0;
  }
  c.tp = 1 + static_cast<int>(random.Below(7));
  c.kv_heads = 1 + static_cast<int64_t>(random.Below(8));
  c.heads = c.kv_heads * (1 + static_cast<int64_t>(random.Below(3)));
  c.ffn = random.Pick<int64_t>({32, 96, 112, 130, 224});
  c.num_experts = 2 + static_cast<int64_t>(random.Below(8));
  c.top_k = 1 + static_cast<int64_t>(random.Below(2));
  c.rows = random.Pick<int64_t>({1, 4, 500});
  c.sequences = random.Pick<int64_t>({1, 3, 8});
  if (c.sequences > 1) c.kv_length = random.Pick<int64_t>({0, 16, 100000});
  return c;
}

PassContext Context(const Config& c, int rank) {
  PassContext context;
  context.tp = c.tp;
  context.rank = rank;
  context.rows = c.rows;
  context.sequences = c.sequences;
  context.kv_length = c.kv_length;
  return context;
}

// The modules of all ranks; `notes` are the first's.
std::vector<std::unique_ptr<Module>> Ranks(const Config& c, std::vector<std::string>* notes = nullptr) {
  std::vector<std::unique_ptr<Module>> ranks;
  for (int rank = 0; rank < c.tp; ++rank) {
    ranks.push_back(Parse(Writer(c).Module()));
    PassContext context = Context(c, rank);
    const absl::Status status =
        RunPipeline(*ranks.back(), c.fused ? PassStage::kGraph : PassStage::kFused, PassStage::kSharded, context);
    EXPECT_TRUE(status.ok()) << status << "\n" << PrintModule(*ranks.back());
    if (!status.ok()) return {};
    EXPECT_NE(ranks.back()->Clone(), nullptr) << PrintModule(*ranks.back());
    if (rank == 0 && notes != nullptr) *notes = context.notes;
  }
  return ranks;
}

int Count(const Module& module, std::string_view function, OpCode code) {
  const auto& ops = module.Find(function)->ops;
  return static_cast<int>(std::count_if(ops.begin(), ops.end(), [code](const auto& op) { return op->code == code; }));
}

TEST(Shard, RanksTogetherComputeTheWhole) {
  int rows = 0, whole_experts = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Random random(seed);
    const Config c = RandomConfig(random);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.Text()));
    const auto whole = Parse(Writer(c).Module());
    const auto want = Observe(*whole, seed, c.sequences);
    ASSERT_TRUE(want.ok()) << want.status();
    const auto ranks = Ranks(c);
    ASSERT_FALSE(ranks.empty());
    const auto got = ObserveRanks(ranks, seed, c.sequences);
    ASSERT_TRUE(got.ok()) << got.status() << "\n" << PrintModule(*ranks[0]);
    for (size_t rank = 0; rank < got->size(); ++rank) {
      const absl::Status same = CompareObserved(*want, (*got)[rank], CheckBound(PassStage::kSharded), whole.get());
      ASSERT_TRUE(same.ok()) << "rank " << rank << ": " << same << "\n" << PrintModule(*ranks[rank]);
    }
    EXPECT_LE(Count(*ranks[0], "layer", OpCode::kAllReduce) + Count(*ranks[0], "layer", OpCode::kGatherRows), 2)
        << PrintModule(*ranks[0]);
    rows += Count(*ranks[0], "layer", OpCode::kOwnRows) > 0;
    for (const auto& op : ranks[0]->Find("layer")->ops) whole_experts += op->Has("first");
  }
  EXPECT_GT(rows, 0);
  EXPECT_GT(whole_experts, 0);
}

// Graphs without a model's order: values read in several places, attentions one after the other, products of sums.
TEST(Shard, KeepsWhatRandomGraphsCompute) {
  std::map<std::string, int, std::less<>> changes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    PassContext context;
    context.tp = 2 + static_cast<int>(random.Below(3));
    context.sequences = random.Pick<int64_t>({1, 5});
    context.kv_length = random.Pick<int64_t>({0, 100000});
    context.rows = random.Pick<int64_t>({1, 400});
    const PassStage from = random.Below(3) == 0 ? PassStage::kFused : PassStage::kGraph;
    SCOPED_TRACE(fmt::format("seed {} tp {}", seed, context.tp));
    const auto whole = testing::RandomGraph(seed, /*max_attentions=*/2).Build();
    const auto want = Observe(*whole, seed, context.sequences);
    ASSERT_TRUE(want.ok()) << want.status();
    std::vector<std::unique_ptr<Module>> ranks;
    PassRunOptions options;
    options.after = [&changes](std::string_view pass, int n, const Module&) {
      changes[std::string(pass)] += n;
      return absl::OkStatus();
    };
    for (context.rank = 0; context.rank < context.tp; ++context.rank) {
      ranks.push_back(whole->Clone());
      ASSERT_NE(ranks.back(), nullptr);
      const absl::Status status = RunPipeline(*ranks.back(), from, PassStage::kSharded, context, options);
      ASSERT_TRUE(status.ok()) << status << "\n" << PrintModule(*whole);
    }
    const auto got = ObserveRanks(ranks, seed, context.sequences);
    ASSERT_TRUE(got.ok()) << got.status() << "\n" << PrintModule(*whole) << PrintModule(*ranks[0]);
    for (const Observed& own : *got) {
      const absl::Status same = CompareObserved(*want, own, CheckBound(PassStage::kSharded), whole.get());
      ASSERT_TRUE(same.ok()) << same << "\n" << PrintModule(*whole) << PrintModule(*ranks[0]);
    }
  }
  EXPECT_GT(changes["shard"], 0);
  EXPECT_GT(changes["fuse_all_reduce"], 0);
}

TEST(Shard, StandsAnyModule) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const auto module = testing::RandomOps(seed).Build();
    // Offsets of a plan hold for the module that was planned.
    for (const auto& f : module->functions) {
      for (const auto& op : f->ops)
        std::erase_if(op->attrs, [](const auto& attr) { return attr.first.starts_with("at"); });
    }
    const std::string before = PrintModule(*module);
    PassContext context;
    context.tp = 2 + static_cast<int>(seed % 3);
    context.rank = static_cast<int>(seed % 2);
    context.sequences = 4;
    context.kv_length = 4096;
    const PassInfo* list[] = {*FindPass("shard"), *FindPass("fuse_all_reduce")};
    const absl::Status status = RunPasses(*module, list, context);
    ASSERT_FALSE(absl::IsInternal(status)) << status << "\n" << before << PrintModule(*module);
    if (!status.ok()) continue;
    ASSERT_NE(module->Clone(), nullptr) << before << PrintModule(*module);
  }
}

// How many ranks hold each element of each symbol.
std::map<std::string, std::map<std::vector<int64_t>, int>> Holders(const std::vector<std::unique_ptr<Module>>& ranks) {
  std::map<std::string, std::map<std::vector<int64_t>, int>> holders;
  for (const auto& rank : ranks) {
    std::map<std::string, std::set<std::vector<int64_t>>> own;
    for (const auto& f : rank->functions) {
      for (const auto& w : f->weights) {
        const auto rows = WeightRows::Of(*w);
        EXPECT_TRUE(rows.ok()) << rows.status();
        if (!rows.ok()) continue;
        const bool vector = w->type.dims.size() == 1;
        const int64_t n = w->type.rows() * (w->type.is_experts() ? w->type.dims[0].size : 1);
        for (int64_t i = 0; i < n; ++i) {
          const auto at = rows->At(i);
          for (int64_t k = 0; k < (vector ? 1 : w->type.cols()); ++k) {
            own[at.ref->symbol].insert({at.expert, at.row, vector ? 0 : at.columns.At(k)});
          }
        }
      }
    }
    for (const auto& [symbol, elements] : own) {
      for (const auto& element : elements) ++holders[symbol][element];
    }
  }
  return holders;
}

void ExpectHolders(const Config& c, const std::set<std::string>& everywhere, const std::set<std::string>& copied) {
  SCOPED_TRACE(c.Text());
  Config one = c;
  one.tp = 1;
  const auto want = Holders(Ranks(one));
  const auto got = Holders(Ranks(c));
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [symbol, elements] : want) {
    ASSERT_TRUE(got.contains(symbol)) << symbol;
    EXPECT_EQ(got.at(symbol).size(), elements.size()) << symbol << " is not held as a whole";
    for (const auto& [element, holders] : got.at(symbol)) {
      if (copied.contains(symbol)) continue;
      ASSERT_EQ(holders, everywhere.contains(symbol) ? c.tp : 1)
          << symbol << " " << fmt::format("{}", fmt::join(element, ", "));
    }
  }
}

const std::set<std::string>& Norms() {
  static const std::set<std::string> kNorms = {
      "attn_norm", "ffn_norm", "final_norm",    "q_norm", "k_norm",   "post_attn_norm", "o_bias", "down_bias",
      "router",    "inv_freq", "post_ffn_norm", "q_a",    "q_a_norm", "kv_a",           "k_pe",   "kv_norm"};
  return kNorms;
}

TEST(Shard, EveryElementIsOnOneRank) {
  Config c;
  c.bias = c.sinks = c.head_norms = c.post_norms = true;
  c.heads = 14;
  c.kv_heads = 7;
  c.ffn = 250;
  for (c.tp = 1; c.tp <= 7; ++c.tp) ExpectHolders(c, Norms(), {});
  // Fewer KV heads than ranks: some are on several.
  c.kv_heads = 2;
  for (c.tp = 3; c.tp <= 7; ++c.tp) ExpectHolders(c, Norms(), {"k", "v", "k_bias", "v_bias"});
  Config latent;
  latent.latent = latent.experts = latent.shared = true;
  latent.heads = 11;
  latent.ffn = 224;
  for (latent.tp = 2; latent.tp <= 7; ++latent.tp) {
    ExpectHolders(latent, Norms(), {});
    latent.fused = !latent.fused;
  }
  // Whole experts.
  Config experts;
  experts.experts = true;
  experts.bias = true;
  experts.ffn = 64;
  experts.tp = 6;
  experts.heads = experts.kv_heads = 6;
  experts.num_experts = 9;
  ExpectHolders(experts, Norms(), {});
}

TEST(Shard, RanksMeetTwiceALayer) {
  Config c;
  c.experts = c.shared = true;
  c.heads = c.kv_heads = 6;
  c.ffn = 192;
  c.tp = 6;
  for (const bool latent : {false, true}) {
    for (const bool post_norms : {false, true}) {
      for (const bool fused : {false, true}) {
        c.latent = latent;
        c.post_norms = post_norms;
        c.fused = fused;
        SCOPED_TRACE(c.Text());
        const auto ranks = Ranks(c);
        ASSERT_FALSE(ranks.empty());
        EXPECT_EQ(Count(*ranks[5], "layer", OpCode::kAllReduce), 2) << PrintModule(*ranks[5]);
        EXPECT_EQ(Count(*ranks[5], "step", OpCode::kAllReduce), 1);
        EXPECT_EQ(Count(*ranks[5], "step", OpCode::kAllGather), 1);
      }
    }
  }
}

// A rank packs its weights once for the programs of few and of many rows.
TEST(Shard, WeightsDoNotDependOnRows) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    Config c = RandomConfig(random);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.Text()));
    std::vector<std::set<std::string>> weights;
    for (const int64_t rows : {1, 500}) {
      c.rows = rows;
      const auto ranks = Ranks(c);
      ASSERT_FALSE(ranks.empty());
      weights.emplace_back();
      for (const auto& f : ranks.back()->functions) {
        for (const auto& w : f->weights) weights.back().insert(w->name + " " + DimsToString(w->type));
      }
    }
    EXPECT_EQ(weights[0], weights[1]);
  }
}

TEST(Shard, SaysWhyAPartStaysWhole) {
  Config c;
  c.heads = c.kv_heads = 2;
  c.ffn = 32;
  c.tp = 5;
  std::vector<std::string> notes;
  const auto ranks = Ranks(c, &notes);
  ASSERT_FALSE(ranks.empty());
  EXPECT_EQ(Count(*ranks[0], "layer", OpCode::kAllReduce), 0);
  const std::string all = fmt::format("{}", fmt::join(notes, "\n"));
  EXPECT_THAT(all, HasSubstr("missed: 2 heads are fewer than 5 ranks"));
  EXPECT_THAT(all, HasSubstr("missed: 32 columns of f32 are too few for 5 ranks"));
}

TEST(Shard, SaysWhyLogitsStayWhole) {
  const auto note = [](std::string_view ops, std::string_view args, int64_t n) {
    const auto module = Parse(fmt::format(
        "module @m {{\nfunc @f(%x: tensor<L x 32 x f32>{}) -> tensor<L x {} x f32> {{\n{}\nreturn %y\n}}\n}}\n", args,
        n, ops));
    PassContext context;
    context.tp = 4;
    const PassInfo* list[] = {*FindPass("shard")};
    EXPECT_TRUE(RunPasses(*module, list, context).ok());
    return fmt::format("{}", fmt::join(context.notes, "\n"));
  };
  EXPECT_THAT(note("%y = linear %x, @w<3 x 32 x f32>", "", 3), HasSubstr("missed: 3 rows for 4 ranks"));
  EXPECT_THAT(note("%y = gemm %x, @w<64 x 32 x f32> {epilogue = [residual(%h)]}", ", %h: tensor<L x 64 x f32>", 64),
              HasSubstr("missed: a residual in its epilogue"));
  EXPECT_THAT(note("%y = gemm %x, @a|b<32|32 x 32 x f32>", "", 64), HasSubstr("missed: its weight is interleaved"));
}

TEST(Shard, OneRankIsTheWhole) {
  Config c;
  c.tp = 1;
  const auto module = Parse(Writer(c).Module());
  const std::string before = PrintModule(*module);
  const PassInfo* list[] = {*FindPass("shard"), *FindPass("fuse_all_reduce")};
  PassContext context;
  ASSERT_TRUE(RunPasses(*module, list, context).ok());
  EXPECT_EQ(PrintModule(*module), before);
  context.rank = 1;
  context.tp = 1;
  EXPECT_TRUE(RunPasses(*module, list, context).ok());
  context.tp = 2;
  context.rank = 2;
  EXPECT_FALSE(RunPasses(*module, list, context).ok());
}

// Ranks attend for their own sequences where the cache is the larger part of what they read.
TEST(Shard, CacheDecidesWhoseRowsARankAttendsFor) {
  Config c;
  c.latent = true;
  c.tp = 3;
  c.sequences = 6;
  c.kv_length = 100000;
  EXPECT_GT(Count(*Ranks(c)[1], "layer", OpCode::kOwnRows), 0);
  EXPECT_EQ(Count(*Ranks(c)[1], "layer", OpCode::kGatherRows), 1);
  c.kv_length = 1;
  EXPECT_EQ(Count(*Ranks(c)[1], "layer", OpCode::kOwnRows), 0);
  c.kv_length = 100000;
  c.sequences = 2;  // a rank would have none
  EXPECT_EQ(Count(*Ranks(c)[1], "layer", OpCode::kOwnRows), 0);
}

// The judge must judge: a rank with another's module.
TEST(Check, SeesWrongRanks) {
  Config c;
  c.heads = c.kv_heads = 4;
  auto ranks = Ranks(c);
  ASSERT_EQ(ranks.size(), 2u);
  const auto want = Observe(*Parse(Writer(c).Module()), 1);
  const auto right = ObserveRanks(ranks, 1);
  ASSERT_TRUE(want.ok() && right.ok());
  EXPECT_TRUE(CompareObserved(*want, (*right)[1], CheckBound(PassStage::kSharded)).ok());
  ranks[1] = ranks[0]->Clone();
  const auto wrong = ObserveRanks(ranks, 1);
  EXPECT_TRUE(!wrong.ok() || !CompareObserved(*want, (*wrong)[0], CheckBound(PassStage::kSharded)).ok());
}

TEST(Check, ComparesNumbersExactly) {
  const auto numbers = [](std::vector<int32_t> ids) {
    TensorData data;
    data.rows = 1;
    data.cols = static_cast<int64_t>(ids.size());
    data.ids = std::move(ids);
    return Observed{{"f", {data}}};
  };
  EXPECT_TRUE(CompareObserved(numbers({1, 2}), numbers({1, 2}), 0.1).ok());
  EXPECT_EQ(Message(CompareObserved(numbers({1, 2}), numbers({1, 3}), 0.1)), "@f: result 0 has 3 at 1 instead of 2");
  EXPECT_EQ(Message(CompareObserved(numbers({1, 2}), numbers({1}), 0.1)), "@f: result 0 has another size");
}

}  // namespace
}  // namespace xjit
