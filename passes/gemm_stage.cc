#include "passes/gemm_stage.h"

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/pack.h"

namespace xjit {

absl::StatusOr<GemmStage> MakeGemmStage(const GemmDesc& desc, int64_t parts, std::string_view row, int64_t rows,
                                        int threads, KernelLibrary& library) {
  XJIT_RETURN_IF_ERROR(Prefix(CheckParts(desc, parts), "gemm"));
  GemmStage product{.desc = desc, .parts = parts};
  XJIT_ASSIGN_OR_RETURN(product.kernel, library.Get(parts > 1 ? PartOf(desc, parts) : desc, row));
  Stage& stage = product.stage;
  stage.kernel = parts > 1 ? library.Split(*product.kernel) : product.kernel;
  const PanelGrid grid = GridOf(desc, product.kernel->panels_together, rows, parts);
  const PanelTasks share = SharePanels(grid, threads);
  stage.n_count = grid.panels;
  stage.n_chunk = share.panels;
  stage.m_kind = GridM::kRows;
  if (share.rows > 0) stage.m_chunk = share.rows;
  stage.weight_bytes = desc.panels() * PanelBytes(desc.w, desc.k);
  return product;
}

}  // namespace xjit
