#include "frontend/engine.h"

#include <algorithm>
#include <set>

#include "codegen/cpu.h"
#include "frontend/tune_prefetch.h"
#include "ir/ops.h"
#include "ir/support/clock.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/lower_check.h"
#include "passes/rewrite.h"

namespace xjit {
namespace {

// The distinct attention windows of a module.
std::vector<int> Windows(const Module& module) {
  std::set<int> windows;
  for (const auto& f : module.functions) {
    for (const auto& op : f->ops) {
      if (op->code == OpCode::kAttention || op->code == OpCode::kFlashAttention)
        windows.insert(static_cast<int>(op->Int("window")));
    }
  }
  if (windows.empty()) windows.insert(0);
  return {windows.begin(), windows.end()};
}

// Steps of up to kMaxFewRows rows have a program of their own, larger ones share one.
int64_t Capacity(int64_t rows, int64_t most) { return rows <= kMaxFewRows ? std::max<int64_t>(1, rows) : most; }

}  // namespace

// Work memory that grows by whole buffers: programs keep what they were given.
class Engine::Memory : public WorkMemory {
 public:
  explicit Memory(HugeBuffer::Options options) : options_(options) {}

  absl::StatusOr<std::byte*> Get(Use use, int thread, int64_t bytes) override {
    auto& list = buffers_[{use, thread}];
    if (list.empty() || list.back().size() < bytes) {
      XJIT_ASSIGN_OR_RETURN(HugeBuffer buffer, HugeBuffer::Allocate(std::max<int64_t>(bytes, 4096), options_));
      total_ += buffer.size();
      list.push_back(std::move(buffer));
    }
    return list.back().data();
  }
  int64_t bytes() const { return total_; }

 private:
  HugeBuffer::Options options_;
  std::map<std::pair<Use, int>, std::vector<HugeBuffer>> buffers_;
  int64_t total_ = 0;
};

Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const std::string& path, const EngineOptions& options) {
  XJIT_ASSIGN_OR_RETURN(auto checkpoint, OpenCheckpoint(path));
  return Create(std::move(checkpoint), options);
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::shared_ptr<const Checkpoint> checkpoint,
                                                       const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  XJIT_RETURN_IF_ERROR(engine->Init(std::move(checkpoint), options));
  return engine;
}

absl::Status Engine::Init(std::shared_ptr<const Checkpoint> checkpoint, const EngineOptions& options) {
  const double start = NowMs();
  options_ = options;
  checkpoint_ = std::move(checkpoint);
  if (options_.max_sequences < 1) return InvalidArgument("a step needs room for at least one sequence");
  const auto kv = ParseDType(options_.kv_dtype);
  if (kv != DType::kBF16 && kv != DType::kF32) {
    return Unimplemented("kv_dtype {}: the KV cache is kept in bf16 or f32 (--kv-dtype)", options_.kv_dtype);
  }
  kv_dtype_ = *kv;
  XJIT_ASSIGN_OR_RETURN(const IsaChoice choice, ChooseIsa(options_.isa));
  target_ = HostCpu(choice.isa);
  isa_notice_ = choice.notice;
  XJIT_ASSIGN_OR_RETURN(threads_, ChooseThreads(options_.threads));
  target_.threads = threads_.threads();
  target_.cores = threads_.usable;

  XJIT_ASSIGN_OR_RETURN(family_, FindFamily(spec().arch));
  names_ = std::make_unique<WeightNames>(*checkpoint_, *family_);
  XJIT_ASSIGN_OR_RETURN(graph_, family_->build(spec(), names_->Encodings()));
  XJIT_RETURN_IF_ERROR(Prefix(VerifyModule(*graph_), spec().arch));
  XJIT_RETURN_IF_ERROR(names_->Check(*graph_));
  XJIT_RETURN_IF_ERROR(ChooseContext());
  names_->set_context(context_);
  slots_.resize(static_cast<size_t>(options_.max_sequences));
  if (options_.backend == Backend::kInterp) {
    rows_ = std::make_unique<CheckpointRows>(*names_);
  } else {
    XJIT_RETURN_IF_ERROR(InitJit());
  }
  load_ms_ = NowMs() - start - compile_ms_;
  return absl::OkStatus();
}

absl::Status Engine::ChooseContext() {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (options_.context > kMost) return UsageError("--ctx {}: more than {} tokens", options_.context, kMost);
  if (options_.context > spec().max_positions) {
    if (!threads_.warning.empty()) threads_.warning += "; ";
    threads_.warning += fmt::format("a context of {} is more than the {} that the model was trained for",
                                    options_.context, spec().max_positions);
  }
  context_ = options_.context > 0 ? options_.context : std::min(spec().max_positions, kMost);
  if (options_.backend == Backend::kInterp || options_.context > 0) return absl::OkStatus();
  // A default context must not promise more memory than there is: half of what weights leave.
  auto available = MemoryAvailable();
  if (available.ok()) {
    const int64_t left = std::max<int64_t>(0, *available - static_cast<int64_t>(checkpoint_->total_bytes())) / 2;
    const int64_t tokens = left / std::max<int64_t>(1, kv_bytes(1) * options_.max_sequences);
    context_ = std::min(context_, std::max<int64_t>(tokens, 32));
  }
  return absl::OkStatus();
}

absl::Status Engine::InitJit() {
  WorkerPoolOptions pool_options;
  pool_options.cpus = threads_.cpus;
  XJIT_ASSIGN_OR_RETURN(pool_, WorkerPool::Create(pool_options));

  const double compile_start = NowMs();
  fused_ = graph_->Clone();
  if (fused_ == nullptr) return Internal("the graph does not survive printing and parsing");
  PassContext passes;
  passes.target = target_;
  passes.kv_dtype = kv_dtype_;
  XJIT_RETURN_IF_ERROR(RunPipeline(*fused_, PassStage::kGraph, PassStage::kFused, passes));
  fuse_notes_ = std::move(passes.notes);
  // What has no kernel is said before weights are packed.
  for (const int64_t rows : {int64_t{1}, max_step_rows()}) {
    PassContext trial;
    XJIT_ASSIGN_OR_RETURN(const auto planned, Planned(rows, 1, &trial));
    XJIT_RETURN_IF_ERROR(Prefix(CheckLowerable(*planned), spec().arch));
  }
  compile_ms_ += NowMs() - compile_start;

  HugeBuffer::Options huge;
  huge.huge = options_.hugepages;
  huge.lock = options_.mlock;
  XJIT_ASSIGN_OR_RETURN(weights_, WeightStore::Pack(*names_, *fused_, *pool_, huge));
  TunePrefetch(*fused_, *weights_, *pool_, &target_);
  KernelLibraryOptions library;
  library.verify = options_.verify_kernels;
  kernels_ = std::make_unique<KernelLibrary>(target_, library);

  KvConfig kv;
  kv.layers = spec().layers;
  kv.kv_heads = spec().kv_heads;
  kv.head_dim = spec().head_dim;
  kv.kv = kv_dtype_;
  kv.pages = KvPages(context_) * options_.max_sequences;
  XJIT_ASSIGN_OR_RETURN(kv_, KvCache::Create(kv));

  StepConfig steps;
  steps.max_rows = max_step_rows();
  steps.max_seqs = options_.max_sequences;
  steps.max_context = context_;
  steps.kv_heads = static_cast<int>(spec().kv_heads);
  steps.windows = Windows(*graph_);
  XJIT_ASSIGN_OR_RETURN(steps_, StepBuilder::Create(steps));

  // Work memory is written before it is read; it needs no lock, and small programs no huge pages.
  memory_ = std::make_unique<Memory>(HugeBuffer::Options{.huge = options_.hugepages, .lock = false});
  step_sequences_.reserve(static_cast<size_t>(options_.max_sequences));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Module>> Engine::Planned(int64_t rows, int64_t logit_rows, PassContext* context) {
  std::unique_ptr<Module> planned = fused_->Clone();
  if (planned == nullptr) return Internal("the fused graph does not survive printing and parsing");
  context->target = target_;
  context->kv_dtype = kv_dtype_;
  context->rows = rows;
  context->logit_rows = logit_rows;
  XJIT_RETURN_IF_ERROR(RunPipeline(*planned, PassStage::kFused, PassStage::kPlanned, *context));
  return planned;
}

absl::StatusOr<Program*> Engine::ProgramFor(int64_t rows, int64_t logit_rows) {
  const std::pair key(Capacity(rows, max_step_rows()), Capacity(logit_rows, max_logit_rows()));
  if (const auto known = programs_.find(key); known != programs_.end()) return known->second.get();
  const double start = NowMs();
  PassContext passes;
  XJIT_ASSIGN_OR_RETURN(auto planned, Planned(key.first, key.second, &passes));
  LoweringContext lowering;
  lowering.weights = weights_.get();
  lowering.memory = memory_.get();
  lowering.kernels = kernels_.get();
  lowering.kv = {kv_->layer(0), kv_->config().kv_heads * kv_->config().page_bytes(), kv_->head_bytes()};
  lowering.step = [this](int window) { return steps_->view(window); };
  lowering.partial_slots = steps_->max_slots();
  lowering.threads = target_.threads;
  XJIT_ASSIGN_OR_RETURN(std::unique_ptr<Program> program, Lower(*planned, lowering));
  XJIT_RETURN_IF_ERROR(kernels_->Seal());
  if (options_.perf_map) {
    std::vector<Kernel> fresh;
    const auto all = kernels_->kernels();
    for (; perf_mapped_ < all.size(); ++perf_mapped_) fresh.push_back(*all[perf_mapped_]);
    XJIT_RETURN_IF_ERROR(WritePerfMap(fresh));
  }
  compile_ms_ += NowMs() - start;
  return (programs_[key] = std::move(program)).get();
}

absl::StatusOr<int> Engine::NewSequence() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].used) continue;
    slots_[i] = {};
    slots_[i].used = true;
    if (kv_.has_value()) slots_[i].kv = kv_->NewSequence(static_cast<int32_t>(context_));
    return static_cast<int>(i);
  }
  return FailedPrecondition("all {} sequences are in use", slots_.size());
}

void Engine::FreeSequence(int seq) {
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (kv_.has_value() && slot.used) kv_->Free(slot.kv);
  slot = {};
}

void Engine::Truncate(int seq, int32_t length) {
  Slot& slot = slots_[static_cast<size_t>(seq)];
  if (length >= slot.length) return;
  if (kv_.has_value()) kv_->Truncate(slot.kv, length);
  slot.length = length;
}

int32_t Engine::length(int seq) const { return slots_[static_cast<size_t>(seq)].length; }

absl::Status Engine::Step(std::span<const Input> inputs) {
  int64_t rows = 0;
  for (const Input& input : inputs) {
    const bool known =
        input.seq >= 0 && input.seq < static_cast<int>(slots_.size()) && slots_[static_cast<size_t>(input.seq)].used;
    const auto same =
        std::count_if(inputs.begin(), inputs.end(), [&input](const Input& other) { return other.seq == input.seq; });
    if (!known || same != 1)
      return InvalidArgument("sequence {} is not one of this engine's, or is in the step twice", input.seq);
    const Slot& slot = slots_[static_cast<size_t>(input.seq)];
    const int64_t length = slot.length + static_cast<int64_t>(input.ids.size());
    if (length > context_) {
      return FailedPrecondition(
          "{} tokens do not fit into the context of {} (--ctx N makes it larger; the model was trained for {})", length,
          context_, spec().max_positions);
    }
    for (int32_t id : input.ids) {
      if (id < 0 || id >= spec().vocab_size) {
        return InvalidArgument("token id {} is outside the vocabulary of {}", id, spec().vocab_size);
      }
    }
    rows += static_cast<int64_t>(input.ids.size());
  }
  if (rows < 1 || rows > max_step_rows())
    return InvalidArgument("a step has 1 to {} tokens, not {}", max_step_rows(), rows);
  XJIT_RETURN_IF_ERROR(options_.backend == Backend::kInterp ? StepInterp(inputs) : StepJit(inputs));
  for (const Input& input : inputs)
    slots_[static_cast<size_t>(input.seq)].length += static_cast<int32_t>(input.ids.size());
  return absl::OkStatus();
}

absl::Status Engine::StepJit(std::span<const Input> inputs) {
  step_sequences_.clear();
  int64_t rows = 0, logit_rows = 0;
  for (const Input& input : inputs) {
    Slot& slot = slots_[static_cast<size_t>(input.seq)];
    const auto count = static_cast<int32_t>(input.ids.size());
    XJIT_RETURN_IF_ERROR(kv_->Extend(slot.kv, count));
    const int32_t wanted = input.logits == LogitRows::kAll ? count : input.logits == LogitRows::kLast ? 1 : 0;
    step_sequences_.push_back({input.ids, slot.kv.pages, slot.length, wanted});
    rows += count;
    logit_rows += wanted;
  }
  if (logit_rows > max_logit_rows()) return InvalidArgument("a step has at most {} rows of logits", max_logit_rows());
  XJIT_ASSIGN_OR_RETURN(Program * program, ProgramFor(rows, logit_rows));
  XJIT_RETURN_IF_ERROR(steps_->Build(step_sequences_));
  if (profile_ != nullptr && &profile_->program() == program) {
    ExecuteProfiled(*program, *pool_, *profile_);
  } else {
    Execute(*program, *pool_);
  }
  logits_ = program->logits();
  for (const Input& input : inputs) {
    slots_[static_cast<size_t>(input.seq)].kv.length += static_cast<int32_t>(input.ids.size());
  }
  return absl::OkStatus();
}

absl::Status Engine::StepInterp(std::span<const Input> inputs) {
  InterpStep step;
  for (const Input& input : inputs) {
    Slot& slot = slots_[static_cast<size_t>(input.seq)];
    for (size_t i = 0; i < input.ids.size(); ++i) {
      const bool last = i + 1 == input.ids.size();
      if (input.logits == LogitRows::kAll || (last && input.logits == LogitRows::kLast)) {
        step.logit_rows.push_back(static_cast<int32_t>(step.ids.size()));
      }
      step.ids.push_back(input.ids[i]);
      step.positions.push_back(slot.length + static_cast<int32_t>(i));
      step.kv.push_back(&slot.interp);
    }
  }
  XJIT_ASSIGN_OR_RETURN(interp_logits_, Interpret(*graph_, step, *rows_));
  logits_ = {interp_logits_.f.data(), interp_logits_.cols * 4};
  return absl::OkStatus();
}

absl::Status Engine::Prefill(int seq, std::span<const int32_t> ids, int64_t chunk) {
  if (chunk <= 0 || chunk > max_step_rows()) chunk = max_step_rows();
  if (ids.empty()) return InvalidArgument("the prompt has no tokens");
  const int64_t length = slots_[static_cast<size_t>(seq)].length + static_cast<int64_t>(ids.size());
  if (length > context_) {
    return FailedPrecondition(
        "the prompt of {} tokens does not fit into the context of {} (--ctx N makes it larger; the model was trained "
        "for {})",
        length, context_, spec().max_positions);
  }
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), static_cast<size_t>(chunk));
    const Input input{seq, ids.first(count), count == ids.size() ? LogitRows::kLast : LogitRows::kNone};
    XJIT_RETURN_IF_ERROR(Step({&input, 1}));
    ids = ids.subspan(count);
  }
  return absl::OkStatus();
}

std::span<float> Engine::logits(int64_t i) { return {logits_.row(i), static_cast<size_t>(spec().vocab_size)}; }

std::string Engine::mode() const {
  if (options_.backend == Backend::kInterp) {
    // Such a checkpoint's reference rounds activations too, unless the scheme is for weights only.
    bool int8 = false;
    for (const auto& f : graph_->functions) {
      for (const auto& w : f->weights) int8 |= w->type.elem == DType::kI8 && !w->type.scales.weight_only;
    }
    return int8 ? "int8" : "fp32";
  }
  std::set<DType> acts;
  for (const auto& f : fused_->functions) {
    for (const auto& op : f->ops) {
      if (!IsProduct(*op)) continue;
      for (const bool many : {false, true}) acts.insert(ActivationFor(WeightOf(*op)->type.encoding(), target_, many));
    }
  }
  // A rounding that falls the other way where a whole row shares a scale outweighs what bf16 does.
  if (acts.contains(DType::kI8Act)) return "int8";
  std::string mode = acts.contains(DType::kQ8Act) ? "q8act" : "";
  const bool halves = acts.contains(DType::kBF16) || acts.contains(DType::kF16);
  if (halves || kv_dtype_ == DType::kBF16) mode += mode.empty() ? "bf16" : "+bf16";
  return mode.empty() ? "fp32" : mode;
}

EngineMemory Engine::memory() const {
  EngineMemory m;
  m.kv_bytes_per_token = kv_bytes(1);
  if (weights_ == nullptr) return m;
  m.weight_bytes = weights_->bytes();
  m.kv_reserved_bytes = kv_->config().bytes();
  m.arena_bytes = memory_->bytes();
  m.code_bytes = kernels_->code_bytes();
  return m;
}

int64_t Engine::kv_bytes(int64_t tokens) const {
  return spec().layers * spec().kv_values() * (kv_dtype_ == DType::kF32 ? 4 : 2) * tokens;
}

int64_t Engine::weight_bytes_per_step() const {
  // Every program reads every weight once.
  if (programs_.empty()) return 0;
  int64_t bytes = 0;
  for (const Stage& stage : programs_.begin()->second->stages()) bytes += stage.weight_bytes;
  return bytes;
}

absl::StatusOr<std::string> Engine::IrText(std::string_view stage, int64_t rows) {
  if (stage == "graph") return PrintModule(*graph_);
  if (fused_ == nullptr) return UsageError("--stage {} needs --backend jit", stage);
  if (stage == "fused") return PrintModule(*fused_);
  if (stage == "planned") {
    PassContext passes;
    XJIT_ASSIGN_OR_RETURN(auto planned, Planned(Capacity(rows, max_step_rows()), 1, &passes));
    return PrintModule(*planned);
  }
  if (stage == "kernels") {
    XJIT_ASSIGN_OR_RETURN(Program * program, ProgramFor(rows, 1));
    return Print(*program);
  }
  return InvalidArgument("unknown stage '{}' (known: graph, fused, planned, kernels, asm)", stage);
}

absl::StatusOr<std::string> Engine::Explain(int64_t rows) {
  if (fused_ == nullptr) return std::string("interpreter: no passes, no kernels\n");
  PassContext passes;
  XJIT_RETURN_IF_ERROR(Planned(Capacity(rows, max_step_rows()), 1, &passes).status());
  XJIT_RETURN_IF_ERROR(ProgramFor(rows, 1).status());
  std::string text =
      fmt::format("isa: {} ({}); threads: {} ({})\n", Name(target_.isa), CpuName(), threads(), thread_reason());
  for (const auto& note : fuse_notes_) text += note + "\n";
  for (const auto& note : passes.notes) text += note + "\n";
  text += kernels_->ExplainAll();
  return text;
}

absl::StatusOr<std::string> Engine::KernelAsm(std::string_view kernel, int64_t rows) {
  if (fused_ == nullptr) return UsageError("--stage asm needs --backend jit");
  XJIT_RETURN_IF_ERROR(ProgramFor(rows, 1).status());
  std::string known;
  for (const Kernel* k : kernels_->kernels()) {
    if (k->name == kernel && k->code == nullptr)
      return InvalidArgument("kernel '{}' is C++, it has no emitted code", kernel);
    if (k->name == kernel) return Disassemble({k->code, k->text_bytes});
    known += fmt::format("{}{}", known.empty() ? "" : ", ", k->name);
  }
  return InvalidArgument("no kernel '{}' in this program (it has {})", kernel, known);
}

}  // namespace xjit
