#include "tests/unit/gemm_float/float_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codegen/cpu.h"
#include "codegen/gemm/gemm_bf16.h"
#include "codegen/gemm/gemm_fma.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "ir/support/act_layout.h"
#include "tests/unit/watched_call.h"

namespace xjit::testing {

const FloatRow kFma512 = {"avx512", Isa::kAvx512, DType::kF32, PlanGemmFma512, EmitGemmFma512};
const FloatRow kFma2 = {"avx2", Isa::kAvx2, DType::kF32, PlanGemmFma2, EmitGemmFma2};
const FloatRow kBf16Dot = {"avx512_bf16", Isa::kAvx512Bf16, DType::kBF16, PlanGemmBf16Dot, EmitGemmBf16Dot};

namespace {

constexpr uint8_t kPoison = 0xA5;

int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

uint16_t Bf16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16); }

// f16 bits of a normal number with a magnitude in [2^-9, 2^-5).
uint16_t SmallF16(std::mt19937& random) {
  const uint32_t bits = random();
  return static_cast<uint16_t>((bits & 0x83FF) | ((6 + (bits >> 16) % 4) << 10));
}

// A row in file layout: any bits where any are numbers, moderate factors.
std::vector<std::byte> RandomRow(DType type, int64_t k, std::mt19937& random) {
  std::vector<std::byte> row(static_cast<size_t>(RowBytes(type, k)));
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto put16 = [&](size_t at, uint16_t value) { std::memcpy(&row[at], &value, 2); };
  if (type == DType::kF32) {
    for (int64_t i = 0; i < k; ++i) {
      const float value = uniform(random);
      std::memcpy(&row[static_cast<size_t>(4 * i)], &value, 4);
    }
    return row;
  }
  if (type == DType::kF16 || type == DType::kBF16) {
    for (int64_t i = 0; i < k; ++i) {
      put16(static_cast<size_t>(2 * i), type == DType::kF16 ? SmallF16(random) : Bf16(uniform(random)));
    }
    return row;
  }
  for (auto& byte : row) byte = static_cast<std::byte>(random());
  const auto block = static_cast<size_t>(Info(type).block_bytes);
  for (size_t at = 0; at < row.size(); at += block) {
    switch (type) {
      case DType::kQ6_K:
        put16(at + 208, SmallF16(random));
        break;
      case DType::kQ2_K:
        put16(at + 80, SmallF16(random));
        put16(at + 82, SmallF16(random));
        break;
      case DType::kQ3_K:
        put16(at + 108, SmallF16(random));
        break;
      case DType::kMxfp4:
        row[at] = static_cast<std::byte>(118 + random() % 6);
        break;
      case DType::kQ4_1:
      case DType::kQ5_1:
      case DType::kQ4_K:
      case DType::kQ5_K:
        put16(at + 2, SmallF16(random));
        [[fallthrough]];
      default:
        put16(at, SmallF16(random));
    }
  }
  return row;
}

}  // namespace

bool HostHas(const FloatRow& row) { return HostIsa() >= row.isa; }

std::vector<DType> WeightEncodings() {
  return {DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
          DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K, DType::kQ6_K, DType::kQ2_K,
          DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMxfp4};
}

bool HostHasVbmi() { return (HostFeatures().leaf7_ecx >> 1 & 1) != 0; }

std::vector<Encoding> ScaledEncodings() {
  using Kind = Scales::Kind;
  std::vector<Encoding> list;
  for (const DType type : {DType::kF8E4M3, DType::kI8}) {
    const bool weight_only = type == DType::kI8;
    for (const Scales& s :
         {Scales{.kind = Kind::kTensor}, Scales{.kind = Kind::kChannel},
          Scales{.kind = Kind::kBlock, .rows = 128, .cols = 128}, Scales{.kind = Kind::kGroup, .cols = 64}}) {
      list.emplace_back(type, s);
      list.back().scales.weight_only = weight_only;
    }
  }
  for (const int32_t group : {32, 64, 128}) {
    list.push_back(Encoding::Int4(group, false));
    list.push_back(Encoding::Int4(group, true));
  }
  return list;
}

std::string TestName(const Encoding& w) { return EncodingName(w); }

absl::Status Build(const FloatRow& row, const GemmDesc& desc, Built* built, int64_t l2_bytes, bool vbmi) {
  TargetInfo target;
  target.isa = row.isa;
  target.vbmi = vbmi && HostHasVbmi();
  if (l2_bytes != 0) target.l2_bytes = l2_bytes;
  XJIT_ASSIGN_OR_RETURN(const GemmPlan plan, row.plan(desc, target));
  return BuildWith(row, desc, plan, built);
}

absl::Status BuildWith(const FloatRow& row, const GemmDesc& desc, const GemmPlan& plan, Built* built) {
  Emitter e;
  XJIT_RETURN_IF_ERROR(row.emit(desc, plan, e));
  XJIT_ASSIGN_OR_RETURN(built->kernel, e.Finish(GemmName(desc, row.name), built->arena, plan.scratch_bytes));
  built->plan = plan;
  built->few = desc.rows > 0;
  return built->arena.Seal();
}

Problem::Problem(DType a, const Encoding& w, int64_t m, int64_t n, int64_t k, Epilogue epilogue, uint32_t seed)
    : a_type_(a), w_type_(w), m_(m), n_(n), k_(k), epilogue_(epilogue) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const int64_t a_row = a == DType::kF32 ? 4 * k : 4 * ((k + 1) / 2);
  lda_bytes_ = a_row + 12;
  ldc_bytes_ = c_columns() * 4 + 20;

  a_ = std::make_unique<GuardedBuffer>((m - 1) * lda_bytes_ + a_row, 0);
  // Rows of the last strip beyond m are not numbers.
  const StripLayout strips = HalfStrips(k);
  strips_ = std::make_unique<GuardedBuffer>(a == DType::kBF16 ? static_cast<size_t>(strips.bytes(m)) : 0, 0xFF);
  if (a == DType::kBF16) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t b = 0; b < strips.chunks() * kStripChunk; ++b) strips_->data()[strips.offset(i, b)] = 0;
    }
  }
  a_values_.assign(static_cast<size_t>(m), std::vector<float>(static_cast<size_t>(k)));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      float value = uniform(random);
      uint8_t* row = a_->data() + i * lda_bytes_;
      if (a == DType::kF32) {
        std::memcpy(row + 4 * j, &value, 4);
      } else {
        const uint16_t bits = Bf16(value);
        value = std::bit_cast<float>(uint32_t{bits} << 16);
        std::memcpy(row + 2 * j, &bits, 2);
        std::memcpy(strips_->data() + strips.offset(i, 2 * j), &bits, 2);
      }
      a_values_[static_cast<size_t>(i)][static_cast<size_t>(j)] = value;
    }
  }

  w_ = std::make_unique<GuardedBuffer>(n / kPanelColumns * PanelBytes(w, k));
  if (HasScalesOutside(w.type)) {
    RandomPanels(w, n, k, seed, w_->as<std::byte>());
  } else {
    std::vector<std::vector<std::byte>> rows;
    std::vector<const std::byte*> pointers;
    for (int64_t i = 0; i < n; ++i) rows.push_back(RandomRow(w.type, k, random));
    for (const auto& row : rows) pointers.push_back(row.data());
    PackPanels(w.type, k, pointers, 0, n / kPanelColumns, w_->as<std::byte>());
  }
  w_values_.assign(static_cast<size_t>(n), std::vector<float>(static_cast<size_t>(k)));
  Refresh();

  const size_t c_bytes = static_cast<size_t>((m - 1) * ldc_bytes_ + c_columns() * 4);
  c_ = std::make_unique<GuardedBuffer>(c_bytes, kPoison);
  residual_ = std::make_unique<GuardedBuffer>(c_bytes);
  for (size_t i = 0; i < c_bytes / 4; ++i) residual_->as<float>()[i] = uniform(random);
  bias_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(n) * 4);
  for (int64_t i = 0; i < n; ++i) bias_->as<float>()[i] = uniform(random);
}

void Problem::Refresh() {
  for (int64_t i = 0; i < n_; ++i) {
    UnpackColumn(w_type_, k_, w_->as<std::byte>(), i, w_values_[static_cast<size_t>(i)].data());
  }
}

int64_t Problem::c_columns() const { return epilogue_.silu_mul ? n_ / 2 : n_; }

GemmDesc Problem::Desc(int rows) const {
  return {.n = n_,
          .k = k_,
          .a = a_type_,
          .w = w_type_,
          .rows = rows,
          .strips = a_type_ == DType::kBF16 && rows == 0,
          .lda_bytes = lda_bytes_,
          .ldc_bytes = ldc_bytes_,
          .epilogue = epilogue_};
}

GemmArgs Problem::Args(bool few, int64_t m0) const {
  const bool strips = !few && a_type_ == DType::kBF16;
  return {.a = strips ? strips_->data() : a_->data() + m0 * lda_bytes_,
          .w = w_->data(),
          .c = reinterpret_cast<float*>(c_->data() + m0 * ldc_bytes_),
          .residual = epilogue_.residual ? reinterpret_cast<float*>(residual_->data() + m0 * ldc_bytes_) : nullptr,
          .bias = epilogue_.bias ? bias_->as<float>() : nullptr,
          .scratch = nullptr};
}

void Problem::Poison() { std::memset(c_->data(), kPoison, c_->size()); }

std::string Problem::Call(const Built& built, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  const bool few = built.few;
  GuardedBuffer scratch(static_cast<size_t>(RoundUp(built.plan.scratch_bytes, 64)), 0xFF);
  GemmArgs args = Args(few, few ? m0 : 0);
  args.scratch = scratch.data();
  return WatchedCall(built.kernel.fn, &args, n0, n1, few ? 0 : m0, few ? m1 - m0 : m1);
}

float Problem::C(int64_t row, int64_t column) const {
  float value;
  std::memcpy(&value, c_->data() + row * ldc_bytes_ + 4 * column, 4);
  return value;
}

std::vector<float> Problem::CopyC() const {
  std::vector<float> c;
  for (int64_t i = 0; i < m_; ++i) {
    for (int64_t j = 0; j < c_columns(); ++j) c.push_back(C(i, j));
  }
  return c;
}

int64_t Problem::Stray(int64_t n0, int64_t n1, int64_t m0, int64_t m1) const {
  const int64_t panel = epilogue_.silu_mul ? kGroupColumns * 4 : kPanelColumns * 4;
  int64_t stray = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(c_->size()); ++i) {
    const int64_t row = i / ldc_bytes_, byte = i % ldc_bytes_;
    const bool inside = row >= m0 && row < m1 && byte >= n0 * panel && byte < n1 * panel;
    if (!inside && c_->data()[i] != kPoison) ++stray;
  }
  return stray;
}

std::vector<float> Problem::FmaChain() const {
  std::vector<float> c;
  for (int64_t i = 0; i < m_; ++i) {
    for (int64_t j = 0; j < n_; ++j) {
      const auto& a = a_values_[static_cast<size_t>(i)];
      const auto& w = w_values_[static_cast<size_t>(j)];
      float sum = 0;
      for (size_t s = 0; s < a.size(); ++s) sum = std::fma(a[s], w[s], sum);
      if (epilogue_.bias) sum += bias_->as<float>()[j];
      if (epilogue_.residual) {
        float residual;
        std::memcpy(&residual, residual_->data() + i * ldc_bytes_ + 4 * j, 4);
        sum += residual;
      }
      c.push_back(sum);
    }
  }
  return c;
}

std::vector<float> Problem::Reference() const {
  std::vector<uint8_t> c(c_->size());
  GemmArgs args = Args(false, 0);
  args.c = reinterpret_cast<float*>(c.data());
  GemmRef(Desc(0), args, 0, n_ / kPanelColumns, 0, m_);
  std::vector<float> out;
  for (int64_t i = 0; i < m_; ++i) {
    for (int64_t j = 0; j < c_columns(); ++j) {
      float value;
      std::memcpy(&value, c.data() + i * ldc_bytes_ + 4 * j, 4);
      out.push_back(value);
    }
  }
  return out;
}

// A sum of k products in any order with one rounding each differs from the exact one by at most k eps sum |a||w|, eps =
// 2^-24; vdpbf16ps rounds each product's addition, so k again, and flushes what is below 2^-126. Bias and residual
// round once each. SiLU has a slope of at most 1.1 and (math_emit.h) a relative error of 6e-7, or 2^-118 far below
// zero; the product with up takes the errors of both factors. Scales outside round once in each block's sum and once in
// its value, which the k roundings of the bound that an n-step sum does not make (it makes k - 1) and the + 2 cover
// only for one block: two more a block.
std::vector<float> Problem::Tolerance() const {
  constexpr double kEps = 0x1p-24;
  std::vector<float> out;
  const std::vector<float> reference = Reference();
  for (int64_t i = 0; i < m_; ++i) {
    std::vector<double> error(static_cast<size_t>(n_)), size(static_cast<size_t>(n_));
    for (int64_t j = 0; j < n_; ++j) {
      const auto& a = a_values_[static_cast<size_t>(i)];
      const auto& w = w_values_[static_cast<size_t>(j)];
      double sum = epilogue_.bias ? std::abs(bias_->as<float>()[j]) : 0;
      for (size_t s = 0; s < a.size(); ++s) sum += std::abs(static_cast<double>(a[s]) * w[s]);
      size[static_cast<size_t>(j)] = sum;
      const double blocks = HasScalesOutside(w_type_.type) ? ScaledBlocksOf(w_type_, k_).count(k_) : 0;
      error[static_cast<size_t>(j)] = (static_cast<double>(k_) + 2 + 2 * blocks) * (kEps * sum + 0x1p-126);
    }
    for (int64_t j = 0; j < c_columns(); ++j) {
      const double value = std::abs(reference[static_cast<size_t>(i * c_columns() + j)]);
      double bound;
      if (epilogue_.silu_mul) {
        const auto gate = static_cast<size_t>(j / kGroupColumns * kPanelColumns + j % kGroupColumns);
        const size_t up = gate + kGroupColumns;
        bound = 1.1 * error[gate] * (size[up] + error[up]) + size[gate] * error[up] +
                (6e-7 * size[gate] + 0x1p-118) * size[up];
      } else {
        bound = error[static_cast<size_t>(j)];
      }
      out.push_back(static_cast<float>(bound + 2 * kEps * (value + (epilogue_.residual ? 1 : 0))));
    }
  }
  return out;
}

std::string FirstDifference(const std::vector<float>& got, const std::vector<float>& want, int64_t columns) {
  if (got.size() != want.size()) return "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      const auto at = static_cast<int64_t>(i);
      return fmt::format("row {} column {}: {} (want {})", at / columns, at % columns, got[i], want[i]);
    }
  }
  return "";
}

}  // namespace xjit::testing
