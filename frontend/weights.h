// Weights of a checkpoint under the names of the graph: checked against it, packed for the kernels, or row by row for
// the interpreter.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/checkpoint.h"
#include "ir/interpreter.h"
#include "models/registry.h"
#include "passes/lower.h"
#include "runtime/memory.h"
#include "runtime/worker_pool.h"

namespace xjit {

// Finds the tensors behind a graph's symbols.
class WeightNames {
 public:
  WeightNames(const Checkpoint& checkpoint, const ModelFamily& family) : checkpoint_(checkpoint), family_(family) {}

  // The encodings of the model's matrices, by which layers are grouped; biases that the checkpoint has are set in
  // `spec`. Tensors that are absent are given as f32: Check() names them.
  ModelWeights Encodings() const;
  // Every tensor the graph needs is there, readable and of the graph's shape, and none is left over. All that is wrong
  // is one error: the first five and a count.
  absl::Status Check(const Module& graph) const;

  // A part of a weight: its tensor and in which order the graph wants its rows.
  struct Source {
    const TensorView* tensor = nullptr;
    bool pairs_to_halves = false;  // the checkpoint has rotary pairs adjacent
    int64_t head_dim = 0;
    // The checkpoint's row for row r of the part.
    int64_t Row(int64_t r) const;
  };
  absl::StatusOr<std::vector<Source>> Sources(int64_t layer, const Weight& weight) const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  std::string TensorNameOf(std::string_view symbol, int64_t layer) const;
  const TensorName* Find(std::string_view symbol) const;

  const Checkpoint& checkpoint_;
  const ModelFamily& family_;
};

// For the interpreter: decodes rows as they are asked for, keeps nothing.
class CheckpointRows : public WeightSource {
 public:
  explicit CheckpointRows(const WeightNames& names);
  absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) override;

 private:
  // Rows of one weight are asked for one after the other: its sources are looked up once.
  absl::StatusOr<std::span<const WeightNames::Source>> SourcesOf(int64_t layer, const Weight& w);

  const WeightNames& names_;
  std::vector<float> inv_freq_;
  std::pair<int64_t, std::string> last_{-2, ""};  // layer and name that `sources_` are of
  std::vector<WeightNames::Source> sources_;
};

// All weights of a fused module, packed into one buffer by all threads of the pool; a tensor's source pages are given
// back as soon as it is packed, so that memory stays near one copy.
class WeightStore : public PackedWeights {
 public:
  static absl::StatusOr<std::unique_ptr<WeightStore>> Pack(const WeightNames& names, const Module& fused,
                                                           WorkerPool& pool, HugeBuffer::Options options);

  absl::StatusOr<const std::byte*> Matrix(int64_t layer, const Weight& weight) const override;
  absl::StatusOr<const float*> Vector(int64_t layer, const Weight& weight) const override;

  // Bytes of all packed matrices and vectors.
  int64_t bytes() const { return memory_.size(); }
  const HugeBuffer& memory() const { return memory_; }

 private:
  struct Entry {
    int64_t layer = -1;
    const Weight* weight = nullptr;
    int64_t offset = 0;
  };
  absl::Status PackMatrix(const WeightNames& names, const Entry& entry, WorkerPool& pool);
  absl::Status PackVector(CheckpointRows& rows, const Entry& entry);

  HugeBuffer memory_;
  std::map<std::pair<int64_t, std::string>, int64_t> offsets_;  // (layer, name) -> offset
};

}  // namespace xjit
