// A step of several sequences over a shuffled page pool, and what an attention test needs around it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "codegen/attention/attention_plan.h"
#include "codegen/attention/attention_ref.h"
#include "codegen/cpu.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

// One row of the kernel list, as the tests see it.
struct AttentionRow {
  const char* name;
  Isa isa;
  absl::StatusOr<AttentionPlan> (*plan)(const AttentionDesc&, const TargetInfo&);
  absl::Status (*emit)(const AttentionDesc&, const AttentionPlan&, Emitter&);
};
inline constexpr AttentionRow kAttentionRows[] = {
    {"avx512_bf16", Isa::kAvx512Bf16, PlanAttentionBf16Dot, EmitAttentionBf16Dot},
    {"avx512", Isa::kAvx512, PlanAttentionFma512, EmitAttentionFma512},
    {"avx2", Isa::kAvx2, PlanAttentionFma2, EmitAttentionFma2},
};

inline TargetInfo Target(Isa isa) {
  TargetInfo target;
  target.isa = isa;
  return target;
}

// Calls a kernel with recognisable values in the callee-saved registers and says whether they came back, and whether
// the direction flag and the stack pointer did.
bool CallKeepsRegisters(KernelFn fn, const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1);

// Names of the EVEX-encoded or otherwise too new instructions in code that must run on AVX2; empty when there is none.
std::string UsesEvex(const Kernel& kernel);

struct SeqSpec {
  int past = 0;
  int rows = 0;
  int total() const { return past + rows; }
};

// KV of some sequences with pages in shuffled order. Every byte of the pool that is no stored token is stale: a large
// finite value. Values of stored tokens are normal around 0.
class AttentionCase {
 public:
  AttentionCase(const AttentionDesc& desc, const std::vector<SeqSpec>& seqs, uint32_t seed, float q_scale = 1);

  AttentionDesc desc;
  std::vector<SeqView> seq;
  std::vector<AttentionItem> items;
  std::vector<AttentionMerge> merges;
  StepView step;
  std::unique_ptr<GuardedBuffer> q, kv, out, partial, scratch;
  AttentionArgs args;
  int64_t rows = 0;

  // One item for each KV head and `item_rows` rows.
  void MakeItems(int item_rows);
  // Splits of `tokens` for every row and KV head, with their merges.
  void MakeSplits(int tokens);
  // Takes scratch for a kernel, filled with NaN.
  void TakeScratch(int64_t bytes);
  float Out(int64_t row, int64_t i) const { return out->as<float>()[row * desc.ldo_bytes / 4 + i]; }
  // Reference results of the current items (which must have no splits): value, and the largest error that a kernel of
  // this product may make (see the .cc file).
  void Reference(AttentionProduct product, std::vector<float>* value, std::vector<float>* bound);
  void ExpectNear(AttentionProduct product, const std::string& what);

 private:
  void Bind();
  std::vector<std::vector<int32_t>> pages_;
  double score_norm_ = 0;  // max |q| |k|
};

}  // namespace xjit::testing
