// Lowering: a planned module becomes a program, one stage for each op that computes, with kernels chosen, pointers
// bound and barriers where data crosses threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "codegen/gemm/pack.h"
#include "codegen/kernels.h"
#include "ir/graph.h"
#include "runtime/program.h"

namespace xjit {

// Packed columns of a weight: whole panels of 32, an interleaved one 16 of each part a panel.
int64_t PackedColumns(const Weight& weight);

// Where weights lie in memory, packed for the kernels.
class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  // Panels (codegen/gemm/pack.h) of PackedColumns() columns. `layer` is -1 outside of layers.
  virtual absl::StatusOr<const std::byte*> Matrix(int64_t layer, const Weight& weight) const = 0;
  // f32, in packed column order and padded with zeros to whole panels.
  virtual absl::StatusOr<const float*> Vector(int64_t layer, const Weight& weight) const = 0;
  // Of a matrix with act_order: int32 [k], the element of the depth that is packed in each place.
  virtual absl::StatusOr<const int32_t*> Order(int64_t layer, const Weight& weight) const = 0;
};

// Memory that programs work in. What it gives stays valid as long as it lives; a step is over before the next begins,
// so all programs may be given the same bytes.
class WorkMemory {
 public:
  enum class Use : uint8_t { kArena, kPartial, kExperts, kGemmParts, kOwn, kScratch };
  virtual ~WorkMemory() = default;
  // At least `bytes`, 64-byte aligned; `thread` of kOwn and kScratch.
  virtual absl::StatusOr<std::byte*> Get(Use use, int thread, int64_t bytes) = 0;
};

// Where the KV cache lies: page p of head h of layer l at base + l * layer_bytes + h * head_bytes + p * KvPageBytes().
struct KvPlace {
  std::byte* base = nullptr;
  int64_t layer_bytes = 0;
  int64_t head_bytes = 0;
};

struct LoweringContext {
  const PackedWeights* weights = nullptr;
  WorkMemory* memory = nullptr;
  KernelLibrary* kernels = nullptr;
  KvPlace kv;
  // The step's view for layers of an attention window (0: none); nullptr where there is none for it.
  std::function<const StepView*(int window)> step;
  int64_t partial_slots = 0;  // most partial results of a step's attention
  int threads = 1;
};

// The module must have gone through every pass. The kernels are in the library, not yet sealed.
absl::StatusOr<std::unique_ptr<Program>> Lower(const Module& module, const LoweringContext& context);

}  // namespace xjit
