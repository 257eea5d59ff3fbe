#include "codegen/kernels.h"

#include <algorithm>

#include "codegen/amx/tiles.h"
#include "codegen/cpu.h"
#include "codegen/gemm/embed.h"
#include "codegen/gemm/gemm_amx.h"
#include "codegen/gemm/gemm_bf16.h"
#include "codegen/gemm/gemm_fma.h"
#include "codegen/gemm/gemm_int8.h"
#include "codegen/gemm/split.h"
#include "codegen/kernel_rows.h"
#include "codegen/moe/grouped.h"
#include "codegen/moe/moe_route.h"
#include "codegen/rows/rows_kernels.h"
#include "codegen/verify_kernels.h"
#include "ir/support/clock.h"

namespace xjit {
namespace {

// One planner serves both widths of the merge, by the target's ISA.
absl::StatusOr<AttentionMergePlan> PlanAttentionMerge512(const AttentionDesc& desc, const TargetInfo& target) {
  return PlanAttentionMerge(desc, target);
}
absl::StatusOr<AttentionMergePlan> PlanAttentionMerge2(const AttentionDesc& desc, TargetInfo target) {
  target.isa = Isa::kAvx2;
  return PlanAttentionMerge(desc, target);
}

// What was measured on the target goes before what a planner knows.
template <typename Desc, typename Plan>
absl::StatusOr<Plan> Tuned(const Desc&, const TargetInfo&, absl::StatusOr<Plan> plan) {
  return plan;
}
absl::StatusOr<GemmPlan> Tuned(const GemmDesc& desc, const TargetInfo& target, absl::StatusOr<GemmPlan> plan) {
  if (!plan.ok()) return plan;
  return WithTuning(desc, target, *std::move(plan));
}

// The plan's facts that are asked for where the kernel runs.
template <typename Plan>
void SetFacts(const Plan&, Kernel*) {}
void SetFacts(const GemmPlan& plan, Kernel* kernel) { kernel->panels_together = plan.n_block; }

struct Tables {
  std::vector<TypedRow<GemmDesc>> Gemm;
  std::vector<TypedRow<AttentionDesc>> Attention;
  std::vector<TypedRow<AttentionMergeDesc>> AttentionMerge;
  std::vector<TypedRow<RopeStoreDesc>> RopeStore;
  std::vector<TypedRow<PrepareDesc>> Prepare;
  std::vector<TypedRow<EltwiseDesc>> Eltwise;
  std::vector<TypedRow<ConvertDesc>> Convert;
  std::vector<KernelRow> all;

  Tables() {
#define XJIT_KERNEL(family, row, isa, plan_fn, emit_fn)                                                             \
  family.push_back({#row, isa,                                                                                      \
                    [](const family##Desc& desc, const TargetInfo& t) { return Tuned(desc, t, plan_fn(desc, t)); }, \
                    [](const family##Desc& desc, const Family<family##Desc>::Plan& plan, Emitter& e) {              \
                      return emit_fn(desc, plan, e);                                                                \
                    }});                                                                                            \
  all.push_back({Family<family##Desc>::kName, #row, isa});
#include "codegen/kernels.inc"
#undef XJIT_KERNEL
  }
};

const Tables& AllRows() {
  static const Tables tables;
  return tables;
}

template <typename Desc>
std::vector<Candidate> CandidatesOf(const Desc& desc, const TargetInfo& target) {
  std::vector<Candidate> candidates;
  size_t best = 0;
  for (const TypedRow<Desc>& row : RowsOf<Desc>()) {
    if (row.isa > target.isa) continue;
    const auto plan = row.plan(desc, target);
    candidates.push_back(
        {.row = row.name,
         .isa = row.isa,
         .cost = plan.ok() ? absl::StatusOr<double>(plan->cost) : absl::StatusOr<double>(plan.status())});
    // Rows come with the highest ISA first, so that it also wins a tie.
    const bool none = !candidates[best].cost.ok();
    const Candidate& last = candidates.back();
    if (last.cost.ok() && (none || *last.cost < *candidates[best].cost)) best = candidates.size() - 1;
  }
  if (!candidates.empty() && candidates[best].cost.ok()) candidates[best].chosen = true;
  return candidates;
}

template <typename Desc>
absl::StatusOr<const TypedRow<Desc>*> ChooseRow(const Desc& desc, std::string_view name, const TargetInfo& target) {
  std::string known;
  for (const TypedRow<Desc>& row : RowsOf<Desc>()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
    if (row.name != name) continue;
    if (row.isa > target.isa) {
      return FailedPrecondition("{}: kernel {} needs {}, the target has {}", Family<Desc>::kName, name,
                                xjit::Name(row.isa), xjit::Name(target.isa));
    }
    return &row;
  }
  if (!name.empty()) return InvalidArgument("{}: no kernel {}; known are {}", Family<Desc>::kName, name, known);

  std::string reasons;
  for (const Candidate& c : CandidatesOf(desc, target)) {
    if (c.chosen) return ChooseRow(desc, c.row, target);
    reasons += fmt::format("; {}: {}", c.row, c.cost.ok() ? "" : Message(c.cost.status()));
  }
  return InvalidArgument("no kernel for {}{}", Family<Desc>::KernelName(desc, "*"), reasons);
}

}  // namespace

template <>
std::span<const TypedRow<GemmDesc>> RowsOf() {
  return AllRows().Gemm;
}
template <>
std::span<const TypedRow<AttentionDesc>> RowsOf() {
  return AllRows().Attention;
}
template <>
std::span<const TypedRow<AttentionMergeDesc>> RowsOf() {
  return AllRows().AttentionMerge;
}
template <>
std::span<const TypedRow<RopeStoreDesc>> RowsOf() {
  return AllRows().RopeStore;
}
template <>
std::span<const TypedRow<PrepareDesc>> RowsOf() {
  return AllRows().Prepare;
}
template <>
std::span<const TypedRow<EltwiseDesc>> RowsOf() {
  return AllRows().Eltwise;
}
template <>
std::span<const TypedRow<ConvertDesc>> RowsOf() {
  return AllRows().Convert;
}

std::vector<KernelRow> KernelRows() { return AllRows().all; }

DType ActivationFor(const Encoding& weight, const TargetInfo& target, bool many_rows) {
  using Kind = Scales::Kind;
  const DType w = weight.type;
  const Scales& s = weight.scales;
  if (w == DType::kI8 && !s.weight_only && (s.kind == Kind::kChannel || s.kind == Kind::kTensor)) return DType::kI8Act;
  if ((IsQuantized(w) || w == DType::kI4) && target.isa >= Isa::kAvx512Vnni) {
    return target.isa >= Isa::kAmx && many_rows ? DType::kBF16 : DType::kQ8Act;
  }
  if (w == DType::kF16 && target.isa >= Isa::kAmx && target.amx_fp16 && many_rows) return DType::kF16;
  const bool bf16 = w == DType::kBF16 || w == DType::kF8E4M3 || w == DType::kI8;
  return bf16 && target.isa >= Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF32;
}

bool StripsFor(DType activation, bool many_rows) {
  return many_rows && (activation == DType::kBF16 || activation == DType::kF16 || activation == DType::kI8Act);
}

KernelLibrary::KernelLibrary(TargetInfo target, KernelLibraryOptions options)
    : target_(std::move(target)), options_(options) {}
KernelLibrary::~KernelLibrary() = default;

template <typename Desc>
absl::StatusOr<Kernel> KernelLibrary::Build(const Desc& desc, std::string_view row_name) {
  XJIT_ASSIGN_OR_RETURN(const TypedRow<Desc>* row, ChooseRow(desc, row_name, target_));
  const std::string name = Family<Desc>::KernelName(desc, row->name);
  const auto plan = row->plan(desc, target_);
  if (!plan.ok()) return Prefix(plan.status(), name);
  Emitter emitter;
  if (absl::Status status = row->emit(desc, *plan, emitter); !status.ok()) return Prefix(status, name);
  CodeArena trial;  // of what is verified: the library's own arena stays open for more code
  XJIT_ASSIGN_OR_RETURN(Kernel kernel, emitter.Finish(name, options_.verify ? trial : arena_, plan->scratch_bytes));
  SetFacts(*plan, &kernel);
  if (!options_.verify) return kernel;

  XJIT_RETURN_IF_ERROR(Prefix(PrepareIsa(row->isa), fmt::format("{}: cannot be verified", name)));
  ConfigureTiles();
  XJIT_RETURN_IF_ERROR(trial.Seal());
  XJIT_RETURN_IF_ERROR(VerifyKernel(desc, kernel));
  XJIT_ASSIGN_OR_RETURN(kernel.code, arena_.Add({kernel.code, kernel.code_bytes}));
  kernel.fn = reinterpret_cast<KernelFn>(reinterpret_cast<uintptr_t>(kernel.code));
  return kernel;
}

template <typename Desc>
absl::StatusOr<const Kernel*> KernelLibrary::GetFrom(std::vector<Cached<Desc>>& cache, const Desc& desc,
                                                     std::string_view row) {
  for (const Cached<Desc>& cached : cache) {
    if (cached.desc == desc && cached.row == row) return cached.kernel;
  }
  const double start = NowMs();
  absl::StatusOr<Kernel> kernel = Build(desc, row);
  compile_ms_ += NowMs() - start;
  if (!kernel.ok()) return kernel.status();
  // A kernel has one name; descriptors that differ in strides alone are numbered.
  const std::string name = kernel->name;
  const auto taken = [this](const std::string& n) {
    return std::any_of(kernels_.begin(), kernels_.end(), [&n](const Kernel& k) { return k.name == n; });
  };
  for (int i = 2; taken(kernel->name); ++i) kernel->name = fmt::format("{}.{}", name, i);
  kernels_.push_back(*std::move(kernel));
  cache.push_back({desc, std::string(row), &kernels_.back()});
  return &kernels_.back();
}

absl::StatusOr<const Kernel*> KernelLibrary::Get(const GemmDesc& desc, std::string_view row) {
  return GetFrom(gemm_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const AttentionDesc& desc, std::string_view row) {
  return GetFrom(attention_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const AttentionMergeDesc& desc, std::string_view row) {
  return GetFrom(attention_merge_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const RopeStoreDesc& desc, std::string_view row) {
  return GetFrom(rope_store_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const PrepareDesc& desc, std::string_view row) {
  return GetFrom(prepare_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const EltwiseDesc& desc, std::string_view row) {
  return GetFrom(eltwise_, desc, row);
}
absl::StatusOr<const Kernel*> KernelLibrary::Get(const ConvertDesc& desc, std::string_view row) {
  return GetFrom(convert_, desc, row);
}

const Kernel* KernelLibrary::Cpp(std::string_view name, KernelFn fn) {
  for (const Kernel& kernel : kernels_) {
    if (kernel.code == nullptr && kernel.name == name) return &kernel;
  }
  Kernel kernel;
  kernel.name = name;
  kernel.fn = fn;
  kernels_.push_back(std::move(kernel));
  return &kernels_.back();
}

const Kernel* KernelLibrary::Split(const Kernel& part) {
  return Cpp(fmt::format("gemm_split.{}", part.name), &SplitGemmKernel);
}

absl::StatusOr<const Kernel*> KernelLibrary::Fixed(std::string_view name) {
  static constexpr std::pair<std::string_view, KernelFn> kFixed[] = {{"embed", &EmbedKernel},
                                                                     {"rope_table", &RopeTableKernel},
                                                                     {"gather_rows", &GatherRowsKernel},
                                                                     {"route", &RouteKernel},
                                                                     {"moe_sort", &MoeSortKernel},
                                                                     {"grouped_up", &GroupedUpKernel},
                                                                     {"grouped_down", &GroupedDownKernel}};
  for (const auto& [known, fn] : kFixed) {
    if (known == name) return Cpp(known, fn);
  }
  std::string names;
  for (const auto& [known, fn] : kFixed) names += fmt::format("{}{}", names.empty() ? "" : ", ", known);
  return InvalidArgument("no C++ kernel {}; known are {}", name, names);
}

absl::Status KernelLibrary::Seal() { return arena_.Seal(); }

std::vector<Candidate> KernelLibrary::Candidates(const GemmDesc& desc) const { return CandidatesOf(desc, target_); }
std::vector<Candidate> KernelLibrary::Candidates(const AttentionDesc& desc) const {
  return CandidatesOf(desc, target_);
}
std::vector<Candidate> KernelLibrary::Candidates(const AttentionMergeDesc& desc) const {
  return CandidatesOf(desc, target_);
}
std::vector<Candidate> KernelLibrary::Candidates(const RopeStoreDesc& desc) const {
  return CandidatesOf(desc, target_);
}
std::vector<Candidate> KernelLibrary::Candidates(const PrepareDesc& desc) const { return CandidatesOf(desc, target_); }
std::vector<Candidate> KernelLibrary::Candidates(const EltwiseDesc& desc) const { return CandidatesOf(desc, target_); }
std::vector<Candidate> KernelLibrary::Candidates(const ConvertDesc& desc) const { return CandidatesOf(desc, target_); }

std::string KernelLibrary::Format(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& c : candidates) {
    if (c.cost.ok()) {
      text += fmt::format("{:<12}  cost {:.4g}{}\n", c.row, *c.cost, c.chosen ? "  <- chosen" : "");
    } else {
      text += fmt::format("{:<12}  refused: {}\n", c.row, Message(c.cost.status()));
    }
  }
  return text;
}

template <typename Desc>
void KernelLibrary::ExplainCached(const std::vector<Cached<Desc>>& cache, std::string* text) const {
  for (const auto& entry : cache) {
    *text += fmt::format("{} ({} bytes)\n", entry.kernel->name, entry.kernel->code_bytes);
    for (const Candidate& c : Candidates(entry.desc)) *text += "  " + Format({c});
  }
}

std::string KernelLibrary::ExplainAll() const {
  std::string text;
  ExplainCached(gemm_, &text);
  ExplainCached(attention_, &text);
  ExplainCached(attention_merge_, &text);
  ExplainCached(rope_store_, &text);
  ExplainCached(prepare_, &text);
  ExplainCached(eltwise_, &text);
  ExplainCached(convert_, &text);
  return text;
}

std::vector<const Kernel*> KernelLibrary::kernels() const {
  std::vector<const Kernel*> list;
  for (const Kernel& kernel : kernels_) list.push_back(&kernel);
  return list;
}

}  // namespace xjit
