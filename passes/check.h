// Whether passes keep a module's meaning: runs it on the interpreter, with random arguments and weights, before and
// after.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/interpreter.h"
#include "ir/weight_rows.h"
#include "passes/pass.h"

namespace xjit {

// Weights that depend on nothing but seed, symbol, layer, expert, row and column, in the symbol's own numbering, so
// that joined, interleaved, stacked and sliced weights have the values of their symbols. Matrices have a standard
// deviation of 1/8, vectors lie around 1.
class RandomWeights : public WeightSource {
 public:
  explicit RandomWeights(uint64_t seed) : seed_(seed) {}
  absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) override;

 private:
  uint64_t seed_;
  // The weight that was asked for last, with its name parsed.
  Weight last_;
  std::optional<WeightRows> rows_;
};

// What every function of a module computes for random inputs: @name -> results.
using Observed = std::map<std::string, std::vector<TensorData>>;
// The tokens are of that many sequences in turn.
absl::StatusOr<Observed> Observe(const Module& module, uint64_t seed, int64_t sequences = 1);
// The same for the modules of all ranks, by rank, run together: what each of them computes.
absl::StatusOr<std::vector<Observed>> ObserveRanks(std::span<const std::unique_ptr<Module>> ranks, uint64_t seed,
                                                   int64_t sequences = 1);

// The largest difference relative to the root mean square of the expected values that a pass of that stage may make in
// a layer: fused ops reorder nothing but roundings of f32; plans round activations to bf16 (at most 2^-9 of the value)
// or int8 (1/254 of a block's maximum).
double CheckBound(PassStage stage);

// Internal error naming the function and the difference where `got` is further from `want` than the bound, or numbers
// (i32) differ at all. With a module, the bound of a function that repeats layers grows with the square root of their
// number: their roundings add up like independent errors.
absl::Status CompareObserved(const Observed& want, const Observed& got, double layer_bound,
                             const Module* module = nullptr);

}  // namespace xjit
