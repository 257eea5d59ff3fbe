// xjit bench-op gemm: a matrix product with random weights in any encoding, as a model's program runs it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "codegen/rows/rows_ref.h"
#include "frontend/tune_prefetch.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"
#include "passes/gemm_stage.h"
#include "runtime/executor.h"
#include "tools/bench_op.h"
#include "tools/peer.h"

namespace xjit::tools {
namespace {

constexpr uint64_t kSeed = 42;
constexpr int64_t kSampleRows = 4, kSamplePanels = 4;
// Of memory for the sums of products in parts: few enough that it stays in cache, as a program's does. DepthParts cuts
// fewer than 256 units of 128 bytes a row: sets of eight rows have 2 MiB at most, those of one row 256 KiB.
constexpr int64_t kSumSets = 8;

class GemmBench {
 public:
  GemmBench(OpBench& bench, const GemmShape& shape, const GemmDesc& desc, bool prepared)
      : bench_(bench), shape_(shape), desc_(desc), prepared_(prepared) {}

  absl::Status Prepare() {
    XJIT_RETURN_IF_ERROR(bench_.library().Get(desc_).status());
    XJIT_ASSIGN_OR_RETURN(copies_, bench_.Copies(weight_bytes(), shape_.m <= kMaxFewRows));
    XJIT_RETURN_IF_ERROR(MakeWeights());
    Tune();
    std::string row;
    for (const Candidate& c : bench_.library().Candidates(desc_)) {
      if (c.chosen) row = c.row;
    }
    const int64_t parts = PartsBy(row, desc_, bench_.target());
    if (parts == 1) row.clear();  // the kernel that there is
    XJIT_ASSIGN_OR_RETURN(product_, MakeGemmStage(desc_, parts, row, shape_.m, bench_.threads(), bench_.library()));
    XJIT_RETURN_IF_ERROR(bench_.library().Seal());
    XJIT_RETURN_IF_ERROR(bench_.MakeScratch(kernel().scratch_bytes));
    row_isa_ = ChosenIsa(bench_.library(), desc_);
    XJIT_RETURN_IF_ERROR(MakeRows());
    return MakeProgram();
  }

  OpRun Op() {
    OpRun op;
    op.copies = copies_;
    op.flops = 2.0 * static_cast<double>(shape_.m) * static_cast<double>(shape_.n) * static_cast<double>(shape_.k);
    op.bytes = static_cast<double>(weight_bytes());
    op.peak = PeakOf(desc_.a);
    op.peak_isa = row_isa_;
    op.run = [this](int64_t calls) { Run(calls); };
    return op;
  }

  // The product with the last copy against the reference, a few rows of a few panels.
  OpError Check() {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(reinterpret_cast<float*>(c_.data()), c_.size() / 4, nan);
    Run(copies_);
    GemmArgs args = Args(0, copies_ - 1);
    std::vector<float> want(static_cast<size_t>(c_.size()) / 4), column(static_cast<size_t>(desc_.k));
    args.c = want.data();
    OpError error;
    const bool silu = desc_.epilogue.silu_mul;
    error.rel_bound = ProductBound(desc_.k, silu);
    const int64_t panel_c = silu ? kGroupColumns : kPanelColumns;
    for (int64_t p : Sample(desc_.panels(), kSamplePanels)) {
      std::vector<std::vector<float>> w;
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        UnpackColumn(desc_.w, desc_.k, static_cast<const std::byte*>(args.w), p * kPanelColumns + j, column.data());
        w.push_back(column);
      }
      for (int64_t m : Sample(shape_.m, kSampleRows)) {
        GemmRef(desc_, args, p, p + 1, m, m + 1);
        const std::span<const float> a = ActivationRow(m);
        const auto magnitude = [&](int64_t j) {
          double sum = args.bias == nullptr ? 0 : std::fabs(args.bias[p * kPanelColumns + j]);
          for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(double{a[i]} * w[static_cast<size_t>(j)][i]);
          return sum;
        };
        for (int64_t j = 0; j < panel_c; ++j) {
          const int64_t at = m * desc_.ldc_bytes / 4 + p * panel_c + j;
          double sum = magnitude(j);
          if (silu) sum *= magnitude(j + kGroupColumns);
          if (args.residual != nullptr) sum += std::fabs(args.residual[at]);
          error.Add(reinterpret_cast<const float*>(c_.data())[at], want[static_cast<size_t>(at)], sum);
        }
      }
    }
    return error;
  }

  const Kernel& kernel() const { return *product_.kernel; }
  int64_t parts() const { return product_.parts; }

 private:
  int64_t weight_bytes() const { return desc_.panels() * PanelBytes(desc_.w, desc_.k); }
  int64_t copy_stride() const { return AlignUp(weight_bytes(), 64); }

  GemmArgs Args(int thread, int64_t copy) const {
    return {.a = a_.data(),
            .w = weights_.data() + copy * copy_stride(),
            .c = reinterpret_cast<float*>(c_.data()),
            .residual = desc_.epilogue.residual ? reinterpret_cast<const float*>(residual_.data()) : nullptr,
            .bias = desc_.epilogue.bias ? bias_.data() : nullptr,
            .scratch = bench_.scratch(thread)};
  }

  // As the loading of a model does, for weights that come from memory.
  void Tune() {
    if (desc_.rows == 0 || copies_ == 1) return;
    std::vector<PackedMatrix> matrices;
    GemmDesc desc = desc_;  // the measurement has neither bias nor residual
    desc.epilogue.bias = desc.epilogue.residual = false;
    for (int64_t copy = 0; copy < copies_; ++copy) matrices.push_back({desc, weights_.data() + copy * copy_stride()});
    const auto tuning = MeasurePrefetch(matrices, bench_.pool(), bench_.target());
    if (tuning.ok() && *tuning) bench_.Use(**tuning);
  }

  // What a model's program has: for many rows the conversion of the activations and a barrier in front of the product,
  // whose tasks idle threads take. A few rows are converted once, and with `prepared` many rows too.
  absl::Status MakeProgram() {
    view_.rows = shape_.m;
    program_.emplace(bench_.threads(), shape_.m, &view_);
    const bool many = desc_.rows == 0;
    const Kernel* prepare = nullptr;
    if (many && desc_.a != DType::kF32 && !prepared_) {
      XJIT_ASSIGN_OR_RETURN(prepare, bench_.library().Get(prepare_));
      XJIT_RETURN_IF_ERROR(bench_.library().Seal());
    }
    const int64_t sets = product_.parts > 1 ? std::min(copies_, kSumSets) : copies_;
    std::vector<EndedParts*> ended;
    if (product_.parts > 1) {
      XJIT_ASSIGN_OR_RETURN(sums_, HugeBuffer::Allocate(sets * product_.sum_bytes()));
      for (int64_t i = 0; i < sets; ++i) {
        ended.push_back(static_cast<EndedParts*>(program_->AddArgs(static_cast<size_t>(product_.ended_bytes()))));
      }
    }
    for (int64_t copy = 0; copy < copies_; ++copy) {
      if (prepare != nullptr) {
        Stage rows{.label = "prepare", .kernel = prepare, .m_kind = GridM::kRows, .m_chunk = kStripRows};
        program_->Add(rows, PrepareArgs{.x = x(), .out = a_.data()});
      }
      Stage stage = product_.stage;
      stage.label = "gemm";
      // Few rows of one copy after the other are one stream, as far as there is memory to add up parts in.
      const int64_t set = copy % sets;
      stage.barrier_after = many || set + 1 == sets || copy + 1 == copies_;
      if (product_.parts == 1) {
        program_->AddPerThread(stage, [&](int t) { return Args(t, copy); });
        continue;
      }
      program_->AddPerThread(stage, [&](int t) {
        return product_.Split(Args(t, copy), sums_.data() + set * product_.sum_bytes(),
                              ended[static_cast<size_t>(set)]);
      });
    }
    return program_->Finish();
  }
  void Run(int64_t calls) {
    for (int64_t i = 0; i < calls; i += copies_) Execute(*program_, bench_.pool());
  }

  // Each thread packs the panels that it will read, so that they are on its node.
  absl::Status MakeWeights() {
    XJIT_ASSIGN_OR_RETURN(weights_, HugeBuffer::Allocate(copies_ * copy_stride()));
    const int64_t panel = PanelBytes(desc_.w, desc_.k);
    RandomPanels(desc_.w, desc_.n, shape_.n, desc_.k, kSeed, weights_.data(),
                 [&](int64_t count, const std::function<void(int64_t, int64_t)>& pack) {
                   bench_.pool().Run([&](int t) {
                     const int64_t threads = bench_.threads(), p0 = count * t / threads, p1 = count * (t + 1) / threads;
                     pack(p0, p1);
                     for (int64_t c = 1; c < copies_; ++c) {
                       std::memcpy(weights_.data() + c * copy_stride() + p0 * panel, weights_.data() + p0 * panel,
                                   static_cast<size_t>((p1 - p0) * panel));
                     }
                   });
                 });
    return absl::OkStatus();
  }

  absl::Status MakeRows() {
    std::normal_distribution<float> normal;
    const int64_t m = shape_.m, x_stride = desc_.k * 4;
    XJIT_RETURN_IF_ERROR(bench_.CheckMemory(fmt::format("{} rows", m),
                                            m * (x_stride + 3 * desc_.ldc_bytes) + ActivationBytes(desc_, m)));
    XJIT_ASSIGN_OR_RETURN(x_, HugeBuffer::Allocate(m * x_stride));  // a program's activations lie in one, too
    for (float& value : std::span(x(), static_cast<size_t>(m * desc_.k))) value = normal(random_);
    // 64: the kernel may read a row up to there.
    XJIT_ASSIGN_OR_RETURN(a_, HugeBuffer::Allocate(ActivationBytes(desc_, m) + 64));
    prepare_ = {
        .cols = desc_.k, .out = desc_.a, .ldx_bytes = x_stride, .ldo_bytes = desc_.lda_bytes, .strips = desc_.strips};
    PrepareRef(prepare_, {.x = x(), .out = a_.data()}, 0, m);
    XJIT_ASSIGN_OR_RETURN(c_, HugeBuffer::Allocate(m * desc_.ldc_bytes));
    if (desc_.epilogue.residual) {
      XJIT_ASSIGN_OR_RETURN(residual_, HugeBuffer::Allocate(m * desc_.ldc_bytes));
      auto* residual = reinterpret_cast<float*>(residual_.data());
      for (int64_t i = 0; i < residual_.size() / 4; ++i) residual[i] = normal(random_);
    }
    bias_.resize(static_cast<size_t>(desc_.n));
    for (float& value : bias_) value = normal(random_);
    return absl::OkStatus();
  }

  // Row m as the kernel sees it, near enough to bound errors by.
  std::span<const float> ActivationRow(int64_t m) const {
    return {x() + m * desc_.k, static_cast<size_t>(desc_.k)};
  }
  float* x() const { return reinterpret_cast<float*>(x_.data()); }

  OpBench& bench_;
  const GemmShape& shape_;
  const GemmDesc desc_;
  const bool prepared_;
  std::mt19937_64 random_{kSeed};
  GemmStage product_;
  Isa row_isa_ = Isa::kAvx2;
  int64_t copies_ = 1;
  HugeBuffer weights_, x_, a_, c_, residual_, sums_;
  PrepareDesc prepare_;
  StepView view_;
  std::optional<Program> program_;
  std::vector<float> bias_;
};

// The nearest that a peer has: bf16 for everything that meets bf16 or f16, u8 by s8 without scales for what meets int8.
XjitPeerGemm PeerShape(const OpBench& bench, const GemmShape& shape, const GemmDesc& desc) {
  using Type = XjitPeerGemm::Type;
  const PeakKind kind = PeakOf(desc.a);
  return {.type = kind == PeakKind::kF32Fma    ? Type::kF32
                  : kind == PeakKind::kBf16Dot ? Type::kBf16
                                               : Type::kInt8,
          .m = shape.m,
          .n = shape.n,
          .k = shape.k,
          .threads = bench.threads(),
          .cpus = bench.cpus().data()};
}

}  // namespace

absl::Status BenchGemm(const BenchOpFlags& flags, const GemmShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  XJIT_ASSIGN_OR_RETURN(const GemmDesc desc, shape.Desc(bench->target()));
  GemmBench gemm(*bench, shape, desc, flags.prepared);
  XJIT_RETURN_IF_ERROR(gemm.Prepare());
  OpRun op = gemm.Op();
  std::unique_ptr<PeerGemm> peer;
  if (!flags.vs.empty()) {
    XJIT_ASSIGN_OR_RETURN(peer, PeerGemm::Load(flags.vs, PeerShape(*bench, shape, desc)));
    op.peer = [&peer](int64_t calls) { peer->Run(calls); };
    op.peer_name = flags.vs;
  }
  XJIT_ASSIGN_OR_RETURN(const nlohmann::ordered_json measured, bench->Measure(op));
  const OpError error = gemm.Check();
  XJIT_RETURN_IF_ERROR(error.Check(gemm.kernel().name));
  nlohmann::ordered_json out = {{"op", "gemm"},
                                {"kernel", gemm.kernel().name},
                                {"m", shape.m},
                                {"n", shape.n},
                                {"k", shape.k},
                                {"weights", ToString(desc.w)},
                                {"activations", std::string(Name(desc.a))}};
  if (gemm.parts() > 1) out["parts"] = gemm.parts();
  out.update(measured);
  out.update({{"max_abs_err", error.max_abs}, {"max_rel_err", error.max_rel}, {"rel_err_bound", error.rel_bound}});
  PrintResult(out, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
