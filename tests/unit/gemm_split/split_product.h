// A few rows' product that is cut over depth, with its operands, each against a guard page, and the kernels of one row
// of kernels.inc: of a part, and where asked for of the whole product.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/amx/tiles.h"
#include "codegen/cpu.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/gemm/split.h"
#include "codegen/kernel_rows.h"
#include "codegen/kernels.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/align.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"
#include "ir/support/target.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

class SplitProduct {
 public:
  SplitProduct(const Encoding& w, DType a, int rows, int64_t n, int64_t k, int64_t parts, Epilogue epilogue)
      : parts_(parts) {
    desc_ = {.n = n, .k = k, .a = a, .w = w, .rows = rows};
    desc_.epilogue = epilogue;
    // Rows are further apart than they are long.
    desc_.lda_bytes = AlignUp(ActivationRowBytes(a, k), 64) + 64;
    desc_.ldc_bytes = 4 * n + 32;
    std::mt19937 random(static_cast<uint32_t>(rows * 131 + k));
    std::normal_distribution<float> normal;
    x_.resize(static_cast<size_t>(rows * k));
    for (float& v : x_) v = normal(random);
    a_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(rows * desc_.lda_bytes - 64), 0xff);
    Prepare();
    w_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(desc_.panels() * PanelBytes(w, k)));
    RandomPanels(w, n, k, 7, w_->as<std::byte>());
    c_bytes_ = static_cast<size_t>((rows - 1) * desc_.ldc_bytes + 4 * n);
    residual_ = std::make_unique<GuardedBuffer>(c_bytes_);
    bias_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(4 * n));
    for (size_t i = 0; i < c_bytes_ / 4; ++i) residual_->as<float>()[i] = normal(random);
    for (int64_t i = 0; i < n; ++i) bias_->as<float>()[i] = normal(random);
    sums_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(SplitSumBytes(desc_, parts)), 0xff);
    ended_.resize(static_cast<size_t>(desc_.panels()));
  }

  // Value k of a row of A before it is converted.
  void SetA(int64_t row, int64_t k, float value) {
    x_[static_cast<size_t>(row * desc_.k + k)] = value;
    Prepare();
  }

  // FailedPrecondition where the host can neither run nor emulate the row.
  static absl::Status Runs(const TypedRow<GemmDesc>& row) {
    XJIT_RETURN_IF_ERROR(PrepareIsa(row.isa));
    ConfigureTiles();
    return absl::OkStatus();
  }
  absl::Status Compile(const TypedRow<GemmDesc>& row, bool whole = false) {
    TargetInfo target = HostCpu(row.isa);
    library_ = std::make_unique<KernelLibrary>(target);
    XJIT_RETURN_IF_ERROR(CheckParts(desc_, parts_));
    XJIT_ASSIGN_OR_RETURN(part_, library_->Get(PartOf(desc_, parts_), row.name));
    if (whole) {
      XJIT_ASSIGN_OR_RETURN(whole_, library_->Get(desc_, row.name));
    }
    return library_->Seal();
  }

  std::unique_ptr<GuardedBuffer> NewScratch() const {
    const int64_t bytes = std::max(part_->scratch_bytes, whole_ == nullptr ? 0 : whole_->scratch_bytes);
    return std::make_unique<GuardedBuffer>(static_cast<size_t>(AlignUp(bytes, 64)), 0xff);
  }
  // C starts as a pattern: what nobody writes stays.
  std::unique_ptr<GuardedBuffer> NewC() const { return std::make_unique<GuardedBuffer>(c_bytes_, 0x5a); }
  GemmArgs Args(GuardedBuffer& c, GuardedBuffer& scratch) {
    return {.a = a_->data(),
            .w = w_->data(),
            .c = c.as<float>(),
            .residual = desc_.epilogue.residual ? residual_->as<float>() : nullptr,
            .bias = desc_.epilogue.bias ? bias_->as<float>() : nullptr,
            .scratch = scratch.data()};
  }
  SplitGemmArgs Split(const GemmArgs& args) {
    return SplitArgs(desc_, parts_, args, part_->fn, sums_->as<std::byte>(), ended_.data());
  }

  int64_t units() const { return desc_.panels() * parts_; }
  // Units in that order.
  std::unique_ptr<GuardedBuffer> Run(const std::vector<int64_t>& order) {
    auto c = NewC(), scratch = NewScratch();
    const SplitGemmArgs args = Split(Args(*c, *scratch));
    for (int64_t unit : order) SplitGemmKernel(&args, unit, unit + 1, 0, desc_.rows);
    EXPECT_TRUE(CountersAreZero());
    return c;
  }
  std::vector<int64_t> InOrder() const {
    std::vector<int64_t> order;
    for (int64_t u = 0; u < units(); ++u) order.push_back(u);
    return order;
  }
  bool CountersAreZero() const {
    return std::all_of(ended_.begin(), ended_.end(), [](const EndedParts& e) { return e.count == 0; });
  }

  // The whole product's kernel.
  std::unique_ptr<GuardedBuffer> Unsplit() {
    auto c = NewC(), scratch = NewScratch();
    const GemmArgs args = Args(*c, *scratch);
    whole_->fn(&args, 0, desc_.panels(), 0, desc_.rows);
    return c;
  }
  std::unique_ptr<GuardedBuffer> Reference() {
    auto c = NewC(), scratch = NewC();
    GemmRef(desc_, Args(*c, *scratch), 0, desc_.panels(), 0, desc_.rows);
    return c;
  }

  // What the sums of a float product are: those of its parts, as the part's kernel has them, in order, then the
  // epilogue.
  std::unique_ptr<GuardedBuffer> PartByPart() {
    auto c = NewC(), scratch = NewScratch();
    std::vector<float> part(static_cast<size_t>(desc_.rows) * kPanelColumns);
    for (int64_t p = 0; p < desc_.panels(); ++p) {
      std::vector<float> sum(part.size());
      for (int64_t i = 0; i < parts_; ++i) {
        const int64_t k = desc_.k / parts_, k0 = i * k;
        GemmArgs args = Args(*c, *scratch);
        const bool q8 = desc_.a == DType::kQ8Act;
        if (!q8) args.a = a_->data() + ActivationValueBytes(desc_.a, k0);
        args.k0 = q8 ? k0 : 0;
        args.w = w_->data() + p * PanelBytes(desc_.w, desc_.k) + i * PanelBytes(desc_.w, k);
        args.c = part.data();
        part_->fn(&args, 0, 1, 0, desc_.rows);
        for (size_t s = 0; s < sum.size(); ++s) sum[s] = i == 0 ? part[s] : sum[s] + part[s];
      }
      for (int64_t m = 0; m < desc_.rows; ++m) {
        for (int64_t j = 0; j < kPanelColumns; ++j) {
          const int64_t at = m * desc_.ldc_bytes / 4 + p * kPanelColumns + j;
          float v = sum[static_cast<size_t>(m * kPanelColumns + j)];
          if (desc_.epilogue.bias) v += bias_->as<float>()[p * kPanelColumns + j];
          if (desc_.epilogue.residual) v += residual_->as<float>()[at];
          c->as<float>()[at] = v;
        }
      }
    }
    return c;
  }

  // Of |C - Reference()|: k + parts roundings of at most eps = 2^-24 of the sum of magnitudes (Higham, Accuracy and
  // Stability, 3.1), twice as many by vdpbf16ps and with a scale and a minimum of each 32 k; as many again, since the
  // reference may round too. 1.05: activations are rounded before they are multiplied.
  std::vector<float> Bounds() {
    std::vector<float> bounds;
    std::vector<float> column(static_cast<size_t>(desc_.k));
    for (int64_t m = 0; m < desc_.rows; ++m) {
      for (int64_t n = 0; n < desc_.n; ++n) {
        UnpackColumn(desc_.w, desc_.k, w_->as<std::byte>(), n, column.data());
        double sum = 8;  // bias and residual
        for (int64_t i = 0; i < desc_.k; ++i) {
          sum += 1.05 * std::fabs(double{x_[static_cast<size_t>(m * desc_.k + i)]} * column[static_cast<size_t>(i)]);
        }
        bounds.push_back(static_cast<float>(0x1p-24 * 4 * static_cast<double>(desc_.k + parts_) * sum));
      }
    }
    return bounds;
  }
  // "" or the first difference that is more than the bound.
  std::string FarFrom(GuardedBuffer& got, GuardedBuffer& want) {
    const std::vector<float> bounds = Bounds();
    for (int64_t m = 0; m < desc_.rows; ++m) {
      for (int64_t n = 0; n < desc_.n; ++n) {
        const float g = At(got, m, n), e = At(want, m, n), bound = bounds[static_cast<size_t>(m * desc_.n + n)];
        if (!(std::fabs(g - e) <= bound)) return fmt::format("row {} column {}: {} (want {} +- {})", m, n, g, e, bound);
      }
    }
    return "";
  }
  // Bit by bit, with what lies between rows.
  std::string Differs(GuardedBuffer& got, GuardedBuffer& want) {
    for (size_t i = 0; i < c_bytes_ / 4; ++i) {
      if (got.as<uint32_t>()[i] == want.as<uint32_t>()[i]) continue;
      return fmt::format("float {} of rows of {} bytes: {} (want {})", i, desc_.ldc_bytes, got.as<float>()[i],
                         want.as<float>()[i]);
    }
    return "";
  }
  float At(GuardedBuffer& c, int64_t m, int64_t n) const { return c.as<float>()[m * desc_.ldc_bytes / 4 + n]; }

  const GemmDesc& desc() const { return desc_; }
  int64_t parts() const { return parts_; }

 private:
  void Prepare() {
    const PrepareDesc prepare{
        .cols = desc_.k, .out = desc_.a, .ldx_bytes = 4 * desc_.k, .ldo_bytes = desc_.lda_bytes, .strips = false};
    PrepareRef(prepare, {.x = x_.data(), .out = a_->data()}, 0, desc_.rows);
  }

  GemmDesc desc_;
  const int64_t parts_;
  std::vector<float> x_;
  std::unique_ptr<GuardedBuffer> a_, w_, residual_, bias_, sums_;
  std::vector<EndedParts> ended_;
  size_t c_bytes_ = 0;
  std::unique_ptr<KernelLibrary> library_;
  const Kernel *part_ = nullptr, *whole_ = nullptr;
};

}  // namespace xjit::testing
