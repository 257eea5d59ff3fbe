// Few rows: weights are one ascending stream, unpacked in registers, each byte used at once for all rows. The f32 sums
// of a panel (rows x 2 registers) stay in registers over the whole k.
#include <algorithm>
#include <cstddef>

#include "codegen/gemm/gemm_vnni.h"
#include "codegen/gemm/pack.h"

namespace xjit {
namespace {

using Xbyak::RegExp;
using Xbyak::Zmm;

class FewRows {
 public:
  FewRows(const GemmDesc& desc, const GemmPlan& plan, Emitter& e)
      : desc_(desc),
        plan_(plan),
        e_(e),
        weights_(VnniWeightsOf(desc.w, desc.k)),
        act_{desc.whole_k()},
        rows_(desc.rows),
        regs_(32),
        unpack_(weights_, rows_ <= 5, e, regs_),
        sums_(regs_.Vecs("sums", 2 * rows_)),
        // Two chains of dot products a row shorten the latency of a block; from three rows on the other rows do that.
        chains_(weights_.halves() || rows_ <= 2 ? 2 : 1),
        dots_(regs_.Vecs("dots", rows_ <= 6 ? 4 : 2)),
        w_(regs_.Gpr("w")),
        a_(regs_.Gpr("a")),
        q_(regs_.Gpr("q")),
        block_(regs_.Gpr("block")),
        c_(regs_.Gpr("c")),
        residual_(regs_.Gpr("residual")),
        bias_(regs_.Gpr("bias")),
        panels_(regs_.Gpr("panels")),
        header_(regs_.FreeArguments().Gpr("header")),
        left_(regs_.Gpr("left")),
        part_(regs_.Gpr("part")),
        k0_(regs_.Gpr("k0")),
        q_end_(regs_.Gpr("q_end")) {}

  absl::Status Emit() {
    XJIT_RETURN_IF_ERROR(regs_.status());
    Xbyak::Label panel, k_loop, done;
    Arguments(done);
    e_.L(panel);
    for (size_t i = 0; i < sums_.size(); ++i) e_.vpxord(sums_.Z(i), sums_.Z(i), sums_.Z(i));
    if (part()) {
      e_.lea(q_, e_.ptr[RegExp(a_) + *k0_]);
      e_.mov(block_, k0_);
      e_.shr(block_, 5);
    } else {
      e_.mov(q_, a_);
      e_.xor_((*block_).cvt32(), (*block_).cvt32());
    }
    if (weights_.far_header()) e_.xor_((*left_).cvt32(), (*left_).cvt32());
    e_.L(k_loop);
    weights_.super_blocks() ? SuperBlock() : Step();
    if (part()) {
      e_.cmp(q_, q_end_);
    } else {
      e_.cmp((*block_).cvt32(), static_cast<uint32_t>(desc_.k / 32));
    }
    e_.jb(k_loop);
    Store();
    e_.dec(panels_);
    e_.jnz(panel);
    e_.L(done);
    e_.Epilogue();
    return absl::OkStatus();
  }

 private:
  bool part() const { return desc_.depth > 0; }

  void Arguments(const Xbyak::Label& done) {
    e_.Prologue(unpack_.frame_bytes());
    const auto arg = [&](size_t offset) { return e_.qword[e_.arg_args + offset]; };
    e_.mov(panels_, e_.arg_n1);
    e_.sub(panels_, e_.arg_n0);
    e_.jle(done);
    e_.mov(a_, arg(offsetof(GemmArgs, a)));
    e_.imul(w_, e_.arg_n0, static_cast<int>(PanelBytes(desc_.w, desc_.k)));
    e_.add(w_, arg(offsetof(GemmArgs, w)));
    e_.imul(c_, e_.arg_n0, VnniEpilogue(desc_, e_).panel_bytes());
    e_.mov(residual_, c_);
    e_.add(residual_, arg(offsetof(GemmArgs, residual)));
    e_.add(c_, arg(offsetof(GemmArgs, c)));
    e_.imul(bias_, e_.arg_n0, 128);
    e_.add(bias_, arg(offsetof(GemmArgs, bias)));
    if (part()) {  // the last that reads arguments
      e_.mov(k0_, arg(offsetof(GemmArgs, k0)));
      e_.lea(q_end_, e_.ptr[RegExp(a_) + *k0_ + static_cast<int>(desc_.k)]);
    }
    unpack_.Setup(0);
  }

  // A k block of a K-quant. Prefetches go on through it at their distance from one another; only the body of a loop
  // over parts begins anew, since every pass of it is the same code.
  void SuperBlock() {
    const int body = static_cast<int>(plan_.k_block / 32);
    int prefetched = 0;
    for (int group = 0; group < 2; ++group) {
      int touched = 0;  // a header, then a body's parts
      if (group > 0) {
        e_.sub(q_, weights_.parts * 32);
        e_.sub((*block_).cvt32(), weights_.parts);
      }
      const auto touch = [&](int bytes) {
        if (touched++ == 1 && body < weights_.parts) prefetched = 0;
        Prefetch(&prefetched, bytes);
        prefetched -= bytes;
      };
      unpack_.SuperGroup(w_, part_, body, dots_.Z(0), touch, [&] {
        for (int row = 0; row < rows_; ++row) Row(group, row, 0);
        e_.add(q_, 32);
        e_.inc((*block_).cvt32());
      });
    }
  }

  // plan.k_block of depth: both groups of each packed k block.
  void Step() {
    const int steps = static_cast<int>(plan_.k_block / 32);
    const int bytes = steps * weights_.step_bytes;
    // What lies between the last step's end and this one's begin belongs to this one.
    int prefetched = -weights_.far_header_bytes;
    if (weights_.far_header()) unpack_.FarHeader(w_, header_, left_, steps);
    for (int s = 0; s < steps; ++s) {
      const int offset = s * weights_.step_bytes;
      const RegExp step = RegExp(w_) + offset, header = weights_.far_header() ? RegExp(header_) : step;
      for (int group = 0; group < 2; ++group) {
        Prefetch(&prefetched, offset + weights_.part0 + group * weights_.group_stride);
        unpack_.Part(header, step, group, dots_.Z(0));
        for (int row = 0; row < rows_; ++row) Row(group, row, s);
      }
    }
    Prefetch(&prefetched, bytes);
    e_.add(w_, bytes);
    e_.add(q_, static_cast<int>(plan_.k_block));
    e_.add((*block_).cvt32(), steps);
  }

  // Prefetches what belongs to the bytes of this step below `end`.
  void Prefetch(int* done, int end) {
    if (plan_.prefetch == PrefetchHint::kNone) return;
    for (; *done < end; *done += plan_.prefetch_every) {
      EmitPrefetchAt(plan_.prefetch, e_.ptr[RegExp(w_) + (*done + plan_.prefetch_distance)], e_);
    }
  }

  // A dword of block `block` of this step in one of the row's arrays.
  Xbyak::Address Activation(int row, int array, int block, int scale = 4) {
    return e_.ptr_b[RegExp(a_) + *block_ * scale + (RowOffset(row) + array + scale * block)];
  }
  int RowOffset(int row) const { return static_cast<int>(row * desc_.lda_bytes); }

  void Row(int group, int row, int block) {
    const Zmm sum = sums_.Z(static_cast<size_t>(2 * row + group));
    const size_t set = dots_.size() == 4 && (row + group) % 2 == 1 ? 2 : 0;
    const Zmm dot[2] = {dots_.Z(set), dots_.Z(set + 1)};
    Zmm first = dot[0];
    if (chains_ == 1 && (row + group) % 4 >= 2) first = dot[1];
    Start(first, row, block, 0);
    if (chains_ == 2) Start(dot[1], row, block, 1);
    for (int i = 0; i < 8; ++i) {
      const int g = chains_ == 2 ? i / 2 + i % 2 * 4 : i;
      e_.vpdpbusd(chains_ == 2 ? dot[i % 2] : first, unpack_.weights(g),
                  e_.ptr_b[RegExp(q_) + (RowOffset(row) + 32 * block + 4 * g)]);
    }
    const auto sa = Activation(row, act_.scale(), block);
    if (weights_.halves()) {
      e_.vcvtdq2ps(dot[0], dot[0]);
      e_.vcvtdq2ps(dot[1], dot[1]);
      e_.vmulps(dot[0], dot[0], unpack_.scale(0));
      e_.vfmadd231ps(dot[0], dot[1], unpack_.scale(1));
      for (int half = 0; half < 2 && weights_.minimum; ++half) {  // of negative sums: the minima are subtracted
        e_.vcvtdq2ps(dot[1], Activation(row, act_.neg_half_sum() + 4 * half, block, 8));
        e_.vfmadd231ps(dot[0], dot[1], unpack_.minimum(half));
      }
      e_.vfmadd231ps(sum, dot[0], sa);
      return;
    }
    if (chains_ == 2) e_.vpaddd(first, first, dot[1]);
    e_.vcvtdq2ps(first, first);
    e_.vmulps(first, first, sa);
    e_.vfmadd231ps(sum, first, unpack_.scale());
    if (!weights_.minimum) return;
    const auto scaled_sum = Activation(row, act_.scaled_sum(), block);
    if (weights_.minimum_negative) {
      e_.vfnmadd231ps(sum, unpack_.minimum(), scaled_sum);
    } else {
      e_.vfmadd231ps(sum, unpack_.minimum(), scaled_sum);
    }
  }

  // The start value of a chain cancels the offset of the unsigned weights.
  void Start(const Zmm& dot, int row, int block, int chain) {
    if (weights_.offset_log2 == 0 || (chain == 1 && !weights_.halves())) {
      e_.vpxord(dot, dot, dot);
    } else if (weights_.halves()) {
      e_.vpslld(dot, Activation(row, act_.neg_half_sum() + 4 * chain, block, 8),
                static_cast<uint8_t>(weights_.offset_log2));
    } else {
      e_.vpslld(dot, Activation(row, act_.neg_sum(), block), static_cast<uint8_t>(weights_.offset_log2));
    }
  }

  void Store() {
    VnniEpilogue epilogue(desc_, e_);
    const Zmm temp[3] = {unpack_.weights(0), unpack_.weights(1), unpack_.weights(2)};
    for (int row = 0; row < rows_; ++row) {
      const int offset = static_cast<int>(row * desc_.ldc_bytes);
      epilogue.Row(sums_.Z(static_cast<size_t>(2 * row)), sums_.Z(static_cast<size_t>(2 * row + 1)), temp, bias_,
                   RegExp(c_) + offset, RegExp(residual_) + offset);
    }
    e_.add(c_, epilogue.panel_bytes());
    e_.add(residual_, epilogue.panel_bytes());
    e_.add(bias_, 128);
  }

  const GemmDesc desc_;
  const GemmPlan plan_;
  Emitter& e_;
  const VnniWeights weights_;
  const VnniActivations act_;
  const int rows_;
  Regs regs_;
  VnniUnpacker unpack_;
  Regs::VecList sums_;  // row r, group g: 2r + g
  const int chains_;
  Regs::VecList dots_;
  Regs::Gpr64 w_, a_, q_, block_, c_, residual_, bias_, panels_;
  Regs::Gpr64 header_, left_;  // with a far header
  Regs::Gpr64 part_;           // of a K-quant's block
  Regs::Gpr64 k0_, q_end_;     // of a part of the depth
};

}  // namespace

absl::Status EmitGemmVnniFew(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return FewRows(desc, plan, e).Emit();
}

}  // namespace xjit
