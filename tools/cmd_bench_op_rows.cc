// xjit bench-op rows: what feeds a matrix product, RMSNorm and conversion of rows of activations.
#include <cmath>

#include "codegen/attention/attention_ref.h"
#include "codegen/rows/rows_plan.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/norm.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

// Byte b of row m's values.
const std::byte* At(const PrepareDesc& desc, const std::byte* out, int64_t m, int64_t b) {
  return out + (desc.strips ? OutputStrips(desc).offset(m, b) : m * desc.ldo_bytes + b);
}

// What value i of row m is a multiple of: q8act, i8act.
double ScaleAt(const PrepareDesc& desc, const std::byte* out, int64_t m, int64_t i) {
  const std::byte* scale = out;
  if (desc.out == DType::kQ8Act) {
    scale += m * desc.ldo_bytes + Q8Layout{desc.cols}.scale_offset() + i / kQ8Block * 4;
  } else if (desc.strips) {
    const StripLayout strips = OutputStrips(desc);
    scale += m / kStripRows * strips.strip_bytes() + strips.tail_offset() + m % kStripRows * 4;
  } else {
    scale += m * desc.ldo_bytes + I8Layout{desc.cols}.scale_offset();
  }
  return *reinterpret_cast<const float*>(scale);
}

// Value i of row m as written, dequantised.
double ValueAt(const PrepareDesc& desc, const std::byte* out, int64_t m, int64_t i) {
  if (desc.out == DType::kF32) return *reinterpret_cast<const float*>(At(desc, out, m, 4 * i));
  if (desc.out == DType::kBF16) return Bf16ToF32(*reinterpret_cast<const uint16_t*>(At(desc, out, m, 2 * i)));
  return ScaleAt(desc, out, m, i) * static_cast<double>(static_cast<int8_t>(*At(desc, out, m, i)));
}

bool IsInt8(const PrepareDesc& desc) { return desc.out == DType::kQ8Act || desc.out == DType::kI8Act; }

// Relative to the value; for int8 to the largest of those that share its scale, which is 127 scales.
double MagnitudeAt(const PrepareDesc& desc, const std::byte* out, int64_t m, int64_t i) {
  return IsInt8(desc) ? 127.0 * ScaleAt(desc, out, m, i) : std::fabs(ValueAt(desc, out, m, i));
}

// Without a norm the same bits. With one, the root of the mean is within RmsNormBound, and a value that this moves
// across a tie is one step of its type away: 2^-7 relative, or a scale.
double Bound(const PrepareDesc& desc) {
  if (!desc.norm) return 0;
  const double norm = ref::RmsNormBound(desc.cols, 64);  // 64: the fewest partial sums of any row
  return norm + (desc.out == DType::kBF16 ? 0x1p-7 : IsInt8(desc) ? 1.01 / 127 : 0);
}

}  // namespace

absl::Status BenchPrepare(const BenchOpFlags& flags, const PrepareShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const PrepareDesc desc, shape.Desc());
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, bench->library().Get(desc));
  XJIT_RETURN_IF_ERROR(bench->library().Seal());

  const int64_t x_bytes = shape.rows * desc.ldx_bytes;
  const int64_t out_bytes = desc.strips ? OutputStrips(desc).bytes(shape.rows) : shape.rows * desc.ldo_bytes;
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
    for (int64_t i = 0; i < desc.cols; ++i) {
      error.Add(ValueAt(desc, got, m, i), ValueAt(desc, want.data(), m, i), MagnitudeAt(desc, want.data(), m, i));
    }
  }
  XJIT_RETURN_IF_ERROR(error.Check(kernel->name));
  nlohmann::ordered_json result = {{"op", "rows"},          {"kernel", kernel->name}, {"rows", shape.rows},
                                   {"cols", shape.cols},    {"norm", shape.norm},     {"out", shape.out},
                                   {"strips", shape.strips}};
  result.update(measured);
  result.update({{"max_abs_err", error.max_abs}, {"max_rel_err", error.max_rel}, {"rel_err_bound", error.rel_bound}});
  PrintResult(result, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
