#include "passes/check.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "ir/interp_ranks.h"
#include "ir/ops.h"

namespace xjit {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a good mixing of a counter.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Uniform in [-1, 1).
float Unit(uint64_t bits) { return static_cast<float>(static_cast<int64_t>(Mix(bits)) >> 40) * 0x1p-23f; }

uint64_t HashName(std::string_view name) {
  uint64_t h = 1469598103934665603ull;  // FNV-1a
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return h;
}

// Enough tokens that chunks, windows and causality show.
constexpr int kCheckRows = 5;

// Interpreting on random inputs is for texts of a person's size.
absl::Status CheckSize(const Function& f) {
  constexpr int64_t kMostColumns = 1 << 20, kMostValues = int64_t{1} << 32;
  for (const auto& w : f.weights) {
    int64_t values = 1;
    for (const Dim& d : w->type.dims) values = d.size > kMostValues / values ? kMostValues + 1 : values * d.size;
    if (values > kMostValues) return Unimplemented("@{}: '@{}' is too large to be checked", f.name, w->name);
  }
  for (const auto& arg : f.args) {
    if (arg->type.cols() > kMostColumns)
      return Unimplemented("@{}: '%{}' is too large to be checked", f.name, arg->name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RandomWeights::Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) {
  if (w.name != last_.name || w.type != last_.type || w.part_rows != last_.part_rows ||
      w.stack_experts != last_.stack_experts) {
    XJIT_ASSIGN_OR_RETURN(rows_, WeightRows::Of(w));
    last_ = w;
  }
  auto value = [&](const WeightRows::Source& from, int64_t column) {
    return Unit(seed_ ^ HashName(from.ref->symbol) ^ Mix(static_cast<uint64_t>(layer + 1)) ^
                Mix(Mix(static_cast<uint64_t>(from.expert)) ^ static_cast<uint64_t>(from.row) << 32 ^
                    static_cast<uint64_t>(column)));
  };
  if (w.type.dims.size() == 1) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = 1.0f + 0.5f * value(rows_->At(static_cast<int64_t>(i)), 0);
    return absl::OkStatus();
  }
  // One standard deviation for all matrices, that of 64 columns: 1 / sqrt(k) would keep a product's size, but a slice
  // does not tell the k of its symbol and must have the symbol's values.
  constexpr float kScale = 1.7320508f / 8;  // sqrt(3), for a uniform distribution, / sqrt(64)
  const WeightRows::Source from = rows_->At(n);
  for (size_t i = 0; i < out.size(); ++i) out[i] = kScale * value(from, from.columns.At(static_cast<int64_t>(i)));
  return absl::OkStatus();
}

namespace {

// Tokens of a checked step, dealt to its sequences in turn, each with a cache of its own.
class CheckStep {
 public:
  CheckStep(const Function& f, uint64_t seed, int64_t sequences) : kv_(static_cast<size_t>(sequences)) {
    int64_t vocab = 1;
    for (const auto& op : f.ops) {
      if (op->code != OpCode::kEmbed) continue;
      vocab = op->Int("vocab") > 0 ? op->Int("vocab") : op->weight(1)->type.dims[0].size;
    }
    rows_ = std::max<int64_t>(kCheckRows, sequences + 2);
    for (int64_t i = 0; i < rows_; ++i) {
      const auto sequence = static_cast<size_t>(i % sequences);
      step_.ids.push_back(static_cast<int32_t>(Mix(seed + static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocab)));
      step_.positions.push_back(static_cast<int32_t>(i / sequences));
      step_.kv.push_back(&kv_[sequence]);
      step_.sequence.push_back(static_cast<int32_t>(sequence));
    }
    step_.logit_rows = {static_cast<int32_t>(rows_ - 1)};
  }
  CheckStep(const CheckStep&) = delete;

  InterpStep& step() { return step_; }
  int64_t rows() const { return rows_; }

 private:
  std::vector<InterpKv> kv_;
  InterpStep step_;
  int64_t rows_ = 0;
};

absl::StatusOr<std::vector<TensorData>> ObserveFunction(const Module& module, const Function& f, uint64_t seed,
                                                        int64_t sequences, Collective* ranks) {
  XJIT_RETURN_IF_ERROR(CheckSize(f));
  CheckStep check(f, seed, sequences);
  check.step().ranks = ranks;
  std::vector<TensorData> args;
  for (size_t a = 0; a < f.args.size(); ++a) {
    const Type& type = f.args[a]->type;
    if (type.is_step()) continue;
    TensorData data;
    if (type.dims.empty() || type.dims.size() > 2 || !type.dims[0].symbolic()) {
      return Unimplemented("@{}: an argument of {} cannot be checked", f.name, ToString(type));
    }
    data.rows = type.dims[0].symbol == 'L' ? 1 : check.rows();
    data.cols = type.dims.size() > 1 ? type.cols() : 0;
    if (type.elem == DType::kI32) {
      data.ids = check.step().ids;
    } else {
      for (int64_t i = 0; i < data.rows * data.cols; ++i) {
        data.f.push_back(Unit(seed ^ Mix((a + 1) << 40 ^ static_cast<uint64_t>(i))));
      }
    }
    args.push_back(std::move(data));
  }
  RandomWeights weights(seed);
  return InterpretFunction(module, f, std::move(args), check.step(), 0, weights);
}

}  // namespace

absl::StatusOr<Observed> Observe(const Module& module, uint64_t seed, int64_t sequences) {
  Observed observed;
  for (const auto& f : module.functions) {
    XJIT_ASSIGN_OR_RETURN(observed[f->name], ObserveFunction(module, *f, seed, sequences, nullptr));
  }
  return observed;
}

absl::StatusOr<std::vector<Observed>> ObserveRanks(std::span<const std::unique_ptr<Module>> ranks, uint64_t seed,
                                                   int64_t sequences) {
  std::vector<Observed> observed(ranks.size());
  for (const auto& f : ranks[0]->functions) {
    XJIT_ASSIGN_OR_RETURN(auto results, RunRanks(static_cast<int>(ranks.size()),
                                                 [&](Collective& meet) -> absl::StatusOr<std::vector<TensorData>> {
                                                   const Module& own = *ranks[static_cast<size_t>(meet.rank())];
                                                   const Function* same = own.Find(f->name);
                                                   if (same == nullptr) return Internal("a rank has no @{}", f->name);
                                                   return ObserveFunction(own, *same, seed, sequences, &meet);
                                                 }));
    for (size_t r = 0; r < ranks.size(); ++r) observed[r][f->name] = std::move(results[r]);
  }
  return observed;
}

double CheckBound(PassStage stage) { return stage == PassStage::kPlanned ? 0.1 : 1e-4; }

namespace {

// Layers that a function repeats, at least 1.
int64_t Depth(const Module& module, std::string_view function) {
  int64_t layers = 1;
  const Function* f = module.Find(function);
  if (f == nullptr) return layers;
  for (const auto& op : f->ops) {
    if (op->code != OpCode::kRepeat) continue;
    const auto runs = ParseSchedule(op->Str("schedule"));
    if (runs.ok() && !runs->empty()) layers += runs->back().last;
  }
  return layers;
}

}  // namespace

absl::Status CompareObserved(const Observed& want, const Observed& got, double layer_bound, const Module* module) {
  for (const auto& [name, results] : want) {
    const double bound =
        module == nullptr ? layer_bound : layer_bound * std::sqrt(static_cast<double>(Depth(*module, name)));
    const auto it = got.find(name);
    if (it == got.end() || it->second.size() != results.size())
      return Internal("@{} is gone or gives other results", name);
    for (size_t r = 0; r < results.size(); ++r) {
      const auto& a = results[r].f;
      const auto& b = it->second[r].f;
      const auto& ids = results[r].ids;
      const auto& got_ids = it->second[r].ids;
      if (a.size() != b.size() || ids.size() != got_ids.size()) {
        return Internal("@{}: result {} has another size", name, r);
      }
      const auto other = std::mismatch(ids.begin(), ids.end(), got_ids.begin());
      if (other.first != ids.end()) {
        return Internal("@{}: result {} has {} at {} instead of {}", name, r, *other.second, other.first - ids.begin(),
                        *other.first);
      }
      double square = 0, worst = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        square += static_cast<double>(a[i]) * static_cast<double>(a[i]);
        const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
        worst = d > worst || std::isnan(d) ? d : worst;
      }
      const double rms = std::sqrt(square / static_cast<double>(std::max<size_t>(a.size(), 1)));
      if (!(worst <= bound * std::max(rms, 1e-30))) {
        return Internal("@{}: result {} differs by {:.3g}, {:.3g} of its root mean square (bound {})", name, r, worst,
                        worst / std::max(rms, 1e-30), bound);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace xjit
