#include "codegen/verify_kernels.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "codegen/attention/attention_ref.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/rows/rows_plan.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/norm.h"

namespace xjit {
namespace {

constexpr double kUnit = 0x1p-24;     // half an ulp of f32
constexpr double kSiluError = 6e-7;   // math_emit.h
constexpr uint32_t kSeed = 20240229;  // any; the same data each time
constexpr int64_t kReadAhead = 64;    // A's rows may be read up to the next multiple of this

// Zeroed bytes, 64-byte aligned.
class Bytes {
 public:
  explicit Bytes(int64_t size)
      : data_(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(AlignUp(size + 1, 64)))), &std::free) {
    std::memset(data_.get(), 0, static_cast<size_t>(size));
  }
  std::byte* data() { return data_.get(); }
  template <typename T>
  T* as(int64_t offset = 0) {
    return reinterpret_cast<T*>(data_.get() + offset);
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
};

class Noise {
 public:
  float operator()() { return normal_(rng_); }
  void Fill(float* p, int64_t n) {
    for (int64_t i = 0; i < n; ++i) p[i] = normal_(rng_);
  }
  uint32_t Bits() { return static_cast<uint32_t>(rng_()); }

 private:
  std::mt19937 rng_{kSeed};
  std::normal_distribution<float> normal_;
};

absl::Status Differs(const Kernel& kernel, int64_t row, int64_t column, double got, double want, double bound) {
  return Internal("{}: row {} column {} is {:.9g}, the reference gives {:.9g} and rounding explains {:.2g}",
                  kernel.name, row, column, got, want, bound);
}

// False also for a NaN.
bool Within(double got, double want, double bound) { return std::fabs(got - want) <= bound; }

// Random activations as the product wants them; `largest` is the greatest Euclidean norm of a row as the kernel sees
// it.
Bytes RandomActivations(const GemmDesc& desc, int64_t rows, Noise& noise, double* largest) {
  const int64_t k = desc.whole_k();
  std::vector<float> x(static_cast<size_t>(rows * k));
  noise.Fill(x.data(), rows * k);
  for (auto row = x.begin(); row != x.end(); row += k) {
    // 1.01 covers what the conversion adds.
    *largest = std::max(*largest, 1.01 * std::sqrt(std::inner_product(row, row + k, row, 0.0)));
  }
  Bytes a(ActivationBytes(desc, rows) + kReadAhead);
  const PrepareDesc prepare{
      .cols = k, .out = desc.a, .ldx_bytes = 4 * k, .ldo_bytes = desc.lda_bytes, .strips = desc.strips};
  PrepareRef(prepare, {.x = x.data(), .out = a.data()}, 0, rows);
  return a;
}

}  // namespace

absl::Status VerifyKernel(const GemmDesc& desc, const Kernel& kernel) {
  Noise noise;
  const int64_t panels = std::min<int64_t>(desc.panels(), 2), columns = panels * kPanelColumns;
  const int64_t rows = desc.rows > 0 ? desc.rows : 9;
  const int64_t panel_c = desc.epilogue.silu_mul ? kGroupColumns : kPanelColumns;

  Bytes w(panels * PanelBytes(desc.w, desc.k));
  RandomPanels(desc.w, columns, desc.k, kSeed, w.data());
  double w_norm = 0;
  std::vector<float> column(static_cast<size_t>(desc.k));
  for (int64_t n = 0; n < columns; ++n) {
    UnpackColumn(desc.w, desc.k, w.data(), n, column.data());
    w_norm = std::max(w_norm, std::sqrt(std::inner_product(column.begin(), column.end(), column.begin(), 0.0)));
  }

  double a_norm = 0;
  Bytes a = RandomActivations(desc, rows, noise, &a_norm);
  const int64_t c_bytes = (rows - 1) * desc.ldc_bytes + panels * panel_c * 4;
  Bytes c(c_bytes), want(c_bytes), residual(c_bytes), bias(columns * 4), scratch(kernel.scratch_bytes);
  noise.Fill(residual.as<float>(), c_bytes / 4);
  noise.Fill(bias.as<float>(), columns);
  GemmArgs args{.a = a.data(),
                .w = w.data(),
                .c = want.as<float>(),
                .residual = desc.epilogue.residual ? residual.as<float>() : nullptr,
                .bias = desc.epilogue.bias ? bias.as<float>() : nullptr,
                .scratch = scratch.data()};
  // Of a part: the last one.
  args.k0 = desc.whole_k() - desc.k;
  if (desc.a == DType::kI8Act) args.a = a.as<std::byte>(args.k0);
  GemmRef(desc, args, 0, panels, 0, rows);
  args.c = c.as<float>();
  kernel.fn(&args, 0, panels, 0, rows);
  if (desc.a == DType::kI8Act && desc.depth > 0) {  // integers
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < panels * panel_c; ++n) {
        const auto got = c.as<int32_t>(m * desc.ldc_bytes)[n], expected = want.as<int32_t>(m * desc.ldc_bytes)[n];
        if (got != expected) return Differs(kernel, m, n, got, expected, 0);
      }
    }
    return absl::OkStatus();
  }

  // A dot product of length k is within k u |a| |w| of the exact one (Higham, Accuracy and Stability, 3.1) in any
  // order; 40 more roundings cover dequantisation and epilogue. silu has a slope of at most 1.1, the other factor is at
  // most the largest sum.
  const double largest = a_norm * w_norm + 6;  // with the bias
  double bound = static_cast<double>(desc.k + 40) * kUnit * largest;
  if (desc.epilogue.silu_mul) bound = 2.1 * largest * bound + kSiluError * largest * largest;
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < panels * panel_c; ++n) {
      const float got = c.as<float>(m * desc.ldc_bytes)[n], expected = want.as<float>(m * desc.ldc_bytes)[n];
      if (!Within(got, expected, bound)) return Differs(kernel, m, n, got, expected, bound);
    }
  }
  return absl::OkStatus();
}

namespace {

// A sequence of 5 new tokens behind 70 in three pages out of order, and what attention reads of it.
struct AttentionData {
  static constexpr int32_t kPast = 70, kRows = 5;
  static constexpr int64_t kPages = 3;
  std::vector<int32_t> pages = {2, 0, 1};
  SeqView seq;
  std::vector<AttentionItem> items;
  std::vector<int32_t> row_seq = std::vector<int32_t>(kRows, 0), position;
  StepView step;

  AttentionData(int64_t kv_heads) {
    seq = {.pages = pages.data(), .row0 = 0, .rows = kRows, .past = kPast};
    for (int32_t h = 0; h < kv_heads; ++h) {
      items.push_back(
          {.seq = 0, .kv_head = h, .row0 = 0, .rows = kRows - 1, .kv_begin = 0, .kv_end = kPast + kRows - 1});
      items.push_back({.seq = 0, .kv_head = h, .row0 = kRows - 1, .rows = 1, .kv_begin = 0, .kv_end = kPast + kRows});
    }
    for (int32_t i = 0; i < kRows; ++i) position.push_back(kPast + i);
    step.rows = kRows;
    step.seqs = 1;
    step.seq = &seq;
    step.items = static_cast<int64_t>(items.size());
    step.item = items.data();
    step.row_seq = row_seq.data();
    step.position = position.data();
  }
};

void StoreAs(DType type, std::byte* at, float value) {
  const uint16_t rounded = ToBf16(value);
  type == DType::kBF16 ? std::memcpy(at, &rounded, 2) : std::memcpy(at, &value, 4);
}

int64_t SizeOf(DType type) { return type == DType::kBF16 ? 2 : 4; }

}  // namespace

absl::Status VerifyKernel(const AttentionDesc& desc, const Kernel& kernel) {
  Noise noise;
  AttentionData data(desc.kv_heads);
  const int64_t dim = desc.head_dim, page_bytes = KvPageBytes(desc.kv, dim), rows = data.kRows;
  const int64_t q_bytes = SizeOf(desc.q);
  double q_norm = 0, k_norm = 0, v_max = 0;
  Bytes q(rows * desc.ldq_bytes), kv(desc.kv_heads * data.kPages * page_bytes);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t h = 0; h < desc.heads; ++h) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const float x = noise() / std::sqrt(static_cast<float>(dim));
        sum += static_cast<double>(x) * x;
        StoreAs(desc.q, q.data() + m * desc.ldq_bytes + (h * dim + d) * q_bytes, x);
      }
      q_norm = std::max(q_norm, std::sqrt(sum));
    }
  }
  for (int64_t h = 0; h < desc.kv_heads; ++h) {
    for (int64_t t = 0; t < data.kPast + data.kRows; ++t) {
      const int64_t page = h * data.kPages + data.pages[static_cast<size_t>(t / kPageTokens)];
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const float k = noise(), v = noise();
        sum += static_cast<double>(k) * k;
        v_max = std::max<double>(v_max, std::fabs(v));
        std::byte* at = kv.data() + page * page_bytes;
        StoreAs(desc.kv, at + KvPageKOffset(desc.kv, dim, t % kPageTokens, d), k);
        StoreAs(desc.kv, at + KvPageVOffset(desc.kv, dim, t % kPageTokens, d), v);
      }
      k_norm = std::max(k_norm, std::sqrt(sum));
    }
  }
  const int64_t out_bytes = (rows - 1) * desc.ldo_bytes + desc.heads * dim * 4;
  Bytes out(out_bytes), want(out_bytes), scratch(kernel.scratch_bytes);
  AttentionArgs args{.q = q.data(),
                     .out = want.as<float>(),
                     .kv = kv.data(),
                     .kv_head_bytes = data.kPages * page_bytes,
                     .step = &data.step,
                     .scratch = scratch.data()};
  AttentionRef(desc, args, 0, data.step.items, 0, 1);
  args.out = out.as<float>();
  kernel.fn(&args, 0, data.step.items, 0, 1);

  // A probability is off by its score's and the maximum's error, exp2's polynomial and, as bf16, half of 2^-8; o =
  // sum(p v) / sum(p) then by twice that, and by the roundings of two sums of n terms.
  const bool bf16 = desc.q == DType::kBF16;
  const double score = 2 * std::log(2.0) * static_cast<double>(dim + 2) * kUnit * 1.02 * q_norm * k_norm;
  const double probability = score + (bf16 ? 0x1p-9 + 1e-4 : 4e-7) + 8 * kUnit;
  const double bound = 1.01 * v_max * (2 * probability + 2 * (data.kPast + data.kRows) * kUnit);
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < desc.heads * dim; ++i) {
      const float got = out.as<float>(m * desc.ldo_bytes)[i], expected = want.as<float>(m * desc.ldo_bytes)[i];
      if (!Within(got, expected, bound)) return Differs(kernel, m, i, got, expected, bound);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyKernel(const AttentionMergeDesc& desc, const Kernel& kernel) {
  Noise noise;
  constexpr int32_t kSlots = 5;
  const int64_t dim = desc.head_dim, slot_bytes = PartialSlotBytes(desc.group(), dim);
  Bytes partial(kSlots * desc.kv_heads * slot_bytes);
  std::vector<AttentionMerge> merges;
  double largest = 0;
  for (int32_t h = 0; h < desc.kv_heads; ++h) {
    merges.push_back({.kv_head = h, .row = 1, .first_slot = h, .slots = kSlots, .slot_stride = desc.kv_heads});
    for (int32_t s = 0; s < kSlots; ++s) {
      for (int64_t g = 0; g < desc.group(); ++g) {
        float* record = partial.as<float>((h + s * desc.kv_heads) * slot_bytes) + g * (dim + 2);
        noise.Fill(record, dim);
        for (int64_t i = 0; i < dim; ++i) largest = std::max<double>(largest, std::fabs(record[i]));
        record[dim] = 3 * noise();
        record[dim + 1] = 1 + std::fabs(noise());
      }
    }
  }
  StepView step;
  step.rows = 2;
  step.merges = static_cast<int64_t>(merges.size());
  step.merge = merges.data();
  const int64_t out_bytes = desc.ldo_bytes + desc.heads * dim * 4;
  Bytes out(out_bytes), want(out_bytes);
  AttentionMergeArgs args{.out = want.as<float>(), .partial = partial.data(), .step = &step};
  AttentionMergeRef(desc, args, 0, 1, 0, step.merges);
  args.out = out.as<float>();
  kernel.fn(&args, 0, 1, 0, step.merges);
  // sum(w o) / sum(w l) with l >= 1: each weight within 4e-7 (exp2 and the rounding of its argument, at most 2^5 u).
  const double bound = largest * (2 * (4e-7 + 64 * kUnit) + 2 * (kSlots + 4) * kUnit);
  for (int64_t i = 0; i < desc.heads * dim; ++i) {
    const float got = out.as<float>(desc.ldo_bytes)[i], expected = want.as<float>(desc.ldo_bytes)[i];
    if (!Within(got, expected, bound)) return Differs(kernel, 1, i, got, expected, bound);
  }
  return absl::OkStatus();
}

absl::Status VerifyKernel(const RopeStoreDesc& desc, const Kernel& kernel) {
  Noise noise;
  AttentionData data(desc.kv_heads);
  const int64_t rows = data.kRows, dim = desc.head_dim, kv_width = desc.kv_heads * dim;
  const int64_t q_bytes = (rows - 1) * desc.ldq_bytes + desc.heads * dim * SizeOf(desc.q);
  const int64_t kv_bytes = desc.kv_heads * data.kPages * KvPageBytes(desc.kv, dim);
  const auto input = [&](int64_t ld_bytes, int64_t width) {
    Bytes bytes((rows - 1) * ld_bytes + width * 4);
    for (int64_t m = 0; m < rows; ++m) noise.Fill(bytes.as<float>(m * ld_bytes), width);
    return bytes;
  };
  Bytes q_in = input(desc.ldqin_bytes, desc.heads * dim), k_in = input(desc.ldkin_bytes, kv_width);
  Bytes v_in = input(desc.ldvin_bytes, kv_width), table(rows * desc.rope_dim * 4);
  noise.Fill(table.as<float>(), rows * desc.rope_dim);
  Bytes q_gain(4 * dim), k_gain(4 * dim);
  noise.Fill(q_gain.as<float>(), dim);
  noise.Fill(k_gain.as<float>(), dim);
  Bytes q(q_bytes), q_want(q_bytes), kv(kv_bytes), kv_want(kv_bytes);
  RopeStoreArgs args{.q_in = q_in.as<float>(),
                     .k_in = k_in.as<float>(),
                     .v_in = v_in.as<float>(),
                     .cos_sin = table.as<float>(),
                     .q = q_want.data(),
                     .kv = kv_want.data(),
                     .kv_head_bytes = data.kPages * KvPageBytes(desc.kv, dim),
                     .step = &data.step,
                     .q_gain = q_gain.as<float>(),
                     .k_gain = k_gain.as<float>()};
  RopeStoreRef(desc, args, 0, 1, 0, rows);
  args.q = q.data();
  args.kv = kv.data();
  kernel.fn(&args, 0, 1, 0, rows);
  if (desc.head_norm) {
    // A normed value is at most sqrt(dim) times its gain; a rotated one is the sum of two.
    const auto largest = [](Bytes& bytes, int64_t n) {
      return std::fabs(*std::max_element(bytes.as<float>(), bytes.as<float>() + n,
                                         [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    };
    const double gain = std::max(largest(q_gain, dim), largest(k_gain, dim));
    const double error = 2 * ref::RmsNormBound(dim, 8) * std::sqrt(static_cast<double>(dim)) * gain *
                         largest(table, rows * desc.rope_dim) * std::max(1.0f, desc.q_scale);
    const auto near = [&](DType type, Bytes& got, Bytes& want, int64_t bytes) -> absl::Status {
      const auto value = [type](Bytes& values, int64_t i) {
        return type == DType::kBF16 ? Bf16ToF32(values.as<uint16_t>()[i]) : values.as<float>()[i];
      };
      for (int64_t i = 0; i < bytes / SizeOf(type); ++i) {
        const double expected = value(want, i);
        const double bound = error + (type == DType::kBF16 ? 0x1p-7 * std::fabs(expected) : 0);
        if (!Within(value(got, i), expected, bound)) return Differs(kernel, 0, i, value(got, i), expected, bound);
      }
      return absl::OkStatus();
    };
    XJIT_RETURN_IF_ERROR(near(desc.q, q, q_want, q_bytes));
    return near(desc.kv, kv, kv_want, kv_bytes);
  }
  // The reference does the kernel's operations in their order.
  const auto same = [&](std::string_view what, Bytes& got, Bytes& want, int64_t bytes) -> absl::Status {
    for (int64_t i = 0; i < bytes; ++i) {
      if (got.data()[i] != want.data()[i])
        return Internal("{}: byte {} of {} differs from the reference", kernel.name, i, what);
    }
    return absl::OkStatus();
  };
  XJIT_RETURN_IF_ERROR(same("q", q, q_want, q_bytes));
  return same("kv", kv, kv_want, kv_bytes);
}

namespace {

// A record of one row: with a norm in front, an integer may fall on the other side of a tie; its sums must be its own.
absl::Status CompareRecords(const Kernel& kernel, int64_t m, const Q8Layout& layout, double bound, Bytes& got_bytes,
                            Bytes& want_bytes, int64_t at) {
  const auto* got = got_bytes.as<int8_t>(at);
  const auto* want = want_bytes.as<int8_t>(at);
  const int slack = bound > 0 ? 1 : 0;
  for (int64_t b = 0; b < layout.blocks(); ++b) {
    int32_t half[2] = {0, 0};
    for (int64_t i = b * kQ8Block; i < (b + 1) * kQ8Block; ++i) {
      if (std::abs(got[i] - want[i]) > slack) return Differs(kernel, m, i, got[i], want[i], slack);
      half[i / 16 % 2] += got[i];
    }
    const auto f32 = [&](Bytes& bytes, int64_t offset) { return bytes.as<float>(at + offset)[b]; };
    const float scale = f32(got_bytes, layout.scale_offset()), scale_want = f32(want_bytes, layout.scale_offset());
    if (!Within(scale, scale_want, bound * scale_want)) {
      return Differs(kernel, m, b * kQ8Block, scale, scale_want, bound * scale_want);
    }
    const int32_t sum = half[0] + half[1];
    const float scaled = f32(got_bytes, layout.scaled_sum_offset());
    const auto* halves = got_bytes.as<int32_t>(at + layout.neg_half_sum_offset()) + 2 * b;
    if (got_bytes.as<int32_t>(at + layout.neg_sum_offset())[b] != -sum || halves[0] != -half[0] ||
        halves[1] != -half[1] || scaled != scale * static_cast<float>(sum)) {
      return Internal("{}: row {}: the sums of block {} are not those of its integers", kernel.name, m, b);
    }
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

// Prepared rows, whichever way they lie.
class PreparedRows {
 public:
  PreparedRows(const PrepareDesc& desc, int64_t rows) : desc_(desc), bytes_(Size(desc, rows)) {}
  std::byte* data() { return bytes_.as<std::byte>(0); }
  Bytes& bytes() { return bytes_; }

  template <typename T>
  T Value(int64_t m, int64_t i) {
    const int64_t b = i * static_cast<int64_t>(sizeof(T));
    return *bytes_.as<T>(desc_.strips ? OutputStrips(desc_).offset(m, b) : m * desc_.ldo_bytes + b);
  }
  double Float(int64_t m, int64_t i) {
    return desc_.out == DType::kF32 ? Value<float>(m, i) : Bf16ToF32(Value<uint16_t>(m, i));
  }
  // Of i8act: the row's scale and its negative sum.
  float Scale(int64_t m) { return *bytes_.as<float>(TailAt(m)); }
  int32_t NegSum(int64_t m) { return *bytes_.as<int32_t>(TailAt(m) + (desc_.strips ? 4 * kStripRows : 4)); }

 private:
  static int64_t Size(const PrepareDesc& desc, int64_t rows) {
    if (desc.strips) return OutputStrips(desc).bytes(rows);
    const int64_t row = desc.out == DType::kQ8Act   ? Q8Layout{desc.cols}.row_bytes()
                        : desc.out == DType::kI8Act ? I8Layout{desc.cols}.row_bytes()
                                                    : AlignUp(desc.cols, 2) * SizeOf(desc.out);
    return (rows - 1) * desc.ldo_bytes + row;
  }
  int64_t TailAt(int64_t m) const {
    if (!desc_.strips) return m * desc_.ldo_bytes + I8Layout{desc_.cols}.scale_offset();
    const StripLayout strips = OutputStrips(desc_);
    return m / kStripRows * strips.strip_bytes() + strips.tail_offset() + m % kStripRows * 4;
  }

  const PrepareDesc desc_;
  Bytes bytes_;
};

// A row of one scale: as CompareRecords.
absl::Status CompareI8(const Kernel& kernel, int64_t m, int64_t cols, double bound, PreparedRows& got,
                       PreparedRows& want) {
  const int slack = bound > 0 ? 1 : 0;
  int32_t sum = 0;
  for (int64_t i = 0; i < cols; ++i) {
    const int q = got.Value<int8_t>(m, i), expected = want.Value<int8_t>(m, i);
    if (std::abs(q - expected) > slack) return Differs(kernel, m, i, q, expected, slack);
    sum += q;
  }
  if (!Within(got.Scale(m), want.Scale(m), bound * want.Scale(m))) {
    return Differs(kernel, m, 0, got.Scale(m), want.Scale(m), bound * want.Scale(m));
  }
  if (got.NegSum(m) == -sum) return absl::OkStatus();
  return Internal("{}: row {}: the sum is not that of its integers", kernel.name, m);
}

}  // namespace

absl::Status VerifyKernel(const PrepareDesc& desc, const Kernel& kernel) {
  Noise noise;
  const int64_t rows = desc.strips ? kStripRows + 3 : 3;
  Bytes x(rows * desc.ldx_bytes), gain(desc.cols * 4), order(desc.cols * 4);
  PreparedRows out(desc, rows), want(desc, rows);
  noise.Fill(x.as<float>(), rows * desc.ldx_bytes / 4);
  noise.Fill(gain.as<float>(), desc.cols);
  // Any order: every third column, around and around.
  for (int64_t i = 0; i < desc.cols; ++i) order.as<int32_t>()[i] = static_cast<int32_t>(3 * i % desc.cols);
  PrepareArgs args{.x = x.as<float>(), .gain = gain.as<float>(), .out = want.data(), .order = order.as<int32_t>()};
  PrepareRef(desc, args, 0, rows);
  args.out = out.data();
  kernel.fn(&args, 0, 1, 0, rows);
  const double norm = desc.norm ? ref::RmsNormBound(desc.cols, 64) : 0;  // 64: the fewest partial sums of any row
  const double record_bound = norm + (desc.norm ? 2 * kUnit : 0);
  for (int64_t m = 0; m < rows; ++m) {
    if (desc.out == DType::kQ8Act) {
      XJIT_RETURN_IF_ERROR(
          CompareRecords(kernel, m, Q8Layout{desc.cols}, record_bound, out.bytes(), want.bytes(), m * desc.ldo_bytes));
      continue;
    }
    if (desc.out == DType::kI8Act) {
      XJIT_RETURN_IF_ERROR(CompareI8(kernel, m, desc.cols, record_bound, out, want));
      continue;
    }
    for (int64_t i = 0; i < desc.cols; ++i) {
      const double got = out.Float(m, i), expected = want.Float(m, i);
      // In bf16 a difference may move a value across a tie to the next one, 2^-7 away at most.
      const double bound =
          (norm > 0 && desc.out == DType::kBF16 ? 0x1p-7 + norm : norm) * std::fabs(expected) + FLT_MIN;
      if (!Within(got, expected, bound)) return Differs(kernel, m, i, got, expected, bound);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyKernel(const EltwiseDesc& desc, const Kernel& kernel) {
  Noise noise;
  constexpr int64_t kRows = 3;
  const auto floats = [&](int64_t ld_bytes) { return (kRows - 1) * ld_bytes + desc.cols * 4; };
  const bool one_row = desc.op == EltwiseOp::kAddRow;
  Bytes a(floats(desc.lda_bytes)), b(one_row ? desc.cols * 4 : floats(desc.ldb_bytes));
  Bytes y(floats(desc.ldy_bytes)), want(floats(desc.ldy_bytes));
  noise.Fill(a.as<float>(), floats(desc.lda_bytes) / 4);
  noise.Fill(b.as<float>(), (one_row ? desc.cols * 4 : floats(desc.ldb_bytes)) / 4);
  EltwiseArgs args{.a = a.as<float>(), .b = b.as<float>(), .y = want.as<float>()};
  EltwiseRef(desc, args, 0, kRows);
  args.y = y.as<float>();
  kernel.fn(&args, 0, 1, 0, kRows);
  const bool silu = desc.op == EltwiseOp::kSilu || desc.op == EltwiseOp::kSiluMul;
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t i = 0; i < desc.cols; ++i) {
      const float got = y.as<float>(m * desc.ldy_bytes)[i], expected = want.as<float>(m * desc.ldy_bytes)[i];
      const double bound = silu ? (kSiluError + kUnit) * std::fabs(expected) : 0;
      if (!Within(got, expected, bound)) return Differs(kernel, m, i, got, expected, bound);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyKernel(const ConvertDesc& desc, const Kernel& kernel) {
  constexpr int64_t kPanels = 2;
  Bytes w(kPanels * PanelBytes(desc.w, desc.k)), out(kPanels * desc.panel_out_bytes());
  RandomPanels(desc.w, kPanels * kPanelColumns, desc.k, kSeed, w.data());
  ConvertArgs args{.w = w.data(), .out = out.data()};
  kernel.fn(&args, 0, kPanels, 0, 1);
  // Unscaled values are those with a scale of one.
  const auto k = static_cast<size_t>(desc.k);
  std::vector<float> values(k), scales(k);
  std::vector<uint8_t> codes(k), zeros(k);
  for (int64_t n = 0; n < kPanels * kPanelColumns; ++n) {
    if (desc.to == DType::kF32) {
      UnpackColumn(desc.w, desc.k, w.data(), n, values.data());
    } else {
      UnpackCodes(desc.w, desc.k, w.data(), n, codes.data(), scales.data(), zeros.data());
      const int64_t depth = ScaledBlocksOf(desc.w, desc.k).depth;
      for (size_t i = 0; i < k; ++i) {
        const int zero = zeros[i / static_cast<size_t>(depth)];
        values[i] = CodeValue(desc.w.type, codes[i], zero);
      }
    }
    const std::byte* panel = out.data() + n / kPanelColumns * desc.panel_out_bytes();
    const int64_t c = n % kPanelColumns;
    for (int64_t i = 0; i < desc.k; ++i) {
      float got;
      if (desc.to == DType::kF32) {
        std::memcpy(&got, panel + (i * kPanelColumns + c) * 4, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, panel + (i / 2 * kPanelColumns + c) * 4 + i % 2 * 2, 2);
        got = Bf16ToF32(half);
      }
      if (!Within(got, values[static_cast<size_t>(i)], 0)) {
        return Differs(kernel, n, i, got, values[static_cast<size_t>(i)], 0);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
