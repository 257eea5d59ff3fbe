// xjit bench-op rows: what feeds a matrix product, RMSNorm and conversion of rows of activations.
#include <cmath>

#include "codegen/attention/attention_ref.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/norm.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

// Value i of a row as written, dequantised.
double ValueAt(const PrepareDesc& desc, const std::byte* row, int64_t i) {
  if (desc.out == DType::kF32) return reinterpret_cast<const float*>(row)[i];
  if (desc.out == DType::kBF16) return Bf16ToF32(reinterpret_cast<const uint16_t*>(row)[i]);
  const auto* scale = reinterpret_cast<const float*>(row + Q8Layout{desc.cols}.scale_offset());
  return scale[i / kQ8Block] * static_cast<double>(static_cast<int8_t>(row[i]));
}

// Relative to the value; for q8act to the largest of its block, which is 127 scales.
double MagnitudeAt(const PrepareDesc& desc, const std::byte* row, int64_t i) {
  if (desc.out != DType::kQ8Act) return std::fabs(ValueAt(desc, row, i));
  return 127.0 * reinterpret_cast<const float*>(row + Q8Layout{desc.cols}.scale_offset())[i / kQ8Block];
}

// Without a norm the same bits. With one, the root of the mean is within RmsNormBound, and a value that this moves
// across a tie is one step of its type away: 2^-7 relative, or a scale.
double Bound(const PrepareDesc& desc) {
  if (!desc.norm) return 0;
  const double norm = ref::RmsNormBound(desc.cols, 64);  // 64: the fewest partial sums of any row
  return norm + (desc.out == DType::kBF16 ? 0x1p-7 : desc.out == DType::kQ8Act ? 1.01 / 127 : 0);
}

}  // namespace

absl::Status BenchPrepare(const BenchOpFlags& flags, const PrepareShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const PrepareDesc desc, shape.Desc());
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, bench->library().Get(desc));
  XJIT_RETURN_IF_ERROR(bench->library().Seal());

  const int64_t x_bytes = shape.rows * desc.ldx_bytes, out_bytes = shape.rows * desc.ldo_bytes;
  XJIT_ASSIGN_OR_RETURN(const int64_t copies, bench->Copies(x_bytes + out_bytes, false));
  XJIT_ASSIGN_OR_RETURN(const HugeBuffer x, HugeBuffer::Allocate(copies * x_bytes));
  XJIT_ASSIGN_OR_RETURN(const HugeBuffer out, HugeBuffer::Allocate(copies * out_bytes));
  std::mt19937_64 random(42);
  std::normal_distribution<float> normal;
  std::vector<float> gain(static_cast<size_t>(desc.cols));
  for (float& value : gain) value = normal(random);
  for (int64_t i = 0; i < x.size() / 4; ++i) reinterpret_cast<float*>(x.data())[i] = normal(random);

  const auto args = [&](int64_t copy) {
    return PrepareArgs{.x = reinterpret_cast<const float*>(x.data() + copy * x_bytes),
                       .gain = gain.data(),
                       .out = out.data() + copy * out_bytes};
  };
  OpRun op;
  op.copies = copies;
  op.bytes = static_cast<double>(x_bytes + out_bytes);
  op.has_peak = false;
  op.run = [&](int64_t calls) {
    bench->pool().Run([&](int thread) {
      const int64_t m0 = shape.rows * thread / bench->threads(), m1 = shape.rows * (thread + 1) / bench->threads();
      for (int64_t i = 0; i < calls && m0 < m1; ++i) {
        const PrepareArgs a = args(i % copies);
        kernel->fn(&a, 0, 1, m0, m1);
      }
    });
  };
  XJIT_ASSIGN_OR_RETURN(const nlohmann::ordered_json measured, bench->Measure(op));

  OpError error;
  error.rel_bound = Bound(desc);
  std::vector<std::byte> want(static_cast<size_t>(out_bytes));
  PrepareArgs reference = args(0);
  reference.out = want.data();
  const std::byte* got = out.data();
  for (const int64_t m : {int64_t{0}, shape.rows / 2, shape.rows - 1}) {
    PrepareRef(desc, reference, m, m + 1);
    const int64_t at = m * desc.ldo_bytes;
    for (int64_t i = 0; i < desc.cols; ++i)
      error.Add(ValueAt(desc, got + at, i), ValueAt(desc, want.data() + at, i), MagnitudeAt(desc, want.data() + at, i));
  }
  XJIT_RETURN_IF_ERROR(error.Check(kernel->name));
  nlohmann::ordered_json result = {{"op", "rows"},       {"kernel", kernel->name}, {"rows", shape.rows},
                                   {"cols", shape.cols}, {"norm", shape.norm},     {"out", shape.out}};
  result.update(measured);
  result.update({{"max_abs_err", error.max_abs}, {"max_rel_err", error.max_rel}, {"rel_err_bound", error.rel_bound}});
  PrintResult(result, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
