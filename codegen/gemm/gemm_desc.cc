#include "codegen/gemm/gemm_desc.h"

#include <fmt/format.h>

#include "codegen/gemm/gemm_plan.h"
#include "ir/support/act_layout.h"

namespace xjit {

namespace {

// "q4_k", "i4_g128z": without what a file name or a symbol cannot hold.
std::string NameOf(const Encoding& w) {
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

}  // namespace

std::string GemmName(const GemmDesc& desc, const char* row) {
  const std::string rows = desc.rows == 0 ? "many" : fmt::format("{}", desc.rows);
  std::string name =
      fmt::format("gemm.{}.{}_{}_f32.m{}n{}k{}", row, Name(desc.a), NameOf(desc.w), rows, desc.n, desc.k);
  if (desc.epilogue.bias) name += ".bias";
  if (desc.epilogue.silu_mul) name += ".silu_mul";
  if (desc.epilogue.residual) name += ".residual";
  return name;
}

int64_t ActivationBytes(const GemmDesc& desc, int64_t rows) {
  if (!desc.strips) return rows * desc.lda_bytes;
  return (desc.a == DType::kI8Act ? I8Layout{desc.k}.strips() : Bf16Strips(desc.k)).bytes(rows);
}

std::string ToString(const GemmPlan& plan) {
  std::string s = fmt::format("tile_rows {}, k_block {}", plan.tile_rows, plan.k_block);
  if (plan.panels > 1) s += fmt::format(", panels {}", plan.panels);
  if (plan.m_block > 0) s += fmt::format(", m_block {}", plan.m_block);
  if (plan.broadcast_a) s += ", broadcast_a";
  if (plan.prefetch != PrefetchHint::kNone) {
    s += fmt::format(", prefetch {} +{} every {}", plan.prefetch == PrefetchHint::kT0 ? "t0" : "t1",
                     plan.prefetch_distance, plan.prefetch_every);
  }
  if (plan.prefetch_next_panel) s += ", prefetch next panel";
  return s + fmt::format(", scratch {}, cost {:.1f}", plan.scratch_bytes, plan.cost);
}

}  // namespace xjit
