// Emits rows.prepare: the frame, the loop over rows and the norm here, the larger conversions in files of their own.
// Internal.
#pragma once

#include "codegen/emitter.h"
#include "codegen/regs.h"
#include "codegen/rows/row_vectors.h"
#include "codegen/rows/rows_plan.h"

namespace xjit {

class PrepareEmitter {
 public:
  PrepareEmitter(const PrepareDesc& desc, const PreparePlan& plan, Emitter& e);
  absl::Status Emit();

 private:
  void EmitNormScale();  // norm_ = 1 / sqrt(mean(x^2) + eps) in all lanes
  void EmitF32();
  void EmitHalves();  // bf16, f16
  // Quantises blocks of 32 in groups of 8, chunk by chunk of kChunkGroups: first the scales of a chunk, then its
  // integers, because within one group the path from maximum to integer is a chain of 100 cycles that leaves the ports
  // half idle (8960 columns: 670 ns group by group, Zen 5).
  //   amax = max|x|; scale = amax / 127; inverse = min(127 / amax, FLT_MAX); q = int8(round-half-even(x * inverse))
  // FLT_MAX stands in for the infinity of a block of zeros.
  void EmitQ8();
  void EmitQ8Group(int blocks, bool scales);
  void EmitQ8ScalesWide(int blocks);
  void EmitQ8IntegersWide(int blocks);
  void EmitQ8ScalesNarrow(int blocks);
  void EmitQ8IntegersNarrow(int blocks);
  void SetBlockMasks(int blocks);
  // scale = max|x| / 127; q = int8(round-half-even(x / scale)).
  void EmitI8();
  struct I8Step {
    Xbyak::Reg64 place;  // of the line that is written
    int divisor, sum;
  };
  void EmitI8Scale(int v);
  void EmitI8Steps(const I8Step& step);
  void EmitI8Step(int count, const I8Step& step);
  void EmitI8StepWide(int count, const I8Step& step);
  void EmitI8StepNarrow(int count, const I8Step& step);
  void EmitI8NegSum(int sum);
  Xbyak::RegExp I8TailAt();
  static constexpr int kChunkGroups = 16;
  static constexpr int kGroupBytes = 8 * 4;  // of an array of one dword a block

  // Strips: out_ is a row's place in its strip. First() puts it at row m0's, Next() at the row after.
  void FirstOutput();
  void NextOutput();
  // Where byte `index` + `offset` of a bf16 or int8 row goes, of a loop whose steps are whole chunks: `index` counts
  // bytes of the row. SetStripIndex comes once a step.
  void SetStripIndex(const Xbyak::Reg64& index);
  Xbyak::RegExp OutputAt(const Xbyak::Reg64& index, int offset) const;
  // Zeros from byte `begin` of a strip's row (half a chunk or a quarter) to the end of the chunk; v is clobbered.
  void PadChunk(int64_t begin, int v);

  // Vector v = the (normalised, gathered) columns `index` + `offset` bytes of x from its start; lanes beyond the last
  // column are zero. Takes up to three registers more.
  void LoadColumns(int v, const Xbyak::RegExp& index, int offset, bool masked);
  void GatherColumns(int v, const Xbyak::RegExp& index, int offset, bool masked);
  // The same without signs; `magnitude` has every bit but the sign set. Maxima are taken of these as integers, which
  // order as their numbers do, with NaN above all.
  void LoadMagnitudes(int v, const Xbyak::RegExp& index, int offset, bool masked, int magnitude);
  void Max(int to, int a, int b);
  // Rounds f32 vector v to bf16 in the low half of each dword of v; t is clobbered.
  void RoundToBf16(int v, int t);

  const PrepareDesc& desc_;
  const PreparePlan& plan_;
  Emitter& e_;
  bool wide_;
  Regs regs_;
  // These are in use while the arguments still are.
  Regs::Gpr64 x_, gain_, order_, out_, rows_, index_;
  Regs::Gpr64 strip_left_;   // with strips: rows left of the strip
  Regs::Gpr64 strip_index_;  // ... place of a step's bytes
  RowVectors* vectors_ = nullptr;
  Regs::VecList norm_;
  // While quantising, index_ counts blocks in bytes of a dword array.
  Regs::Gpr64 q8_columns_;  // byte offset of the group in x
  Regs::Gpr64 q8_inverse_;  // the group's inverse scales, on the stack
};

}  // namespace xjit
