#include "passes/lower.h"

#include <algorithm>
#include <deque>
#include <numbers>
#include <set>
#include <utility>

#include "codegen/gemm/blocking.h"
#include "ir/chains.h"
#include "ir/ops.h"
#include "ir/route.h"
#include "ir/support/align.h"
#include "ir/verifier.h"
#include "passes/lower_check.h"
#include "passes/lower_moe.h"

namespace xjit {

int64_t PackedColumns(const Weight& weight) { return PackedColumns(weight.type.rows(), weight.interleaved()); }

namespace {

// Rows of a task: the program is made for its most rows, and a step of a few dozen must keep all threads busy too. A
// row takes 0.1 us and more.
constexpr int64_t kMaxTaskRows = 8;

// Bytes that stages read and write, for barriers: ranges of the arena, and whole other resources.
struct Span {
  enum class Space : uint8_t { kArena, kPartial, kKv, kExperts };
  Space space = Space::kArena;
  int64_t begin = 0, end = 0;  // bytes of the arena; a layer's number for kKv
  bool Overlaps(const Span& o) const { return space == o.space && begin < o.end && o.begin < end; }
};

class Lowering {
 public:
  Lowering(const Module& module, const LoweringContext& context) : module_(module), context_(context) {}

  absl::StatusOr<std::unique_ptr<Program>> Run() {
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
      XJIT_ASSIGN_OR_RETURN(std::byte * own,
                            context_.memory->Get(WorkMemory::Use::kOwn, t, ModuleInt("private_bytes")));
      own_.push_back(own);
    }
    XJIT_RETURN_IF_ERROR(LowerFunction(*step, -1, {}));
    if (stages_.empty()) return InvalidArgument("module @{}: @step computes nothing", module_.name);
    XJIT_RETURN_IF_ERROR(BindScratch());
    for (auto& add : pending_) add();
    XJIT_RETURN_IF_ERROR(program_->Finish());
    return std::move(program_);
  }

 private:
  int64_t ModuleInt(std::string_view name) const {
    const auto it = module_.attrs.find(name);
    const int64_t* value = it == module_.attrs.end() ? nullptr : std::get_if<int64_t>(&it->second);
    return value == nullptr ? 0 : *value;
  }

  // Where a value lies: in the arena, or at the same offset of every thread's own.
  struct Place {
    int64_t offset = 0;
    bool own = false;
    int64_t stride = 0;  // bytes from row to row
    int64_t bytes = 0;   // of all rows
  };

  absl::StatusOr<Place> PlaceOf(const Value* value) {
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

  std::byte* At(const Place& place, int thread) const {
    return (place.own ? own_[static_cast<size_t>(thread)] : arena_) + place.offset;
  }
  // The arena bytes behind a value (of a view: its root's, which is what is written).
  void AddSpan(const Value* value, std::vector<Span>* spans) {
    auto place = PlaceOf(ViewRoot(value));
    if (!place.ok()) span_status_.Update(place.status());
    if (place.ok() && !place->own) spans->push_back({Span::Space::kArena, place->offset, place->offset + place->bytes});
  }

  struct Access {
    std::vector<Span> reads, writes;
  };

  // Puts a barrier behind the previous stage if this one reads what other threads wrote since the last barrier, or
  // writes what they may still read or write. Stages in which every thread computes everything leave all they wrote to
  // the thread itself (identical bytes from every thread), so reading that needs no barrier.
  void Synchronise(const Access& access, bool replicated) {
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

  // Takes the stage up; its arguments are bound once every stage's scratch is known.
  template <class ArgsOf>
  void AddStage(Stage stage, const Access& access, ArgsOf args_of, int64_t scratch_bytes = 0) {
    Synchronise(access, stage.mode == StageMode::kReplicated);
    stage.barrier_after = false;
    scratch_bytes_ = std::max({scratch_bytes_, stage.kernel->scratch_bytes, scratch_bytes});
    const size_t index = stages_.size();
    stages_.push_back(std::move(stage));
    pending_.push_back([this, index, args_of] { program_->AddPerThread(stages_[index], args_of); });
  }

  absl::Status BindScratch() {
    stages_.back().barrier_after = true;  // the step's end
    for (int t = 0; t < context_.threads; ++t) {
      XJIT_ASSIGN_OR_RETURN(std::byte * scratch, context_.memory->Get(WorkMemory::Use::kScratch, t, scratch_bytes_));
      scratch_.push_back(scratch);
    }
    return absl::OkStatus();
  }

  // Rows of a shared stage's task when only rows are shared out.
  int64_t RowChunk() const {
    const int64_t tasks = int64_t{context_.threads} * kTasksPerThread;
    return std::clamp<int64_t>(CeilDiv(rows_, tasks), 1, kMaxTaskRows);
  }
  Stage RowStage(std::string label, const Kernel* kernel, const Value* result, bool replicated) const {
    Stage stage;
    stage.label = std::move(label);
    stage.kernel = kernel;
    stage.mode = replicated ? StageMode::kReplicated : StageMode::kShared;
    const bool logits = result != nullptr && result->type.dims[0].symbol == 'L';
    stage.m_kind = logits ? GridM::kLogitRows : GridM::kRows;
    stage.m_chunk = replicated ? kWholeGrid : logits ? 1 : RowChunk();
    return stage;
  }
  std::string Label(const Op& op) const {
    const std::string name = op.results.empty() ? std::string(Name(op.code)) : op.result()->name;
    return layer_ < 0 ? name : fmt::format("layer.{}.{}", layer_, name);
  }

  absl::Status LowerFunction(const Function& function, int64_t layer, std::map<const Value*, int64_t> args) {
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

  absl::Status LowerOp(const Op& op) {
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

  absl::Status LowerReturn(const Op& op) {
    if (layer_ >= 0) return absl::OkStatus();
    XJIT_ASSIGN_OR_RETURN(const Place place, PlaceOf(op.operand(0)));
    program_->set_logits({reinterpret_cast<float*>(arena_ + place.offset), place.stride});
    return absl::OkStatus();
  }

  absl::Status LowerRepeat(const Op& op) {
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

  // A layer whose result was not updated in place hands it on by copying.
  absl::Status Copy(const Value* value, const Place& from, int64_t to, int64_t layer) {
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

  absl::Status LowerEmbed(const Op& op) {
    const Weight& w = *op.weight(1);
    XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, w));
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("embed"));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    Access access;
    AddSpan(op.result(), &access.writes);
    EmbedArgs args{view_,     packed, w.type.encoding(), w.type.cols(), reinterpret_cast<float*>(arena_ + out.offset),
                   out.stride};
    AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
    return absl::OkStatus();
  }

  absl::Status LowerRopeTable(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const float* freq, context_.weights->Vector(layer_, *op.weight(1)));
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("rope_table"));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    Access access;
    AddSpan(op.result(), &access.writes);
    RopeTableArgs args{view_, freq, op.weight(1)->type.cols(), static_cast<float>(op.Float("scale")),
                       reinterpret_cast<float*>(arena_ + out.offset)};
    AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
    return absl::OkStatus();
  }

  absl::Status LowerSelectRows(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("gather_rows"));
    XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    AddSpan(op.result(), &access.writes);
    GatherRowsArgs args{view_, reinterpret_cast<const float*>(arena_ + x.offset),
                        reinterpret_cast<float*>(arena_ + out.offset), out.stride};
    AddStage(RowStage(Label(op), kernel, op.result(), false), access, [args](int) { return args; });
    return absl::OkStatus();
  }

  absl::Status AddPrepare(const Op& op, const PrepareDesc& desc, const Weight* gain_weight) {
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
    const int32_t* order = nullptr;
    if (desc.gather) {
      const Weight* sorted = function_->FindWeight(op.Str("order_of"));
      if (sorted == nullptr || sorted->type.cols() != desc.cols)
        return InvalidArgument("prepare: there is no weight @{} of {} columns", op.Str("order_of"), desc.cols);
      XJIT_ASSIGN_OR_RETURN(order, context_.weights->Order(layer_, *sorted));
    }
    const float* gain = nullptr;
    if (gain_weight != nullptr) {
      XJIT_ASSIGN_OR_RETURN(gain, context_.weights->Vector(layer_, *gain_weight));
    }
    XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    AddSpan(op.result(), &access.writes);
    AddStage(RowStage(Label(op), kernel, op.result(), out.own), access, [this, x, out, gain, order](int t) {
      return PrepareArgs{reinterpret_cast<const float*>(At(x, t)), gain, At(out, t), order};
    });
    return absl::OkStatus();
  }

  absl::Status LowerPrepare(const Op& op) {
    const Type& in = op.operand(0)->type;
    const Type& out = op.result()->type;
    PrepareDesc desc{in.cols(),
                     false,
                     0,
                     out.elem,
                     RowStrideBytes(in.elem, ViewRoot(op.operand(0))->type.cols()),
                     RowStrideBytes(out.elem, out.cols())};
    desc.strips = op.Bool("strips");
    desc.gather = op.Has("order_of");
    const Weight* gain = nullptr;
    if (const ChainItem* norm = op.Item("prologue", "rms_norm")) {
      desc.norm = true;
      desc.eps = static_cast<float>(std::get<double>(norm->args[1]));
      gain = op.operands[static_cast<size_t>(std::get<int>(norm->args[0]))].weight;
    }
    return AddPrepare(op, desc, gain);
  }

  // A norm that no gemm took.
  absl::Status LowerRmsNorm(const Op& op) {
    const int64_t cols = op.result()->type.cols();
    return AddPrepare(
        op,
        {cols, true, static_cast<float>(op.Float("eps")), DType::kF32,
         RowStrideBytes(DType::kF32, ViewRoot(op.operand(0))->type.cols()), RowStrideBytes(DType::kF32, cols)},
        op.weight(1));
  }

  absl::Status LowerEltwise(const Op& op, EltwiseOp kind) {
    XJIT_ASSIGN_OR_RETURN(const Place a, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place y, PlaceOf(op.result()));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    Place b;
    const float* row = nullptr;
    if (kind == EltwiseOp::kAddRow) {
      XJIT_ASSIGN_OR_RETURN(row, context_.weights->Vector(layer_, *op.weight(1)));
    } else if (op.operands.size() > 1) {
      XJIT_ASSIGN_OR_RETURN(b, PlaceOf(op.operand(1)));
      AddSpan(op.operand(1), &access.reads);
    }
    AddSpan(op.result(), &access.writes);
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(EltwiseDesc{kind, op.result()->type.cols(),
                                                                                  a.stride, b.stride, y.stride}));
    AddStage(RowStage(Label(op), kernel, op.result(), false), access, [this, a, b, y, row](int t) {
      return EltwiseArgs{reinterpret_cast<const float*>(At(a, t)),
                         row != nullptr ? row : reinterpret_cast<const float*>(At(b, t)),
                         reinterpret_cast<float*>(At(y, t))};
    });
    return absl::OkStatus();
  }

  absl::Status LowerGemm(const Op& op) {
    const Weight& w = *op.weight(1);
    const bool logits = op.result()->type.dims[0].symbol == 'L';
    const int64_t rows = logits ? logit_rows_ : rows_;
    XJIT_ASSIGN_OR_RETURN(const Place a, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place c, PlaceOf(op.result()));
    GemmDesc desc;
    desc.n = PackedColumns(w);
    desc.k = w.type.cols();
    desc.a = op.operand(0)->type.elem;
    desc.w = w.type.encoding();
    desc.rows = rows <= kMaxFewRows ? static_cast<int>(rows) : 0;
    desc.strips = InStrips(*ViewRoot(op.operand(0)));
    if (desc.strips && ViewRoot(op.operand(0)) != op.operand(0))
      return Internal("lower: '%{}' shows columns of strips", op.operand(0)->name);
    desc.lda_bytes = a.stride;
    desc.ldc_bytes = c.stride;
    Access access;
    AddSpan(op.operand(0), &access.reads);
    AddSpan(op.result(), &access.writes);
    const float* bias = nullptr;
    Place residual;
    for (const ChainItem& item : op.ChainAttr("epilogue")) {
      const Operand* operand =
          item.args.empty() ? nullptr : &op.operands[static_cast<size_t>(std::get<int>(item.args[0]))];
      if (item.name == "bias") {
        desc.epilogue.bias = true;
        XJIT_ASSIGN_OR_RETURN(bias, context_.weights->Vector(layer_, *operand->weight));
      } else if (item.name == "silu_mul") {
        desc.epilogue.silu_mul = true;
      } else {
        desc.epilogue.residual = true;
        XJIT_ASSIGN_OR_RETURN(residual, PlaceOf(operand->value));
        AddSpan(operand->value, &access.reads);
        if (residual.stride != c.stride) return Internal("lower: the residual's rows have another stride");
      }
    }
    XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, w));
    // The kernel that the text names, or none: a plan says what runs.
    const std::string row = op.Has("kernel") ? op.Str("kernel") : "";
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc, row));

    Stage stage;
    stage.label = Label(op);
    stage.kernel = kernel;
    stage.n_count = desc.panels();
    stage.m_kind = logits ? GridM::kLogitRows : GridM::kRows;
    const PanelGrid grid = GridOf(desc, kernel->panels_together, rows);
    const PanelTasks share = SharePanels(grid, context_.threads);
    stage.n_chunk = share.panels;
    if (share.rows > 0) stage.m_chunk = share.rows;
    stage.weight_bytes = grid.panels * grid.panel_bytes;
    AddStage(std::move(stage), access, [this, a, c, residual, bias, packed](int t) {
      return GemmArgs{At(a, t),
                      packed,
                      reinterpret_cast<float*>(At(c, t)),
                      reinterpret_cast<const float*>(At(residual, t)),
                      bias,
                      scratch_[static_cast<size_t>(t)]};
    });
    return absl::OkStatus();
  }

  absl::Status LowerRopeStore(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const Place q, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place k, PlaceOf(op.operand(1)));
    XJIT_ASSIGN_OR_RETURN(const Place v, PlaceOf(op.operand(2)));
    XJIT_ASSIGN_OR_RETURN(const Place table, PlaceOf(op.operand(3)));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    RopeStoreDesc desc;
    desc.heads = static_cast<int>(op.Int("heads"));
    desc.kv_heads = static_cast<int>(op.Int("kv_heads"));
    desc.head_dim = static_cast<int>(op.operand(0)->type.cols() / op.Int("heads"));
    desc.rope_dim = desc.head_dim;
    desc.q = op.result()->type.elem;
    desc.kv = *ParseDType(op.Str("kv"));
    desc.q_scale = static_cast<float>(op.Float("scale") * std::numbers::log2e);
    const float *q_gain = nullptr, *k_gain = nullptr;
    if (op.operands.size() > 5) {
      desc.head_norm = true;
      desc.eps = static_cast<float>(op.Float("eps"));
      XJIT_ASSIGN_OR_RETURN(q_gain, context_.weights->Vector(layer_, *op.weight(5)));
      XJIT_ASSIGN_OR_RETURN(k_gain, context_.weights->Vector(layer_, *op.weight(6)));
    }
    desc.ldqin_bytes = q.stride;
    desc.ldkin_bytes = k.stride;
    desc.ldvin_bytes = v.stride;
    desc.ldq_bytes = out.stride;
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
    Access access;
    for (size_t i = 0; i < 4; ++i) AddSpan(op.operand(i), &access.reads);
    AddSpan(op.result(), &access.writes);
    access.writes.push_back({Span::Space::kKv, layer_, layer_ + 1});
    std::byte* layer_kv = context_.kv.base + layer_ * context_.kv.layer_bytes;
    const int64_t head_bytes = context_.kv.head_bytes;
    const StepView* step = view_;
    AddStage(RowStage(Label(op), kernel, op.result(), out.own), access, [=, this](int t) {
      return RopeStoreArgs{reinterpret_cast<const float*>(At(q, t)),
                           reinterpret_cast<const float*>(At(k, t)),
                           reinterpret_cast<const float*>(At(v, t)),
                           reinterpret_cast<const float*>(At(table, t)),
                           At(out, t),
                           layer_kv,
                           head_bytes,
                           step,
                           q_gain,
                           k_gain};
    });
    return absl::OkStatus();
  }

  absl::Status LowerAttention(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const Place q, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    AttentionDesc desc;
    desc.heads = static_cast<int>(op.Int("heads"));
    desc.kv_heads = static_cast<int>(op.Int("kv_heads"));
    desc.head_dim = static_cast<int>(op.operand(0)->type.cols() / op.Int("heads"));
    desc.q = op.operand(0)->type.elem;
    desc.kv = *ParseDType(op.Str("kv"));
    desc.window = static_cast<int>(op.Int("window"));
    desc.ldq_bytes = q.stride;
    desc.ldo_bytes = out.stride;
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Get(desc));
    const StepView* step = context_.step(desc.window);
    if (step == nullptr) return Internal("lower: no step view for window {}", desc.window);
    const int64_t slots = context_.partial_slots;
    XJIT_ASSIGN_OR_RETURN(
        std::byte * partial,
        context_.memory->Get(WorkMemory::Use::kPartial, 0, slots * PartialSlotBytes(desc.group(), desc.head_dim)));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    access.reads.push_back({Span::Space::kKv, layer_, layer_ + 1});
    AddSpan(op.result(), &access.writes);
    access.writes.push_back({Span::Space::kPartial, 0, 1});
    Stage stage;
    stage.label = Label(op);
    stage.kernel = kernel;
    stage.n_kind = GridN::kItems;
    stage.n_chunk = 1;
    stage.step = step;
    std::byte* layer_kv = context_.kv.base + layer_ * context_.kv.layer_bytes;
    const int64_t head_bytes = context_.kv.head_bytes;
    AddStage(std::move(stage), access, [=, this](int t) {
      return AttentionArgs{At(q, t), reinterpret_cast<float*>(At(out, t)), layer_kv, head_bytes, step,
                           partial,  scratch_[static_cast<size_t>(t)]};
    });

    XJIT_ASSIGN_OR_RETURN(const Kernel* merge, context_.kernels->Get(AttentionMergeDesc{desc}));
    Access merge_access;
    merge_access.reads.push_back({Span::Space::kPartial, 0, 1});
    // With a few threads each merges every row for itself, as it reads them next: cheaper than a barrier.
    const bool replicated = rows_ <= kMaxFewRows && context_.threads <= 4;
    if (!replicated) AddSpan(op.result(), &merge_access.writes);
    AddSpan(op.result(), &merge_access.reads);
    Stage combine;
    combine.label = Label(op) + ".merge";
    combine.kernel = merge;
    combine.mode = replicated ? StageMode::kReplicated : StageMode::kShared;
    combine.m_kind = GridM::kMerges;
    combine.m_chunk = replicated ? kWholeGrid : 1;
    combine.step = step;
    AddStage(std::move(combine), merge_access,
             [=, this](int t) { return AttentionMergeArgs{reinterpret_cast<float*>(At(out, t)), partial, step}; });
    return absl::OkStatus();
  }

  absl::Status LowerRoute(const Op& op) {
    RouteArgs args;
    XJIT_ASSIGN_OR_RETURN(args.params, RouteParamsOf(op));
    args.constant = op.Int("constant");
    if (op.operands.size() > 1) {
      XJIT_ASSIGN_OR_RETURN(args.bias, context_.weights->Vector(layer_, *op.weight(1)));
    }
    XJIT_ASSIGN_OR_RETURN(const Place logits, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Place experts, PlaceOf(op.result(0)));
    XJIT_ASSIGN_OR_RETURN(const Place weights, PlaceOf(op.result(1)));
    args.ldl_bytes = logits.stride;
    args.lde_bytes = experts.stride;
    args.ldw_bytes = weights.stride;
    Access access;
    AddSpan(op.operand(0), &access.reads);
    AddSpan(op.result(0), &access.writes);
    AddSpan(op.result(1), &access.writes);
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("route"));
    const bool replicated = ReplicatesRoute(rows_, args.params.experts);
    AddStage(
        RowStage(Label(op), kernel, op.result(0), replicated), access,
        [=, this](int t) {
          RouteArgs own = args;
          own.logits = reinterpret_cast<const float*>(At(logits, t));
          own.experts = reinterpret_cast<int32_t*>(At(experts, t));
          own.weights = reinterpret_cast<float*>(At(weights, t));
          own.scratch = scratch_[static_cast<size_t>(t)];
          return own;
        },
        RouteScratchBytes(args.params));
    return absl::OkStatus();
  }

  // Layers whose experts are alike share tables and memory.
  absl::StatusOr<const MoeStages*> StagesFor(const MoeDesc& desc) {
    for (const MoeStages& stages : moe_) {
      if (stages.plan().desc == desc) return &stages;
    }
    XJIT_ASSIGN_OR_RETURN(const MoePlan plan, PlanMoe(desc, *context_.kernels, context_.threads));
    auto* tables = static_cast<std::byte*>(program_->AddArgs(static_cast<size_t>(plan.table_bytes(context_.threads))));
    XJIT_ASSIGN_OR_RETURN(std::byte * work, context_.memory->Get(WorkMemory::Use::kExperts, 0, plan.work_bytes()));
    return &moe_.emplace_back(plan, context_.threads, tables, work);
  }

  absl::Status LowerMoeSort(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const MoeProducts products, ProductsOf(*function_, op));
    XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, StagesFor(DescOf(products, rows_)));
    sorted_[op.result(0)] = moe;
    XJIT_ASSIGN_OR_RETURN(const Place experts, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("moe_sort"));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    const int64_t first = op.Int("first");
    AddStage(RowStage(Label(op), kernel, nullptr, true), access, [=, this](int t) {
      MoeSortArgs args = moe->Sort(t);
      args.experts = reinterpret_cast<const int32_t*>(At(experts, t));
      args.lde_bytes = experts.stride;
      args.first = first;
      return args;
    });
    return absl::OkStatus();
  }

  absl::StatusOr<const MoeStages*> SortedBy(const Value* order) const {
    const auto found = sorted_.find(order);
    if (found == sorted_.end()) return Internal("lower: no stage sorts by '%{}'", order->name);
    return found->second;
  }

  Stage GroupedStage(const Op& op, const Kernel* kernel, const GroupedPlan& plan, const MoeDesc& desc) const {
    Stage stage;
    stage.label = Label(op);
    stage.kernel = kernel;
    stage.m_kind = GridM::kRows;
    // As many experts as there are slots: what a step of few rows reads.
    stage.weight_bytes = std::min(desc.experts, desc.rows * desc.slots) * plan.expert_bytes;
    return stage;
  }

  absl::Status LowerGateUp(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, SortedBy(op.operand(3)));
    const MoePlan& plan = moe->plan();
    if (InStrips(*ViewRoot(op.operand(0)))) return Internal("lower: experts read '%{}' in strips", op.operand(0)->name);
    XJIT_ASSIGN_OR_RETURN(const Place x, PlaceOf(op.operand(0)));
    XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, *op.weight(2)));
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("grouped_up"));
    Access access;
    AddSpan(op.operand(0), &access.reads);
    access.writes.push_back({Span::Space::kExperts, 0, 1});
    Stage stage = GroupedStage(op, kernel, plan.up, plan.desc);
    stage.n_count = plan.up_tasks();
    stage.n_chunk = 1;
    AddStage(
        std::move(stage), access,
        [=, this](int t) {
          GroupedUpArgs args = moe->Up(t, scratch_[static_cast<size_t>(t)]);
          args.weights.w = packed;
          args.x = At(x, t);
          args.ldx_bytes = x.stride;
          return args;
        },
        plan.up_scratch_bytes());
    return absl::OkStatus();
  }

  absl::Status LowerDown(const Op& op) {
    XJIT_ASSIGN_OR_RETURN(const MoeStages* moe, SortedBy(op.operand(3)));
    const MoePlan& plan = moe->plan();
    XJIT_ASSIGN_OR_RETURN(const Place out, PlaceOf(op.result()));
    XJIT_ASSIGN_OR_RETURN(const std::byte* packed, context_.weights->Matrix(layer_, *op.weight(2)));
    XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, context_.kernels->Fixed("grouped_down"));
    const Value* weights = ItemOperand(op, *op.Item("epilogue", "combine")).value;
    XJIT_ASSIGN_OR_RETURN(const Place weight, PlaceOf(weights));
    Access access;
    access.reads.push_back({Span::Space::kExperts, 0, 1});
    AddSpan(weights, &access.reads);
    AddSpan(op.result(), &access.writes);
    std::optional<Place> residual;
    if (const ChainItem* item = op.Item("epilogue", "residual")) {
      const Value* value = ItemOperand(op, *item).value;
      XJIT_ASSIGN_OR_RETURN(residual, PlaceOf(value));
      AddSpan(value, &access.reads);
    }
    Stage stage = GroupedStage(op, kernel, plan.down, plan.desc);
    stage.n_count = plan.down.panels;
    stage.n_chunk = plan.down.chunk;
    AddStage(
        std::move(stage), access,
        [=, this](int t) {
          GroupedDownArgs args = moe->Down(t, scratch_[static_cast<size_t>(t)]);
          args.weights.w = packed;
          args.weight = reinterpret_cast<const float*>(At(weight, t));
          args.ldweight_bytes = weight.stride;
          if (residual.has_value()) {
            args.residual = reinterpret_cast<const float*>(At(*residual, t));
            args.ldr_bytes = residual->stride;
          }
          args.out = reinterpret_cast<float*>(At(out, t));
          args.ldo_bytes = out.stride;
          return args;
        },
        plan.down_scratch_bytes());
    return absl::OkStatus();
  }

  const Module& module_;
  const LoweringContext& context_;
  int64_t rows_ = 0, logit_rows_ = 0;
  std::unique_ptr<Program> program_;
  const StepView* view_ = nullptr;
  std::byte* arena_ = nullptr;
  std::vector<std::byte*> own_, scratch_;
  int64_t scratch_bytes_ = 64;
  int64_t layer_ = -1;
  const Function* function_ = nullptr;    // the one being lowered
  std::map<const Value*, int64_t> args_;  // arguments of the function being lowered -> arena offset
  std::deque<MoeStages> moe_;
  std::map<const Value*, const MoeStages*> sorted_;  // by a moe_sort's order
  std::vector<Stage> stages_;
  std::vector<std::function<void()>> pending_;
  absl::Status span_status_;                   // of the first span that could not be placed
  std::vector<Span> shared_writes_, touched_;  // since the last barrier
};

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Lower(const Module& module, const LoweringContext& context) {
  return Lowering(module, context).Run();
}

}  // namespace xjit
