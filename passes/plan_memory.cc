// plan_memory: gives every value a byte offset in the arena, first fit over live ranges, residuals in place; values
// that each thread computes for itself lie in the thread's own arena. The value that layers hand on stays at offset 0.
// Gain: a step allocates nothing, and the arena is a few rows wide instead of one buffer a value. After plan_prologues,
// last.
#include <algorithm>
#include <map>

#include "ir/support/align.h"
#include "ir/verifier.h"
#include "passes/pass.h"

namespace xjit {
namespace {

struct Block {
  int64_t begin, end;
  LiveRange live;
};

class Allocator {
 public:
  explicit Allocator(int64_t base) : top_(base), base_(base) {}

  int64_t Place(int64_t bytes, LiveRange live) {
    std::vector<Block> busy;
    for (const Block& b : blocks_) {
      if (b.live.first <= live.last && live.first <= b.live.last) busy.push_back(b);
    }
    std::sort(busy.begin(), busy.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
    int64_t at = base_;
    for (const Block& b : busy) {
      if (at + bytes <= b.begin) break;
      at = std::max(at, b.end);
    }
    Take(at, bytes, live);
    return at;
  }
  void Take(int64_t at, int64_t bytes, LiveRange live) {
    blocks_.push_back({at, at + bytes, live});
    top_ = std::max(top_, at + bytes);
  }
  int64_t top() const { return top_; }

 private:
  std::vector<Block> blocks_;
  int64_t top_;
  int64_t base_;
};

// 64 bytes is a cache line and a zmm; 4 KiB between buffers is avoided by adding one line (stores and loads that are a
// multiple of 4 KiB apart alias in the store buffer).
int64_t Bytes(const PassContext& context, const Value& value) {
  return AlignUp(ArenaBytes(value, context.rows, context.logit_rows), 64) + 64;
}

// No value may be larger than any machine's memory, so that sums of offsets do not overflow.
absl::Status CheckSizes(const Module& module, const PassContext& context) {
  auto check = [&context](const Value& value) {
    if (ArenaBytes(value, context.rows, context.logit_rows) <= kMaxArenaBytes) return absl::OkStatus();
    return InvalidArgument("'%{}' is larger than any memory with {} rows", value.name,
                           std::max(context.rows, context.logit_rows));
  };
  for (const auto& f : module.functions) {
    for (const auto& arg : f->args) XJIT_RETURN_IF_ERROR(check(*arg));
    for (const auto& op : f->ops) {
      for (const auto& result : op->results) XJIT_RETURN_IF_ERROR(check(*result));
    }
  }
  return absl::OkStatus();
}

// Values of one function. `fixed`: where values that the caller placed lie.
void PlanFunction(Function& f, const PassContext& context, std::map<const Value*, int64_t> fixed, Allocator& shared,
                  Allocator& own) {
  std::map<const Value*, int64_t> at = std::move(fixed);
  for (size_t i = 0; i < f.ops.size(); ++i) {
    Op& op = *f.ops[i];
    if (op.code == OpCode::kSlice) continue;
    std::vector<int64_t> offsets;
    for (const auto& result : op.results) {
      const Value* value = result.get();
      LiveRange live = LiveRangeOf(f, value);
      // Threads read it at their own pace where each computes for itself: a value that the next op could write over it
      // would need a barrier in between.
      if (f.ops[static_cast<size_t>(live.last)]->Bool("private")) ++live.last;
      const Value* in_place = value == op.result() ? InPlaceOperand(op) : nullptr;
      // A thread's own bytes are not everyone's.
      if (in_place != nullptr && in_place->def != nullptr && in_place->def->Bool("private") != op.Bool("private"))
        in_place = nullptr;
      // Only the carried value is the function's own to overwrite: other arguments are read by the next layer too.
      if (in_place != nullptr && in_place->def == nullptr && in_place != f.args[0].get()) in_place = nullptr;
      const int64_t bytes = Bytes(context, *value);
      if (const auto known = at.find(value); known != at.end()) {
        offsets.push_back(known->second);
      } else if (in_place != nullptr && at.contains(in_place) && LiveRangeOf(f, in_place).last == static_cast<int>(i)) {
        offsets.push_back(at[in_place]);
        (op.Bool("private") ? own : shared).Take(offsets.back(), bytes, live);
      } else {
        offsets.push_back((op.Bool("private") ? own : shared).Place(bytes, live));
      }
      at[value] = offsets.back();
    }
    if (offsets.empty()) continue;
    op.attrs["at"] = offsets[0];
    if (offsets.size() > 1) op.attrs["at_rest"] = std::vector<int64_t>(offsets.begin() + 1, offsets.end());
  }
}

// What lies in front of every function's own bytes: what @step hands to layers, and what lives across them.
struct State {
  int64_t bytes = 0;
  std::map<const Value*, int64_t> values;                              // of @step
  std::map<std::string, std::vector<int64_t>, std::less<>> arguments;  // of a layer function; -1: the step
};

absl::Status PlaceRepeat(const Function& step, const Op& repeat, const PassContext& context, State* state) {
  auto place = [&](const Value* value) {
    const auto [it, added] = state->values.try_emplace(value, state->bytes);
    if (added) state->bytes += Bytes(context, *value);
    return it->second;
  };
  // The carried value first, then the other arguments.
  std::vector<int64_t> places;
  for (const Operand& o : repeat.operands) places.push_back(o.value->type.is_step() ? -1 : place(o.value));
  state->values[repeat.result()] = places[0];
  XJIT_ASSIGN_OR_RETURN(const auto runs, ParseSchedule(repeat.Str("schedule")));
  for (const ScheduleRun& run : runs) state->arguments[run.function] = places;
  // Layers use the bytes behind the state: what lives across them, though they do not read it, joins the state.
  const int at = step.IndexOf(&repeat);
  for (const auto& op : step.ops) {
    if (op->code == OpCode::kSlice) continue;
    for (const auto& result : op->results) {
      const LiveRange live = LiveRangeOf(step, result.get());
      if (live.first < at && live.last > at) place(result.get());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PassResult> PlanMemory(Module& module, PassContext& context) {
  XJIT_RETURN_IF_ERROR(CheckSizes(module, context));
  const Function* step = module.Find("step");
  State state;
  if (step != nullptr) {
    for (const auto& op : step->ops) {
      if (op->code == OpCode::kRepeat) XJIT_RETURN_IF_ERROR(PlaceRepeat(*step, *op, context, &state));
    }
  }
  int64_t arena = state.bytes, own_arena = 0;
  for (auto& f : module.functions) {
    Allocator shared(state.bytes), own(0);
    std::map<const Value*, int64_t> fixed;
    if (f.get() == step) {
      fixed = state.values;
    } else {
      const auto places = state.arguments.find(f->name);
      for (size_t i = 0; i < f->args.size(); ++i) {
        const Value* arg = f->args[i].get();
        if (arg->type.is_step() || !arg->type.is_tensor()) continue;
        const LiveRange live = LiveRangeOf(*f, arg);
        if (places != state.arguments.end() && i < places->second.size()) {
          fixed[arg] = places->second[i];
        } else {
          fixed[arg] = shared.Place(Bytes(context, *arg), {-1, live.last});
        }
      }
    }
    PlanFunction(*f, context, std::move(fixed), shared, own);
    arena = std::max(arena, shared.top());
    own_arena = std::max(own_arena, own.top());
  }
  module.attrs["arena_bytes"] = arena;
  module.attrs["private_bytes"] = own_arena;
  return PassResult::Changed(static_cast<int>(module.functions.size()));
}

}  // namespace xjit
