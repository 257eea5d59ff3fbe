#include "codegen/rows/rows_plan.h"

#include <fmt/format.h>

#include "codegen/rows/row_vectors.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

// Emitted addresses and row strides are 32-bit immediates.
constexpr int64_t kMaxBytes = int64_t{1} << 30;

absl::Status CheckColumns(int64_t cols) {
  if (cols < 1 || cols > kMaxBytes / 4) return InvalidArgument("cols = {} is not in 1..{}", cols, kMaxBytes / 4);
  return absl::OkStatus();
}

absl::Status CheckStride(std::string_view what, int64_t stride, int64_t row_bytes, int64_t unit) {
  if (stride < row_bytes || stride % unit != 0 || stride > kMaxBytes) {
    return InvalidArgument("{} = {} is not a multiple of {} from {} to {}", what, stride, unit, row_bytes, kMaxBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> OutputRowBytes(const PrepareDesc& desc) {
  switch (desc.out) {
    case DType::kF32:
      return desc.cols * 4;
    case DType::kBF16:
    case DType::kF16:
      return CeilDiv(desc.cols, 2) * 4;
    case DType::kQ8Act:
      if (desc.cols % kQ8Block != 0) {
        return InvalidArgument("q8act rows are whole blocks of {}, but cols = {}", kQ8Block, desc.cols);
      }
      return Q8Layout{desc.cols}.row_bytes();
    case DType::kI8Act:
      return I8Layout{desc.cols}.row_bytes();
    default:
      return InvalidArgument("no conversion from f32 to {}", Name(desc.out));
  }
}

absl::Status CheckOutput(const PrepareDesc& desc) {
  XJIT_ASSIGN_OR_RETURN(const int64_t row_bytes, OutputRowBytes(desc));
  if (!desc.strips)
    return CheckStride("ldo_bytes", desc.ldo_bytes, row_bytes,
                       desc.out == DType::kBF16 || desc.out == DType::kF16 ? 2 : 4);
  if (!HasStrips(desc.out)) return InvalidArgument("rows of {} have no strips", Name(desc.out));
  const int64_t strip_bytes = OutputStrips(desc).strip_bytes();
  if (strip_bytes <= kMaxBytes) return absl::OkStatus();
  return InvalidArgument("strips of {} bytes are longer than {}: cols = {}", strip_bytes, kMaxBytes, desc.cols);
}

absl::StatusOr<PreparePlan> PlanPrepare(const PrepareDesc& desc, int lanes) {
  XJIT_RETURN_IF_ERROR(CheckColumns(desc.cols));
  XJIT_RETURN_IF_ERROR(CheckStride("ldx_bytes", desc.ldx_bytes, desc.cols * 4, 4));
  XJIT_RETURN_IF_ERROR(CheckOutput(desc));
  PreparePlan plan;
  plan.columns = SplitColumns(desc.cols, lanes);
  if (desc.out == DType::kQ8Act) {
    plan.groups = desc.cols / (8 * kQ8Block);
    plan.tail_blocks = static_cast<int>(desc.cols / kQ8Block % 8);
  }
  // Vector operations of a vector of columns at two a cycle: counted from the emitters.
  const double vectors = static_cast<double>(desc.cols) / lanes;
  const bool twice = desc.out == DType::kQ8Act || desc.out == DType::kI8Act;  // loaded
  const double norm_ops = desc.norm ? 4 : 0, gather_ops = desc.gather ? lanes * (desc.norm ? 2 : 1) : 0;
  const double convert_ops = twice ? 9 : desc.out == DType::kBF16 ? 3 : 2;
  plan.cost = 40 + (desc.norm ? 60 : 0) + vectors * (norm_ops + convert_ops + gather_ops * (twice ? 2 : 1)) / 2;
  return plan;
}

absl::StatusOr<EltwisePlan> PlanEltwise(const EltwiseDesc& desc, int lanes) {
  XJIT_RETURN_IF_ERROR(CheckColumns(desc.cols));
  const bool silu = desc.op == EltwiseOp::kSilu || desc.op == EltwiseOp::kSiluMul;
  XJIT_RETURN_IF_ERROR(CheckStride("lda_bytes", desc.lda_bytes, desc.cols * 4, 4));
  XJIT_RETURN_IF_ERROR(CheckStride("ldy_bytes", desc.ldy_bytes, desc.cols * 4, 4));
  if (desc.op != EltwiseOp::kSilu && desc.op != EltwiseOp::kAddRow) {
    XJIT_RETURN_IF_ERROR(CheckStride("ldb_bytes", desc.ldb_bytes, desc.cols * 4, 4));
  }
  EltwisePlan plan;
  plan.columns = SplitColumns(desc.cols, lanes);
  plan.cost = 20 + static_cast<double>(desc.cols) / lanes * (silu ? 10 : 1);
  return plan;
}

std::string_view Spelling(EltwiseOp op) {
  switch (op) {
    case EltwiseOp::kAdd:
      return "add";
    case EltwiseOp::kMul:
      return "mul";
    case EltwiseOp::kSilu:
      return "silu";
    case EltwiseOp::kSiluMul:
      return "silu_mul";
    case EltwiseOp::kAddRow:
      return "add_row";
  }
  return "?";
}

}  // namespace

bool HasStrips(DType out) { return out == DType::kBF16 || out == DType::kF16 || out == DType::kI8Act; }

StripLayout OutputStrips(const PrepareDesc& desc) { return StripsOf(desc.out, desc.cols); }

std::string PrepareName(const PrepareDesc& desc, const char* row) {
  return fmt::format("prepare.{}.f32_{}.n{}{}{}{}", row, Name(desc.out), desc.cols, desc.strips ? ".strips" : "",
                     desc.norm ? ".norm" : "", desc.gather ? ".gather" : "");
}

std::string EltwiseName(const EltwiseDesc& desc, const char* row) {
  return fmt::format("eltwise.{}.{}.n{}", row, Spelling(desc.op), desc.cols);
}

absl::StatusOr<PreparePlan> PlanPrepare512(const PrepareDesc& desc, const TargetInfo& target) {
  XJIT_ASSIGN_OR_RETURN(PreparePlan plan, PlanPrepare(desc, 16));
  plan.native_bf16 = target.isa >= Isa::kAvx512Bf16;
  plan.native_dot = target.isa >= Isa::kAvx512Vnni;
  return plan;
}

absl::StatusOr<PreparePlan> PlanPrepare2(const PrepareDesc& desc, const TargetInfo&) { return PlanPrepare(desc, 8); }

absl::StatusOr<EltwisePlan> PlanEltwise512(const EltwiseDesc& desc, const TargetInfo&) { return PlanEltwise(desc, 16); }
absl::StatusOr<EltwisePlan> PlanEltwise2(const EltwiseDesc& desc, const TargetInfo&) { return PlanEltwise(desc, 8); }

}  // namespace xjit
