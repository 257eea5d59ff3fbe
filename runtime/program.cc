#include "runtime/program.h"

#include <algorithm>

#include "fmt/format.h"
#include "ir/support/align.h"

namespace xjit {

Program::Program(int threads, int64_t max_rows, const StepView* step)
    : threads_(std::max(threads, 1)), max_rows_(max_rows), step_(step), args_(threads_) {}

int Program::AddStage(Stage stage) {
  if (stage.step == nullptr) stage.step = step_;
  stages_.push_back(std::move(stage));
  for (auto& args : args_) args.push_back(nullptr);
  return static_cast<int>(stages_.size()) - 1;
}

void* Program::AddArgs(size_t bytes) {
  constexpr size_t kBlockLines = 1024;  // 64 KiB: a model's arguments are a few blocks
  const size_t lines = std::max<size_t>(CeilDiv(bytes, sizeof(ArenaLine)), 1);
  if (arena_used_ + lines > arena_size_) {
    arena_size_ = std::max(lines, kBlockLines);
    arena_used_ = 0;
    arena_.push_back(std::make_unique<ArenaLine[]>(arena_size_));
  }
  void* result = &arena_.back()[arena_used_];
  arena_used_ += lines;
  args_bytes_ += static_cast<int64_t>(lines * sizeof(ArenaLine));
  return result;
}

absl::Status Program::Finish() {
  if (step_ == nullptr) return Internal("program: no step view");
  calls_.clear();
  grids_.clear();
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    if (stage.kernel == nullptr || stage.kernel->fn == nullptr) {
      return Internal("program: stage {} ({}) has no kernel", s, stage.label);
    }
    if (stage.n_count < 0 || stage.n_chunk < 0 || stage.m_chunk < 0) {
      return Internal("program: stage {} ({}) has a negative grid: n {} by {}, m by {}", s, stage.label, stage.n_count,
                      stage.n_chunk, stage.m_chunk);
    }
    for (int t = 0; t < threads_; ++t) {
      if (args_[t][s] == nullptr) return Internal("program: stage {} ({}) has no arguments", s, stage.label);
    }
    auto same = [&](const Grid& g) {
      return g.step == stage.step && g.mode == stage.mode && g.n_kind == stage.n_kind && g.n_count == stage.n_count &&
             g.n_chunk == stage.n_chunk && g.m_kind == stage.m_kind && g.m_chunk == stage.m_chunk;
    };
    auto grid = std::find_if(grids_.begin(), grids_.end(), same);
    if (grid == grids_.end()) {
      grids_.push_back(Grid{.step = stage.step,
                            .mode = stage.mode,
                            .n_kind = stage.n_kind,
                            .n_count = stage.n_count,
                            .n_chunk = stage.n_chunk,
                            .m_kind = stage.m_kind,
                            .m_chunk = stage.m_chunk});
      grid = grids_.end() - 1;
    }
    calls_.push_back(Call{.fn = stage.kernel->fn,
                          .grid = static_cast<int32_t>(grid - grids_.begin()),
                          .replicated = stage.mode == StageMode::kReplicated,
                          .barrier = stage.barrier_after});
  }
  // The end of the step is a barrier anyway.
  if (!calls_.empty()) calls_.back().barrier = false;
  shares_.assign(grids_.size() * threads_, Share{});
  taken_ = std::make_unique<Taken[]>(std::max<size_t>(stages_.size() * threads_, 1));
  parity_ = 0;
  return absl::OkStatus();
}

void Program::PlanStep() {
  parity_ ^= 1;
  for (size_t i = 0; i < grids_.size(); ++i) {
    Grid& g = grids_[i];
    g.n = g.n_kind == GridN::kItems ? g.step->items : g.n_count;
    switch (g.m_kind) {
      case GridM::kOne:
        g.m = 1;
        break;
      case GridM::kRows:
        g.m = g.step->rows;
        break;
      case GridM::kLogitRows:
        g.m = g.step->logit_rows;
        break;
      case GridM::kMerges:
        g.m = g.step->merges;
        break;
    }
    if (g.mode == StageMode::kReplicated) continue;
    Share* share = &shares_[i * threads_];
    if (g.n <= 0 || g.m <= 0) {
      std::fill(share, share + threads_, Share{});
      continue;
    }
    g.n_step = g.n_chunk > 0 ? std::min(g.n_chunk, g.n) : g.n;
    g.m_step = g.m_chunk > 0 ? std::min(g.m_chunk, g.m) : g.m;
    g.m_tasks = CeilDiv(g.m, g.m_step);
    const int64_t tasks = CeilDiv(g.n, g.n_step) * g.m_tasks;
    if (g.n_kind == GridN::kItems) {
      // Items come longest first: dealt out in turn, every thread begins with long ones and ends with short ones.
      g.stride = threads_;
      for (int t = 0; t < threads_; ++t) share[t] = {t, tasks};
      continue;
    }
    // A contiguous range, the same at every step: a thread reads its weights as one ascending stream, and finds those
    // that fit in its caches there again.
    const int64_t each = tasks / threads_, more = tasks % threads_;
    int64_t first = 0;
    for (int t = 0; t < threads_; ++t) {
      const int64_t limit = first + each + (t < more ? 1 : 0);
      share[t] = {first, limit};
      first = limit;
    }
  }
}

namespace {

std::string Chunk(int64_t chunk) { return chunk > 0 ? fmt::format("/{}", chunk) : ""; }

}  // namespace

std::string Print(const Program& program) {
  constexpr const char* kM[] = {"1", "rows", "logit_rows", "merges"};
  std::string out = fmt::format("program {{threads = {}, max_rows = {}}}\n", program.threads(), program.max_rows());
  int number = 0;
  for (const Stage& stage : program.stages()) {
    const std::string n = stage.n_kind == GridN::kItems ? "items" : fmt::format("{}", stage.n_count);
    out += fmt::format(
        "{:4}  {}  {}  {}  {}{} x {}{}{}\n", number++, stage.label, stage.kernel != nullptr ? stage.kernel->name : "?",
        stage.mode == StageMode::kShared ? "shared" : "replicated", n, Chunk(stage.n_chunk),
        kM[static_cast<int>(stage.m_kind)], Chunk(stage.m_chunk), stage.barrier_after ? "  barrier" : "");
  }
  return out;
}

}  // namespace xjit
