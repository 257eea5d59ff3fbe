// Weights whose scales lie outside (pack.h: f8e4m3, i8, i4) read as pairs of bf16 for vdpbf16ps and tdpbf16ps: emits
// the code that walks the data of a scale block in memory order and hands every pair, in a zmm register, to a sink that
// multiplies or stores it. Values are unscaled and exact: E4M3 as it is (zeros of both signs, subnormals; NaN stays
// NaN), q of i8, q - zero of i4, all of which bf16 holds. Headers (scales, zero points), the loop over scale blocks and
// the padding at a block's end (i8: to whole 64 k) belong to the caller; ScaledBlocks has the sizes.
//
//   const auto reader = MakePairReader(desc.w, plan.vbmi, e, regs);
//   reader->Constants();                        // once, before the loops
//   for each scale block:                       // emitted by the caller, header = w; or ReadBlocks
//     reader->LoadZeros(header);                // i4; nothing for the others
//     w = header + blocks.header_bytes();
//     elems / unit() times: reader->Unit(at, sink); then reader->Tail(elems % unit(), at, sink) if that is not 0
//     sums *= scale[32] at header; w = header + blocks.block_bytes(elems)
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/regs.h"
#include "ir/support/encoding.h"

namespace xjit {

// Pair `pair` (k = 2 pair and 2 pair + 1, counted from where x points; an odd k's partner is a zero) of groups first,
// first + 1, ..: dword c of zmm regs[i] is column c of group first + i, the even k in its low half. The sink may not
// overwrite them. For one column, pairs ascend.
using PairSink = std::function<void(int pair, int first, std::span<const int> regs)>;

class PairReader {
 public:
  virtual ~PairReader() = default;
  // Emits the loads of what stays in registers as long as the reader lives.
  virtual void Constants() = 0;
  // Emits the loads of a scale block's zero points; `header` is its start.
  virtual void LoadZeros(const Xbyak::Reg64& /*header*/) {}
  // Emits the code of unit() k's. It advances at.w past their bytes and at.x by at.x_step for each k.
  virtual void Unit(const WeightCursor& at, const PairSink& sink) = 0;
  // The same for the k < unit() last ones of a scale block; of an odd k the whole last pair. at.x advances by k.
  virtual void Tail(int k, const WeightCursor& at, const PairSink& sink) = 0;
  int unit() const { return unit_; }

 protected:
  explicit PairReader(int unit) : unit_(unit) {}

 private:
  int unit_;
};

// k's of one unit.
int PairUnit(const Encoding& w);
// Zmm registers that a reader takes, constants and those that it hands to the sink included.
int PairVectors(const Encoding& w, bool vbmi);

// `vbmi`: TargetInfo::vbmi. The reader keeps registers of `regs` (32 of them) from its making to its end; it also uses
// k6. `e` and `regs` outlive it. Needs AVX-512 BW.
std::unique_ptr<PairReader> MakePairReader(const Encoding& w, bool vbmi, Emitter& e, Regs& regs);

// Emits the walk over all scale blocks of a panel of depth k, from at.w (which ends at the next panel); at.inner points
// to the header of the block. `end` is called while emitting, with the code that follows a block's units (twice if the
// last block is shorter); it may overwrite neither `units`, `blocks` nor what `at` names.
void ReadBlocks(const Encoding& w, int64_t k, PairReader& reader, const WeightCursor& at, const Xbyak::Reg64& units,
                const Xbyak::Reg64& blocks, const PairSink& sink, const std::function<void()>& end, Emitter& e);

}  // namespace xjit
