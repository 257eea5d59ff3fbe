// xjit bench-op moe: routing, sorting and the products of a mixture of experts with random weights, as a model's
// program runs them: layer after layer, the experts of each layer others.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/rows/rows_ref.h"
#include "ir/support/align.h"
#include "ir/support/median.h"
#include "runtime/executor.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

constexpr uint64_t kSeed = 42;
constexpr int64_t kSampleTokens = 3, kSamplePanels = 3;
constexpr int kProfiledSteps = 10;
// Logits of a layer's chosen experts lie so far above the others'.
constexpr float kChosen = 30;
// Chosen experts of 1 MiB and more a layer fill a last-level cache of 256 MiB four times. Smaller ones are in caches
// then, but a step of tens of thousands of layers would measure its barriers.
constexpr int64_t kMostLayers = 1024;

class MoeBench {
 public:
  MoeBench(OpBench& bench, const MoeDesc& desc) : bench_(bench), desc_(desc) {}

  absl::Status Prepare() {
    XJIT_ASSIGN_OR_RETURN(plan_, PlanMoe(desc_, bench_.library(), bench_.threads()));
    for (size_t i = 0; i < stages_.size(); ++i) {
      static constexpr std::string_view kNames[] = {"route", "moe_sort", "grouped_up", "grouped_down"};
      XJIT_ASSIGN_OR_RETURN(stages_[i], bench_.library().Fixed(kNames[i]));
    }
    XJIT_RETURN_IF_ERROR(bench_.library().Seal());
    XJIT_RETURN_IF_ERROR(bench_.MakeScratch(
        std::max({plan_.up_scratch_bytes(), plan_.down_scratch_bytes(), RouteScratchBytes(Route())})));
    XJIT_RETURN_IF_ERROR(MakeWeights());
    XJIT_RETURN_IF_ERROR(MakeRows());
    return MakeProgram();
  }

  OpRun Op() {
    OpRun op;
    op.copies = layers();
    op.flops = 6.0 * static_cast<double>(desc_.rows * desc_.slots) * static_cast<double>(desc_.hidden) *
               static_cast<double>(desc_.intermediate);
    op.bytes = touched_ * static_cast<double>(expert_bytes());
    op.peak = PeakOf(desc_.x);
    op.peak_isa = ChosenIsa(bench_.library(), Up(MeanRows()));
    op.run = [this](int64_t calls) {
      for (int64_t i = 0; i < calls; i += layers()) Execute(*program_, bench_.pool());
    };
    return op;
  }

  // The last layer against the reference: gate and up of a few tokens, and from the intermediate that they left, what
  // the experts add up to; a few panels of each.
  absl::Status Check(OpError* gate_up, OpError* out) {
    std::fill_n(reinterpret_cast<float*>(out_.data()), out_.size() / 4, std::numeric_limits<float>::quiet_NaN());
    Execute(*program_, bench_.pool());
    const int64_t layer = layers() - 1;
    gate_up->rel_bound = ProductBound(desc_.hidden, true);
    out->rel_bound = ProductBound(desc_.intermediate + desc_.slots, false);
    for (const int64_t token : Sample(desc_.rows, kSampleTokens)) CheckToken(layer, token, gate_up, out);
    XJIT_RETURN_IF_ERROR(gate_up->Check(plan_.up.any()->name));
    return out->Check(plan_.down.any()->name);
  }

  // How evenly threads are busy: the share of its time in which the thread that waits most does so behind gate and up
  // and behind down, and how many tasks' time that is in the mean of these stages. Medians of a few steps.
  void Idle(nlohmann::ordered_json* json) {
    Profile profile(*program_);
    std::vector<double> shares, waits;
    for (int i = 0; i < kProfiledSteps; ++i) {
      profile.Clear();
      ExecuteProfiled(*program_, bench_.pool(), profile);
      double most_share = 0, most_tasks = 0;
      for (int t = 0; t < bench_.threads(); ++t) {
        double wait = 0, all = 0, tasks = 0;
        for (size_t s = 0; s < program_->stages().size(); ++s) {
          const Kernel* kernel = program_->stages()[s].kernel;
          if (kernel != stages_[2] && kernel != stages_[3]) continue;
          const auto time = profile.Time(static_cast<int>(s), t);
          double work = 0;
          for (int o = 0; o < bench_.threads(); ++o) work += profile.Time(static_cast<int>(s), o).kernel;
          const double count = kernel == stages_[2] ? touched_ * static_cast<double>(plan_.up.chunks())
                                                    : static_cast<double>(plan_.down.chunks());
          wait += time.barrier;
          all += time.barrier + time.kernel + time.other;
          tasks += time.barrier / work * count;
        }
        most_share = std::max(most_share, wait / all);
        most_tasks = std::max(most_tasks, tasks / static_cast<double>(2 * layers()));
      }
      shares.push_back(most_share);
      waits.push_back(most_tasks);
    }
    (*json)["idle_share"] = Median(shares);
    (*json)["idle_tasks"] = Median(waits);
  }

  int64_t copies() const { return copies_; }
  nlohmann::ordered_json Facts() const {
    return {{"kernel", plan_.up.any()->name},
            {"kernel_down", plan_.down.any()->name},
            {"experts_touched", touched_},
            {"gate_up_tasks", touched_ * static_cast<double>(plan_.up.chunks())},
            {"down_tasks", plan_.down.chunks()},
            {"unit_rows", plan_.unit_rows},
            {"layers", layers()}};
  }

 private:
  struct Layer {
    std::vector<float> logits;
    std::vector<int32_t> experts;
    std::vector<float> weights;
  };

  // Gate and up of a unit of so many rows.
  GemmDesc Up(int rows) const {
    GemmDesc gemm = UpDesc(desc_);
    gemm.rows = rows <= plan_.few_rows ? rows : 0;
    gemm.strips = gemm.rows == 0 && plan_.up.strips;
    gemm.lda_bytes = plan_.x_layout.stride;
    gemm.ldc_bytes = plan_.c_stride;
    return gemm;
  }
  // Of a touched expert, in the mean.
  int MeanRows() const {
    return static_cast<int>(std::lround(static_cast<double>(desc_.rows * desc_.slots) / touched_));
  }

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t expert_bytes() const { return plan_.up.expert_bytes + plan_.down.expert_bytes; }
  int64_t copy_bytes() const { return desc_.experts * expert_bytes(); }
  ref::RouteParams Route() const { return {.experts = desc_.experts, .top_k = desc_.slots, .normalize = true}; }
  std::byte* GateUp(int64_t layer) const { return weights_.data() + layer % copies_ * copy_bytes(); }
  std::byte* Down(int64_t layer) const { return GateUp(layer) + desc_.experts * plan_.up.expert_bytes; }

  // All experts of a copy have the same values, at addresses of their own.
  absl::Status MakeWeights() {
    XJIT_ASSIGN_OR_RETURN(copies_, bench_.Copies(copy_bytes(), true, kMostLayers));
    XJIT_ASSIGN_OR_RETURN(weights_, HugeBuffer::Allocate(copies_ * copy_bytes() + 64));
    const auto once = [](int64_t count, const std::function<void(int64_t, int64_t)>& f) { f(0, count); };
    std::vector<std::byte> up(static_cast<size_t>(plan_.up.expert_bytes)),
        down(static_cast<size_t>(plan_.down.expert_bytes));
    RandomPanels(desc_.gate_up, plan_.up.panels * kPanelColumns, desc_.hidden, kSeed, up.data());
    RandomPanels(desc_.down, plan_.down.panels * kPanelColumns, desc_.hidden, desc_.intermediate, kSeed + 1,
                 down.data(), once);
    bench_.pool().Run([&](int t) {
      for (int64_t i = t; i < copies_ * desc_.experts; i += bench_.threads()) {
        const int64_t copy = i / desc_.experts, e = i % desc_.experts;
        std::copy(up.begin(), up.end(), GateUp(copy) + e * plan_.up.expert_bytes);
        std::copy(down.begin(), down.end(), Down(copy) + e * plan_.down.expert_bytes);
      }
    });
    return absl::OkStatus();
  }

  // Layers enough to touch all copies, or four times the last-level cache if that is less. One token's experts are
  // dealt like cards, so that those of the layers before are not chosen again.
  void MakeLayers() {
    std::vector<int32_t> deck(static_cast<size_t>(desc_.experts));
    std::iota(deck.begin(), deck.end(), 0);
    size_t dealt = deck.size();
    std::normal_distribution<float> normal;
    const double enough = static_cast<double>(std::min(4 * bench_.target().l3_bytes, copies_ * copy_bytes()));
    double experts = 0;
    const auto more = [&] { return layers() < kMostLayers && experts * static_cast<double>(expert_bytes()) < enough; };
    while (layers_.empty() || more() || layers() % copies_ != 0) {
      Layer& layer = layers_.emplace_back();
      std::vector<bool> touched(deck.size());
      for (int64_t t = 0; t < desc_.rows; ++t) {
        if (desc_.rows > 1 || dealt + static_cast<size_t>(desc_.slots) > deck.size()) {
          std::shuffle(deck.begin(), deck.end(), random_);
          dealt = 0;
        }
        std::vector<float> row(deck.size());
        for (float& x : row) x = normal(random_);
        for (int64_t s = 0; s < desc_.slots; ++s) {
          const auto e = static_cast<size_t>(deck[dealt++]);
          row[e] += kChosen;
          touched[e] = true;
        }
        layer.logits.insert(layer.logits.end(), row.begin(), row.end());
      }
      experts += static_cast<double>(std::count(touched.begin(), touched.end(), true));
      layer.experts.resize(static_cast<size_t>(desc_.rows * desc_.slots));
      layer.weights.resize(layer.experts.size());
    }
    touched_ = experts / static_cast<double>(layers());
  }

  absl::Status MakeRows() {
    MakeLayers();
    std::normal_distribution<float> normal;
    XJIT_RETURN_IF_ERROR(
        bench_.CheckMemory(fmt::format("{} tokens", desc_.rows),
                           desc_.rows * (12 * desc_.hidden + plan_.x_layout.stride) + plan_.work_bytes()));
    x_.resize(static_cast<size_t>(desc_.rows * desc_.hidden));
    for (float& value : x_) value = normal(random_);
    XJIT_ASSIGN_OR_RETURN(a_, HugeBuffer::Allocate(desc_.rows * plan_.x_layout.stride + 64));
    PrepareRef(
        {.cols = desc_.hidden, .out = desc_.x, .ldx_bytes = 4 * desc_.hidden, .ldo_bytes = plan_.x_layout.stride},
        {.x = x_.data(), .out = a_.data()}, 0, desc_.rows);
    residual_.resize(x_.size());
    for (float& value : residual_) value = normal(random_);
    XJIT_ASSIGN_OR_RETURN(out_, HugeBuffer::Allocate(desc_.rows * desc_.hidden * 4));
    XJIT_ASSIGN_OR_RETURN(tables_, HugeBuffer::Allocate(plan_.table_bytes(bench_.threads())));
    XJIT_ASSIGN_OR_RETURN(work_, HugeBuffer::Allocate(plan_.work_bytes()));
    grouped_.emplace(plan_, bench_.threads(), tables_.data(), work_.data());
    return absl::OkStatus();
  }

  absl::Status MakeProgram() {
    view_.rows = desc_.rows;
    program_.emplace(bench_.threads(), desc_.rows, &view_);
    const int64_t ld = 4 * desc_.slots;
    for (int64_t i = 0; i < layers(); ++i) {
      Layer& layer = layers_[static_cast<size_t>(i)];
      const bool replicated = ReplicatesRoute(desc_.rows, desc_.experts);
      Stage route{.label = "route", .kernel = stages_[0], .m_kind = GridM::kRows, .barrier_after = !replicated};
      route.mode = replicated ? StageMode::kReplicated : StageMode::kShared;
      if (!replicated) route.m_chunk = 1;
      program_->AddPerThread(route, [&](int t) {
        return RouteArgs{.params = Route(),
                         .logits = layer.logits.data(),
                         .ldl_bytes = 4 * desc_.experts,
                         .experts = layer.experts.data(),
                         .lde_bytes = ld,
                         .weights = layer.weights.data(),
                         .ldw_bytes = ld,
                         .scratch = bench_.scratch(t)};
      });
      const Stage sort{.label = "sort",
                       .kernel = stages_[1],
                       .mode = StageMode::kReplicated,
                       .m_kind = GridM::kRows,
                       .barrier_after = false};
      program_->AddPerThread(sort, [&](int t) {
        MoeSortArgs args = grouped_->Sort(t);
        args.experts = layer.experts.data();
        args.lde_bytes = ld;
        return args;
      });
      const Stage up{
          .label = "gate_up", .kernel = stages_[2], .n_count = plan_.up_tasks(), .n_chunk = 1, .m_kind = GridM::kRows};
      program_->AddPerThread(up, [&](int t) {
        GroupedUpArgs args = grouped_->Up(t, Scratch(t));
        args.weights.w = GateUp(i);
        args.x = a_.data();
        return args;
      });
      const Stage down{.label = "down",
                       .kernel = stages_[3],
                       .n_count = plan_.down.panels,
                       .n_chunk = plan_.down.chunk,
                       .m_kind = GridM::kRows};
      program_->AddPerThread(down, [&](int t) {
        GroupedDownArgs args = grouped_->Down(t, Scratch(t));
        args.weights.w = Down(i);
        args.weight = layer.weights.data();
        args.ldweight_bytes = ld;
        args.residual = residual_.data();
        args.out = reinterpret_cast<float*>(out_.data());
        args.ldr_bytes = args.ldo_bytes = 4 * desc_.hidden;
        return args;
      });
    }
    return program_->Finish();
  }
  std::byte* Scratch(int thread) const { return static_cast<std::byte*>(bench_.scratch(thread)); }

  // Sum of |a| |w| of a column, near enough to bound errors by: rounding to int8 moves a value by up to a 254th of the
  // largest.
  static double Magnitude(const Encoding& w, int64_t k, const std::byte* panels, int64_t n, const float* a) {
    std::vector<float> column(static_cast<size_t>(k));
    UnpackColumn(w, k, panels, n, column.data());
    double most = 0, sum = 0;
    for (int64_t i = 0; i < k; ++i) most = std::max(most, std::fabs(double{a[i]}));
    for (int64_t i = 0; i < k; ++i)
      sum += (std::fabs(double{a[i]}) + most / 254) * std::fabs(column[static_cast<size_t>(i)]);
    return sum;
  }

  // The row of gate and up's product that belongs to a slot.
  const float* RowOfSlot(int64_t slot) const {
    const MoeRuns& runs = *grouped_->runs(0);
    for (int64_t u = 0; u < runs.units; ++u) {
      for (int64_t r = 0; r < runs.unit[u].rows; ++r) {
        if (runs.slot[runs.unit[u].first + r] == slot)
          return grouped_->c() + (runs.unit[u].row0 + r) * plan_.c_stride / 4;
      }
    }
    return nullptr;
  }

  void CheckToken(int64_t layer, int64_t token, OpError* gate_up, OpError* out) {
    const int64_t k = desc_.hidden, n = desc_.intermediate;
    GemmDesc up = UpDesc(desc_), down = DownDesc(desc_);
    up.rows = down.rows = 1;
    up.lda_bytes = plan_.x_layout.stride;
    up.ldc_bytes = plan_.c_stride;
    down.lda_bytes = plan_.mid_layout.stride;
    down.ldc_bytes = 4 * down.n;
    const std::vector<int64_t> panels = Sample(plan_.down.panels, kSamplePanels);
    std::vector<double> sum(static_cast<size_t>(down.n)), magnitude(sum.size());
    std::vector<float> want(static_cast<size_t>(plan_.c_stride) / 4), product(sum.size());
    std::vector<std::byte> mid(static_cast<size_t>(plan_.mid_layout.stride));
    const float* x = x_.data() + token * k;
    for (int64_t s = 0; s < desc_.slots; ++s) {
      const int64_t slot = token * desc_.slots + s;
      const int64_t e = layers_[static_cast<size_t>(layer)].experts[static_cast<size_t>(slot)];
      const float weight = layers_[static_cast<size_t>(layer)].weights[static_cast<size_t>(slot)];
      const float* c = RowOfSlot(slot);
      const std::byte* w = GateUp(layer) + e * plan_.up.expert_bytes;
      for (const int64_t p : Sample(plan_.up.panels, kSamplePanels)) {
        GemmRef(up, {.a = a_.data() + token * up.lda_bytes, .w = w, .c = want.data()}, p, p + 1, 0, 1);
        for (int64_t j = 0; j < kGroupColumns && p * kGroupColumns + j < n; ++j) {
          const int64_t at = p * kGroupColumns + j;
          const double size = Magnitude(desc_.gate_up, k, w, p * kPanelColumns + j, x) *
                              Magnitude(desc_.gate_up, k, w, p * kPanelColumns + kGroupColumns + j, x);
          gate_up->Add(c[at], want[static_cast<size_t>(at)], size);
        }
      }
      PrepareRef({.cols = n, .out = desc_.mid, .ldx_bytes = plan_.c_stride, .ldo_bytes = plan_.mid_layout.stride},
                 {.x = c, .out = mid.data()}, 0, 1);
      w = Down(layer) + e * plan_.down.expert_bytes;
      for (const int64_t p : panels) {
        GemmRef(down, {.a = mid.data(), .w = w, .c = product.data()}, p, p + 1, 0, 1);
        for (int64_t j = p * kPanelColumns; j < (p + 1) * kPanelColumns; ++j) {
          sum[static_cast<size_t>(j)] += double{weight} * product[static_cast<size_t>(j)];
          magnitude[static_cast<size_t>(j)] += weight * Magnitude(desc_.down, n, w, j, c);
        }
      }
    }
    for (const int64_t p : panels) {
      for (int64_t j = p * kPanelColumns; j < std::min((p + 1) * kPanelColumns, desc_.hidden); ++j) {
        const float residual = residual_[static_cast<size_t>(token * desc_.hidden + j)];
        out->Add(reinterpret_cast<const float*>(out_.data())[token * desc_.hidden + j],
                 sum[static_cast<size_t>(j)] + residual, magnitude[static_cast<size_t>(j)] + std::fabs(residual));
      }
    }
  }

  OpBench& bench_;
  const MoeDesc desc_;
  MoePlan plan_;
  std::array<const Kernel*, 4> stages_{};
  std::mt19937_64 random_{kSeed};
  int64_t copies_ = 1;
  double touched_ = 0;  // experts of a layer, in the mean
  std::vector<Layer> layers_;
  HugeBuffer weights_, a_, out_, tables_, work_;
  std::vector<float> x_, residual_;
  std::optional<MoeStages> grouped_;
  StepView view_;
  std::optional<Program> program_;
};

}  // namespace

absl::Status BenchMoe(const BenchOpFlags& flags, const MoeShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  XJIT_ASSIGN_OR_RETURN(const MoeDesc desc, shape.Desc(bench->target()));
  MoeBench moe(*bench, desc);
  XJIT_RETURN_IF_ERROR(moe.Prepare());
  XJIT_ASSIGN_OR_RETURN(const nlohmann::ordered_json measured, bench->Measure(moe.Op()));
  OpError gate_up, out;
  XJIT_RETURN_IF_ERROR(moe.Check(&gate_up, &out));
  nlohmann::ordered_json json = {{"op", "moe"},
                                 {"experts", desc.experts},
                                 {"top_k", desc.slots},
                                 {"tokens", desc.rows},
                                 {"hidden", desc.hidden},
                                 {"intermediate", desc.intermediate},
                                 {"weights", ToString(desc.gate_up)},
                                 {"activations", std::string(Name(desc.x))}};
  json.update(moe.Facts());
  json.update(measured);
  json["copies"] = moe.copies();  // a call is a layer
  moe.Idle(&json);
  json.update({{"max_abs_err", std::max(gate_up.max_abs, out.max_abs)},
               {"max_rel_err", std::max(gate_up.max_rel, out.max_rel)},
               {"rel_err_bound", std::max(gate_up.rel_bound, out.rel_bound)}});
  PrintResult(json, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
