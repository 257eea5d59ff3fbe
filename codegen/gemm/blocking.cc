#include "codegen/gemm/blocking.h"

#include <algorithm>

#include "codegen/gemm/blocking_model.h"
#include "codegen/gemm/pack.h"
#include "codegen/kernel_rows.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

Blocking Refused(std::string_view family, std::string why) {
  Blocking b;
  b.family = family;
  b.refused = true;
  b.reason = std::move(why);
  return b;
}

// The descriptor with which lowering would ask for the product; rows lie side by side.
GemmDesc DescOf(const BlockingShape& shape) {
  GemmDesc desc;
  desc.n = PackedColumns(shape.n, shape.interleaved);
  desc.k = shape.k;
  desc.a = shape.a;
  desc.w = shape.w;
  desc.rows = shape.m <= kMaxFewRows ? static_cast<int>(shape.m) : 0;
  desc.strips = desc.rows == 0 && (shape.a == DType::kBF16 || shape.a == DType::kI8Act);
  desc.lda_bytes = shape.a == DType::kQ8Act ? Q8Layout{shape.k}.row_bytes() : 4 * shape.k;
  desc.ldc_bytes = 4 * desc.n;
  return desc;
}

// What the row of kernels.inc says. It multiplies one matrix: an expert's run is a call like any other.
Blocking FromRow(const TypedRow<GemmDesc>& row, const BlockingShape& shape, const TargetInfo& target) {
  const GemmDesc desc = DescOf(shape);
  const auto plan = row.plan(desc, target);
  if (!plan.ok()) return Refused(row.name, std::string(Message(plan.status())));
  Blocking b = BlockingOf(desc, *plan, shape.m, shape.experts, target.threads);
  b.family = row.name;
  b.exists = shape.experts == 1;
  const double cycles = plan->cost * static_cast<double>(shape.m * desc.n * shape.experts);
  SetCost(shape, target, cycles * LargestShare(b, target.threads), &b);
  return b;
}

}  // namespace

Blocking BlockingOf(const GemmDesc& desc, const GemmPlan& plan, int64_t rows, int64_t experts, int threads) {
  Blocking b;
  const bool few = desc.rows > 0;
  b.tile_m = plan.tile_rows;
  b.tile_n = plan.tile_vectors;
  b.block_m = plan.m_block > 0 ? std::min(plan.m_block, rows) : rows;
  b.block_n = plan.panels * kPanelColumns;
  // Without scratch few rows stream the whole depth through registers. A plan counts depth in dwords of A: of bf16 two.
  const bool stream = few && plan.scratch_bytes == 0;
  b.block_k = stream ? desc.k : std::min(desc.k, plan.k_block * (desc.a == DType::kBF16 ? 2 : 1));
  // Scratch is the tile of sums and the unpacked weights.
  b.unpack_once = !few && plan.scratch_bytes > plan.panels * plan.m_block * kPanelColumns * 4;
  b.loop_order = few ? "n,k" : b.block_m < rows ? "n,m,k,m" : "n,k,m";
  SharePanelTasks(desc.panels(), PanelBytes(desc.w, desc.k), rows, experts, threads, &b);
  return b;
}

std::vector<Blocking> BlockingCandidates(const BlockingShape& shape, const TargetInfo& target) {
  const std::string_view layout =
      shape.layout.empty() ? PackedLayout(shape.w, target.isa) : std::string_view(shape.layout);
  std::vector<Blocking> candidates;
  for (const KernelFamily& family : KernelFamilies()) {
    if (family.isa > target.isa) continue;
    const auto rows = RowsOf<GemmDesc>();
    const auto row = std::find_if(rows.begin(), rows.end(), [&family](const auto& r) { return r.name == family.name; });
    // A row that reads these bytes speaks for itself, also when it refuses.
    if (row != rows.end() && layout == kPanelLayout) {
      candidates.push_back(FromRow(*row, shape, target));
      continue;
    }
    const std::string why = ModelRefusal(family, shape, target);
    candidates.push_back(why.empty() ? ModelBlocking(family, shape, target) : Refused(family.name, why));
  }
  return candidates;
}

Blocking ChooseBlocking(std::span<const Blocking> candidates) {
  const Blocking* best = nullptr;
  for (const Blocking& b : candidates) {
    if (b.refused) continue;
    if (best == nullptr || b.cost_us < best->cost_us ||
        (b.cost_us == best->cost_us && b.compute_us < best->compute_us)) {
      best = &b;
    }
  }
  if (best != nullptr) return *best;
  std::string reasons;
  for (const Blocking& b : candidates) {
    if (!reasons.empty()) reasons += "; ";
    reasons += fmt::format("{}: {}", b.family, b.reason);
  }
  return Refused("", std::move(reasons));
}

Blocking ChooseBlocking(const BlockingShape& shape, const TargetInfo& target) {
  return ChooseBlocking(BlockingCandidates(shape, target));
}

int64_t ColumnUnit(bool interleaved) { return interleaved ? kPanelColumns : kGroupColumns; }

PanelTasks SharePanels(int64_t panels, int64_t panel_bytes, int64_t rows, int64_t tasks) {
  PanelTasks share;
  if (rows <= kMaxFewRows) {
    const int64_t task_bytes = std::clamp(panels * panel_bytes / tasks, kMinTaskBytes, kMaxTaskBytes);
    share.panels = std::max<int64_t>(1, task_bytes / panel_bytes);
  } else {
    // Two panels side by side halve the reading of A. A panel's unpacking is shared by all rows, so rows are only cut
    // when there are too few panels.
    if (panels >= 2 * tasks) share.panels = 2;
    const int64_t cuts = CeilDiv(tasks, panels);
    if (cuts > 1) share.rows = std::max<int64_t>(32, CeilDiv(rows / cuts, 32) * 32);
  }
  return share;
}

std::string_view PackedLayout(const Encoding& w, Isa isa) {
  const bool dots = isa >= Isa::kAvx512Bf16;  // of bf16 pairs, in vectors or tiles
  switch (w.type) {
    case DType::kBF16:
      return isa >= Isa::kAmx ? "vnni2.16x32" : kPanelLayout;
    case DType::kI8:
      if (w.scales.weight_only) return dots ? "i8.vnni2.16x32" : "i8.16";
      return isa >= Isa::kAmx ? "vnni4.16x64" : isa >= Isa::kAvx512Vnni ? "vnni4.16x64.comp" : "i8.16";
    case DType::kF8E4M3:
      return dots ? "f8.vnni2.16x32" : "f8.16";
    case DType::kI4:
      return dots ? "i4.vnni2.16x32" : "i4.16";
    default:
      return HasPanels(w.type) ? kPanelLayout : "";
  }
}

}  // namespace xjit
