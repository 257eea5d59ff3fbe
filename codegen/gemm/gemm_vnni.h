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

// Where the parts of a packed k block are, and how a weight becomes a u8 (pack.h). A block is walked in steps of
// `parts` blocks of 32 k: a packed k block, or, of int4 whose scales are shared by more (far_header()), a unit, while
// the header stays where it was last met.
struct VnniWeights {
  enum class Scale : uint8_t {
    kHalf,          // f16 d, or d and m, in front of each 32 k
    kSixBit,        // q4_k, q5_k
    kByteOfHalf,    // q6_k: an i8 for each 16 k
    kNibbleOfHalf,  // q2_k: four bits for each 16 k, as many of a minimum
    kSixBitOfHalf,  // q3_k
    kSplitSixBit,   // iq4_xs
    kExponent,      // mxfp4
    kOutside,       // i4: f16 and, if there are, u8 zeros, of both groups
  };
  int parts = 0;                  // blocks of 32 k in a step: one, or eight
  int step_bytes = 0;             // both groups
  int header_stride = 0;          // from group to group
  int part0 = 0;                  // from the step to the data of part 0
  int part_bytes = 0;             // from part to part
  int group_stride = 0;           // from group to group of a part's data
  int bits = 0;                   // of a code: 2, 3, 4, 5, 6 or 8
  const int8_t* table = nullptr;  // of the codes' values
  int offset_log2 = 0;            // the u8 is the value plus 2^offset_log2; 0: no offset
  bool minimum = false;           // values are scale * q plus something
  bool minimum_negative = false;  // ... minus
  Scale scale = Scale::kHalf;
  int far_header_bytes = 0;   // 0: each step has its header
  int far_header_steps = 0;   // steps that share one
  int last_header_steps = 0;  // steps that share the last; 0: as many

  bool halves() const {
    return scale == Scale::kByteOfHalf || scale == Scale::kNibbleOfHalf || scale == Scale::kSixBitOfHalf;
  }
  // K-quants: a header, then parts, of each group.
  bool super_blocks() const { return parts > 1; }
  // A K-quant's scales of all parts lie in its header, not in the parts.
  bool scales_in_header() const {
    return scale == Scale::kSixBit || scale == Scale::kSixBitOfHalf || scale == Scale::kSplitSixBit;
  }
  bool far_header() const { return far_header_bytes > 0; }
  int high_bits() const { return bits == 8 || bits < 3 ? 0 : bits < 4 ? 1 : bits - 4; }
};
// Of a GGUF encoding or int4.
VnniWeights VnniWeightsOf(const Encoding& encoding, int64_t k);

// Emits the unpacking of 16 columns. Registers are allocated from `regs` and live as long as the object: at most 14,
// and 3 more to `keep` what several parts, or several weights of a part, need: then every line is read once, in
// ascending order, which is what hardware prefetchers follow best.
class VnniUnpacker {
 public:
  VnniUnpacker(const VnniWeights& weights, bool keep, Emitter& e, Regs& regs);

  // Bytes of the frame that Setup() is given.
  int frame_bytes() const;
  // Once, before everything else: constants. `frame` is where the frame's bytes are from rsp.
  void Setup(int frame);

  // A group of a K-quant's k block, at `w`, which moves behind it: touch(bytes) before the header and before each part,
  // body() after each part, `unroll` of them in a loop's body. The caller says how many: a processor's prefetchers
  // follow each load by its own stride, and those of Zen 5 lose it in loops of 2 KiB and more (EPYC 9005, 4 rows of
  // q4_0, which has no such blocks, in bodies of 0.6, 1.2, 2.3 and 4.6 KB: 94, 92, 83 and 78% of an ascending read).
  template <typename Touch, typename Body>
  void SuperGroup(const Xbyak::Reg64& w, const Xbyak::Reg64& at, int unroll, const Xbyak::Zmm& temp, Touch touch,
                  Body body) {
    const int header_bytes = weights_.part0 - PartLead();
    touch(header_bytes);
    Header(w, temp);
    e_.add(w, header_bytes);
    e_.xor_(at.cvt32(), at.cvt32());
    Xbyak::Label loop;
    e_.L(loop);
    for (int i = 0; i < unroll; ++i) {
      touch(weights_.part_bytes);
      SuperPart(w, at, temp);
      body();
      e_.add(w, weights_.part_bytes);
      e_.add(at, kScalesOfPart);
    }
    e_.cmp(at, weights_.parts * kScalesOfPart);
    e_.jb(loop, Xbyak::CodeGenerator::T_NEAR);
  }

  // The others: scales, then weights of the step at `step`; loads ascend. `header` is the step's header, or with
  // far_header() the one met last. `temp` is overwritten.
  void Part(const Xbyak::RegExp& header, const Xbyak::RegExp& step, int group, const Xbyak::Zmm& temp);
  // With far_header(), before each `steps` steps: once `left` times (none before the first) are done, `header` = the
  // header at `w`, which moves behind it.
  void FarHeader(const Xbyak::Reg64& w, const Xbyak::Reg64& header, const Xbyak::Reg64& left, int steps);

  // u8[16][4] of k = 4g .. 4g+3 of the part.
  Xbyak::Zmm weights(int g) const { return w_.Z(static_cast<size_t>(g)); }
  // f32[16]: the scale; with halves() that of k < 16 (0) and k >= 16 (1).
  Xbyak::Zmm scale(int half = 0) const { return scale_.Z(static_cast<size_t>(half)); }
  // f32[16]: the minimum, to be subtracted with minimum_negative; with halves() as scale().
  Xbyak::Zmm minimum(int half = 0) const { return minimum_.Z(static_cast<size_t>(half)); }

 private:
  // Of the frame: two vectors for each part, or the two factors of the header.
  static constexpr int kScalesOfPart = 128;

  // From a part's first byte to its weights: its scales.
  int PartLead() const { return weights_.super_blocks() && !weights_.scales_in_header() ? 32 : 0; }
  // The factors, or all parts' scales, of the group whose header is at `header`.
  void Header(const Xbyak::Reg64& header, const Xbyak::Zmm& temp);
  // The part at `part`; `at` is its scales' place in the frame.
  void SuperPart(const Xbyak::Reg64& part, const Xbyak::Reg64& at, const Xbyak::Zmm& temp);
  // Scales of a part whose weights are at `data`.
  void Scales(const Xbyak::RegExp& header, const Xbyak::RegExp& data, int part, const Xbyak::Zmm& temp);
  void ZeroPoint(const Xbyak::RegExp& zeros);
  void Weights(const Xbyak::RegExp& data, const Xbyak::Zmm& temp);
  void Nibbles(const Xbyak::RegExp& data);
  void Pairs(const Xbyak::RegExp& data);
  void HighBits(const Xbyak::RegExp& high, const Xbyak::Zmm& temp);
  // dst = field f of the 16 of 6 bits in three words.
  void Field(const Xbyak::Zmm& dst, int f, const Xbyak::Zmm& temp);
  void SplitField(int part, const Xbyak::Zmm& temp);
  void HalfPower(const Xbyak::RegExp& header, const Xbyak::Zmm& temp);
  // dst = f32(dst) * a factor of the k block's header.
  void TimesSuper(const Xbyak::Zmm& dst, int i);
  // The header's words and factors, while scales are made of them: the weights' registers are free then.
  Xbyak::Zmm word(int i) const { return weights(i); }
  Xbyak::Zmm factor(int i) const {
    return weights_.scales_in_header() ? weights(3 + i) : super_.Z(static_cast<size_t>(i));
  }
  Xbyak::Address Dword(uint32_t bits);  // broadcast

  const VnniWeights weights_;
  Emitter& e_;
  int frame_ = 0;
  Regs::VecList w_, scale_, minimum_, super_, mask_, table_;
  Regs::VecList high_;  // if kept: a plane of high bits
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
