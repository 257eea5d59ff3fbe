// The interpreter: runs a module on the scalar references, one op after the other. Slow, and the judge of everything
// else.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace xjit {

// A value while interpreting: rows x cols of f32 (whatever the type says), or ids.
struct TensorData {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> f;
  std::vector<int32_t> ids;
  float* row(int64_t r) { return f.data() + r * cols; }
  const float* row(int64_t r) const { return f.data() + r * cols; }
};

// Where the interpreter gets weights from: row n of weight `w` (a joined weight's rows in their order, interleaving
// ignored) of layer `layer` (-1 outside of layers), dequantised into k values; a vector is one row.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) = 0;
};

// Keys and values of one sequence, f32, kept for as long as the sequence lives.
struct InterpKv {
  // [layer] -> rows of kv_heads * head_dim, one for each position.
  std::map<int64_t, std::vector<float>> k, v;
};

// How the ranks of a sharded module meet in the interpreter (ir/interp_ranks.h).
class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Every rank gives its values and gets all ranks', by rank. Fails on all where one fails.
  virtual absl::StatusOr<std::vector<std::vector<float>>> Gather(std::vector<float> mine) = 0;
};

// What a step is: the tokens in order, each with its position and its sequence.
struct InterpStep {
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;
  std::vector<InterpKv*> kv;        // of each token
  std::vector<int32_t> logit_rows;  // rows that select_rows keeps, ascending
  std::vector<int32_t> sequence;    // of each token, as own_rows shares them out; empty: all of sequence 0
  Collective* ranks = nullptr;      // of a sharded module; nullptr: a rank alone

  // The tokens of sequences that belong to `rank`.
  std::vector<int64_t> OwnRows(int rank, int size) const;
};

// What an op's reference sees.
class EvalContext {
 public:
  const Op* op = nullptr;
  int64_t layer = -1;
  const InterpStep* step = nullptr;
  WeightSource* weights = nullptr;
  std::map<const Value*, TensorData>* values = nullptr;

  const TensorData& In(size_t operand) const { return values->at(op->operands[operand].value); }
  // A result, sized rows x the type's columns and zero: ids where its elements are i32, else floats.
  TensorData& Out(int64_t rows, size_t result = 0) const;
  // The token that each row of an operand is: its number, or for rows of a rank's own sequences (R) that token's.
  std::vector<int64_t> Tokens(size_t operand) const;
  absl::Status Vector(const Weight* w, std::vector<float>* out) const;
};

// Runs @step of the module; the result is what it returns (rows of logits).
absl::StatusOr<TensorData> Interpret(const Module& module, const InterpStep& step, WeightSource& weights);
// Runs one function on given arguments (in its order; !step arguments are skipped), as `xjit-opt --check` does.
absl::StatusOr<std::vector<TensorData>> InterpretFunction(const Module& module, const Function& function,
                                                          std::vector<TensorData> args, const InterpStep& step,
                                                          int64_t layer, WeightSource& weights);

// y[m, n] = x[m, :] . w[n, :] (+ nothing): the product every linear op shares.
absl::Status MatMul(const EvalContext& eval, const TensorData& x, const Weight& w, TensorData* y);
// x . w as MatMul sums it: four partial sums in double.
float Dot(const float* x, const float* w, int64_t k);

}  // namespace xjit
