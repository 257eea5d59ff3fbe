// What has no kernel is refused by name, with the way out, and nothing is passed over in silence.
#include "passes/lower_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "passes/lower_moe.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using testing::Parse;

// The refusal of the first op of `body` that is refused; empty: all can be lowered.
std::string Refusal(std::string_view body) {
  const auto module = Parse(fmt::format(R"(module @m {{
  func @f(%x: tensor<T x 64 x f32>, %k: tensor<T x 32 x f32>, %v: tensor<T x 16 x f32>, %rope: tensor<T x 32 x f32>,
          %half: tensor<T x 16 x f32>, %l: tensor<T x 4 x f32>, %order: tensor<T x 2 x i32>, %step: !step) -> tensor<T x 64 x f32> {{
    {}
    return %x
  }}
}})",
                                        body));
  if (module == nullptr) return "does not parse";
  for (const auto& op : module->functions[0]->ops) {
    if (const absl::Status status = CheckLowerable(*op); !status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      return std::string(Message(status));
    }
  }
  return "";
}

TEST(LowerCheck, DepthInParts) {
  const auto status = [](std::string_view op) {
    const auto module = Parse(fmt::format(R"(module @m {{
  func @f(%x: tensor<T x 64 x f32>, %e: tensor<T x 2 x i32>) -> tensor<T x 64 x f32> {{
    {}
    return %x
  }}
}})",
                                          op));
    return module == nullptr ? "does not parse" : CheckLowerable(*module->functions[0]->ops[0]).ToString();
  };
  EXPECT_EQ(status("%y = gemm %x, @w<64 x 64 x f32> {parts = 2}"), "OK");
  // What is no cut at all is the verifier's (tests/lit/ir/errors/parts.xir).
  EXPECT_EQ(status("%y = gemm %x, @w<64 x 64 x f32> {parts = 4}"),
            "INVALID_ARGUMENT: gemm: 4 parts of 64 are no whole blocks of 32");
  EXPECT_EQ(status("%y = gemm %x, @a|b<32|32 x 64 x f32> {epilogue = [silu_mul], parts = 2}"),
            "UNIMPLEMENTED: gemm: products with silu_mul are not cut over depth");
}

TEST(LowerCheck, WhatHasKernelsPasses) {
  EXPECT_EQ(Refusal("%n = rms_norm %x, @g<64 x f32>"), "");
  EXPECT_EQ(Refusal("%y = gemm %x, @a|b<32|32 x 64 x f32> {epilogue = [bias(@ab|bb<32|32 x f32>), silu_mul, "
                    "residual(%k)]}"),
            "");
  EXPECT_EQ(Refusal("%p = prepare %x {out = \"bf16\", private = true, prologue = [rms_norm(@g<64 x f32>, 1e-06)]}"),
            "");
  EXPECT_EQ(Refusal("%q = rope_store %x, %k, %k, %rope, %step {heads = 2, kv_heads = 1, scale = 0.25, kv = \"bf16\"}\n"
                    "%a = flash_attention %q, %step {heads = 2, kv_heads = 1, window = 4, kv = \"bf16\", form = "
                    "\"decode\", soft_cap = 0, v_dim = 0}"),
            "");
}

TEST(LowerCheck, WhatHasNoneIsNamed) {
  const std::string end = " has no kernel yet (--backend interp runs it)";
  const auto flash = [](std::string_view sinks, std::string_view attrs) {
    return Refusal(fmt::format("%a = flash_attention %x, %step{} {{heads = 2, kv_heads = 1{}}}", sinks, attrs));
  };
  EXPECT_EQ(flash("", ", soft_cap = 30.0"), "flash_attention: attribute 'soft_cap'" + end);
  EXPECT_EQ(flash("", ", v_dim = 16"), "flash_attention: attribute 'v_dim'" + end);
  EXPECT_EQ(flash("", ", groups = [2]"), "flash_attention: attribute 'groups'" + end);
  EXPECT_EQ(flash("", ", latent = true"), "flash_attention: attribute 'latent'" + end);
  EXPECT_EQ(flash(", @s<2 x f32>", ""), "flash_attention: operand 'sinks'" + end);
  for (const char* kv : {"i8", "f8e4m3", "q4_0"}) {
    const std::string cache = fmt::format("a KV cache in {}", kv) + end;
    EXPECT_EQ(flash("", fmt::format(", kv = \"{}\"", kv)), "flash_attention: " + cache);
    EXPECT_EQ(Refusal(fmt::format("%q = rope_store %x, %k, %k, %rope, %step {{heads = 2, kv_heads = 1, scale = 0.25, "
                                  "kv = \"{}\"}}",
                                  kv)),
              "rope_store: " + cache);
  }
  const auto store = [](std::string_view v, std::string_view table, std::string_view gains, std::string_view eps) {
    return Refusal(fmt::format("%q = rope_store %x, %k, %{}, %{}, %step{} {{heads = 2, kv_heads = 1, scale = 0.25{}}}",
                               v, table, gains, eps));
  };
  EXPECT_EQ(store("k", "rope", ", @qg<32 x f32>, @kg<32 x f32>", ", eps = 1e-06"), "");
  EXPECT_EQ(store("k", "half", "", ""), "rope_store: a rotation of 16 of a head's 32 values" + end);
  EXPECT_EQ(store("v", "rope", "", ""), "rope_store: a head of 16 values in v and 32 in k" + end);
  EXPECT_EQ(Refusal("%y = gemm %x, @a|b<32|32 x 64 x f32> {epilogue = [gelu_mul]}"),
            "gemm: epilogue item 'gelu_mul'" + end);
  EXPECT_EQ(Refusal("%y = gemm %x, @a<32 x 64 x f32> {epilogue = [soft_cap(30.0)]}"),
            "gemm: epilogue item 'soft_cap'" + end);
  EXPECT_EQ(Refusal("%y = gemm %x, @a<32 x 64 x f32> {prologue = [rms_norm(@g<64 x f32>, 1e-06)]}"),
            "gemm: prologue item 'rms_norm'" + end);
  EXPECT_EQ(Refusal("%y = gemm %x, @a<32 x 64 x bf16> {layout = \"panels.32\"}"), "");
  EXPECT_EQ(Refusal("%y = gemm %x, @a<32 x 64 x bf16> {layout = \"vnni2.16x32\"}"), "gemm: layout 'vnni2.16x32'" + end);
  // Columns sorted by group meet a product whose weight was sorted alike.
  const auto sorted = [](std::string_view order, std::string_view weight) {
    return Refusal(fmt::format("%p = prepare %x {{out = \"f32\"{}}}\n%y = gemm %p, @{}", order, weight));
  };
  EXPECT_EQ(sorted(", order_of = \"a\"", "a<32 x 64 x i4<group 32, act_order>>"), "");
  EXPECT_EQ(sorted("", "a<32 x 64 x i4<group 32, act_order>>"),
            "gemm: a row in another order than the columns of @a" + end);
  EXPECT_EQ(sorted(", order_of = \"b\"", "a<32 x 64 x i4<group 32, act_order>>"),
            "gemm: @a with columns in the order of @b" + end);
  EXPECT_EQ(sorted(", order_of = \"b\"", "a<32 x 64 x i4<group 32>>"),
            "gemm: @a with columns in the order of @b" + end);
  EXPECT_EQ(Refusal("%n = rms_norm %x, @g<32 x f32>"), "rms_norm: a norm of groups of 32 columns" + end);
  EXPECT_EQ(Refusal("%p = prepare %x {out = \"f32\", prologue = [rms_norm(@g<32 x f32>, 1e-06)]}"),
            "prepare: a norm of groups of 32 columns" + end);
  EXPECT_EQ(Refusal("%p = prepare %x {out = \"bf16\", slots = 2}"), "prepare: attribute 'slots'" + end);
  EXPECT_EQ(Refusal("%h = gelu %x"),
            "gelu has no kernel: it is not implemented, or the pass that rewrites it did not fire (--backend interp "
            "runs it)");
}

// Of experts there are two products: gate and up multiplied, and what they leave combined.
TEST(LowerCheck, Experts) {
  const std::string end = " has no kernel yet (--backend interp runs it)";
  const auto experts = [](std::string_view up, std::string_view down) {
    return Refusal(
        fmt::format("%e, %w = route %l, @bias<4 x f32> {{score = \"sigmoid\", top_k = 2}}\n"
                    "%o, %s = moe_sort %e {{experts = 4}}\n"
                    "%f = grouped_gemm %x, %e, @g|u<4 x 32|32 x 64 x bf16>{}\n"
                    "%y = grouped_gemm %f, %e, @d<4 x 64 x 32 x bf16>{}",
                    up, down));
  };
  const std::string up = ", %o, %s {epilogue = [silu_mul]}", down = ", %o, %s {epilogue = [combine(%w), residual(%x)]}";
  EXPECT_EQ(experts(up, down), "");
  EXPECT_EQ(experts(" {epilogue = [silu_mul]}", down), "grouped_gemm: a product whose rows are not sorted" + end);
  EXPECT_EQ(experts(", %e, %s {epilogue = [silu_mul]}", down),
            "grouped_gemm: an order that moe_sort did not make" + end);
  EXPECT_EQ(experts(", %order, %s {epilogue = [silu_mul]}", down),
            "grouped_gemm: an order that moe_sort did not make" + end);
  EXPECT_EQ(experts(", %o, %s {epilogue = [gelu_mul]}", down), "grouped_gemm: epilogue item 'gelu_mul'" + end);
  EXPECT_EQ(experts(up, ", %o, %s"),
            "grouped_gemm: a product that is neither of gate and up with silu_mul nor combined" + end);
  EXPECT_EQ(experts(up, ", %o, %s {epilogue = [combine(%w)], first = 2}"),
            "grouped_gemm: a combined product of another share of the experts" + end);
}

// What one op cannot show: who else reads.
TEST(LowerCheck, ExpertsOfAFunction) {
  const auto products = [](std::string_view more, std::string_view e = "e", std::string_view s = "s") {
    const auto module = Parse(fmt::format(R"(module @m {{
  func @f(%x: tensor<T x 64 x f32>, %l: tensor<T x 4 x f32>) -> tensor<T x 64 x f32> {{
    %e, %w = route %l {{top_k = 2}}
    %o, %s = moe_sort %e {{experts = 4}}
    %e2, %w2 = route %l {{top_k = 2, score = "sigmoid"}}
    %o2, %s2 = moe_sort %e2 {{experts = 4}}
    %f = grouped_gemm %x, %{1}, @g|u<4 x 32|32 x 64 x bf16>, %o, %{2} {{epilogue = [silu_mul]}}
    %y = grouped_gemm %f, %{1}, @d<4 x 64 x 32 x bf16>, %o, %{2} {{epilogue = [combine(%w)]}}
    {0}
    return %y
  }}
}})",
                                          more, e, s));
    EXPECT_NE(module, nullptr);
    if (module == nullptr) return std::string("does not parse");
    const Function& f = *module->functions[0];
    const auto found = ProductsOf(f, *f.ops[1]);
    if (!found.ok()) return std::string(Message(found.status()));
    const MoeDesc desc = DescOf(*found, 7);
    return fmt::format("{} of {}, {} rows, {} {} {} {}", desc.slots, desc.experts, desc.rows, desc.hidden,
                       desc.intermediate, Name(desc.x), ToString(desc.down));
  };
  const std::string end = " has no kernel yet (--backend interp runs it)";
  EXPECT_EQ(products(""), "2 of 4, 7 rows, 64 32 f32 bf16");
  EXPECT_EQ(products("%h = silu %f"), "grouped_gemm: a second user of the experts' intermediate" + end);
  EXPECT_EQ(products("%h = grouped_gemm %x, %e, @h|v<4 x 32|32 x 64 x bf16>, %o, %s {epilogue = [silu_mul]}"),
            "grouped_gemm: a second pair of products of the same experts" + end);
  EXPECT_EQ(products("", "e2"), "grouped_gemm: a product of other experts than sorted" + end);
  EXPECT_EQ(products("", "e", "s2"), "grouped_gemm: runs of another sort than the order" + end);
}

}  // namespace
}  // namespace xjit
