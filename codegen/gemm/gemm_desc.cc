#include "codegen/gemm/gemm_desc.h"

#include <fmt/format.h>

#include "codegen/gemm/gemm_plan.h"

namespace xjit {

std::string GemmName(const GemmDesc& desc, const char* row) {
  const std::string rows = desc.rows == 0 ? "many" : fmt::format("{}", desc.rows);
  std::string name = fmt::format("gemm.{}.{}_{}_f32.m{}n{}k{}", row, Name(desc.a), Name(desc.w), rows, desc.n, desc.k);
  if (desc.epilogue.bias) name += ".bias";
  if (desc.epilogue.silu_mul) name += ".silu_mul";
  if (desc.epilogue.residual) name += ".residual";
  return name;
}

std::string ToString(const GemmPlan& plan) {
  std::string s = fmt::format("tile_rows {}, k_block {}", plan.tile_rows, plan.k_block);
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
