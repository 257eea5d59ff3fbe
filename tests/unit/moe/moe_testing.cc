#include "tests/unit/moe/moe_testing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "codegen/cpu.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/moe/moe_ref.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/align.h"

namespace xjit::testing {
namespace {

// 64-byte aligned inside a vector.
std::byte* Aligned(std::vector<std::byte>& bytes, int64_t size) {
  bytes.assign(static_cast<size_t>(size) + 64, std::byte{0});
  return reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uintptr_t>(bytes.data()), uintptr_t{64}));
}

// What rounding explains, relative to the sum of the magnitudes added up: as for one product (Higham, Accuracy and
// Stability of Numerical Algorithms, 3.1), 40 more roundings for dequantisation and epilogue.
// Weights in blocks that are multiplied with bf16 are rounded to it themselves, a half of its last place.
double SumBound(int64_t k, DType a, const Encoding& w) {
  const bool rounded = a == DType::kBF16 && (IsQuantized(w.type) || w.type == DType::kI4);
  return static_cast<double>(k + 40) * 0x1p-24 + (rounded ? 0x1p-9 : 0);
}

// Row of activations as numbers, near enough to bound errors by.
std::vector<double> Magnitudes(const float* x, int64_t k) {
  std::vector<double> out;
  const double most =
      std::fabs(*std::max_element(x, x + k, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  // Rounding to int8 moves a value by up to a 254th of the largest.
  for (int64_t i = 0; i < k; ++i) out.push_back(std::fabs(x[i]) + most / 254);
  return out;
}

std::vector<float> Column(const Encoding& w, int64_t k, const std::byte* panels, int64_t n) {
  std::vector<float> column(static_cast<size_t>(k));
  UnpackColumn(w, k, panels, n, column.data());
  return column;
}

double Dot(const std::vector<double>& a, const std::vector<float>& w) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * std::fabs(w[i]);
  return sum;
}

}  // namespace

MoeStep RandomStep(const MoeTestShape& shape, int64_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  MoeStep step{.rows = rows};
  for (int64_t i = 0; i < rows * shape.hidden; ++i) step.x.push_back(normal(random));
  std::vector<int32_t> all(static_cast<size_t>(shape.experts));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < rows; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    step.experts.insert(step.experts.end(), all.begin(), all.begin() + shape.slots);
  }
  for (int64_t i = 0; i < rows * shape.slots; ++i) step.weights.push_back(std::fabs(normal(random)));
  return step;
}

MoeStep StepOfRuns(const MoeTestShape& shape, const std::vector<int64_t>& lengths, uint64_t seed) {
  std::vector<int32_t> experts;
  for (size_t e = 0; e < lengths.size(); ++e) {
    experts.insert(experts.end(), static_cast<size_t>(lengths[e]), static_cast<int32_t>(e));
  }
  MoeStep step = RandomStep(shape, static_cast<int64_t>(experts.size()), seed);
  std::mt19937_64 random(seed);
  std::shuffle(experts.begin(), experts.end(), random);
  step.experts = experts;
  return step;
}

MoeHarness::MoeHarness(const MoeTestShape& shape, Isa isa, int64_t rows, int threads, int64_t l2_bytes)
    : shape_(shape) {
  // Tiles are emulated where there are none.
  if (isa > RunnableIsa()) {
    why_ = fmt::format("this machine has no {}", Name(isa));
    return;
  }
  EXPECT_TRUE(PrepareIsa(isa).ok());
  TargetInfo target = HostCpu(isa);
  target.threads = threads;
  target.l2_bytes = l2_bytes;
  library_ = std::make_unique<KernelLibrary>(target);
  MoeDesc desc{.experts = shape.experts,
               .rows = rows,
               .slots = shape.slots,
               .hidden = shape.hidden,
               .intermediate = shape.intermediate,
               .gate_up = shape.gate_up,
               .down = shape.down};
  desc.x = ActivationFor(shape.gate_up, target, rows > kMaxFewRows);
  desc.mid = ActivationFor(shape.down, target, rows > kMaxFewRows);
  auto plan = PlanMoe(desc, *library_, threads);
  if (!plan.ok()) {
    why_ = std::string(Message(plan.status()));
    return;
  }
  plan_ = *plan;
  EXPECT_TRUE(library_->Seal().ok());
  pool_ = *WorkerPool::Create({.cpus = std::vector<int>(static_cast<size_t>(threads), -1)});
  stages_.emplace(*plan_, threads, Aligned(tables_, plan_->table_bytes(threads)), Aligned(work_, plan_->work_bytes()));
  scratch_.resize(static_cast<size_t>(threads));

  const int64_t up_bytes = plan_->up.expert_bytes, down_bytes = plan_->down.expert_bytes;
  std::byte* w = Aligned(weights_, shape.experts * (up_bytes + down_bytes) + 64);
  gate_up_ = w;
  down_ = w + AlignUp(shape.experts * up_bytes, 64);
  for (int64_t e = 0; e < shape.experts; ++e) {
    const auto seed = static_cast<uint64_t>(e);
    const auto all = [](int64_t count, const std::function<void(int64_t, int64_t)>& f) { f(0, count); };
    // Columns beyond the intermediate's are zero by turns of 16; unused ones of the last panel do no harm.
    RandomPanels(shape.gate_up, plan_->up.panels * kPanelColumns, shape.hidden, seed,
                 const_cast<std::byte*>(gate_up_) + e * up_bytes);
    RandomPanels(shape.down, plan_->down.panels * kPanelColumns, shape.hidden, shape.intermediate, 1000 + seed,
                 const_cast<std::byte*>(down_) + e * down_bytes, all);
  }
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < rows * shape.hidden; ++i) residual_.push_back(normal(random));
}

std::vector<float> MoeHarness::Run(const MoeStep& step, int64_t first) {
  const MoeDesc& desc = plan_->desc;
  StepView view{.rows = step.rows};
  std::vector<std::byte> x_bytes;
  std::byte* x = Aligned(x_bytes, step.rows * plan_->x_layout.stride + 64);
  PrepareRef({.cols = desc.hidden, .out = desc.x, .ldx_bytes = 4 * desc.hidden, .ldo_bytes = plan_->x_layout.stride},
             {.x = step.x.data(), .out = x}, 0, step.rows);
  std::vector<float> out(residual_.begin(), residual_.begin() + step.rows * desc.hidden);

  Program program(pool_->threads(), desc.rows, &view);
  const Stage sort{.label = "sort",
                   .kernel = *library_->Fixed("moe_sort"),
                   .mode = StageMode::kReplicated,
                   .m_kind = GridM::kRows,
                   .barrier_after = false};
  program.AddPerThread(sort, [&](int t) {
    MoeSortArgs args = stages_->Sort(t);
    args.experts = step.experts.data();
    args.lde_bytes = 4 * desc.slots;
    args.first = first;
    return args;
  });
  Stage up{.label = "up",
           .kernel = *library_->Fixed("grouped_up"),
           .n_count = plan_->up_tasks(),
           .n_chunk = 1,
           .m_kind = GridM::kRows};
  program.AddPerThread(up, [&](int t) {
    std::byte* scratch =
        Aligned(scratch_[static_cast<size_t>(t)], std::max(plan_->up_scratch_bytes(), plan_->down_scratch_bytes()));
    GroupedUpArgs args = stages_->Up(t, scratch);
    args.weights.w = gate_up_;
    args.x = x;
    return args;
  });
  Stage down{.label = "down",
             .kernel = *library_->Fixed("grouped_down"),
             .n_count = plan_->down.panels,
             .n_chunk = plan_->down.chunk,
             .m_kind = GridM::kRows};
  program.AddPerThread(down, [&](int t) {
    auto& bytes = scratch_[static_cast<size_t>(t)];
    GroupedDownArgs args = stages_->Down(
        t, reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uintptr_t>(bytes.data()), uintptr_t{64})));
    args.weights.w = down_;
    args.weight = step.weights.data();
    args.ldweight_bytes = 4 * desc.slots;
    args.residual = out.data();  // in place
    args.ldr_bytes = 4 * desc.hidden;
    args.out = out.data();
    args.ldo_bytes = 4 * desc.hidden;
    return args;
  });
  EXPECT_TRUE(program.Finish().ok());
  Execute(program, *pool_);
  return out;
}

std::vector<MoeHarness::Row> MoeHarness::RowsOfSlots(int64_t slots) const {
  std::vector<Row> rows(static_cast<size_t>(slots));
  for (int64_t u = 0; u < runs().units; ++u) {
    const MoeUnit& unit = runs().unit[u];
    for (int64_t r = 0; r < unit.rows; ++r) {
      const int64_t slot = runs().slot[unit.first + r];
      EXPECT_TRUE(slot >= 0 && slot < slots && rows[static_cast<size_t>(slot)].unit < 0) << slot;
      rows[static_cast<size_t>(slot)] = {stages_->c() + (unit.row0 + r) * plan_->c_stride / 4, u, r};
    }
  }
  return rows;
}

void MoeHarness::Check(const MoeStep& step, const std::vector<float>& out, int64_t first) {
  const MoeDesc& desc = plan_->desc;
  const int64_t slots = step.rows * desc.slots;
  if (slots == 0) return;  // nothing is called, not even sorting
  std::vector<int32_t> experts = step.experts;
  for (int32_t& e : experts) e -= static_cast<int32_t>(first);
  const std::vector<Row> rows = RowsOfSlots(slots);

  // Gate and up.
  std::vector<std::byte> x_bytes, mid_bytes;
  std::byte* x = Aligned(x_bytes, step.rows * plan_->x_layout.stride);
  PrepareRef({.cols = desc.hidden, .out = desc.x, .ldx_bytes = 4 * desc.hidden, .ldo_bytes = plan_->x_layout.stride},
             {.x = step.x.data(), .out = x}, 0, step.rows);
  std::vector<float> c(static_cast<size_t>(slots * plan_->c_stride / 4));
  GroupedUpRef(desc, x, gate_up_, experts.data(), step.rows, c.data(), plan_->c_stride);
  // The intermediate as the kernels have it, in order of slots.
  std::vector<float> mid_f32(static_cast<size_t>(slots * desc.intermediate));
  const int64_t mid_stride = plan_->mid_layout.stride;
  std::byte* mid = Aligned(mid_bytes, slots * mid_stride + 64);
  const double bound = 2.1 * SumBound(desc.hidden, desc.x, desc.gate_up) + 6e-7;
  for (int64_t s = 0; s < slots; ++s) {
    const Row& row = rows[static_cast<size_t>(s)];
    const int32_t e = experts[static_cast<size_t>(s)];
    ASSERT_EQ(row.unit >= 0, e >= 0 && e < desc.experts) << "slot " << s;
    if (row.unit < 0) continue;
    ASSERT_EQ(runs().unit[row.unit].expert, e);
    const float* token = step.x.data() + s / desc.slots * desc.hidden;
    const bool number = std::all_of(token, token + desc.hidden, [](float v) { return std::isfinite(v); });
    std::copy_n(row.c, desc.intermediate, mid_f32.begin() + s * desc.intermediate);
    if (!number) continue;
    const std::vector<double> a = Magnitudes(token, desc.hidden);
    const std::byte* w = gate_up_ + e * plan_->up.expert_bytes;
    for (int64_t j = 0; j < desc.intermediate; ++j) {
      const int64_t n = j / kGroupColumns * kPanelColumns + j % kGroupColumns;
      const double magnitude = Dot(a, Column(desc.gate_up, desc.hidden, w, n)) *
                               Dot(a, Column(desc.gate_up, desc.hidden, w, n + kGroupColumns));
      ASSERT_NEAR(row.c[j], c[static_cast<size_t>(s * plan_->c_stride / 4 + j)], bound * magnitude + 1e-30)
          << "slot " << s << " column " << j;
    }
  }
  PrepareDesc convert{
      .cols = desc.intermediate, .out = desc.mid, .ldx_bytes = 4 * desc.intermediate, .ldo_bytes = mid_stride};
  PrepareRef(convert, {.x = mid_f32.data(), .out = mid}, 0, slots);

  // The conversion of each unit, then down.
  std::vector<float> products(static_cast<size_t>(slots * plan_->down.panels * kPanelColumns));
  const int64_t ldp = plan_->down.panels * kPanelColumns;
  GroupedDownRef(desc, mid, down_, experts.data(), step.rows, products.data(), 4 * ldp);
  for (int64_t s = 0; s < slots && desc.mid != DType::kF32; ++s) {
    const Row& row = rows[static_cast<size_t>(s)];
    if (row.unit < 0) continue;
    const MoeUnit& unit = runs().unit[row.unit];
    const std::byte* base = stages_->mid() + unit.row0 * stages_->mid_stride();
    const std::byte* want = mid + s * mid_stride;
    const bool strips = unit.rows > plan_->few_rows && plan_->down.strips;
    const int64_t values = desc.mid == DType::kI8Act ? desc.intermediate : plan_->mid_layout.row_bytes;
    for (int64_t b = 0; b < (strips ? values : plan_->mid_layout.row_bytes); ++b) {
      // Padding between the values and the scales of int8 rows means nothing.
      const int64_t at = strips ? plan_->mid_layout.strips.offset(row.row, b) : row.row * mid_stride + b;
      if (desc.mid == DType::kQ8Act && b >= desc.intermediate / 32 * 52) break;
      if (desc.mid == DType::kI8Act && b >= AlignUp(desc.intermediate, 64) + 8) break;
      ASSERT_EQ(static_cast<int>(base[at]), static_cast<int>(want[b])) << "slot " << s << " byte " << b;
    }
  }
  for (int64_t t = 0; t < step.rows; ++t) {
    const float* token = step.x.data() + t * desc.hidden;
    const bool number = std::all_of(token, token + desc.hidden, [](float v) { return std::isfinite(v); });
    for (int64_t j = 0; j < desc.hidden; ++j) {
      double sum = residual_[static_cast<size_t>(t * desc.hidden + j)], magnitude = std::fabs(sum);
      for (int64_t s = t * desc.slots; s < (t + 1) * desc.slots; ++s) {
        const int32_t e = experts[static_cast<size_t>(s)];
        if (e < 0 || e >= desc.experts || !number) continue;
        sum += double{step.weights[static_cast<size_t>(s)]} * products[static_cast<size_t>(s * ldp + j)];
        const std::vector<double> a =
            Magnitudes(&mid_f32[static_cast<size_t>(s * desc.intermediate)], desc.intermediate);
        magnitude += double{step.weights[static_cast<size_t>(s)]} *
                     Dot(a, Column(desc.down, desc.intermediate, down_ + e * plan_->down.expert_bytes, j));
      }
      const float got = out[static_cast<size_t>(t * desc.hidden + j)];
      if (!number) {
        ASSERT_TRUE(std::isnan(got)) << "token " << t << " column " << j << ": " << got;
      } else {
        ASSERT_NEAR(got, sum, SumBound(desc.intermediate + desc.slots, desc.mid, desc.down) * magnitude)
            << "token " << t << " column " << j;
      }
    }
  }
}

}  // namespace xjit::testing
