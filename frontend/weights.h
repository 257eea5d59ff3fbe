// Weights of a checkpoint under the names of the graph: checked against it, packed for the kernels, or row by row for
// the interpreter.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/checkpoint.h"
#include "frontend/stored_weight.h"
#include "ir/interpreter.h"
#include "ir/weight_rows.h"
#include "models/registry.h"
#include "passes/lower.h"
#include "runtime/memory.h"
#include "runtime/worker_pool.h"

namespace xjit {

// Finds the tensors behind a graph's symbols.
class WeightNames {
 public:
  WeightNames(const Checkpoint& checkpoint, const ModelFamily& family) : checkpoint_(checkpoint), family_(family) {}

  // Tokens that a sequence may have: some rotary embeddings depend on it (models/rope.h). 0: within the original one.
  void set_context(int64_t context) { context_ = context; }

  // The encodings of the model's matrices, by which layers are grouped. Tensors that are absent or unreadable have
  // none: Check() names them.
  ModelWeights Encodings() const;
  // Every tensor the graph needs is there, readable and of the graph's shape, and none is left over. All that is wrong
  // is one error: the first five and a count.
  absl::Status Check(const Module& graph) const;

  // The checkpoint's rows are in another order than the symbol's: in heads of `head` rows, those from `first` on,
  // `count` of them, are rotary pairs (2i, 2i + 1) where the graph has (i, i + count / 2).
  struct RowOrder {
    int64_t head = 0;  // 0: the same order
    int64_t first = 0;
    int64_t count = 0;
    // The checkpoint's row for row r of the symbol.
    int64_t Row(int64_t r) const;
  };
  // A symbol of one layer.
  struct Source {
    StoredWeight stored;
    RowOrder order;
    float add = 0;  // to every value
    // kv_b where a file has its keys and values apart (KvHalves): `stored.matrices` are the values of each head, these
    // its keys, transposed.
    std::vector<StoredMatrix> keys;
    int64_t key_rows = 0;  // of a head, in front of those of its values
    // Elements [begin, end) of a row, in the symbol's own numbering.
    void Row(int64_t expert, int64_t row, int64_t begin, int64_t end, float* out) const;
    // CheckBlocks() of what Row() reads, but for `keys`, which Sources() has checked.
    absl::Status CheckRow(int64_t expert, int64_t row) const;
  };
  // The sources of all refs of a weight (WeightRows::refs), none of which reaches past its tensors.
  absl::StatusOr<std::vector<Source>> Sources(int64_t layer, const Weight& weight, const WeightRows& rows) const;

  // Symbols that are computed instead of read: "inv_freq", "inv_freq_local".
  static bool IsComputed(std::string_view symbol);
  absl::StatusOr<std::vector<float>> Compute(std::string_view symbol) const;

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  // What the refs of a graph say of a symbol's shape.
  struct Demand {
    int rank = 0;
    int64_t experts = 1, rows = 0, columns = 1;
    std::vector<int64_t> shape() const;
  };

  static Demand DemandOf(const Weight& weight, const WeightRows& rows, size_t ref);
  std::string TensorNameOf(const TensorName& name, int64_t layer) const;
  const TensorName* Find(std::string_view symbol) const;
  absl::StatusOr<RowOrder> OrderOf(const TensorName& name, const StoredWeight& stored) const;
  // kv_b [heads * (nope + v), r] as llama.cpp's converter has written it since 2025-04: @kv_b_keys [heads, r, nope] and
  // @kv_b_values [heads, v, r]. NotFound: the family or the file has them not.
  absl::StatusOr<Source> KvHalves(int64_t layer) const;
  // NotFound: no tensor.
  absl::StatusOr<Source> SourceOf(std::string_view symbol, int64_t layer, bool expert_vectors) const;
  bool MayBeSurplus(const TensorView& view) const;

  const Checkpoint& checkpoint_;
  const ModelFamily& family_;
  int64_t context_ = 0;
};

// For the interpreter: decodes rows as they are asked for. Keeps where the rows of each weight lie, not the rows.
class CheckpointRows : public WeightSource {
 public:
  explicit CheckpointRows(const WeightNames& names) : names_(names) {}
  absl::Status Row(int64_t layer, const Weight& w, int64_t n, std::span<float> out) override;

 private:
  struct Known {
    WeightRows rows;
    std::vector<WeightNames::Source> sources;  // of rows.refs()
    std::vector<float> computed;
  };
  absl::StatusOr<const Known*> Find(int64_t layer, const Weight& w);

  const WeightNames& names_;
  std::map<std::pair<int64_t, std::string>, Known> known_;  // (layer, name)
  decltype(known_)::const_iterator last_ = known_.end();    // rows of one weight are asked for one after the other
  std::vector<float> scratch_;
};

// All weights of a fused module, packed into one buffer by all threads of the pool; a tensor's source pages are given
// back as soon as it is packed, so that memory stays near one copy.
class WeightStore : public PackedWeights {
 public:
  static absl::StatusOr<std::unique_ptr<WeightStore>> Pack(const WeightNames& names, const Module& fused,
                                                           WorkerPool& pool, HugeBuffer::Options options);

  absl::StatusOr<const std::byte*> Matrix(int64_t layer, const Weight& weight) const override;
  absl::StatusOr<const float*> Vector(int64_t layer, const Weight& weight) const override;
  absl::StatusOr<const int32_t*> Order(int64_t layer, const Weight& weight) const override;

  // Bytes of all packed matrices and vectors.
  int64_t bytes() const { return memory_.size(); }
  const HugeBuffer& memory() const { return memory_; }

 private:
  struct Entry {
    int64_t layer = -1;
    const Weight* weight = nullptr;
    int64_t offset = 0;
  };
  absl::Status Pack(const WeightNames& names, const Entry& entry, WorkerPool& pool);
  absl::Status PackVector(CheckpointRows& rows, const Entry& entry);

  HugeBuffer memory_;
  std::map<std::pair<int64_t, std::string>, int64_t> offsets_;              // (layer, name) -> offset
  std::map<std::pair<int64_t, std::string>, std::vector<int32_t>> orders_;  // of those with act_order
};

// Calls f(layer, weight) for each weight of each layer of the graph, those outside layers (-1) first.
absl::Status ForEachWeight(const Module& module, const std::function<absl::Status(int64_t, const Weight&)>& f);

}  // namespace xjit
