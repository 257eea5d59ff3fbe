// Lowering does what the planned text says, or refuses it by name.
#include "passes/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "passes/pass.h"
#include "tests/unit/ir/ir_testing.h"

namespace xjit {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Parse;

constexpr std::string_view kModel = R"(module @m {
  func @step(%ids: tensor<T x i32>, %step: !step) -> tensor<L x 64 x f32> {
    %x = embed %ids, @embed<96 x 64 x f32>
    %last = select_rows %x, %step
    %y = linear %last, @w<64 x 64 x f32>
    return %y
  }
})";

class Zeros : public PackedWeights {
 public:
  absl::StatusOr<const std::byte*> Matrix(int64_t, const Weight&) const override { return bytes_.data(); }
  absl::StatusOr<const float*> Vector(int64_t, const Weight&) const override { return Internal("no vectors here"); }
  absl::StatusOr<const int32_t*> Order(int64_t, const Weight&) const override { return Internal("no orders here"); }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(64 << 10);
};

class Heap : public WorkMemory {
 public:
  absl::StatusOr<std::byte*> Get(Use, int, int64_t bytes) override {
    return blocks_.emplace_back(static_cast<size_t>(bytes) + 64).data();
  }

 private:
  std::deque<std::vector<std::byte>> blocks_;
};

// The names of the kernels of a model whose gemm has that kernel, layout and parts, or what Lower says.
std::string Lowered(std::string_view kernel, std::string_view layout, Isa isa = Isa::kAvx512, int64_t parts = 1,
                    int64_t rows = 1) {
  const auto module = Parse(kModel);
  if (module == nullptr) return "does not parse";
  PassContext passes;
  passes.target.isa = isa;
  passes.rows = passes.logit_rows = rows;
  const absl::Status planned = RunPipeline(*module, PassStage::kGraph, PassStage::kPlanned, passes);
  if (!planned.ok()) return planned.ToString();
  for (const auto& op : module->functions[0]->ops) {
    if (op->code != OpCode::kGemm) continue;
    if (!kernel.empty()) op->attrs["kernel"] = std::string(kernel);
    if (!layout.empty()) op->attrs["layout"] = std::string(layout);
    if (parts != 1) op->attrs["parts"] = parts;
  }
  const Zeros weights;
  Heap memory;
  KernelLibrary kernels(passes.target);
  const StepView view;
  LoweringContext context;
  context.weights = &weights;
  context.memory = &memory;
  context.kernels = &kernels;
  context.step = [&view](int) { return &view; };
  const auto program = Lower(*module, context);
  if (!program.ok()) return std::string(Message(program.status()));
  std::string names;
  for (const Kernel* k : kernels.kernels()) names += k->name + " ";
  return names;
}

TEST(Lower, TakesTheKernelThatThePlanNames) {
  EXPECT_THAT(Lowered("", ""), HasSubstr("gemm.avx512.f32_f32_f32"));
  EXPECT_THAT(Lowered("avx2", ""), HasSubstr("gemm.avx2.f32_f32_f32"));
}

TEST(Lower, CutsDepthAsThePlanSays) {
  EXPECT_THAT(Lowered("", "", Isa::kAvx512, 2), HasSubstr("gemm_split.gemm.avx512.f32_f32_f32.m1n32k32 "));
  EXPECT_THAT(Lowered("", ""), Not(HasSubstr("gemm_split")));
  EXPECT_THAT(Lowered("", "", Isa::kAvx512, 5), HasSubstr("gemm: a depth of 64 cannot be cut into 5 parts"));
  EXPECT_THAT(Lowered("", "", Isa::kAvx512, 2, 9), HasSubstr("gemm: only products of 1 to 8 rows are cut over depth"));
}

TEST(Lower, RefusesWhatDoesNotExist) {
  EXPECT_THAT(Lowered("amx_fp8", ""), AllOf(HasSubstr("no kernel amx_fp8"), HasSubstr("avx512_bf16")));
  EXPECT_THAT(Lowered("avx512", "", Isa::kAvx2), HasSubstr("kernel avx512 needs avx512, the target has avx2"));
  // A kernel that takes other activations.
  EXPECT_THAT(Lowered("avx512_vnni", "", Isa::kAvx512Vnni), HasSubstr("activations are f32, not q8act"));
  EXPECT_THAT(Lowered("", "vnni2.16x32"), HasSubstr("layout 'vnni2.16x32' has no kernel yet"));
}

}  // namespace
}  // namespace xjit
