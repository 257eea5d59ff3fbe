// Which ops have kernels: what the lowering would have to refuse or, worse, would get wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "passes/lower.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;

// "" or what is missing in a function that computes %y by these ops.
std::string Missing(std::string_view ops, std::string_view result = "tensor<T x 64 x f32>") {
  const auto module = Parse(fmt::format(R"(module @m {{
  func @f(%x: tensor<T x 64 x f32>, %k: tensor<T x 32 x f32>, %v: tensor<T x 64 x f32>, %rope: tensor<T x 16 x f32>, %part: tensor<T x 8 x f32>, %step: !step) -> {} {{
    {}
    return %y
  }}
}}
)",
                                        result, ops));
  if (module == nullptr) return "does not parse";
  return std::string(Message(CheckHasKernels(*module)));
}

TEST(CheckHasKernels, Gemm) {
  EXPECT_EQ(Missing("%y = gemm %x, @w<64 x 64 x bf16> {prologue = [rms_norm(@g<64 x f32>, 1e-05)], "
                    "epilogue = [bias(@b<64 x f32>), residual(%x)]}"),
            "");
  EXPECT_EQ(Missing("%y = gemm %x, @gate|up<64|64 x 64 x bf16> {epilogue = [silu_mul]}"), "");
  EXPECT_EQ(Missing("%y = gemm %x, @gate|up<64|64 x 64 x bf16> {epilogue = [gelu_mul]}"),
            "@f: gemm with gelu_mul has no kernel yet");
  EXPECT_EQ(Missing("%y = gemm %x, @w<64 x 64 x bf16> {epilogue = [soft_cap(30.0)]}"),
            "@f: gemm with soft_cap has no kernel yet");
  EXPECT_EQ(Missing("%y = gemm %x, @w<64 x 64 x bf16> {prologue = [rms_norm(@g<16 x f32>, 1e-05)]}"),
            "@f: gemm with a norm of groups has no kernel yet");
  EXPECT_EQ(Missing("%y = linear %x, @w<64 x 64 x bf16>"), "@f: linear has no kernel yet");
}

TEST(CheckHasKernels, Rows) {
  EXPECT_EQ(Missing("%y = rms_norm %x, @g<64 x f32>"), "");
  EXPECT_EQ(Missing("%y = rms_norm %x, @g<16 x f32>"), "@f: rms_norm with groups has no kernel yet");
  EXPECT_EQ(Missing("%s = silu %x\n %m = mul %s, %x\n %y = add %m, %x"), "");
  EXPECT_EQ(Missing("%y = gelu %x"), "@f: gelu has no kernel yet");
  EXPECT_EQ(Missing("%y = scale %x {by = 8.0}"), "@f: scale has no kernel yet");
}

TEST(CheckHasKernels, RopeStore) {
  EXPECT_EQ(Missing("%y = rope_store %x, %k, %k, %rope, %step {heads = 4, kv_heads = 2, scale = 0.25}"), "");
  EXPECT_EQ(Missing("%y = rope_store %x, %k, %k, %rope, %step, @qg<16 x f32>, @kg<16 x f32> {heads = 4, kv_heads = 2, "
                    "scale = 0.25, eps = 1e-06}"),
            "@f: rope_store with norms of q and k has no kernel yet");
  EXPECT_EQ(Missing("%y = rope_store %x, %k, %k, %part, %step {heads = 4, kv_heads = 2, scale = 0.25}"),
            "@f: rope_store with heads rotated in part has no kernel yet");
  EXPECT_EQ(Missing("%y = rope_store %x, %k, %v, %rope, %step {heads = 4, kv_heads = 2, scale = 0.25}"),
            "@f: rope_store with values of another size has no kernel yet");
}

TEST(CheckHasKernels, FlashAttention) {
  EXPECT_EQ(Missing("%y = flash_attention %x, %step {heads = 4, kv_heads = 2, window = 16, kv = \"bf16\"}"), "");
  EXPECT_EQ(Missing("%y = flash_attention %x, %step, @sinks<4 x f32> {heads = 4, kv_heads = 2}"),
            "@f: flash_attention with sinks has no kernel yet");
  EXPECT_EQ(Missing("%y = flash_attention %x, %step {heads = 4, kv_heads = 2, soft_cap = 50.0}"),
            "@f: flash_attention with a soft cap has no kernel yet");
  EXPECT_EQ(Missing("%y = flash_attention %x, %step {heads = 4, kv_heads = 2, v_dim = 8}", "tensor<T x 32 x f32>"),
            "@f: flash_attention with values of another size has no kernel yet");
  EXPECT_EQ(Missing("%y = flash_attention %x, %step {heads = 4, kv_heads = 2, groups = [1, 3]}"),
            "@f: flash_attention with uneven groups has no kernel yet");
}

}  // namespace
}  // namespace xjit
