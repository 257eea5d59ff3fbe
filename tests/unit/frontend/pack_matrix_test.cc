// Packed columns are the stored rows, whichever layout those have.
#include "frontend/pack_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Kind = Scales::Kind;
using Layout = StoredMatrix::Layout;
using ::testing::HasSubstr;

// A stored matrix of random bytes and the tensors that it points to.
struct Stored {
  StoredMatrix m;
  std::vector<std::byte> values, scales, zeros, group_of;
};

std::vector<std::byte> RandomBytes(int64_t count, std::mt19937& rng) {
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

// Scales that f16 holds.
std::vector<std::byte> RandomScales(DType type, int64_t count, std::mt19937& rng) {
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(64 + rng() % 64) * 0x1p-10f;
    uint32_t bits = std::bit_cast<uint32_t>(value);
    size_t size = 4;
    if (type == DType::kBF16) bits >>= 16, size = 2;
    if (type == DType::kF16) bits = (bits >> 13) - (112 << 10), size = 2;
    const auto* p = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), p, p + size);
  }
  return bytes;
}

Stored Random(const Encoding& encoding, Layout layout, int64_t n, int64_t k, DType scale_type = DType::kF32) {
  std::mt19937 rng(static_cast<uint32_t>(n * 1000 + k));
  Stored s;
  StoredMatrix& m = s.m;
  m.layout = layout;
  m.type = encoding.type;
  m.n = n;
  m.k = k;
  const Scales& scales = encoding.scales;
  const bool int4 = encoding.type == DType::kI4;
  const int64_t bytes = layout == Layout::kFp4 ? n * k / 2 : int4 ? n * k / 2 : n * RowBytes(encoding.type, k);
  s.values = RandomBytes(bytes, rng);
  for (size_t i = 0; i < s.values.size() && encoding.type == DType::kF8E4M3; ++i) {
    if ((s.values[i] & std::byte{0x7f}) == std::byte{0x7f}) s.values[i] = std::byte{1};  // NaN is not equal to itself
  }
  m.values = s.values.data();
  if (layout == Layout::kFp4) {
    s.scales.resize(static_cast<size_t>(n * k / 32));
    for (std::byte& b : s.scales) b = static_cast<std::byte>(120 + rng() % 16);
    m.scales = s.scales.data();
    return s;
  }
  if (scales.kind == Kind::kNone) return s;
  m.scale_type = scale_type;
  m.scale_rows = scales.kind == Kind::kTensor ? n : scales.kind == Kind::kBlock ? scales.rows : 1;
  m.scale_cols = scales.kind == Kind::kTensor || scales.kind == Kind::kChannel ? k : scales.cols;
  s.scales = RandomScales(scale_type, CeilDiv(n, m.scale_rows) * CeilDiv(k, m.scale_cols), rng);
  m.scales = s.scales.data();
  const int64_t groups = CeilDiv(k, m.scale_cols);
  if (scales.zeros) {
    s.zeros = RandomBytes(CeilDiv(n, 8) * 4 * groups, rng);
    m.zeros = s.zeros.data();
    m.zero_offset = layout == Layout::kGptq ? 1 : 0;
  }
  if (scales.act_order) {
    std::vector<int32_t> group;
    for (int64_t i = 0; i < k; ++i) group.push_back(static_cast<int32_t>(i / m.scale_cols));
    std::shuffle(group.begin(), group.end(), rng);
    const auto* p = reinterpret_cast<const std::byte*>(group.data());
    s.group_of.assign(p, p + 4 * group.size());
    m.group_of = s.group_of.data();
  }
  return s;
}

// Rows of two matrices out of order, columns of zeros between them, in two calls.
void ExpectPacked(const Encoding& encoding, const StoredMatrix& a, const StoredMatrix& b) {
  SCOPED_TRACE(ToString(encoding));
  const int64_t k = a.k;
  std::vector<int32_t> order;
  if (encoding.scales.act_order) {
    auto own = ActOrder(a);
    ASSERT_TRUE(own.ok()) << own.status();
    order = *own;
  }
  std::vector<StoredRow> rows;
  for (int64_t i = 0; i < a.n; ++i) rows.push_back({&a, i * 7 % a.n});
  rows.emplace_back();
  for (int64_t i = 0; i < b.n; ++i) rows.push_back({&b, b.n - 1 - i});
  const int64_t panels = CeilDiv(static_cast<int64_t>(rows.size()), kPanelColumns);
  rows.resize(static_cast<size_t>(panels * kPanelColumns));
  std::vector<std::byte> packed(static_cast<size_t>(panels * PanelBytes(encoding, k)));
  ASSERT_TRUE(PackMatrix(encoding, k, rows, order, 1, panels, packed.data()).ok());
  ASSERT_TRUE(PackMatrix(encoding, k, rows, order, 0, 1, packed.data()).ok());
  std::vector<float> want(static_cast<size_t>(k)), got(static_cast<size_t>(k));
  for (size_t n = 0; n < rows.size(); ++n) {
    std::fill(want.begin(), want.end(), 0.0f);
    if (rows[n].matrix != nullptr) DequantizeRow(*rows[n].matrix, rows[n].row, 0, k, want.data());
    UnpackColumn(encoding, k, packed.data(), static_cast<int64_t>(n), got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[order.empty() ? i : static_cast<size_t>(order[i])]) << "column " << n << ", " << i;
    }
  }
}

TEST(PackMatrix, ScalesByRowTensorGroupAndBlock) {
  for (const DType type : {DType::kI8, DType::kF8E4M3}) {
    for (const Scales& scales :
         {Scales{.kind = Kind::kTensor}, Scales{.kind = Kind::kChannel}, Scales{.kind = Kind::kGroup, .cols = 64},
          Scales{.kind = Kind::kBlock, .rows = 128, .cols = 128},
          Scales{.kind = Kind::kBlock, .rows = 6, .cols = 64}}) {
      const Encoding encoding(type, scales);
      for (const int64_t k : {17, 64, 130, 576}) {
        if (scales.kind == Kind::kGroup && k % scales.cols != 0) continue;
        for (const DType scale : {DType::kF32, DType::kF16, DType::kBF16}) {
          const Stored a = Random(encoding, Layout::kRows, 50, k, scale);
          ExpectPacked(encoding, a.m, Random(encoding, Layout::kRows, 9, k, scale).m);
        }
      }
    }
  }
}

TEST(PackMatrix, Int4OfEveryLayout) {
  for (const Layout layout : {Layout::kAwq, Layout::kGptq, Layout::kPacked}) {
    for (const bool zeros : {false, true}) {
      for (const bool act_order : {false, true}) {
        if (act_order && layout == Layout::kAwq) continue;
        for (const int group : {32, 128}) {
          const Encoding encoding = Encoding::Int4(group, zeros, act_order);
          const Stored a = Random(encoding, layout, 40, 384, DType::kF16), b = Random(encoding, layout, 8, 384);
          ExpectPacked(encoding, a.m, act_order ? a.m : b.m);
        }
      }
    }
  }
}

TEST(PackMatrix, TransposedAndPlainRows) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Layout layout : {Layout::kRows, Layout::kColumns}) {
      Stored a = Random(type, layout, 37, 21), b = Random(type, Layout::kRows, 3, 21);
      // No NaN: it is not equal to itself.
      for (Stored* s : {&a, &b}) {
        const size_t bytes = static_cast<size_t>(Info(type).block_bytes);
        for (size_t i = bytes - 1; i < s->values.size(); i += bytes) s->values[i] &= std::byte{0x3f};
      }
      ExpectPacked(type, a.m, b.m);
    }
  }
}

TEST(PackMatrix, Fp4AsBlocks) {
  if (!HasPanels(DType::kMxfp4)) GTEST_SKIP() << "no panels of mxfp4";
  const Stored a = Random(DType::kMxfp4, Layout::kFp4, 40, 96);
  ExpectPacked(DType::kMxfp4, a.m, Random(DType::kMxfp4, Layout::kFp4, 5, 96).m);
}

TEST(PackMatrix, RefusesGroupsOfOtherSizesAndScalesBeyondF16) {
  Stored a = Random(Encoding::Int4(32, false, true), Layout::kGptq, 8, 64);
  const int32_t first = 1;
  for (size_t i = 0; i < 64; ++i) std::memcpy(a.group_of.data() + 4 * i, &first, 4);
  EXPECT_THAT(std::string(Message(ActOrder(a.m).status())), HasSubstr("groups are not all of 32 elements"));

  const Encoding encoding = Encoding::Int4(32, false);
  const Stored b = Random(encoding, Layout::kGptq, 8, 64);
  const float odd = 1.0001f;
  std::vector<std::byte> scales = b.scales;
  std::memcpy(scales.data(), &odd, 4);
  StoredMatrix m = b.m;
  m.scales = scales.data();
  std::vector<StoredRow> rows(32);
  rows[0] = {&m, 0};
  std::vector<std::byte> packed(static_cast<size_t>(PanelBytes(encoding, 64)));
  EXPECT_THAT(std::string(Message(PackMatrix(encoding, 64, rows, {}, 0, 1, packed.data()))),
              HasSubstr("a scale of int4 weights is 1.0001"));
}

}  // namespace
}  // namespace xjit
