// Weights under the graph's names: slices, joins and stacks of symbols, row orders, and what a checkpoint lacks.
#include "frontend/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/gemm/pack.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/weight_files.h"

namespace xjit {
namespace {

using testing::Counting;
using ::testing::ElementsAre;
using testing::F32;
using testing::FileTensor;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::WeightFolder;
using testing::Zeros;

constexpr TensorName kTensors[] = {
    {"a", "a.weight", "a.weight"},
    {"b", "b.weight", "b.weight"},
    {"v", "v.weight", "v.weight"},
    {"w", "w.weight", "w.weight"},
    {"stack", "stack.weight", "stack.weight"},
    {"shared", "shared.weight", "shared.weight"},
    {"turned", "turned", "turned", TensorName::kTransposed},
    {"x_bias", "x_bias", "x_bias"},
    {"layered", "model.layers.{}.q.weight", "blk.{}.q.weight", TensorName::kRopeRows},
    {"kv_b", "kv_b.weight", "blk.{}.kv_b.weight"},
    {"kv_b_keys", "", "blk.{}.k_b.weight"},
    {"kv_b_values", "", "blk.{}.v_b.weight"},
};
constexpr ModelFamily kFamily = {"llama", nullptr, kTensors};

Weight W(std::string name, std::vector<int64_t> dims, std::vector<int64_t> part_rows = {},
         std::vector<int64_t> stack_experts = {}) {
  Weight w;
  w.name = std::move(name);
  std::vector<Dim> sizes;
  for (int64_t d : dims) sizes.push_back({d, 0});
  w.type = Type::Tensor(std::move(sizes), DType::kF32);
  w.part_rows = std::move(part_rows);
  w.stack_experts = std::move(stack_experts);
  return w;
}

std::vector<float> RowOf(const Checkpoint& checkpoint, const Weight& w, int64_t n, int64_t layer = -1) {
  const WeightNames names(checkpoint, kFamily);
  CheckpointRows rows(names);
  EXPECT_TRUE(CheckWeight(w).ok()) << CheckWeight(w);
  std::vector<float> out(static_cast<size_t>(w.type.cols()));
  const absl::Status status = rows.Row(layer, w, n, out);
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(CheckpointRows, SlicesAndJoins) {
  const WeightFolder folder({Counting("a.weight", {4, 3}), Counting("b.weight", {2, 3}, 100), Counting("v.weight", {5}),
                             Counting("w.weight", {2}, 50)});
  EXPECT_THAT(RowOf(*folder, W("a", {4, 3}), 3), ElementsAre(9, 10, 11));
  EXPECT_THAT(RowOf(*folder, W("a+b", {6, 3}, {4, 2}), 5), ElementsAre(103, 104, 105));
  EXPECT_THAT(RowOf(*folder, W("a[2:4,:]", {2, 3}), 1), ElementsAre(9, 10, 11));
  EXPECT_THAT(RowOf(*folder, W("a[1:4:2,:]", {2, 3}), 1), ElementsAre(9, 10, 11));
  EXPECT_THAT(RowOf(*folder, W("a[:,1:3]", {4, 2}), 2), ElementsAre(7, 8));
  EXPECT_THAT(RowOf(*folder, W("a[:,0:3:2]", {4, 2}), 2), ElementsAre(6, 8));
  EXPECT_THAT(RowOf(*folder, W("b+a[0:2,:]", {4, 3}, {2, 2}), 3), ElementsAre(3, 4, 5));
  EXPECT_THAT(RowOf(*folder, W("v", {5}), 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(RowOf(*folder, W("v[1:5:2]+w", {4}, {2, 2}), 0), ElementsAre(1, 3, 50, 51));
}

TEST(CheckpointRows, Experts) {
  const WeightFolder folder({Counting("stack.weight", {2, 4, 3}), Counting("shared.weight", {4, 3}, 100),
                             Counting("turned", {2, 3, 4}), Counting("x_bias", {2, 4})});
  EXPECT_THAT(RowOf(*folder, W("stack", {2, 4, 3}), 5), ElementsAre(15, 16, 17));
  EXPECT_THAT(RowOf(*folder, W("stack[1:2,0:4:2,:]", {1, 2, 3}), 1), ElementsAre(18, 19, 20));
  const Weight stacked = W("stack&shared", {3, 4, 3}, {}, {2, 1});
  EXPECT_THAT(RowOf(*folder, stacked, 7), ElementsAre(21, 22, 23));
  EXPECT_THAT(RowOf(*folder, stacked, 9), ElementsAre(103, 104, 105));
  EXPECT_THAT(RowOf(*folder, W("stack[:,2:4,:]&shared[2:4,:]", {3, 2, 3}, {}, {2, 1}), 4), ElementsAre(106, 107, 108));
  EXPECT_THAT(RowOf(*folder, W("turned", {2, 4, 3}), 5), ElementsAre(13, 17, 21));
  EXPECT_THAT(RowOf(*folder, W("turned[:,1:4:2,:]", {2, 2, 3}), 2), ElementsAre(13, 17, 21));
  EXPECT_THAT(RowOf(*folder, W("x_bias", {2, 4, 1}), 6), ElementsAre(6));
  EXPECT_THAT(RowOf(*folder, W("x_bias[:,1:4:2,:]", {2, 2, 1}), 3), ElementsAre(7));
}

TEST(CheckpointRows, RotaryPairsOfGgufFiles) {
  const TempFolder folder;
  auto writer = testing::TinyGgufModel();  // hidden 8, 2 heads of 4; adjacent pairs
  writer.Tensor("blk.0.q.weight", {2, 8}, 0, Counting("", {8, 2}).data);
  const auto checkpoint = OpenCheckpoint(folder.Write("m.gguf", writer.File()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const Weight w = W("layered", {8, 2});
  EXPECT_THAT(RowOf(**checkpoint, w, 1, 0), ElementsAre(4, 5));    // checkpoint's row 2
  EXPECT_THAT(RowOf(**checkpoint, w, 2, 0), ElementsAre(2, 3));    // row 1
  EXPECT_THAT(RowOf(**checkpoint, w, 5, 0), ElementsAre(12, 13));  // row 6
  EXPECT_THAT(RowOf(**checkpoint, W("layered[4:8,:]", {4, 2}), 1, 0), ElementsAre(12, 13));
}

TEST(CheckpointRows, KeysAndValuesOfHeadsApart) {
  // Two heads of three key rows and two value rows, four values compressed: keys [heads, r, nope], values [heads, v,
  // r].
  const TempFolder folder;
  auto writer = testing::TinyGgufModel();
  writer.Tensor("blk.0.k_b.weight", {3, 4, 2}, 0, Counting("", {2, 4, 3}).data);
  auto bad = writer;
  writer.Tensor("blk.0.v_b.weight", {4, 2, 2}, 0, Counting("", {2, 2, 4}, 100).data);
  const auto checkpoint = OpenCheckpoint(folder.Write("m.gguf", writer.File()));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const Weight w = W("kv_b", {10, 4});
  EXPECT_THAT(RowOf(**checkpoint, w, 0, 0), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(RowOf(**checkpoint, w, 2, 0), ElementsAre(2, 5, 8, 11));
  EXPECT_THAT(RowOf(**checkpoint, w, 3, 0), ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(RowOf(**checkpoint, w, 6, 0), ElementsAre(13, 16, 19, 22));
  EXPECT_THAT(RowOf(**checkpoint, w, 9, 0), ElementsAre(112, 113, 114, 115));
  // A rank's heads: the second.
  EXPECT_THAT(RowOf(**checkpoint, W("kv_b[5:10,:]", {5, 4}), 4, 0), ElementsAre(112, 113, 114, 115));

  bad.Tensor("blk.0.v_b.weight", {3, 2, 2}, 0, Counting("", {2, 2, 3}).data);
  const auto other = OpenCheckpoint(folder.Write("bad.gguf", bad.File()));
  ASSERT_TRUE(other.ok()) << other.status();
  const WeightNames names(**other, kFamily);
  CheckpointRows rows(names);
  std::vector<float> out(4);
  EXPECT_THAT(std::string(Message(rows.Row(0, w, 0, out))), HasSubstr("k_b.weight is [2, 4, 3], which does not fit"));
}

TEST(RowOrder, TailsAndSingles) {
  // Heads of 2 + 4 rows of which the last four are pairs.
  const WeightNames::RowOrder tail{6, 2, 4};
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < 12; ++r) rows.push_back(tail.Row(r));
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11));
  // Leading pairs, the rest of a head as it is.
  const WeightNames::RowOrder leading{6, 0, 4};
  rows.clear();
  for (int64_t r = 0; r < 6; ++r) rows.push_back(leading.Row(r));
  EXPECT_THAT(rows, ElementsAre(0, 2, 1, 3, 4, 5));
}

TEST(CheckpointRows, Computed) {
  const WeightFolder folder({Counting("a.weight", {1, 1})});
  EXPECT_THAT(RowOf(*folder, W("inv_freq", {2}), 0), ElementsAre(1.0f, 0.01f));  // theta 1e4, heads of 4
  const WeightNames names(*folder, kFamily);
  CheckpointRows rows(names);
  std::vector<float> three(3);
  EXPECT_FALSE(rows.Row(-1, W("inv_freq", {3}), 0, three).ok());
  EXPECT_FALSE(rows.Row(-1, W("inv_freq_local", {2}), 0, std::span(three).first(2)).ok());
}

TEST(CheckpointRows, Errors) {
  const WeightFolder folder({Counting("a.weight", {4, 3}), Counting("stack.weight", {2, 4, 3})});
  const WeightNames names(*folder, kFamily);
  CheckpointRows rows(names);
  const auto error = [&](const Weight& w) {
    std::vector<float> out(static_cast<size_t>(w.type.cols()));
    const std::string message(Message(rows.Row(-1, w, 0, out)));
    EXPECT_TRUE(message.starts_with(folder.path() + ": ")) << message;
    return message.substr(std::min(message.size(), folder.path().size() + 2));
  };
  EXPECT_EQ(error(W("b", {4, 3})), "b.weight is missing");
  EXPECT_EQ(error(W("no", {4, 3})), "@no is missing");
  EXPECT_EQ(error(W("a", {5, 3})), "a.weight is [4, 3], too small for [5, 3]");
  EXPECT_EQ(error(W("a[2:6,:]", {4, 3})), "a.weight is [4, 3], too small for [6, 3]");
  EXPECT_EQ(error(W("a[:,2:4]", {4, 2})), "a.weight is [4, 3], too small for [4, 4]");
  EXPECT_EQ(error(W("stack[1:3,:,:]", {2, 4, 3})), "stack.weight is [2, 4, 3], too small for [3, 4, 3]");
  EXPECT_EQ(error(W("a", {1, 4, 3})), "a.weight is [4, 3], too small for [1, 4, 3]");
  EXPECT_EQ(error(W("a", {4})), "a.weight is [4, 3], too small for [4]");
}

// A module whose step has those weights.
std::unique_ptr<Module> Graph(const std::vector<Weight>& weights) {
  auto module = std::make_unique<Module>();
  Function* step = module->AddFunction("step");
  for (const Weight& w : weights) {
    Weight* added = step->AddWeight(w.name, w.type);
    added->part_rows = w.part_rows;
    added->stack_experts = w.stack_experts;
  }
  return module;
}

// What Check says between "graph: " and the hint; empty: nothing.
std::string Wrong(const std::vector<FileTensor>& tensors, const std::vector<Weight>& weights,
                  std::string_view config = testing::kTinyConfig) {
  const WeightFolder folder(tensors, config);
  const absl::Status status = WeightNames(*folder, kFamily).Check(*Graph(weights));
  if (status.ok()) return "";
  std::string message(Message(status));
  EXPECT_THAT(message, HasSubstr(" not fit the llama graph: "));
  message = message.substr(message.find("graph: ") + 7);
  return message.substr(0, message.find(" (is it another"));
}

TEST(Check, ShapesOfWholeSymbols) {
  const std::vector<FileTensor> a = {Counting("a.weight", {4, 3})};
  EXPECT_EQ(Wrong(a, {W("a", {4, 3})}), "");
  EXPECT_EQ(Wrong(a, {W("a[0:2,:]", {2, 3}), W("a[2:4,:]", {2, 3})}), "");
  EXPECT_EQ(Wrong(a, {W("a[0:4:2,:]", {2, 3}), W("a[1:4:2,:]", {2, 3})}), "");
  EXPECT_EQ(Wrong(a, {W("a", {4, 4})}), "a.weight is [4, 3] instead of [4, 4]");
  EXPECT_EQ(Wrong(a, {W("a[0:2,:]", {2, 3})}), "a.weight is [4, 3] instead of [2, 3]");
  EXPECT_EQ(Wrong(a, {W("a[0:2,:]", {2, 3}), W("a[2:5,:]", {3, 3})}), "a.weight is [4, 3] instead of [5, 3]");
  EXPECT_EQ(Wrong(a, {W("b", {4, 3})}), "b.weight is missing; a.weight is surplus");
  EXPECT_EQ(Wrong({Counting("x_bias", {2, 4})}, {W("x_bias", {2, 4, 1})}), "");
  EXPECT_EQ(Wrong({Zeros("a.weight", "I8", {4, 3}, 12)}, {W("a", {4, 3})}), "a.weight is I8 without a.weight_scale");
  EXPECT_EQ(Wrong({Zeros("a.qweight", "I32", {16, 1}, 64), Zeros("a.qzeros", "I32", {2, 1}, 8)}, {W("a", {8, 16})}),
            "a.scales is missing");  // and the others are no surplus
  EXPECT_EQ(Wrong({Counting("p", {1}), Counting("q", {1}), Counting("r", {1}), Counting("s", {1}), Counting("t", {1}),
                   Counting("u", {1}), Counting("z", {1})},
                  {}),
            "p is surplus; q is surplus; r is surplus; s is surplus; t is surplus; and 2 more");
}

TEST(Check, WhatMayBeLeftOver) {
  const FileTensor a = Counting("a.weight", {4, 3});
  const std::vector<Weight> graph = {W("a", {4, 3})};
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq", "rope_freqs.weight",
                           "model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.q_proj.input_scale"}) {
    EXPECT_EQ(Wrong({a, Counting(name, {1})}, graph), "") << name;
  }
  EXPECT_EQ(Wrong({a, Counting("lm_head.weight", {4, 3})}, graph), "lm_head.weight is surplus");
  std::string tied(testing::kTinyConfig);
  tied.insert(tied.find('{') + 1, R"("tie_word_embeddings": true,)");
  EXPECT_EQ(Wrong({a, Counting("lm_head.weight", {4, 3})}, graph, tied), "");

  // A prediction layer past the last (of two) has its projection; another layer too many is an error.
  EXPECT_EQ(Wrong({a, Counting("model.layers.2.x.weight", {1}), Counting("model.layers.2.eh_proj.weight", {1})}, graph),
            "");
  EXPECT_EQ(Wrong({a, Counting("model.layers.2.x.weight", {1})}, graph), "model.layers.2.x.weight is surplus");
  EXPECT_EQ(Wrong({a, Counting("model.layers.1.x.weight", {1}), Counting("model.layers.1.eh_proj.weight", {1})}, graph),
            "model.layers.1.eh_proj.weight is surplus; model.layers.1.x.weight is surplus");

  const std::vector<FileTensor> int4 = {Zeros("a.qweight", "I32", {16, 1}, 64), Zeros("a.qzeros", "I32", {2, 1}, 8),
                                        Zeros("a.scales", "F16", {2, 8}, 32)};
  auto biased = int4;
  biased.push_back(Zeros("a.bias", "F16", {8}, 16));
  EXPECT_EQ(Wrong(biased, {W("a", {8, 16})}), "");
  biased.back().data[3] = 1;
  EXPECT_EQ(Wrong(biased, {W("a", {8, 16})}), "a.bias is surplus");
  EXPECT_EQ(Wrong({a, Zeros("a.bias", "F16", {8}, 16)}, graph), "a.bias is surplus");
}

TEST(Encodings, OfMatricesByTheirTensors) {
  const WeightFolder folder({Counting("a.weight", {4, 3}), Counting("v.weight", {5}),
                             Zeros("x_bias", "F16", {2, 4}, 16), Zeros("b.weight", "I8", {4, 3}, 12),
                             Counting("b.weight_scale", {4, 1}), Counting("stack.weight", {2, 4, 3}),
                             Zeros("model.layers.1.q.weight", "F16", {4, 3}, 24), Zeros("w.weight", "I8", {4, 3}, 12)});
  const ModelWeights weights = WeightNames(*folder, kFamily).Encodings();
  EXPECT_THAT(weights.outer, ElementsAre(std::pair("a", Encoding(DType::kF32)), std::pair("b", Encoding::Int8()),
                                         std::pair("stack", Encoding(DType::kF32))));
  ASSERT_EQ(weights.layers.size(), 2u);
  EXPECT_TRUE(weights.layers[0].empty());
  EXPECT_THAT(weights.layers[1], ElementsAre(std::pair("layered", Encoding(DType::kF16))));
}

TEST(WeightStore, PacksSlicesAndRefusesByName) {
  const WeightFolder folder({Counting("a.weight", {40, 3}), Counting("v.weight", {5}),
                             Counting("stack.weight", {2, 4, 3}), Zeros("b.weight", "I8", {4, 3}, 12),
                             Counting("b.weight_scale", {4, 1})});
  const WeightNames names(*folder, kFamily);
  auto pool = WorkerPool::Create({.cpus = {-1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto pack = [&](const std::vector<Weight>& weights) {
    return WeightStore::Pack(names, *Graph(weights), **pool, {.huge = false});
  };
  const Weight slice = W("a[8:40,:]", {32, 3}), vector = W("v[1:5]", {4});
  const auto store = pack({slice, vector});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto matrix = (*store)->Matrix(-1, slice);
  ASSERT_TRUE(matrix.ok());
  // f32 panels: group 0 of k 0 are the first 16 rows (codegen/gemm/pack.h).
  const auto* values = reinterpret_cast<const float*>(*matrix);
  EXPECT_EQ(values[0], 24.0f);
  EXPECT_EQ(values[1], 27.0f);
  EXPECT_EQ((*(*store)->Vector(-1, vector))[3], 4.0f);

  const auto error = [&](Weight w) {
    const auto refused = pack({vector, std::move(w)});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
    return std::string(Message(refused.status()));
  };
  Weight fp4 = W("b", {4, 3});
  fp4.type.elem = DType::kI32;
  EXPECT_EQ(error(fp4), "weights: '@b' is i32 and has no packed layout yet (--backend interp runs it)");
  EXPECT_THAT(error(W("a[:,0:2]", {40, 2})), HasSubstr("'@a[:,0:2]' is f32 and a slice of columns"));
}

TEST(WeightStore, PacksJoinsInterleavesAndSlicesOfScaledRows) {
  std::vector<int8_t> a, b;
  for (int i = 0; i < 40 * 64; ++i) a.push_back(static_cast<int8_t>(i * 7)), b.push_back(static_cast<int8_t>(i * 11));
  const WeightFolder folder({testing::Of("a.weight", "I8", {40, 64}, a), Counting("a.weight_scale", {40, 1}, 1),
                             testing::Of("b.weight", "I8", {40, 64}, b), Counting("b.weight_scale", {40, 1}, 50)});
  const WeightNames names(*folder, kFamily);
  auto pool = WorkerPool::Create({.cpus = {-1, -1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto int8 = [](Weight w) {
    w.type = Type::Weight(w.type.dims, Encoding::Int8());
    return w;
  };
  const std::vector<Weight> weights = {int8(W("a+b", {80, 64}, {40, 40})), int8(W("a|b", {80, 64}, {40, 40})),
                                       int8(W("b[8:24,:]", {16, 64}))};
  const auto store = WeightStore::Pack(names, *Graph(weights), **pool, {.huge = false});
  ASSERT_TRUE(store.ok()) << store.status();
  for (const Weight& w : weights) {
    const auto packed = (*store)->Matrix(-1, w);
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (int64_t n = 0; n < PackedColumns(w); ++n) {
      std::vector<float> want(64, 0.0f), got(64);
      int64_t row = n < w.type.rows() ? n : -1;
      if (w.interleaved()) {
        const int64_t within = n / 32 * 16 + n % 16;
        row = within < 40 ? within + (n % 32 < 16 ? 0 : 40) : -1;
      }
      if (row >= 0) want = RowOf(*folder, w, row);
      UnpackColumn(w.type.encoding(), 64, *packed, n, got.data());
      EXPECT_EQ(got, want) << w.name << ", column " << n;
    }
  }
}

// A scale that is no number would show first when sampling finds no token.
TEST(WeightStore, RefusesScalesThatAreNoNumbers) {
  const WeightFolder folder({Zeros("a.weight", "I8", {40, 64}, 2560), F32("a.weight_scale", {1}, {NAN})});
  const WeightNames names(*folder, kFamily);
  auto pool = WorkerPool::Create({.cpus = {-1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  Weight w = W("a", {40, 64});
  w.type = Type::Weight(w.type.dims, *ParseEncoding("i8<tensor>"));
  const auto store = WeightStore::Pack(names, *Graph({w}), **pool, {.huge = false});
  EXPECT_THAT(std::string(Message(store.status())), HasSubstr("a.weight_scale: scale 0 is infinite or no number"));
  // The interpreter's rows too.
  std::vector<float> row(64);
  EXPECT_EQ(Message(CheckpointRows(names).Row(-1, w, 0, row)), Message(store.status()));
}

// Those within GGUF's blocks as well: q8_0 has one in front of each 32 values. Rotary pairs, so that the tensor's row
// is another than the weight's.
TEST(WeightStore, RefusesScalesOfBlocksThatAreNoNumbers) {
  constexpr int64_t kRows = 8, kCols = 64, kRowBytes = 2 * 34;
  Weight w = W("layered", {kRows, kCols});
  w.type = Type::Weight(w.type.dims, DType::kQ8_0);
  auto pool = WorkerPool::Create({.cpus = {-1, -1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const auto load = [&](uint16_t scale, int64_t stored_row, int64_t block) -> std::string {
    std::string data(kRows * kRowBytes, '\0');
    std::memcpy(&data[static_cast<size_t>(stored_row * kRowBytes + block * 34)], &scale, 2);
    const TempFolder folder;
    auto writer = testing::TinyGgufModel();  // 2 heads of 4; adjacent pairs
    writer.Tensor("blk.0.q.weight", {kCols, kRows}, 8, data);
    const auto checkpoint = OpenCheckpoint(folder.Write("m.gguf", writer.File()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return "";
    const WeightNames names(**checkpoint, kFamily);
    const auto graph = Graph({});
    graph->AddFunction("layer")->AddWeight(w.name, w.type);
    auto repeat = std::make_unique<Op>(OpCode::kRepeat);
    repeat->attrs["schedule"] = std::string("@layer:0-0");
    graph->functions[0]->Add(std::move(repeat), {});
    const auto store = WeightStore::Pack(names, *graph, **pool, {.huge = false});
    // The interpreter's rows too.
    CheckpointRows rows(names);
    std::vector<float> row(kCols);
    absl::Status interpreted;
    for (int64_t n = 0; n < kRows; ++n) interpreted.Update(rows.Row(0, w, n, row));
    EXPECT_EQ(Message(interpreted), Message(store.status()));
    const std::string text(Message(store.status()));
    return text.substr(std::min(text.size(), text.find("blk.")));
  };
  EXPECT_EQ(load(0x7bff, 2, 1), "");  // the largest number
  EXPECT_EQ(load(0xfbff, 2, 1), "");
  EXPECT_EQ(load(0x7c00, 2, 1), "blk.0.q.weight: row 2: the scale of block 1 is infinite or no number");
  EXPECT_EQ(load(0xfe01, 7, 0), "blk.0.q.weight: row 7: the scale of block 0 is infinite or no number");
}

// The panels of the experts lie one after the other, each as a matrix's would.
TEST(WeightStore, PacksExperts) {
  const WeightFolder folder({Counting("stack.weight", {3, 40, 5}), Counting("shared.weight", {20, 5}, 7000)});
  const WeightNames names(*folder, kFamily);
  auto pool = WorkerPool::Create({.cpus = {-1, -1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const std::vector<Weight> weights = {W("stack", {3, 40, 5}), W("stack[1:3,20:40,:]", {2, 20, 5}),
                                       W("stack[:,0:20,:]&shared", {4, 20, 5}, {}, {3, 1}),
                                       W("stack[:,0:20,:]|stack[:,20:40,:]", {3, 40, 5}, {20, 20})};
  const auto store = WeightStore::Pack(names, *Graph(weights), **pool, {.huge = false});
  ASSERT_TRUE(store.ok()) << store.status();
  for (const Weight& w : weights) {
    const auto packed = (*store)->Matrix(-1, w);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const int64_t rows = w.type.rows(), columns = PackedColumns(w);
    for (int64_t e = 0; e < w.type.dims[0].size; ++e) {
      const std::byte* matrix = *packed + e * (columns / kPanelColumns * PanelBytes(w.type.encoding(), 5));
      for (int64_t n = 0; n < columns; ++n) {
        std::vector<float> want(5, 0.0f), got(5);
        int64_t row = n < rows ? n : -1;
        if (w.interleaved()) {
          const int64_t within = n / 32 * 16 + n % 16;
          row = within < 20 ? within + (n % 32 < 16 ? 0 : 20) : -1;
        }
        if (row >= 0) want = RowOf(*folder, w, e * rows + row);
        UnpackColumn(w.type.encoding(), 5, matrix, n, got.data());
        EXPECT_EQ(got, want) << w.name << ", expert " << e << ", column " << n;
      }
    }
  }
}

TEST(WeightStore, KeepsTheOrderOfColumns) {
  std::vector<int32_t> groups;
  std::vector<uint32_t> words;
  std::vector<uint16_t> scales(2 * 32, 0x3c00);
  for (int i = 0; i < 64; ++i) groups.push_back(i % 2);
  for (uint32_t i = 0; i < 8 * 32; ++i) words.push_back(i * 0x01234567u);
  const WeightFolder folder({testing::Of("a.qweight", "I32", {8, 32}, words), Zeros("a.qzeros", "I32", {2, 4}, 32),
                             testing::Of("a.scales", "F16", {2, 32}, scales),
                             testing::Of("a.g_idx", "I32", {64}, groups)});
  const WeightNames names(*folder, kFamily);
  auto pool = WorkerPool::Create({.cpus = {-1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  Weight w = W("a", {32, 64});
  w.type = Type::Weight(w.type.dims, Encoding::Int4(32, true, true));
  const auto store = WeightStore::Pack(names, *Graph({w}), **pool, {.huge = false});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto order = (*store)->Order(-1, w);
  ASSERT_TRUE(order.ok()) << order.status();
  const auto packed = (*store)->Matrix(-1, w);
  for (int64_t n = 0; n < 32; ++n) {
    std::vector<float> got(64);
    UnpackColumn(w.type.encoding(), 64, *packed, n, got.data());
    const std::vector<float> want = RowOf(*folder, w, n);
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ((*order)[i], i < 32 ? 2 * i : 2 * (i - 32) + 1);
      EXPECT_EQ(got[static_cast<size_t>(i)], want[static_cast<size_t>((*order)[i])]);
    }
  }
  EXPECT_EQ((*store)->Order(0, w).status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace xjit
