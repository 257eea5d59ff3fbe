#include "ir/interp_ranks.h"

#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

namespace xjit {
namespace {

constexpr std::string_view kLeft = "another rank has failed or ended";

// A thread each: more than any machine has nodes, fewer than a process may start.
constexpr int kMostRanks = 64;

// Where ranks wait for each other. A round is over when all have given and taken their values.
class Meeting {
 public:
  explicit Meeting(int size) : given_(static_cast<size_t>(size)) {}

  absl::StatusOr<std::vector<std::vector<float>>> Gather(int rank, std::vector<float> mine) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !taking_ || left_; });
    if (left_) return Internal("{}", kLeft);
    given_[static_cast<size_t>(rank)] = std::move(mine);
    if (++count_ == given_.size()) taking_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return taking_ || left_; });
    if (!taking_) return Internal("{}", kLeft);
    auto all = given_;
    if (--count_ == 0) taking_ = false;
    changed_.notify_all();
    return all;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> given_;
  size_t count_ = 0;
  bool taking_ = false, left_ = false;
};

class Member : public Collective {
 public:
  Member(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::StatusOr<std::vector<std::vector<float>>> Gather(std::vector<float> mine) override {
    return meeting_.Gather(rank_, std::move(mine));
  }

 private:
  Meeting& meeting_;
  int rank_, size_;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<TensorData>>> RunRanks(
    int ranks, const std::function<absl::StatusOr<std::vector<TensorData>>(Collective&)>& run) {
  if (ranks > kMostRanks) return Unimplemented("the interpreter runs {} ranks at most, not {}", kMostRanks, ranks);
  Meeting meeting(ranks);
  std::vector<std::optional<absl::StatusOr<std::vector<TensorData>>>> results(static_cast<size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        Member member(meeting, rank, ranks);
        auto& result = results[static_cast<size_t>(rank)];
        // The standard library's own failures would end the program in a thread.
        try {
          result = run(member);
        } catch (const std::bad_alloc&) {
          result = FailedPrecondition("no memory for {} ranks on the interpreter", ranks);
        }
        meeting.Leave();
      });
    }
  }
  std::vector<std::vector<TensorData>> values;
  absl::Status failure;
  for (auto& result : results) {
    if (result->ok()) {
      values.push_back(**std::move(result));
    } else if (failure.ok() || Message(failure).find(kLeft) != std::string_view::npos) {
      failure = result->status();
    }
  }
  if (!failure.ok()) return failure;
  return values;
}

}  // namespace xjit
