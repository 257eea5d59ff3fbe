#include "codegen/gemm/gemm_desc.h"

#include <fmt/format.h>

#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {

std::string EncodingName(const Encoding& w) {
  std::string name(Name(w.type));
  const Scales& s = w.scales;
  switch (s.kind) {
    case Scales::Kind::kNone:
      return name;
    case Scales::Kind::kTensor:
      name += "_tensor";
      break;
    case Scales::Kind::kChannel:
      name += "_channel";
      break;
    case Scales::Kind::kGroup:
      name += fmt::format("_g{}{}{}", s.cols, s.zeros ? "z" : "", s.act_order ? "o" : "");
      break;
    case Scales::Kind::kBlock:
      name += fmt::format("_b{}x{}", s.rows, s.cols);
      break;
  }
  if (s.weight_only) name += "_w";
  return name;
}

std::string GemmName(const GemmDesc& desc, const char* row) {
  const std::string rows = desc.rows == 0 ? "many" : fmt::format("{}", desc.rows);
  std::string name =
      fmt::format("gemm.{}.{}_{}_f32.m{}n{}k{}", row, Name(desc.a), EncodingName(desc.w), rows, desc.n, desc.k);
  if (desc.depth > 0) name += fmt::format("of{}", desc.depth);
  if (desc.epilogue.bias) name += ".bias";
  if (desc.epilogue.silu_mul) name += ".silu_mul";
  if (desc.epilogue.residual) name += ".residual";
  return name;
}

namespace {

// A descriptor that is no part, or one as `depth` says.
absl::Status CheckPart(const GemmDesc& desc) {
  if (desc.depth == 0) return absl::OkStatus();
  if (desc.a != DType::kQ8Act && desc.a != DType::kI8Act) {
    return InvalidArgument("gemm: a part of {} rows is a product of its own", Name(desc.a));
  }
  if (desc.rows < 1 || desc.n != kPanelColumns || desc.epilogue != Epilogue{}) {
    return InvalidArgument("gemm: a part is few rows of one panel without epilogue, not rows = {}, n = {}", desc.rows,
                           desc.n);
  }
  const int block = desc.a == DType::kI8Act ? 64 : 32;
  if (desc.k <= 0 || desc.k % block != 0 || desc.depth % block != 0 || desc.k > desc.depth) {
    return InvalidArgument("gemm: {} of a depth of {} are no part of blocks of {}", desc.k, desc.depth, block);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSizes(const GemmDesc& desc) {
  XJIT_RETURN_IF_ERROR(CheckPart(desc));
  if (desc.n <= 0 || desc.n % kPanelColumns != 0) {
    return InvalidArgument("gemm: n = {} is not a positive multiple of {}", desc.n, kPanelColumns);
  }
  const int block = IsQuantized(desc.w.type) ? PackedBlockElems(desc.w.type) : 1;
  if (desc.k <= 0 || desc.k % block != 0) {
    return InvalidArgument("gemm: k = {} is not a positive multiple of {}, the block of {}", desc.k, block,
                           ToString(desc.w));
  }
  if (desc.rows < 0 || desc.rows > kMaxFewRows) {
    return InvalidArgument("gemm: rows = {} is not in 0..{}", desc.rows, kMaxFewRows);
  }
  const int64_t a_bytes = ActivationRowBytes(desc), c_bytes = (desc.epilogue.silu_mul ? desc.n / 2 : desc.n) * 4;
  // One row needs no stride, strips have their own.
  if (desc.rows != 1 && ((!desc.strips && desc.lda_bytes < a_bytes) || desc.ldc_bytes < c_bytes)) {
    return InvalidArgument("gemm: rows of {} and {} bytes overlap: a row of a takes {}, of c {}", desc.lda_bytes,
                           desc.ldc_bytes, a_bytes, c_bytes);
  }
  return absl::OkStatus();
}

int64_t ActivationValueBytes(DType a, int64_t k) {
  if (a == DType::kQ8Act || a == DType::kI8Act) return k;
  return a == DType::kF32 ? 4 * k : CeilDiv(k, 2) * 4;
}

int64_t ActivationRowBytes(DType a, int64_t k) {
  if (a == DType::kQ8Act) return Q8Layout{k}.row_bytes();
  return a == DType::kI8Act ? I8Layout{k}.row_bytes() : ActivationValueBytes(a, k);
}

int64_t ActivationRowBytes(const GemmDesc& desc) { return ActivationRowBytes(desc.a, desc.whole_k()); }

int64_t ActivationBytes(const GemmDesc& desc, int64_t rows) {
  if (!desc.strips) return rows * desc.lda_bytes;
  return StripsOf(desc.a, desc.k).bytes(rows);
}

void EmitPrefetchAt(PrefetchHint hint, const Xbyak::Address& place, Emitter& e) {
  if (hint == PrefetchHint::kT0) e.prefetcht0(place);
  if (hint == PrefetchHint::kT1) e.prefetcht1(place);
}

GemmPlan WithTuning(const GemmDesc& desc, const TargetInfo& target, GemmPlan plan) {
  if (!plan.streams_weights) return plan;
  for (const PrefetchTuning& t : target.prefetch) {
    if (!t.For(desc.w.type, desc.rows)) continue;
    plan.prefetch = t.hint;
    plan.prefetch_distance = t.distance;
    plan.prefetch_every = t.every;
  }
  return plan;
}

std::string ToString(const GemmPlan& plan) {
  std::string s = fmt::format("tile_rows {}, k_block {}", plan.tile_rows, plan.k_block);
  if (plan.near_rows > 0) s += fmt::format(" ({} for up to {} rows)", plan.near_k_block, plan.near_rows);
  if (plan.m_block > 0) s += fmt::format(", m_block {}", plan.m_block);
  if (plan.n_block > 0) s += fmt::format(", n_block {}", plan.n_block);
  if (plan.vbmi) s += ", vbmi";
  if (plan.vex_dot) s += ", vex_dot";
  if (plan.prefetch != PrefetchHint::kNone) {
    s += fmt::format(", prefetch {} +{} every {}", plan.prefetch == PrefetchHint::kT0 ? "t0" : "t1",
                     plan.prefetch_distance, plan.prefetch_every);
  }
  if (plan.prefetch_next_panel) s += ", prefetch next panel";
  if (plan.prefetch_a) s += ", prefetch a";
  return s + fmt::format(", scratch {}, cost {:.1f}", plan.scratch_bytes, plan.cost);
}

}  // namespace xjit
