// Spelling of types and element types.
#include "ir/type.h"

#include <gtest/gtest.h>

#include <set>

namespace xjit {
namespace {

TEST(Type, Prints) {
  EXPECT_EQ(ToString(Type::Rows(Dim::Symbol('T'), 576)), "tensor<T x 576 x f32>");
  EXPECT_EQ(ToString(Type::Rows(Dim::Symbol('L'), 32, DType::kQ8Act)), "tensor<L x 32 x q8act>");
  EXPECT_EQ(ToString(Type::Tensor({{2, 0}, {3, 0}, {4, 0}}, DType::kQ4_K)), "tensor<2 x 3 x 4 x q4_k>");
  EXPECT_EQ(ToString(Type::Tensor({}, DType::kBF16)), "tensor<bf16>");
  EXPECT_EQ(ToString(Type::Step()), "!step");
  EXPECT_EQ(ToString(Type()), "none");
  EXPECT_EQ(DimsToString(Type::Tensor({Dim::Symbol('T')}, DType::kI32)), "T x i32");
}

TEST(Type, ComparesShapeAndElement) {
  const Type rows = Type::Rows(Dim::Symbol('T'), 8);
  EXPECT_EQ(rows, Type::Tensor({Dim::Symbol('T'), {8, 0}}, DType::kF32));
  EXPECT_NE(rows, Type::Rows(Dim::Symbol('L'), 8));
  EXPECT_NE(rows, Type::Rows(Dim{8, 0}, 8));
  EXPECT_NE(rows, Type::Rows(Dim::Symbol('T'), 8, DType::kBF16));
  EXPECT_EQ(rows.cols(), 8);
  EXPECT_TRUE(rows.is_matrix());
  EXPECT_EQ(Type::Tensor({}, DType::kF32).cols(), 0);
  EXPECT_FALSE(Type::Step().is_tensor());
}

TEST(DType, NamesAreUniqueAndParse) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(Name(type)).second) << Name(type);
    EXPECT_EQ(ParseDType(Name(type)), type);
    EXPECT_GT(Info(type).block_elems, 0);
    EXPECT_GT(Info(type).block_bytes, 0);
  }
  EXPECT_EQ(ParseDType("f31"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
}

// ggml-common.h, block_*: bytes of a block and the values in it.
TEST(DType, BlocksAreGgmls) {
  EXPECT_EQ(RowBytes(DType::kF32, 64), 256);
  EXPECT_EQ(RowBytes(DType::kF16, 64), 128);
  EXPECT_EQ(RowBytes(DType::kBF16, 64), 128);
  EXPECT_EQ(RowBytes(DType::kQ8_0, 64), 2 * 34);
  EXPECT_EQ(RowBytes(DType::kQ4_0, 64), 2 * 18);
  EXPECT_EQ(RowBytes(DType::kQ4_1, 64), 2 * 20);
  EXPECT_EQ(RowBytes(DType::kQ5_0, 64), 2 * 22);
  EXPECT_EQ(RowBytes(DType::kQ5_1, 64), 2 * 24);
  EXPECT_EQ(RowBytes(DType::kQ4_K, 512), 2 * 144);
  EXPECT_EQ(RowBytes(DType::kQ5_K, 512), 2 * 176);
  EXPECT_EQ(RowBytes(DType::kQ6_K, 512), 2 * 210);
}

}  // namespace
}  // namespace xjit
