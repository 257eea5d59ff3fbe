#include "codegen/moe/moe_plan.h"

#include <algorithm>
#include <new>

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Rows of a unit at most: its activations stay in half of L2 while panels go by, and so many rows make unpacking a
// panel cheap: beyond 256 rows nothing is gained (2-core EPYC 9005, Zen 5).
constexpr int64_t kMostUnitRows = 256;
// A task of gate and up is as SharePanels has it; one of down goes over all units, a range of the columns each, and is
// cut until there are so many for each thread.
constexpr int64_t kDownTasksPerThread = 32;

// Scores that every thread computes for itself rather than wait at a barrier: an exponential in double takes about 10
// ns, a barrier with its wait 0.2 to 1 us (2-core EPYC 9005, Zen 5) and uneven starts.
constexpr int64_t kReplicatedScores = 256;

// The kernels of one product: for 1, 2, ... rows as far as there are any, and for many.
absl::Status ChooseKernels(GemmDesc desc, int64_t rows, KernelLibrary& library, GroupedPlan* plan, int* few_rows) {
  const bool many = rows > kMaxFewRows;
  if (many) {
    desc.rows = 0;
    desc.strips = StripsFor(desc.a, true);
    auto kernel = library.Get(desc);
    if (!kernel.ok() && desc.strips) {
      desc.strips = false;
      kernel = library.Get(desc);
    }
    if (!kernel.ok()) return kernel.status();
    plan->kernels[0] = *kernel;
    plan->strips = desc.strips;
    plan->kernel_scratch = (*kernel)->scratch_bytes;
  }
  desc.strips = false;
  const int most = static_cast<int>(std::min<int64_t>(rows, std::min(*few_rows, kMaxFewRows)));
  *few_rows = 0;
  for (desc.rows = 1; desc.rows <= most; ++desc.rows) {
    const auto kernel = library.Get(desc);
    if (!kernel.ok() && many) break;
    if (!kernel.ok()) return kernel.status();
    plan->kernels[static_cast<size_t>(desc.rows)] = *kernel;
    plan->kernel_scratch = std::max(plan->kernel_scratch, (*kernel)->scratch_bytes);
    *few_rows = desc.rows;
  }
  return absl::OkStatus();
}

int64_t UpChunk(const MoeDesc& desc, const GroupedPlan& up, int threads) {
  const int64_t active = std::min(desc.experts, desc.rows * desc.slots);
  const int64_t chunk = SharePanels({.panels = up.panels * active, .panel_bytes = up.panel_bytes}, threads).panels;
  // Tasks of an expert are of one size.
  return CeilDiv(up.panels, CeilDiv(up.panels, std::min(chunk, up.panels)));
}

int64_t DownChunk(const MoeDesc& desc, const GroupedPlan& down, int threads) {
  const int64_t active = std::min(desc.experts, desc.rows * desc.slots);
  const int64_t by_tasks = down.panels / (threads * kDownTasksPerThread);
  const int64_t by_bytes = kMaxTaskBytes / (active * down.panel_bytes);
  return std::max<int64_t>(1, desc.rows <= kMaxFewRows ? std::min(by_tasks, by_bytes) : by_tasks);
}

GroupedWeights WeightsOf(const GroupedPlan& plan, int few_rows) {
  GroupedWeights weights{
      .expert_bytes = plan.expert_bytes, .panels = plan.panels, .panel_bytes = plan.panel_bytes, .few_rows = few_rows};
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    weights.fn[i] = plan.kernels[i] == nullptr ? nullptr : plan.kernels[i]->fn;
  }
  return weights;
}

int64_t UnitBytes(const MoePlan& plan) {
  const int64_t few = plan.x_layout.stride * plan.few_rows;
  const int64_t rows = std::min(plan.unit_rows, AlignUp(plan.desc.rows, kStripRows));
  if (plan.up.kernels[0] == nullptr) return few;
  return std::max(few, plan.up.strips ? plan.x_layout.strips.bytes(rows) : plan.x_layout.stride * rows);
}

}  // namespace

int64_t MoePlan::up_scratch_bytes() const { return AlignUp(UnitBytes(*this), 64) + up.kernel_scratch; }

int64_t MoePlan::down_scratch_bytes() const {
  return AlignUp(tile_stride * std::max<int64_t>(few_rows, std::min(unit_rows, desc.rows)), 64) + down.kernel_scratch;
}

bool ReplicatesRoute(int64_t rows, int64_t experts) { return rows * experts <= kReplicatedScores; }

GemmDesc UpDesc(const MoeDesc& desc) {
  GemmDesc gemm{.n = PackedColumns(2 * desc.intermediate, true), .k = desc.hidden, .a = desc.x, .w = desc.gate_up};
  gemm.epilogue.silu_mul = true;
  return gemm;
}

GemmDesc DownDesc(const MoeDesc& desc) {
  return {.n = AlignUp(desc.hidden, kPanelColumns), .k = desc.intermediate, .a = desc.mid, .w = desc.down};
}

absl::StatusOr<MoePlan> PlanMoe(const MoeDesc& desc, KernelLibrary& library, int threads) {
  if (desc.experts < 1 || desc.rows < 1 || desc.slots < 1 || desc.hidden < 1 || desc.intermediate < 1) {
    return InvalidArgument("moe: {} experts, {} of a token, {} rows, {} x {} are no sizes", desc.experts, desc.slots,
                           desc.rows, desc.hidden, desc.intermediate);
  }
  // Slots and sorted rows are 32-bit numbers.
  if (desc.rows > (int64_t{1} << 28) / desc.slots) return InvalidArgument("moe: {} rows are too many", desc.rows);
  MoePlan plan;
  plan.desc = desc;
  plan.x_layout = MoeRowLayoutOf(desc.x, desc.hidden);
  plan.mid_layout = MoeRowLayoutOf(desc.mid, desc.intermediate);

  GemmDesc up = UpDesc(desc), down = DownDesc(desc);
  plan.c_stride = AlignUp(up.panels() * kGroupColumns * 4, 64);
  up.lda_bytes = plan.x_layout.stride;
  up.ldc_bytes = plan.c_stride;
  down.lda_bytes = desc.mid == DType::kF32 ? plan.c_stride : plan.mid_layout.stride;
  for (const auto& [gemm, product] : {std::pair{&up, &plan.up}, std::pair{&down, &plan.down}}) {
    product->panels = gemm->panels();
    product->panel_bytes = PanelBytes(gemm->w, gemm->k);
    product->expert_bytes = product->panels * product->panel_bytes;
  }
  plan.up.chunk = UpChunk(desc, plan.up, threads);
  plan.down.chunk = DownChunk(desc, plan.down, threads);
  plan.tile_stride = plan.down.chunk * kPanelColumns * 4;
  // A task's columns are a matrix to the kernel.
  down.n = plan.down.chunk * kPanelColumns;
  down.ldc_bytes = plan.tile_stride;

  plan.few_rows = kMaxFewRows;
  XJIT_RETURN_IF_ERROR(ChooseKernels(up, desc.rows, library, &plan.up, &plan.few_rows));
  XJIT_RETURN_IF_ERROR(ChooseKernels(down, desc.rows, library, &plan.down, &plan.few_rows));
  const int64_t row_bytes = std::max(plan.x_layout.stride, plan.mid_layout.stride);
  plan.unit_rows = std::clamp(library.target().l2_bytes / 2 / row_bytes / kStripRows * kStripRows, int64_t{kStripRows},
                              kMostUnitRows);
  plan.sizes = MoeSizesOf(desc.rows, desc.slots, desc.experts, plan.few_rows, plan.unit_rows);

  if (desc.mid != DType::kF32) {
    PrepareDesc convert{
        .cols = desc.intermediate, .out = desc.mid, .ldx_bytes = plan.c_stride, .ldo_bytes = plan.mid_layout.stride};
    XJIT_ASSIGN_OR_RETURN(plan.convert, library.Get(convert));
    convert.strips = true;
    if (plan.down.strips) {
      XJIT_ASSIGN_OR_RETURN(plan.convert_strips, library.Get(convert));
    }
  }
  return plan;
}

namespace {

// Where the parts of a thread's table are.
struct TableLayout {
  explicit TableLayout(const MoePlan& plan)
      : tag(AlignUp(static_cast<int64_t>(sizeof(MoeRuns)), 64)),
        units(tag + static_cast<int64_t>(sizeof(GatherTag))),
        slots(units + AlignUp(plan.sizes.units * static_cast<int64_t>(sizeof(MoeUnit)), 64)),
        begin(slots + AlignUp(plan.sizes.slots * 4, 64)),
        bytes(begin + AlignUp((plan.desc.experts + 1) * 4, 64)) {}
  int64_t tag, units, slots, begin, bytes;
};

int64_t CBytes(const MoePlan& plan) { return plan.sizes.sorted_rows * plan.c_stride; }

}  // namespace

int64_t MoePlan::table_bytes(int threads) const {
  return threads * TableLayout(*this).bytes + AlignUp(sizes.units * 4, 64);
}

int64_t MoePlan::work_bytes() const {
  const int64_t mid = desc.mid == DType::kF32 ? 0 : sizes.sorted_rows * mid_layout.stride;
  // Kernels may read a row up to the next multiple of 64 bytes.
  return CBytes(*this) + mid + 64;
}

MoeStages::MoeStages(const MoePlan& plan, int threads, std::byte* tables, std::byte* work)
    : plan_(plan),
      tables_(tables),
      done_(tables + threads * TableLayout(plan).bytes),
      work_(work),
      mid_(plan.desc.mid == DType::kF32 ? work : work + CBytes(plan)) {
  const TableLayout layout(plan_);
  for (int t = 0; t < threads; ++t) {
    auto* runs = new (Table(t)) MoeRuns;
    new (Table(t) + layout.tag) GatherTag;
    runs->unit = reinterpret_cast<MoeUnit*>(Table(t) + layout.units);
    runs->slot = reinterpret_cast<int32_t*>(Table(t) + layout.slots);
  }
}

std::byte* MoeStages::Table(int thread) const { return tables_ + thread * TableLayout(plan_).bytes; }

int64_t MoeStages::mid_stride() const {
  return plan_.desc.mid == DType::kF32 ? plan_.c_stride : plan_.mid_layout.stride;
}

MoeSortArgs MoeStages::Sort(int thread) const {
  return {.slots = plan_.desc.slots,
          .count = plan_.desc.experts,
          .few_rows = plan_.few_rows,
          .unit_rows = plan_.unit_rows,
          .runs = runs(thread),
          .begin = reinterpret_cast<int32_t*>(Table(thread) + TableLayout(plan_).begin)};
}

GroupedUpArgs MoeStages::Up(int thread, std::byte* scratch) const {
  GroupedUpArgs args{.weights = WeightsOf(plan_.up, plan_.few_rows),
                     .runs = runs(thread),
                     .slots = plan_.desc.slots,
                     .chunk = plan_.up.chunk,
                     .chunks = plan_.up.chunks(),
                     .x_layout = plan_.x_layout,
                     .ldx_bytes = plan_.x_layout.stride,
                     .many_strips = plan_.up.strips,
                     .c = c(),
                     .ldc_bytes = plan_.c_stride,
                     .mid_strips = plan_.down.strips,
                     .mid = mid_,
                     .mid_stride = mid_stride(),
                     .done = reinterpret_cast<int32_t*>(done_),
                     .tag = reinterpret_cast<GatherTag*>(Table(thread) + TableLayout(plan_).tag),
                     .rows = scratch,
                     .scratch = scratch + AlignUp(UnitBytes(plan_), 64)};
  if (plan_.convert != nullptr) args.convert = plan_.convert->fn;
  if (plan_.convert_strips != nullptr) args.convert_strips = plan_.convert_strips->fn;
  return args;
}

GroupedDownArgs MoeStages::Down(int thread, std::byte* scratch) const {
  return {.weights = WeightsOf(plan_.down, plan_.few_rows),
          .runs = runs(thread),
          .slots = plan_.desc.slots,
          .columns = plan_.desc.hidden,
          .mid = mid_,
          .mid_stride = mid_stride(),
          .c = reinterpret_cast<float*>(scratch),
          .ldc_bytes = plan_.tile_stride,
          .scratch = scratch + plan_.down_scratch_bytes() - plan_.down.kernel_scratch};
}

}  // namespace xjit
