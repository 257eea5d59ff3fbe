// Which tensors a weight is found in, what their shapes say of its encoding, and what contradicts.
#include "frontend/stored_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include "ir/support/ref/dequant.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/weight_files.h"

namespace xjit {
namespace {

using testing::Counting;
using ::testing::ElementsAre;
using testing::F32;
using testing::FileTensor;
using ::testing::HasSubstr;
using testing::Of;
using testing::WeightFolder;
using testing::Zeros;

// The weight's encoding and shape, or its error.
std::string Found(const std::vector<FileTensor>& tensors, const StoredOptions& options = {},
                  std::string_view name = "x.weight") {
  const WeightFolder folder(tensors);
  const auto stored = FindStoredWeight(*folder, name, options);
  if (!stored.ok()) return std::string(Message(stored.status()));
  EXPECT_EQ(stored->matrices.size(), static_cast<size_t>(stored->experts));
  EXPECT_EQ(stored->tensors.size(), tensors.size());
  return ToString(stored->encoding) + " " + ShapeText(stored->shape());
}

std::vector<float> RowOf(const Checkpoint& checkpoint, std::string_view name, int64_t expert, int64_t row,
                         const StoredOptions& options = {}) {
  const auto stored = FindStoredWeight(checkpoint, name, options);
  EXPECT_TRUE(stored.ok()) << stored.status();
  if (!stored.ok()) return {};
  std::vector<float> out(static_cast<size_t>(stored->columns));
  DequantizeRow(stored->matrices[static_cast<size_t>(expert)], row, 0, stored->columns, out.data());
  return out;
}

TEST(StoredWeight, Plain) {
  EXPECT_EQ(Found({Counting("x.weight", {3, 4})}), "f32 [3, 4]");
  EXPECT_EQ(Found({Counting("x.weight", {5})}), "f32 [5]");
  EXPECT_EQ(Found({Counting("x.weight", {2, 3, 4})}), "f32 [2, 3, 4]");
  EXPECT_EQ(Found({Counting("x.weight", {2, 3, 4})}, {.transposed = true}), "f32 [2, 4, 3]");
  EXPECT_EQ(Found({Counting("x.weight", {2, 3})}, {.expert_vectors = true}), "f32 [2, 3, 1]");
  EXPECT_EQ(Found({}), "x.weight is missing");
  EXPECT_EQ(Found({Counting("x.weight", {1, 1, 1, 2})}), "x.weight is [1, 1, 1, 2], no vector or matrix");
  EXPECT_EQ(Found({Counting("x.weight", {0, 4})}), "x.weight is [0, 4], which holds nothing");
  EXPECT_EQ(Found({Zeros("x.weight", "I64", {2, 2}, 32)}), "x.weight is I64, an encoding that xjit does not read");

  const WeightFolder folder({Counting("x.weight", {2, 3, 4})});
  EXPECT_THAT(RowOf(*folder, "x.weight", 1, 2), ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(RowOf(*folder, "x.weight", 1, 2, {.transposed = true}), ElementsAre(14, 18, 22));
}

TEST(StoredWeight, ScalesOutside) {
  const FileTensor fp8 = Zeros("x.weight", "F8_E4M3", {200, 130}, 26000), int8 = Zeros("x.weight", "I8", {6, 8}, 48);
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale_inv", {2, 2})}), "f8e4m3<128x128> [200, 130]");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale", {2, 2})}), "f8e4m3<128x128> [200, 130]");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale", {200, 1})}), "f8e4m3<channel> [200, 130]");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale", {1})}), "f8e4m3<tensor> [200, 130]");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale", {})}), "f8e4m3<tensor> [200, 130]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6, 1})}), "i8<channel> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6})}), "i8<channel> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6, 2})}), "i8<group 4> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {3, 2})},
                  {.declared = Encoding(DType::kI8, {.kind = Scales::Kind::kBlock, .rows = 2, .cols = 4})}),
            "i8<2x4> [6, 8]");
  // Tensors do not say whether activations are rounded too.
  const auto only = ParseEncoding("i8<channel, weight_only>");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6, 1})}, {.declared = only}), "i8<channel, weight_only> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {1})}, {.declared = ParseEncoding("i8<tensor, weight_only>")}),
            "i8<tensor, weight_only> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6, 1})}, {.declared = Encoding::Int8()}), "i8<channel> [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {1})}, {.declared = only}),
            "x.weight is i8<tensor, weight_only> where quantization_config says i8<channel, weight_only>");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale", {1})}, {.declared = only}),
            "x.weight is f8e4m3<tensor> where quantization_config says i8<channel, weight_only>");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale_inv", {1, 1})}, {.declared = Encoding::Fp8Blocks()}),
            "x.weight is f8e4m3<tensor> where quantization_config says f8e4m3<128x128>");
  // A plain tensor may stay where the configuration would have it converted.
  EXPECT_EQ(Found({Counting("x.weight", {2, 4})}, {.declared = Encoding::Fp8Blocks()}), "f32 [2, 4]");
  // One block, where all others of the checkpoint are in blocks.
  EXPECT_EQ(Found({int8, Counting("x.weight_scale_inv", {1, 1})}), "i8<128x128> [6, 8]");
  EXPECT_EQ(Found({Zeros("x.weight", "I8", {2, 6, 8}, 96), Counting("x.weight_scale", {2, 6, 1})}),
            "i8<channel> [2, 6, 8]");

  EXPECT_EQ(Found({fp8}), "x.weight is F8_E4M3 without x.weight_scale");
  EXPECT_EQ(Found({fp8, Counting("x.weight_scale_inv", {3, 2})}),
            "x.weight_scale_inv is [3, 2], no scales for x.weight of [200, 130]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {6, 3})}),
            "x.weight_scale is [6, 3], no scales for x.weight of [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {0, 1})}),
            "x.weight_scale is [0, 1], no scales for x.weight of [6, 8]");
  EXPECT_EQ(Found({int8, Counting("x.weight_scale", {1, 6, 1})}),
            "x.weight_scale is [1, 6, 1], no scales for x.weight of [6, 8]");
  EXPECT_EQ(Found({int8, Zeros("x.weight_scale", "I8", {6, 1}, 6)}), "x.weight_scale is I8, which it cannot be");
  EXPECT_EQ(Found({Zeros("x.weight", "I8", {6}, 6), Counting("x.weight_scale", {6})}), "x.weight is a vector in I8");

  // Blocks at the edges are partial, and a stack of experts has scales each.
  std::vector<uint8_t> one(200 * 130, 0x38);
  const WeightFolder blocks({Of("x.weight", "F8_E4M3", {200, 130}, one), Counting("x.weight_scale_inv", {2, 2}, 1)});
  auto row = RowOf(*blocks, "x.weight", 0, 127);
  EXPECT_THAT(std::vector(row.begin() + 127, row.end()), ElementsAre(1, 2, 2));
  row = RowOf(*blocks, "x.weight", 0, 128);
  EXPECT_THAT(std::vector(row.begin() + 127, row.end()), ElementsAre(3, 4, 4));
  const WeightFolder stack({Of("x.weight", "I8", {2, 1, 2}, std::vector<int8_t>{1, -2, 3, -4}),
                            Of("x.weight_scale", "BF16", {2, 1, 1}, std::vector<uint16_t>{0x3f80, 0x4000})});
  EXPECT_THAT(RowOf(*stack, "x.weight", 1, 0), ElementsAre(6, -8));
}

std::vector<FileTensor> Gptq(const std::vector<int32_t>& g_idx) {
  return {Zeros("x.qweight", "I32", {2, 8}, 64), Zeros("x.qzeros", "I32", {2, 1}, 8),
          Zeros("x.scales", "F16", {2, 8}, 32), Of("x.g_idx", "I32", {static_cast<int64_t>(g_idx.size())}, g_idx)};
}

TEST(StoredWeight, Int4) {
  const FileTensor zeros = Zeros("x.qzeros", "I32", {2, 1}, 8), scales = Zeros("x.scales", "F16", {2, 8}, 32);
  const FileTensor awq = Zeros("x.qweight", "I32", {16, 1}, 64), gptq = Zeros("x.qweight", "I32", {2, 8}, 64);
  EXPECT_EQ(Found({awq, zeros, scales}), "i4<group 8, zeros> [8, 16]");
  EXPECT_EQ(Found({awq, scales}), "i4<group 8> [8, 16]");
  EXPECT_EQ(Found({gptq, zeros, scales}), "i4<group 8, zeros> [8, 16]");
  // Symmetric: all zero points are 8, GPTQ's less one.
  const FileTensor eights = Of("x.qzeros", "I32", {2, 1}, std::vector<uint32_t>{0x88888888u, 0x88888888u});
  const FileTensor sevens = Of("x.qzeros", "I32", {2, 1}, std::vector<uint32_t>{0x77777777u, 0x77777777u});
  EXPECT_EQ(Found({awq, eights, scales}), "i4<group 8> [8, 16]");
  EXPECT_EQ(Found({awq, sevens, scales}), "i4<group 8, zeros> [8, 16]");
  EXPECT_EQ(Found({gptq, sevens, scales}), "i4<group 8> [8, 16]");
  EXPECT_EQ(Found({gptq, eights, scales}, {.gptq_zero_offset = 0}), "i4<group 8> [8, 16]");
  EXPECT_EQ(Found(Gptq({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1})), "i4<group 8, zeros> [8, 16]");
  EXPECT_EQ(Found(Gptq({0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1})), "i4<group 8, zeros, act_order> [8, 16]");

  EXPECT_EQ(Found(Gptq({0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2})), "x.g_idx has group 2 at 15, of 2 groups");
  EXPECT_EQ(Found(Gptq({0, 0, 0, 0, -1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1})), "x.g_idx has group -1 at 4, of 2 groups");
  EXPECT_EQ(Found(Gptq({0, 0, 0, 0})), "x.g_idx is [4] instead of [16]");
  EXPECT_EQ(Found({awq, zeros}), "x.scales is missing");
  EXPECT_EQ(Found({awq, Zeros("x.scales", "I32", {2, 8}, 64)}), "x.scales is I32, which it cannot be");
  EXPECT_EQ(Found({awq, Zeros("x.scales", "F16", {16}, 32)}), "x.scales is [16] instead of [groups, n]");
  EXPECT_EQ(Found({awq, Zeros("x.qzeros", "I32", {1, 2}, 8), scales}), "x.qzeros is [1, 2] instead of [2, 1]");
  EXPECT_EQ(Found({awq, Zeros("x.scales", "F16", {3, 8}, 48)}),
            "x.scales is [3, 8]: 16 elements do not divide into 3 groups");
  EXPECT_EQ(Found({awq, Zeros("x.scales", "F16", {2, 16}, 64)}),
            "x.qweight is [16, 1], no int4 for x.scales of [2, 16]");
  EXPECT_EQ(Found({awq, Zeros("x.scales", "F16", {0, 8}, 0)}),
            "x.scales is [0, 8]: 16 elements do not divide into 0 groups");
  // What the configuration says and the tensors are not.
  const StoredOptions asymmetric = {.declared = Encoding::Int4(8, true)};
  EXPECT_EQ(Found({awq, zeros, scales}, asymmetric), "i4<group 8, zeros> [8, 16]");
  EXPECT_EQ(Found({awq, eights, scales}, asymmetric), "i4<group 8> [8, 16]");
  EXPECT_EQ(Found({awq, scales}, asymmetric),
            "x.qweight has no zero points where quantization_config says i4<group 8, zeros>");
  EXPECT_EQ(Found({awq, zeros, scales}, {.declared = Encoding::Int4(8, false)}),
            "x.qweight has zero points where quantization_config says i4<group 8>");
  EXPECT_EQ(Found({awq, zeros, scales}, {.declared = Encoding::Int4(4, true)}),
            "x.qweight is in groups of 8 where quantization_config says i4<group 4, zeros>");
  EXPECT_EQ(Found({awq, zeros, scales}, {.declared = Encoding::Int4(QuantConfig::kWholeRow, true)}),
            "x.qweight is in groups of 8 where quantization_config says i4<one group a row, zeros>");
  EXPECT_EQ(Found({gptq, zeros, scales}, {.declared = Encoding::Int4(8, true, true)}),
            "x.qweight has no g_idx where quantization_config says i4<group 8, zeros, act_order>");
  EXPECT_EQ(Found(Gptq({0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1}), asymmetric),
            "x.qweight has a g_idx out of order where quantization_config says i4<group 8, zeros>");
  EXPECT_EQ(Found({gptq, zeros, scales}, {.method = QuantConfig::Method::kAwq}),
            "x.qweight is [2, 8], no int4 for x.scales of [2, 8]");
  EXPECT_EQ(Found({awq, zeros, scales}, {.method = QuantConfig::Method::kGptq}),
            "x.qweight is [16, 1], no int4 for x.scales of [2, 8]");
  // Eight bits: four a word.
  EXPECT_THAT(Found({Zeros("x.qweight", "I32", {4, 8}, 128), Zeros("x.qzeros", "I32", {2, 2}, 16), scales}),
              HasSubstr("x.qzeros is [2, 2] instead of [2, 1]"));
}

// Infinities and NaNs of every type that scales have, wherever they are.
TEST(StoredWeight, ScalesAreNumbers) {
  const auto check = [](const std::vector<FileTensor>& tensors, const StoredOptions& options = {},
                        std::string_view name = "x.weight") {
    const WeightFolder folder(tensors);
    const auto stored = FindStoredWeight(*folder, name, options);
    EXPECT_TRUE(stored.ok()) << stored.status();
    return stored.ok() ? std::string(Message(CheckScales(*stored))) : "";
  };
  const FileTensor int8 = Zeros("x.weight", "I8", {3, 8}, 24), fp8 = Zeros("x.weight", "F8_E4M3", {3, 8}, 24);
  const float inf = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  EXPECT_EQ(check({int8, F32("x.weight_scale", {3, 1}, {-most, 0, most})}), "");
  EXPECT_EQ(check({int8, F32("x.weight_scale", {3, 1}, {1, NAN, 1})}),
            "x.weight_scale: scale 1 is infinite or no number");
  EXPECT_EQ(check({fp8, F32("x.weight_scale_inv", {1, 1}, {-inf})}),
            "x.weight_scale_inv: scale 0 is infinite or no number");
  const auto bf16 = [](std::vector<uint16_t> bits) { return Of("x.weight_scale", "BF16", {3, 1}, bits); };
  EXPECT_EQ(check({fp8, bf16({0x7f7f, 0xff7f, 0})}), "");
  EXPECT_EQ(check({fp8, bf16({0x7f7f, 0xff7f, 0xff80})}), "x.weight_scale: scale 2 is infinite or no number");
  std::vector<uint16_t> halves(16, 0x7bff);
  const FileTensor awq = Zeros("x.qweight", "I32", {16, 1}, 64);
  EXPECT_EQ(check({awq, Of("x.scales", "F16", {2, 8}, halves)}), "");
  halves[9] = 0x7e00;
  EXPECT_EQ(check({awq, Of("x.scales", "F16", {2, 8}, halves)}), "x.scales: scale 9 is infinite or no number");
  const FileTensor fp4 = Zeros("x_blocks", "U8", {2, 3, 4, 16}, 384);
  std::vector<uint8_t> powers(24, 254);
  EXPECT_EQ(check({fp4, Of("x_scales", "U8", {2, 3, 4}, powers)}, {}, "x"), "");
  powers[17] = 255;
  EXPECT_EQ(check({fp4, Of("x_scales", "U8", {2, 3, 4}, powers)}, {}, "x"),
            "x_scales: scale 17 is infinite or no number");
  // Of one expert among others.
  const auto expert = [](int e) { return Zeros(fmt::format("x.{}.weight", e), "I8", {1, 8}, 8); };
  EXPECT_EQ(check({expert(0), F32("x.0.weight_scale", {1}, {1}), expert(1), F32("x.1.weight_scale", {1}, {NAN})},
                  {.experts = 2}, "x.{e}.weight"),
            "x.1.weight_scale: scale 0 is infinite or no number");
  // Values are not looked at, and a plain weight has no scales.
  EXPECT_EQ(check({F32("x.weight", {1, 2}, {NAN, inf})}), "");
}

TEST(StoredWeight, Int4OfCompressedTensors) {
  const FileTensor words = Zeros("x.weight_packed", "I32", {16, 2}, 128),
                   scales = Zeros("x.weight_scale", "BF16", {16, 4}, 128);
  const FileTensor shape = Of("x.weight_shape", "I64", {2}, std::vector<int64_t>{16, 16});
  EXPECT_EQ(Found({words, scales, shape}), "i4<group 4> [16, 16]");
  EXPECT_EQ(Found({words, scales, shape, Zeros("x.weight_zero_point", "I32", {2, 4}, 32)}),
            "i4<group 4, zeros> [16, 16]");
  EXPECT_EQ(Found({words, scales, Zeros("x.weight_zero_point", "I32", {16, 4}, 256)}),
            "x.weight_zero_point is [16, 4] instead of [2, 4]");
  EXPECT_EQ(Found({words, scales, Zeros("x.weight_g_idx", "I32", {16}, 64)}), "i4<group 4, act_order> [16, 16]");
  EXPECT_EQ(Found({words, scales, Of("x.weight_shape", "I64", {2}, std::vector<int64_t>{16, 12})}),
            "x.weight_shape is of 16 x 12, not of whole words as [16, 2]");
  EXPECT_EQ(Found({words, Zeros("x.weight_scale", "BF16", {16, 3}, 96)}),
            "x.weight_scale is [16, 3]: 16 elements do not divide into 3 groups");
  EXPECT_EQ(Found({words, Zeros("x.weight_scale", "BF16", {4, 16}, 128)}),
            "x.weight_scale is [4, 16] instead of [16, groups]");
}

TEST(StoredWeight, Mxfp4) {
  const FileTensor scales = Zeros("x_scales", "U8", {2, 3, 4}, 24);
  EXPECT_EQ(Found({Zeros("x_blocks", "U8", {2, 3, 4, 16}, 384), scales}, {.transposed = true}, "x"),
            "mxfp4 [2, 3, 128]");
  EXPECT_EQ(Found({Zeros("x_blocks", "U8", {2, 3, 4, 8}, 192), scales}, {}, "x"),
            "x_blocks is [2, 3, 4, 8] instead of [experts, n, k / 32, 16]");
  EXPECT_EQ(Found({Zeros("x_blocks", "U8", {2, 3, 2, 16}, 192), scales}, {}, "x"),
            "x_scales is [2, 3, 4] instead of [2, 3, 2]");
  EXPECT_EQ(Found({Zeros("x_blocks", "U8", {2, 3, 2, 16}, 192)}, {}, "x"), "x_scales is missing");
  EXPECT_EQ(Found({Zeros("x_blocks", "I8", {2, 3, 4, 16}, 384), scales}, {}, "x"),
            "x_blocks is I8, which it cannot be");
}

TEST(StoredWeight, TensorAnExpert) {
  constexpr std::string_view kName = "m.{e}.x.weight";
  const std::vector<FileTensor> plain = {Counting("m.0.x.weight", {2, 3}), Counting("m.1.x.weight", {2, 3}, 10)};
  EXPECT_EQ(Found(plain, {.experts = 2}, kName), "f32 [2, 2, 3]");
  EXPECT_EQ(Found(plain, {.experts = 3}, kName), "m.2.x.weight is missing");
  EXPECT_EQ(Found(plain, {}, kName), "m.{e}.x.weight is missing");
  EXPECT_EQ(Found({plain[0], Counting("m.1.x.weight", {3, 2})}, {.experts = 2}, kName),
            "m.1.x.weight is [3, 2] where m.0.x.weight is [2, 3]");
  EXPECT_EQ(Found({plain[0], Zeros("m.1.x.weight", "F16", {2, 3}, 12)}, {.experts = 2}, kName),
            "m.1.x.weight is f16 where m.0.x.weight is f32");
  EXPECT_EQ(Found({Counting("m.0.x.weight", {4}), Counting("m.1.x.weight", {4})}, {.experts = 2}, kName),
            "f32 [2, 4, 1]");
  const WeightFolder folder(plain);
  EXPECT_THAT(RowOf(*folder, kName, 1, 1, {.experts = 2}), ElementsAre(13, 14, 15));
}

// That all a matrix describes lies in its tensors.
void ExpectInside(const StoredWeight& stored) {
  const auto inside = [&](const std::byte* at, int64_t bytes) {
    return std::any_of(stored.tensors.begin(), stored.tensors.end(), [&](const TensorView* view) {
      return at >= view->data.data() && at + bytes <= view->data.data() + view->data.size();
    });
  };
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  for (const StoredMatrix& m : stored.matrices) {
    const int64_t words = m.k / m.scale_cols;  // groups of int4
    switch (m.layout) {
      case StoredMatrix::Layout::kRows:
      case StoredMatrix::Layout::kColumns:
        EXPECT_TRUE(inside(m.values, m.n * RowBytes(m.type, m.k)));
        if (m.scales == nullptr) break;
        EXPECT_TRUE(inside(m.scales, RowBytes(m.scale_type, up(m.n, m.scale_rows) * up(m.k, m.scale_cols))));
        break;
      case StoredMatrix::Layout::kFp4:
        EXPECT_TRUE(inside(m.values, m.n * m.k / 2));
        EXPECT_TRUE(inside(m.scales, m.n * m.k / 32));
        break;
      case StoredMatrix::Layout::kAwq:
      case StoredMatrix::Layout::kGptq:
      case StoredMatrix::Layout::kPacked:
        EXPECT_TRUE(inside(m.values, m.n * m.k / 2));
        EXPECT_TRUE(inside(m.scales, RowBytes(m.scale_type, m.n * words)));
        EXPECT_TRUE(m.zeros == nullptr || inside(m.zeros, words * m.n / 2));
        if (m.group_of == nullptr) break;
        EXPECT_TRUE(inside(m.group_of, 4 * m.k));
        for (int64_t i = 0; i < m.k; ++i) {
          int32_t group;
          std::memcpy(&group, m.group_of + 4 * i, 4);
          EXPECT_TRUE(group >= 0 && group < words) << group;
        }
    }
  }
}

TEST(StoredWeight, ChangedFilesNeverLeadOutside) {
  std::vector<int32_t> g_idx(16);
  for (size_t i = 0; i < 16; ++i) g_idx[i] = static_cast<int32_t>(i * 5 % 2);
  auto tensors = Gptq(g_idx);
  tensors.insert(tensors.end(), {Zeros("a.qweight", "I32", {16, 1}, 64), Zeros("a.qzeros", "I32", {2, 1}, 8),
                                 Zeros("a.scales", "F16", {2, 8}, 32), Zeros("f.weight", "F8_E4M3", {9, 9}, 81),
                                 Counting("f.weight_scale_inv", {1, 1}), Zeros("i.weight", "I8", {2, 4, 4}, 32),
                                 Counting("i.weight_scale", {2, 4, 1}), Zeros("m_blocks", "U8", {2, 2, 1, 16}, 64),
                                 Zeros("m_scales", "U8", {2, 2, 1}, 4), Counting("p.0.weight", {2, 3}),
                                 Counting("p.1.weight", {2, 3})});
  int opened = 0, found = 0;
  testing::ForEachMutation(testing::SafetensorsFile(tensors), 11, 400, [&](std::span<const std::byte> bytes) {
    testing::TempFolder folder;
    folder.Write("config.json", testing::kTinyConfig);
    folder.Write("model.safetensors", testing::Text(bytes));
    const auto checkpoint = OpenCheckpoint(folder.path());
    if (!checkpoint.ok()) return;
    ++opened;
    for (const char* name : {"x.weight", "a.weight", "f.weight", "i.weight", "m", "p.{e}.weight"}) {
      const auto stored = FindStoredWeight(**checkpoint, name, {.experts = 2});
      if (!stored.ok()) continue;
      ++found;
      ExpectInside(*stored);
    }
  });
  EXPECT_GT(opened, 20);
  EXPECT_GT(found, 100);
}

// Every layout of goldens/quant_ops, as stored and as computed.
TEST(StoredWeight, QuantOpsGolden) {
  const std::string path = std::string(XJIT_SHARED_DIR) + "/goldens/quant_ops/quant_ops.safetensors";
  std::ifstream file(path, std::ios::binary);
  if (!file) GTEST_SKIP() << "no " << path;
  const WeightFolder folder(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto expected = [&](const std::string& name) {
    const TensorView* view = folder->Find(name);
    EXPECT_NE(view, nullptr) << name;
    std::vector<float> values(view->data.size() / 4);
    std::memcpy(values.data(), view->data.data(), view->data.size());
    return values;
  };
  for (const auto& [name, encoding] :
       {std::pair("awq_g32", "i4<group 32, zeros>"), std::pair("awq_g128", "i4<group 128, zeros>"),
        std::pair("gptq_g32_act", "i4<group 32, zeros, act_order>"), std::pair("gptq_g128_sym", "i4<group 128>"),
        std::pair("fp8", "f8e4m3<128x128>")}) {
    const auto stored = FindStoredWeight(*folder, fmt::format("{}.weight", name), {});
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(ToString(stored->encoding), encoding) << name;
    const std::vector<float> want = expected(fmt::format("{}.expected", name));
    ASSERT_EQ(want.size(), static_cast<size_t>(stored->rows * stored->columns)) << name;
    std::vector<float> row(static_cast<size_t>(stored->columns));
    for (int64_t n = 0; n < stored->rows; ++n) {
      DequantizeRow(stored->matrices[0], n, 0, stored->columns, row.data());
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_EQ(row[i], want[static_cast<size_t>(n) * row.size() + i]) << name << " " << n << ", " << i;
      }
    }
  }

  const auto mxfp4 = FindStoredWeight(*folder, "mxfp4.experts.down_proj", {.transposed = true});
  ASSERT_TRUE(mxfp4.ok()) << mxfp4.status();
  EXPECT_THAT(mxfp4->shape(), ElementsAre(2, 48, 64));
  const std::vector<float> want = expected("mxfp4.expected");  // [expert, in, out]
  std::vector<float> row(64);
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t n = 0; n < 48; ++n) {
      DequantizeRow(mxfp4->matrices[static_cast<size_t>(e)], n, 0, 64, row.data());
      for (int64_t i = 0; i < 64; ++i) {
        ASSERT_EQ(row[static_cast<size_t>(i)], want[static_cast<size_t>((e * 64 + i) * 48 + n)]) << e << " " << n;
      }
    }
  }

  const std::vector<float> codes = expected("fp8_codes.expected");
  ASSERT_EQ(codes.size(), 256u);
  for (size_t code = 0; code < 256; ++code) {
    const float got = E4M3ToF32(static_cast<uint8_t>(code));
    if (std::isnan(codes[code])) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, codes[code]) << code;
      EXPECT_EQ(std::signbit(got), std::signbit(codes[code])) << code;
    }
  }

  // W8A8: the quantised activations with these weights give the product.
  const auto int8 = FindStoredWeight(*folder, "w8a8.weight", {});
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(ToString(int8->encoding), "i8<channel>");
  const std::vector<float> product = expected("w8a8.expected"), x_scale = expected("w8a8.x_scale");
  const auto* x = reinterpret_cast<const int8_t*>(folder->Find("w8a8.x_int8")->data.data());
  row.resize(static_cast<size_t>(int8->columns));
  for (int64_t n = 0; n < int8->rows; ++n) {
    DequantizeRow(int8->matrices[0], n, 0, int8->columns, row.data());
    for (int64_t m = 0; m < 9; ++m) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < int8->columns; ++i) {
        const double term = static_cast<double>(row[static_cast<size_t>(i)]) *
                            static_cast<double>(x_scale[static_cast<size_t>(m)]) * x[m * int8->columns + i];
        sum += term;
        size += std::fabs(term);
      }
      // Each weight was rounded once after its scale; the expected product was so a few times.
      EXPECT_NEAR(sum, static_cast<double>(product[static_cast<size_t>(m * int8->rows + n)]), size * 0x1p-22) << m << n;
    }
  }
}

}  // namespace
}  // namespace xjit
