// An int8 product with its operands, each against a guard page, and the kernel of one row of kernels.inc.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/gemm_int8.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/act_layout.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

struct Int8Row {
  const char* name;
  Isa isa;
  bool avx_vnni;
  absl::StatusOr<GemmPlan> (*plan)(const GemmDesc& desc, const TargetInfo& target);
  absl::Status (*emit)(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

  TargetInfo Target() const {
    TargetInfo target;
    target.isa = isa;
    target.avx_vnni = avx_vnni;
    return target;
  }
  bool HostHas() const { return HostIsa() >= isa && (!avx_vnni || HostCpu().avx_vnni); }
};
inline constexpr Int8Row kInt8Rows[] = {
    {"int8_vnni", Isa::kAvx512Vnni, false, &PlanGemmInt8Vnni, &EmitGemmInt8Vnni},
    {"int8_avx512", Isa::kAvx512, false, &PlanGemmInt8Avx512, &EmitGemmInt8Avx512},
    {"int8_avx2", Isa::kAvx2, false, &PlanGemmInt8Avx2, &EmitGemmInt8Avx2},
    {"int8_avx2_vnni", Isa::kAvx2, true, &PlanGemmInt8Avx2, &EmitGemmInt8Avx2},
};

class Int8Product {
 public:
  // `x`: m rows of activations, of any values; empty: random ones. rows = 0: as strips.
  Int8Product(const Int8Row& row, int rows, int64_t m, int64_t n, int64_t k, Epilogue epilogue,
              std::vector<float> x = {})
      : row_(row), m_(m) {
    desc_ = {.n = n, .k = k, .a = DType::kI8Act, .w = Encoding::Int8(), .rows = rows, .strips = rows == 0};
    desc_.epilogue = epilogue;
    const I8Layout layout{k};
    const int64_t columns = epilogue.silu_mul ? n / 2 : n;
    desc_.lda_bytes = rows == 0 ? 0 : layout.row_bytes() + 64;  // further apart than rows are long
    desc_.ldc_bytes = 4 * columns + 32;

    std::mt19937 random(static_cast<uint32_t>(m * 131 + k));
    std::normal_distribution<float> normal;
    x.resize(static_cast<size_t>(m * k));
    if (std::all_of(x.begin(), x.end(), [](float v) { return v == 0 && !std::signbit(v); })) {
      for (float& v : x) v = normal(random);
    }
    // A record is read up to its sum, a strip to its end; what no row of a strip is may hold anything.
    const int64_t a_bytes =
        rows == 0 ? ActivationBytes(desc_, m) : (m - 1) * desc_.lda_bytes + layout.neg_sum_offset() + 4;
    a_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(a_bytes), 0xff);
    const PrepareDesc prepare{
        .cols = k, .out = DType::kI8Act, .ldx_bytes = 4 * k, .ldo_bytes = desc_.lda_bytes, .strips = desc_.strips};
    PrepareRef(prepare, {.x = x.data(), .out = a_->data()}, 0, m);

    w_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(desc_.panels() * PanelBytes(desc_.w, k)));
    RandomPanels(desc_.w, n, k, 7, w_->as<std::byte>());
    c_bytes_ = static_cast<size_t>((m - 1) * desc_.ldc_bytes + 4 * columns);
    residual_ = std::make_unique<GuardedBuffer>(c_bytes_);
    bias_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(4 * n));
    for (size_t i = 0; i < c_bytes_ / 4; ++i) residual_->as<float>()[i] = static_cast<float>(random() % 1000) / 64 - 8;
    for (int64_t i = 0; i < n; ++i) bias_->as<float>()[i] = static_cast<float>(random() % 1000) / 256 - 2;
  }

  // Every weight's code (of int8), and every column's scale.
  void SetWeights(int8_t code, float scale) {
    const std::vector<uint8_t> codes(static_cast<size_t>(desc_.k), static_cast<uint8_t>(code));
    const std::vector<ScaledColumn> panel(kPanelColumns, {codes.data(), &scale, nullptr});
    for (int64_t p = 0; p < desc_.panels(); ++p) {
      ASSERT_TRUE(
          PackScaledPanel(desc_.w, desc_.k, panel, w_->as<std::byte>() + p * PanelBytes(desc_.w, desc_.k)).ok());
    }
  }

  void Compile() { Compile(row_.Target()); }
  void Compile(const TargetInfo& target) {
    const auto plan = row_.plan(desc_, target);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    plan_ = *plan;
    Emitter e;
    const absl::Status emitted = row_.emit(desc_, plan_, e);
    ASSERT_TRUE(emitted.ok()) << emitted.ToString();
    auto kernel = e.Finish(GemmName(desc_, row_.name), arena_, plan_.scratch_bytes);
    ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
    kernel_ = *kernel;
    scratch_ = std::make_unique<GuardedBuffer>(static_cast<size_t>((plan_.scratch_bytes + 63) / 64 * 64), 0xff);
    ASSERT_TRUE(arena_.Seal().ok());
  }

  GemmArgs Args(GuardedBuffer& c) {
    return {.a = a_->data(),
            .w = w_->data(),
            .c = c.as<float>(),
            .residual = desc_.epilogue.residual ? residual_->as<float>() : nullptr,
            .bias = desc_.epilogue.bias ? bias_->as<float>() : nullptr,
            .scratch = scratch_ == nullptr ? nullptr : scratch_->data()};
  }
  // C starts as a pattern: what a kernel leaves alone stays.
  std::unique_ptr<GuardedBuffer> NewC() { return std::make_unique<GuardedBuffer>(c_bytes_, 0x5a); }
  void Call(GuardedBuffer& c, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
    const GemmArgs args = Args(c);
    kernel_.fn(&args, n0, n1, m0, m1);
  }
  std::unique_ptr<GuardedBuffer> Run() {
    auto c = NewC();
    Call(*c, 0, desc_.panels(), 0, m_);
    return c;
  }
  std::unique_ptr<GuardedBuffer> Reference() {
    auto c = NewC();
    GemmRef(desc_, Args(*c), 0, desc_.panels(), 0, m_);
    return c;
  }

  const GemmDesc& desc() const { return desc_; }
  const GemmPlan& plan() const { return plan_; }
  const Kernel& kernel() const { return kernel_; }
  int64_t m() const { return m_; }

 private:
  const Int8Row& row_;
  GemmDesc desc_;
  int64_t m_;
  GemmPlan plan_;
  std::unique_ptr<GuardedBuffer> a_, w_, residual_, bias_, scratch_;
  size_t c_bytes_ = 0;
  CodeArena arena_;
  Kernel kernel_;
};

}  // namespace xjit::testing
