// The emitter behind the attention kernels: one structure for every instruction choice (AttentionPlan::product and
// vector_bytes). Split in two files: attention_emit.cc walks items, steps and blocks; attention_blocks.cc holds the
// register blocks and the softmax of one block of rows.
#pragma once

#include <functional>

#include "codegen/attention/attention_plan.h"
#include "codegen/attention/attention_vec.h"
#include "codegen/emitter.h"
#include "codegen/regs.h"

namespace xjit::attention {

// Variables of a call in its stack frame, 8 bytes each.
enum Slot : int {
  kArgs,
  kIndex,  // item
  kEnd,
  kItem,
  kPages,     // page numbers of the sequence
  kKv,        // pages of the KV head
  kPosition,  // of the item's first token
  kRows,      // tokens x group
  kKvEnd,     // no token at or past it is visible
  kBegin,     // first token of the step
  kStepEnd,
  kStep,  // tokens of a step
  kRow,   // first row of the block
  kBlockRows,
  kQ,      // of the block
  kO,      // of the block
  kL,      // of the block
  kM,      // of the block
  kFirst,  // first token of the block's pages
  kTokens,
  kPageCount,
  kPageList,  // &pages[first / 32]
  kLastPage,  // &pages[the last page of the item]
  kSlots
};

class AttentionEmitter {
 public:
  AttentionEmitter(const AttentionDesc& desc, const AttentionPlan& plan, Emitter& e);
  absl::Status Emit();

 private:
  using Reg = Xbyak::Reg64;

  // attention_emit.cc
  void LoadItem();
  void CopyQuery();
  void ClearState();
  void Steps();
  void Block();
  void WriteResult();
  // dst = row / group.
  void TokenOfRow(const Reg& dst, const Reg& row);
  Xbyak::Address Var(Slot slot) const { return e_.qword[e_.rsp + 8 * slot]; }

  // attention_blocks.cc
  void Scores(bool few);
  void Mask();
  void Softmax(bool prefetch);
  void WeightedSum(bool few);
  void ScoreBlock(int rows, bool prefetch, const Reg& q, const Reg& s);
  void SumBlock(int rows, int cols, bool prefetch, const Reg& p, const Reg& o, const Reg& alpha, const Reg& column);
  // Runs body(rows, prefetch) over Var(kBlockRows) rows in register blocks of `block`, then on what is left; `advance`
  // moves the pointers by `block` rows. Only the first block prefetches, and only if `prefetch`.
  void RegisterBlocks(int block, bool prefetch, const std::function<void(int, bool)>& body,
                      const std::function<void()>& advance);
  // One step of depth: acc[set][r][c] += a[r] * b[c], a a dword (or two) at [a + r * a_stride + a_disp].
  void Multiply(int rows, int cols, int set, const Regs::VecList& acc, const Reg& a, int64_t a_stride, int64_t a_disp,
                const Reg& b, int64_t b_disp);
  // Small register blocks have several sets of accumulators, used in turn, so that there are chains enough to hide the
  // latency of the products (2 a cycle, 6 cycles on Zen 5); AddSets sums them into the first.
  int Sets(int rows, int cols) const;
  void AddSets(int rows, int cols, int sets, const Regs::VecList& acc);
  void LoadB(int dst, const Reg& b, int64_t disp, int half);
  void Accumulate(int acc, int a, int b);
  // dst = first byte of the page whose number `page_list` points to.
  void PageAddress(const Reg& dst, const Reg& page_list);
  // The same for the page one step of few rows later, or the item's last page.
  void NextPageAddress(const Reg& dst, const Reg& page_list);

  // Keeps the mask of odd bf16 values in a register while it lives, where the products need it (AVX-512).
  class OddMask {
   public:
    explicit OddMask(AttentionEmitter& emitter);

   private:
    Regs::VecList mask_;
  };

  int Halves() const { return plan_.product == AttentionProduct::kFmaBf16 ? 2 : 1; }
  int64_t PageBytes() const { return KvPageBytes(desc_.kv, desc_.head_dim); }
  int64_t QRowBytes() const { return int64_t{desc_.head_dim} * (desc_.q == DType::kBF16 ? 2 : 4); }
  int64_t ORowBytes() const { return int64_t{4} * desc_.head_dim; }
  // Bytes of a row (token or pair of tokens) of V: a dword for each column, whatever the product.
  int64_t VRowBytes() const { return int64_t{4} * desc_.head_dim; }
  // Rows of K (V) in a page.
  int KRows() const { return desc_.kv == DType::kF32 ? desc_.head_dim : desc_.head_dim / 2; }
  int VRows() const { return desc_.kv == DType::kF32 ? kPageTokens : kPageTokens / 2; }
  int ScoreVectors() const { return 4 * kPageTokens / vec_.bytes(); }

  const AttentionDesc& desc_;
  const AttentionPlan& plan_;
  Emitter& e_;
  Vec vec_;
  Regs regs_;
  Regs::Gpr64 scratch_;
  int odd_mask_ = 0;
};

}  // namespace xjit::attention
