#include "tests/unit/amx_gemm/amx_harness.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "codegen/amx/tiles.h"
#include "codegen/cpu.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/act_layout.h"
#include "ir/support/ref/dequant.h"
#include "tests/unit/watched_call.h"

namespace xjit::testing {
namespace {

constexpr uint8_t kPoison = 0xA5;

float RoundToBf16(float x) { return BF16ToF32(ToBf16(x)); }

// The row of kernels.inc for activations of that type.
struct Row {
  absl::StatusOr<GemmPlan> (*plan)(const GemmDesc&, const TargetInfo&);
  absl::Status (*emit)(const GemmDesc&, const GemmPlan&, Emitter&);
};
Row RowFor(DType a) {
  if (a == DType::kI8Act) return {PlanGemmAmxInt8, EmitGemmAmxInt8};
  if (a == DType::kF16) return {PlanGemmAmxFp16, EmitGemmAmxFp16};
  return {PlanGemmAmxBf16, EmitGemmAmxBf16};
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace

std::string PrepareTilesHere() {
  if (const absl::Status status = PrepareIsa(Isa::kAmx); !status.ok()) return std::string(Message(status));
  ConfigureTiles();
  return "";
}

std::vector<Encoding> AmxBf16Weights() {
  using Kind = Scales::Kind;
  std::vector<Encoding> list = {
      DType::kBF16,
      Encoding(DType::kI8, {.kind = Kind::kChannel, .weight_only = true}),
      Encoding(DType::kI8, {.kind = Kind::kTensor, .weight_only = true}),
      Encoding(DType::kI8, {.kind = Kind::kGroup, .cols = 64, .weight_only = true}),
      Encoding::Fp8Blocks(),
      Encoding(DType::kF8E4M3, {.kind = Kind::kGroup, .cols = 320}),
      Encoding(DType::kF8E4M3, {.kind = Kind::kChannel}),
      Encoding(DType::kF8E4M3, {.kind = Kind::kTensor}),
      Encoding::Int4(32, true),
      Encoding::Int4(64, false),
      Encoding::Int4(128, true),
      Encoding::Int4(512, true),
  };
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    if (IsQuantized(type) && HasPanels(type)) list.push_back(type);
  }
  return list;
}

absl::Status BuildAmx(const GemmDesc& desc, const Caches& caches, AmxBuilt* built, bool vbmi) {
  TargetInfo target;
  target.isa = Isa::kAmx;
  target.vbmi = vbmi && HostCpu().vbmi;
  target.amx_fp16 = true;
  target.l1d_bytes = caches.l1d;
  target.l2_bytes = caches.l2;
  const Row row = RowFor(desc.a);
  XJIT_ASSIGN_OR_RETURN(built->plan, row.plan(desc, target));
  Emitter e;
  XJIT_RETURN_IF_ERROR(row.emit(desc, built->plan, e));
  XJIT_ASSIGN_OR_RETURN(built->kernel, e.Finish(GemmName(desc, "amx"), built->arena, built->plan.scratch_bytes));
  return built->arena.Seal();
}

AmxProblem::AmxProblem(const Encoding& w, DType a, Size size, Epilogue epilogue, uint32_t seed)
    : w_type_(w), a_type_(a), size_(size), epilogue_(epilogue) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const int64_t row_bytes = a == DType::kI8Act ? I8Layout{size.k}.row_bytes() : (size.k + 1) / 2 * 4;
  lda_bytes_ = row_bytes + 12;
  ldc_bytes_ = columns() * 4 + 20;
  x_.resize(static_cast<size_t>(size.m * size.k));
  for (float& x : x_) x = uniform(random);
  // Rows of the last strip that are not there are not numbers.
  strips_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(ActivationBytes(Desc(), size.m)), 0xFF);
  rows_ = std::make_unique<GuardedBuffer>(static_cast<size_t>((size.m - 1) * lda_bytes_ + row_bytes), 0xFF);
  Prepare();
  const int64_t panels = size.n / kPanelColumns;
  w_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(panels * PanelBytes(w, size.k)));
  RandomPanels(w, size.n, size.k, seed, w_->as<std::byte>());
  const auto c_bytes = static_cast<size_t>((size.m - 1) * ldc_bytes_ + columns() * 4);
  c_ = std::make_unique<GuardedBuffer>(c_bytes, kPoison);
  residual_ = std::make_unique<GuardedBuffer>(c_bytes);
  for (size_t i = 0; i < c_bytes / 4; ++i) residual_->as<float>()[i] = uniform(random);
  bias_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(size.n) * 4);
  for (int64_t i = 0; i < size.n; ++i) bias_->as<float>()[i] = uniform(random);
}

void AmxProblem::Prepare() {
  for (const bool strips : {true, false}) {
    const PrepareDesc prepare{
        .cols = size_.k, .out = a_type_, .ldx_bytes = 4 * size_.k, .ldo_bytes = lda_bytes_, .strips = strips};
    PrepareRef(prepare, {.x = x_.data(), .out = (strips ? strips_ : rows_)->data()}, 0, size_.m);
  }
}

GemmDesc AmxProblem::Desc(int rows) const {
  return {.n = size_.n,
          .k = size_.k,
          .a = a_type_,
          .w = w_type_,
          .rows = rows,
          .strips = rows == 0,
          .lda_bytes = lda_bytes_,
          .ldc_bytes = ldc_bytes_,
          .epilogue = epilogue_};
}

void AmxProblem::SetA(int64_t row, int64_t k, float value) {
  x_[static_cast<size_t>(row * size_.k + k)] = value;
  Prepare();
}
void AmxProblem::SetRowOfA(int64_t row, float value) {
  for (int64_t k = 0; k < size_.k; ++k) x_[static_cast<size_t>(row * size_.k + k)] = value;
  Prepare();
}

GemmArgs AmxProblem::Args(bool strips, int64_t m0) const {
  return {.a = strips ? strips_->data() : rows_->data() + m0 * lda_bytes_,
          .w = w_->data(),
          .c = reinterpret_cast<float*>(c_->data() + m0 * ldc_bytes_),
          .residual = epilogue_.residual ? reinterpret_cast<float*>(residual_->data() + m0 * ldc_bytes_) : nullptr,
          .bias = epilogue_.bias ? bias_->as<float>() : nullptr,
          .scratch = nullptr};
}

void AmxProblem::Call(const AmxBuilt& built, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  const bool few = built.plan.tile_rows == 16;
  ASSERT_EQ(built.plan.scratch_bytes % 64, 0);
  GuardedBuffer scratch(static_cast<size_t>(built.plan.scratch_bytes), 0xFF);
  GemmArgs args = Args(!few, few ? m0 : 0);
  args.scratch = scratch.data();
  EXPECT_EQ(WatchedCall(built.kernel.fn, &args, n0, n1, few ? 0 : m0, few ? m1 - m0 : m1), "");
}

void AmxProblem::Poison() { std::memset(c_->data(), kPoison, c_->size()); }

std::vector<float> AmxProblem::C() const {
  std::vector<float> c(static_cast<size_t>(size_.m * columns()));
  for (int64_t i = 0; i < size_.m; ++i) {
    std::memcpy(&c[static_cast<size_t>(i * columns())], c_->data() + i * ldc_bytes_,
                4 * static_cast<size_t>(columns()));
  }
  return c;
}

int64_t AmxProblem::Stray(int64_t n0, int64_t n1, int64_t m0, int64_t m1) const {
  const int64_t panel = (epilogue_.silu_mul ? kGroupColumns : kPanelColumns) * 4;
  int64_t stray = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(c_->size()); ++i) {
    const int64_t row = i / ldc_bytes_, byte = i % ldc_bytes_;
    const bool inside = row >= m0 && row < m1 && byte >= n0 * panel && byte < n1 * panel;
    if (!inside && c_->data()[i] != kPoison) ++stray;
  }
  return stray;
}

std::vector<float> AmxProblem::Reference() const {
  std::vector<uint8_t> bytes(c_->size());
  GemmArgs args = Args(true, 0);
  args.c = reinterpret_cast<float*>(bytes.data());
  GemmRef(Desc(), args, 0, size_.n / kPanelColumns, 0, size_.m);
  std::vector<float> c(static_cast<size_t>(size_.m * columns()));
  for (int64_t i = 0; i < size_.m; ++i) {
    std::memcpy(&c[static_cast<size_t>(i * columns())], bytes.data() + i * ldc_bytes_,
                4 * static_cast<size_t>(columns()));
  }
  return c;
}

// Weights of GGUF's encodings are multiplied as bf16. A sum of k products with two roundings a pair is within k eps
// sum|a||w| of the exact one in any order, eps = 2^-24; a scale block adds two roundings, a product by a scale of the
// whole sum one. TDPBF16PS flushes what is below 2^-126, also before a scale of at most 1 is applied. Bias and residual
// round once each. SiLU: math_emit.h, as in gemm_float.
void AmxProblem::Exact(std::vector<double>* want, std::vector<double>* bound) const {
  constexpr double kEps = 0x1p-24;
  const auto k = static_cast<size_t>(size_.k);
  std::vector<float> a(static_cast<size_t>(size_.m) * k);
  if (a_type_ != DType::kI8Act) {
    for (size_t i = 0; i < a.size(); ++i)
      a[i] = a_type_ == DType::kF16 ? F16ToF32(F32ToF16(x_[i])) : RoundToBf16(x_[i]);
  } else {
    const I8Layout layout{size_.k};
    for (int64_t i = 0; i < size_.m; ++i) {
      const uint8_t* row = rows_->data() + i * lda_bytes_;
      float scale;
      std::memcpy(&scale, row + layout.scale_offset(), 4);
      for (size_t j = 0; j < k; ++j)
        a[static_cast<size_t>(i) * k + j] = static_cast<float>(static_cast<int8_t>(row[j])) * scale;
    }
  }
  const int64_t blocks = HasScalesOutside(w_type_.type) ? ScaledBlocksOf(w_type_, size_.k).count(size_.k) : 0;
  const auto n = static_cast<size_t>(size_.n), m = static_cast<size_t>(size_.m);
  std::vector<double> sums(m * n), errors(m * n), sizes(m * n);
  std::vector<float> column(k);
  for (size_t j = 0; j < n; ++j) {
    UnpackColumn(w_type_, size_.k, w_->as<std::byte>(), static_cast<int64_t>(j), column.data());
    if (IsQuantized(w_type_.type)) {
      for (float& w : column) w = RoundToBf16(w);
    }
    const double bias = epilogue_.bias ? bias_->as<float>()[j] : 0;
    for (size_t i = 0; i < m; ++i) {
      double sum = bias, size = std::abs(bias);
      for (size_t s = 0; s < k; ++s) {
        const double product = static_cast<double>(a[i * k + s]) * column[s];
        sum += product;
        size += std::abs(product);
      }
      sums[i * n + j] = sum;
      sizes[i * n + j] = size;
      errors[i * n + j] = static_cast<double>(size_.k + 2 * blocks + 6) * (kEps * size + 0x1p-126);
    }
  }
  const auto width = static_cast<size_t>(columns());
  want->assign(m * width, 0);
  bound->assign(m * width, 0);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < width; ++j) {
      const size_t gate = epilogue_.silu_mul ? i * n + j / 16 * 32 + j % 16 : i * n + j, up = gate + 16;
      double value = sums[gate], error = errors[gate];
      if (epilogue_.silu_mul) {
        value = Silu(sums[gate]) * sums[up];
        error = 1.1 * errors[gate] * (sizes[up] + errors[up]) + sizes[gate] * errors[up] +
                (6e-7 * sizes[gate] + 0x1p-118) * sizes[up];
      }
      if (epilogue_.residual) {
        float residual;
        std::memcpy(&residual, residual_->data() + i * static_cast<size_t>(ldc_bytes_) + 4 * j, 4);
        value += residual;
        error += kEps * (std::abs(value) + 1);
      }
      (*want)[i * width + j] = value;
      (*bound)[i * width + j] = error + 2 * kEps * std::abs(value);
    }
  }
}

void AmxProblem::ExpectRight(const std::string& what) const {
  const std::vector<float> got = C(), reference = Reference();
  if (a_type_ == DType::kI8Act && !epilogue_.silu_mul) {
    ASSERT_EQ(FirstBitDifference(got, reference, columns()), "") << what;
    return;
  }
  std::vector<double> want, bound;
  Exact(&want, &bound);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), bound[i])
        << what << ", row " << i / static_cast<size_t>(columns()) << " column " << i % static_cast<size_t>(columns())
        << ": " << got[i] << " for " << want[i];
    ASSERT_LE(std::abs(reference[i] - want[i]), bound[i]) << what << ", GemmRef";
  }
}

std::string FirstBitDifference(const std::vector<float>& got, const std::vector<float>& want, int64_t columns) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      return fmt::format("row {} column {}: {:.9g} for {:.9g}", i / static_cast<size_t>(columns),
                         i % static_cast<size_t>(columns), got[i], want[i]);
    }
  }
  return "";
}

}  // namespace xjit::testing
