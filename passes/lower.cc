#include "passes/lower.h"

#include <algorithm>
#include <utility>

#include "codegen/gemm/blocking.h"
#include "ir/ops.h"
#include "ir/support/align.h"
#include "ir/verifier.h"
#include "passes/lower_check.h"
#include "passes/lowering.h"

namespace xjit {
namespace {

// Rows of a task: the program is made for its most rows, and a step of a few dozen must keep all threads busy too. A
// row takes 0.1 us and more.
constexpr int64_t kMaxTaskRows = 8;

}  // namespace

int64_t PackedColumns(const Weight& weight) { return PackedColumns(weight.type.rows(), weight.interleaved()); }

absl::StatusOr<std::unique_ptr<Program>> Lowering::Run() {
  rows_ = ModuleInt("rows");
  logit_rows_ = ModuleInt("logit_rows");
  const Function* step = module_.Find("step");
  if (step == nullptr) return InvalidArgument("module @{} has no @step", module_.name);
  if (rows_ < 1 || logit_rows_ < 1)
    return InvalidArgument("module @{} is not planned (run plan_prologues and plan_memory)", module_.name);
  view_ = context_.step(0);
  for (const auto& f : module_.functions) {
    // Every view has the same rows; a model whose layers all have a window has no view for none.
    for (const auto& op : f->ops) {
      if (view_ == nullptr && op->code == OpCode::kFlashAttention)
        view_ = context_.step(static_cast<int>(op->Int("window")));
    }
  }
  if (view_ == nullptr) return Internal("lower: there is no step view");
  program_ = std::make_unique<Program>(context_.threads, rows_, view_);
  XJIT_ASSIGN_OR_RETURN(arena_, context_.memory->Get(WorkMemory::Use::kArena, 0, ModuleInt("arena_bytes")));
  for (int t = 0; t < context_.threads; ++t) {
    XJIT_ASSIGN_OR_RETURN(std::byte * own, context_.memory->Get(WorkMemory::Use::kOwn, t, ModuleInt("private_bytes")));
    own_.push_back(own);
  }
  XJIT_RETURN_IF_ERROR(LowerFunction(*step, -1, {}));
  if (stages_.empty()) return InvalidArgument("module @{}: @step computes nothing", module_.name);
  XJIT_RETURN_IF_ERROR(BindScratch());
  for (auto& add : pending_) add();
  XJIT_RETURN_IF_ERROR(program_->Finish());
  return std::move(program_);
}

int64_t Lowering::ModuleInt(std::string_view name) const {
  const auto it = module_.attrs.find(name);
  const int64_t* value = it == module_.attrs.end() ? nullptr : std::get_if<int64_t>(&it->second);
  return value == nullptr ? 0 : *value;
}

absl::StatusOr<Lowering::Place> Lowering::PlaceOf(const Value* value) {
  const Value* root = ViewRoot(value);
  int64_t column = 0;
  for (const Value* v = value; v != root; v = v->def->operand(0)) column += v->def->Int("from");
  Place place;
  place.stride = RowStrideBytes(root->type.elem, root->type.cols());
  place.bytes = ArenaBytes(*root, rows_, logit_rows_);
  if (root->def == nullptr) {
    const auto arg = args_.find(root);
    if (arg == args_.end()) return Internal("lower: argument '%{}' has no place", root->name);
    place.offset = arg->second;
  } else {
    const std::optional<int64_t> at = ArenaOffset(*root);
    if (!at.has_value()) return Internal("lower: '%{}' has no place in the arena (run plan_memory)", root->name);
    place.offset = *at;
    place.own = root->def->Bool("private");
  }
  place.offset += column * Info(root->type.elem).block_bytes;
  return place;
}

void Lowering::AddSpan(const Value* value, std::vector<Span>* spans) {
  auto place = PlaceOf(ViewRoot(value));
  if (!place.ok()) span_status_.Update(place.status());
  if (place.ok() && !place->own) spans->push_back({Span::Space::kArena, place->offset, place->offset + place->bytes});
}

void Lowering::Synchronise(const Access& access, bool replicated) {
  auto hits = [](const std::vector<Span>& a, const std::vector<Span>& b) {
    return std::any_of(a.begin(), a.end(), [&b](const Span& x) {
      return std::any_of(b.begin(), b.end(), [&x](const Span& y) { return x.Overlaps(y); });
    });
  };
  if (!stages_.empty() && (hits(access.reads, shared_writes_) || hits(access.writes, touched_))) {
    stages_.back().barrier_after = true;
    shared_writes_.clear();
    touched_.clear();
  }
  if (!replicated) shared_writes_.insert(shared_writes_.end(), access.writes.begin(), access.writes.end());
  touched_.insert(touched_.end(), access.reads.begin(), access.reads.end());
  touched_.insert(touched_.end(), access.writes.begin(), access.writes.end());
}

absl::Status Lowering::BindScratch() {
  stages_.back().barrier_after = true;  // the step's end
  for (int t = 0; t < context_.threads; ++t) {
    XJIT_ASSIGN_OR_RETURN(std::byte * scratch, context_.memory->Get(WorkMemory::Use::kScratch, t, scratch_bytes_));
    scratch_.push_back(scratch);
  }
  if (sum_bytes_ == 0) return absl::OkStatus();
  XJIT_ASSIGN_OR_RETURN(sums_, context_.memory->Get(WorkMemory::Use::kGemmParts, 0, sum_bytes_));
  ended_ = static_cast<EndedParts*>(program_->AddArgs(static_cast<size_t>(ended_bytes_)));  // zeros
  return absl::OkStatus();
}

int64_t Lowering::RowChunk() const {
  const int64_t tasks = int64_t{context_.threads} * kTasksPerThread;
  return std::clamp<int64_t>(CeilDiv(rows_, tasks), 1, kMaxTaskRows);
}

Stage Lowering::RowStage(std::string label, const Kernel* kernel, const Value* result, bool replicated) const {
  Stage stage;
  stage.label = std::move(label);
  stage.kernel = kernel;
  stage.mode = replicated ? StageMode::kReplicated : StageMode::kShared;
  const bool logits = result != nullptr && result->type.dims[0].symbol == 'L';
  stage.m_kind = logits ? GridM::kLogitRows : GridM::kRows;
  stage.m_chunk = replicated ? kWholeGrid : logits ? 1 : RowChunk();
  return stage;
}

std::string Lowering::Label(const Op& op) const {
  const std::string name = op.results.empty() ? std::string(Name(op.code)) : op.result()->name;
  return layer_ < 0 ? name : fmt::format("layer.{}.{}", layer_, name);
}

absl::Status Lowering::LowerFunction(const Function& function, int64_t layer, std::map<const Value*, int64_t> args) {
  const int64_t outer_layer = std::exchange(layer_, layer);
  const Function* outer_function = std::exchange(function_, &function);
  const auto outer_args = std::exchange(args_, std::move(args));
  for (const auto& op : function.ops) {
    XJIT_RETURN_IF_ERROR(AtOp(*op, LowerOp(*op)));
    XJIT_RETURN_IF_ERROR(AtOp(*op, span_status_));
  }
  layer_ = outer_layer;
  function_ = outer_function;
  args_ = outer_args;
  return absl::OkStatus();
}

absl::Status Lowering::LowerOp(const Op& op) {
  XJIT_RETURN_IF_ERROR(CheckLowerable(op));
  switch (op.code) {
    case OpCode::kSlice:
      return absl::OkStatus();
    case OpCode::kReturn:
      return LowerReturn(op);
    case OpCode::kRepeat:
      return LowerRepeat(op);
    case OpCode::kEmbed:
      return LowerEmbed(op);
    case OpCode::kRopeTable:
      return LowerRopeTable(op);
    case OpCode::kSelectRows:
      return LowerSelectRows(op);
    case OpCode::kPrepare:
      return LowerPrepare(op);
    case OpCode::kGemm:
      return LowerGemm(op);
    case OpCode::kRopeStore:
      return LowerRopeStore(op);
    case OpCode::kFlashAttention:
      return LowerAttention(op);
    case OpCode::kRoute:
      return LowerRoute(op);
    case OpCode::kMoeSort:
      return LowerMoeSort(op);
    case OpCode::kGroupedGemm:
      return op.Item("epilogue", "combine") == nullptr ? LowerGateUp(op) : LowerDown(op);
    case OpCode::kRmsNorm:
      return LowerRmsNorm(op);
    case OpCode::kAdd:
      return LowerEltwise(op, EltwiseOp::kAdd);
    case OpCode::kMul:
      return LowerEltwise(op, EltwiseOp::kMul);
    case OpCode::kSilu:
      return LowerEltwise(op, EltwiseOp::kSilu);
    case OpCode::kAddBias:
      return LowerEltwise(op, EltwiseOp::kAddRow);
    default:
      return Internal("lower: {} is not lowered", Name(op.code));
  }
}

absl::Status Lowering::LowerReturn(const Op& op) {
  if (layer_ >= 0) return absl::OkStatus();
  XJIT_ASSIGN_OR_RETURN(const Place place, PlaceOf(op.operand(0)));
  program_->set_logits({reinterpret_cast<float*>(arena_ + place.offset), place.stride});
  return absl::OkStatus();
}

absl::Status Lowering::LowerRepeat(const Op& op) {
  XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(op.Str("schedule")));
  for (const ScheduleRun& run : runs) {
    const Function& f = *module_.Find(run.function);
    std::map<const Value*, int64_t> args;
    for (size_t i = 0; i < f.args.size(); ++i) {
      if (f.args[i]->type.is_step()) continue;
      XJIT_ASSIGN_OR_RETURN(const Place place, PlaceOf(op.operand(i)));
      if (place.own) return Internal("lower: '%{}' of the repeat is private to threads", op.operand(i)->name);
      args[f.args[i].get()] = place.offset;
    }
    const int64_t carried = args[f.args[0].get()];
    for (int64_t layer = run.first; layer <= run.last; ++layer) {
      XJIT_RETURN_IF_ERROR(LowerFunction(f, layer, args));
      const Value* returned = f.ops.back()->operand(0);
      const auto outer_args = std::exchange(args_, args);
      XJIT_ASSIGN_OR_RETURN(const Place from, PlaceOf(returned));
      args_ = outer_args;
      if (from.own) return Internal("lower: @{} returns what is private to threads", f.name);
      if (from.offset != carried) XJIT_RETURN_IF_ERROR(Copy(returned, from, carried, layer));
    }
  }
  return absl::OkStatus();
}

absl::Status Lowering::Copy(const Value* value, const Place& from, int64_t to, int64_t layer) {
  PrepareDesc desc{value->type.cols(), false, 0, DType::kF32, from.stride, from.stride};
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
  Access access{{{Span::Space::kArena, from.offset, from.offset + from.bytes}},
                {{Span::Space::kArena, to, to + from.bytes}}};
  std::byte* arena = arena_;
  AddStage(RowStage(fmt::format("layer.{}.copy", layer), kernel, value, false), access, [arena, from, to](int) {
    return PrepareArgs{reinterpret_cast<const float*>(arena + from.offset), nullptr, arena + to};
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Program>> Lower(const Module& module, const LoweringContext& context) {
  return Lowering(module, context).Run();
}

}  // namespace xjit
