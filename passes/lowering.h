// Lowering of one planned module (lower.h): what the ops of all families share (places, barriers, stages), and a
// function an op.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/gemm/split.h"
#include "codegen/moe/moe_plan.h"
#include "codegen/rows/rows_desc.h"
#include "ir/graph.h"
#include "ir/support/status.h"
#include "passes/lower.h"
#include "runtime/program.h"

namespace xjit {

class Lowering {
 public:
  Lowering(const Module& module, const LoweringContext& context) : module_(module), context_(context) {}

  absl::StatusOr<std::unique_ptr<Program>> Run();

 private:
  // Bytes that stages read and write, for barriers: ranges of the arena, and whole other resources.
  struct Span {
    enum class Space : uint8_t { kArena, kPartial, kKv, kExperts, kGemmParts };
    Space space = Space::kArena;
    int64_t begin = 0, end = 0;  // bytes of the arena; a layer's number for kKv
    bool Overlaps(const Span& o) const { return space == o.space && begin < o.end && o.begin < end; }
  };
  struct Access {
    std::vector<Span> reads, writes;
  };
  // Where a value lies: in the arena, or at the same offset of every thread's own.
  struct Place {
    int64_t offset = 0;
    bool own = false;
    int64_t stride = 0;  // bytes from row to row
    int64_t bytes = 0;   // of all rows
  };

  int64_t ModuleInt(std::string_view name) const;
  absl::StatusOr<Place> PlaceOf(const Value* value);
  std::byte* At(const Place& place, int thread) const {
    return (place.own ? own_[static_cast<size_t>(thread)] : arena_) + place.offset;
  }
  // The arena bytes behind a value (of a view: its root's, which is what is written).
  void AddSpan(const Value* value, std::vector<Span>* spans);

  // Puts a barrier behind the previous stage if this one reads what other threads wrote since the last barrier, or
  // writes what they may still read or write. Stages in which every thread computes everything leave all they wrote to
  // the thread itself (identical bytes from every thread), so reading that needs no barrier.
  void Synchronise(const Access& access, bool replicated);
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
  absl::Status BindScratch();

  // Rows of a shared stage's task when only rows are shared out.
  int64_t RowChunk() const;
  Stage RowStage(std::string label, const Kernel* kernel, const Value* result, bool replicated) const;
  std::string Label(const Op& op) const;

  absl::Status LowerFunction(const Function& function, int64_t layer, std::map<const Value*, int64_t> args);
  absl::Status LowerOp(const Op& op);
  absl::Status LowerReturn(const Op& op);
  absl::Status LowerRepeat(const Op& op);
  // A layer whose result was not updated in place hands it on by copying.
  absl::Status Copy(const Value* value, const Place& from, int64_t to, int64_t layer);

  // lower_rows.cc
  absl::Status LowerEmbed(const Op& op);
  absl::Status LowerRopeTable(const Op& op);
  absl::Status LowerSelectRows(const Op& op);
  absl::Status AddPrepare(const Op& op, const PrepareDesc& desc, const Weight* gain_weight);
  absl::Status LowerPrepare(const Op& op);
  // A norm that no gemm took.
  absl::Status LowerRmsNorm(const Op& op);
  absl::Status LowerEltwise(const Op& op, EltwiseOp kind);

  // lower_linear.cc
  absl::Status LowerGemm(const Op& op);

  // lower_attention.cc
  absl::Status LowerRopeStore(const Op& op);
  absl::Status LowerAttention(const Op& op);

  // lower_experts.cc
  absl::Status LowerRoute(const Op& op);
  // Layers whose experts are alike share tables and memory.
  absl::StatusOr<const MoeStages*> StagesFor(const MoeDesc& desc);
  absl::Status LowerMoeSort(const Op& op);
  absl::StatusOr<const MoeStages*> SortedBy(const Value* order) const;
  Stage GroupedStage(const Op& op, const Kernel* kernel, const GroupedPlan& plan, const MoeDesc& desc) const;
  absl::Status LowerGateUp(const Op& op);
  absl::Status LowerDown(const Op& op);

  const Module& module_;
  const LoweringContext& context_;
  int64_t rows_ = 0, logit_rows_ = 0;
  std::unique_ptr<Program> program_;
  const StepView* view_ = nullptr;
  std::byte* arena_ = nullptr;
  std::vector<std::byte*> own_, scratch_;
  int64_t scratch_bytes_ = 64;
  std::byte* sums_ = nullptr;  // of the parts of split products
  EndedParts* ended_ = nullptr;
  int64_t sum_bytes_ = 0, ended_bytes_ = 0;
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

}  // namespace xjit
