// What the AVX512-VNNI gemm emitters share: the shape of packed quantised weights, the code that turns 32 k of 16
// columns into u8 registers and f32 scales, and the epilogue.
//
// Every kernel computes, for each row, column and block of 32 k, what gemm_ref.h states, in that order; that makes
// results the same bits whatever the number of rows and the split of a call.
#pragma once

#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/math_emit.h"
#include "codegen/regs.h"

namespace xjit {

// Where the parts of a packed k block are, and how a weight becomes a u8 (pack.h).
struct VnniWeights {
  enum class Scale : uint8_t {
    kHalf,        // f16 d, or d and m, in front of each 32 k
    kSixBit,      // q4_k, q5_k
    kByteOfHalf,  // q6_k: an i8 for each 16 k
  };
  int parts = 0;                  // blocks of 32 k in a packed k block: 1 or 8
  int group_bytes = 0;            // 16 columns of a packed k block
  int part0 = 0;                  // from the group to the data of part 0
  int part_bytes = 0;             // from part to part
  int bits = 0;                   // of a weight: 4, 5, 6 or 8
  int offset_log2 = 0;            // the u8 is the value plus 2^offset_log2; 0: no offset
  bool minimum = false;           // values are scale * q plus something
  bool minimum_negative = false;  // ... minus
  Scale scale = Scale::kHalf;

  int step_bytes() const { return 2 * group_bytes; }  // both groups
  bool halves() const { return scale == Scale::kByteOfHalf; }
};
// Of a quantised encoding.
VnniWeights VnniWeightsOf(DType encoding);

// Emits the unpacking of 16 columns. Registers are allocated from `regs` and live as long as the object: at most 14,
// and 4 more to `keep` what several parts, or several weights of a part, need: then every line is read once, in
// ascending order, which is what hardware prefetchers follow best.
class VnniUnpacker {
 public:
  VnniUnpacker(const VnniWeights& weights, bool keep, Emitter& e, Regs& regs);

  // Once, before everything else: constants.
  void Setup();
  // Once for each group of each packed k block, before its parts. `group` is the address of the group.
  void Header(const Xbyak::RegExp& group);
  // Scales, then weights of a part: loads ascend. `temp` is overwritten.
  void Part(const Xbyak::RegExp& group, int part, const Xbyak::Zmm& temp);

  // u8[16][4] of k = 4g .. 4g+3 of the part.
  Xbyak::Zmm weights(int g) const { return w_.Z(static_cast<size_t>(g)); }
  // f32[16]: the scale; with halves() that of k < 16 (0) and k >= 16 (1).
  Xbyak::Zmm scale(int half = 0) const { return scale_.Z(static_cast<size_t>(half)); }
  // f32[16]: the minimum, to be subtracted with minimum_negative.
  Xbyak::Zmm minimum() const { return minimum_.Z(); }

 private:
  void SixBit(const Xbyak::RegExp& group, int part, const Xbyak::Zmm& temp);
  void MinimumOf7(const Xbyak::RegExp& group, const Xbyak::Zmm& temp);
  // dst = dwords >> shift of a word of the scales.
  void ShiftedWord(const Xbyak::Zmm& dst, const Xbyak::RegExp& group, int word, int shift);
  void HighBits(const Xbyak::RegExp& high, const Xbyak::Zmm& temp);
  Xbyak::Address Dword(uint32_t bits);  // broadcast

  const VnniWeights weights_;
  Emitter& e_;
  Regs::VecList w_, scale_, minimum_, super_, mask_;
  Regs::VecList words_, high_;  // if kept: the scales of q4_k and q5_k; a plane of high bits
};

// A Q8Act row record's arrays (ir/support/q8_layout.h), addressed from the row's start and the index of a block.
struct VnniActivations {
  int64_t k = 0;
  int scale() const { return static_cast<int>(k); }
  int scaled_sum() const { return static_cast<int>(k + k / 32 * 4); }
  int neg_sum() const { return static_cast<int>(k + k / 32 * 8); }
  int neg_half_sum() const { return static_cast<int>(k + k / 32 * 12); }
};

// One row of a panel: sums of both groups to memory. `c` and `residual` are where the row's part of the panel is.
class VnniEpilogue {
 public:
  VnniEpilogue(const GemmDesc& desc, Emitter& e) : desc_(desc), e_(e), math_(e) {}
  // Overwrites the sums and temp[0..2].
  void Row(const Xbyak::Zmm& sum0, const Xbyak::Zmm& sum1, const Xbyak::Zmm (&temp)[3], const Xbyak::Reg64& bias,
           const Xbyak::RegExp& c, const Xbyak::RegExp& residual);
  // Bytes of a panel in a row of C.
  int panel_bytes() const { return desc_.epilogue.silu_mul ? 64 : 128; }

 private:
  const GemmDesc desc_;
  Emitter& e_;
  VecMath math_;
};

absl::Status EmitGemmVnniFew(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);
absl::Status EmitGemmVnniMany(const GemmDesc& desc, const GemmPlan& plan, Emitter& e);

}  // namespace xjit
