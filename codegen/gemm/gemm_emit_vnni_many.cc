// Many rows: a panel is unpacked once into scratch (u8 and f32 scales), then tiles of rows run over it, int32 and f32
// sums of a tile in registers. While they run, the next panel is prefetched into L2.
//
// Where k is blocked (plan.k_block < k), plan.m_block rows go over one k block, which then stays in L1, before the next;
// meanwhile their f32 sums are in scratch, behind the panel. Storing and loading a sum changes no bit of it.
#include <algorithm>
#include <cstddef>

#include "codegen/gemm/gemm_vnni.h"
#include "codegen/gemm/pack.h"

namespace xjit {
namespace {

using Xbyak::RegExp;
using Xbyak::Zmm;

// An unpacked block of 32 k in scratch (VnniUnpackedBytes).
constexpr int kScaleAt = 1024, kSecondAt = 1152;

class ManyRows {
 public:
  ManyRows(const GemmDesc& desc, const GemmPlan& plan, Emitter& e)
      : desc_(desc),
        plan_(plan),
        e_(e),
        weights_(VnniWeightsOf(desc.w)),
        act_{desc.k},
        unpacked_bytes_(VnniUnpackedBytes(weights_)) {}

  absl::Status Emit() {
    Xbyak::Label panel, done;
    Arguments(done);
    e_.L(panel);
    XJIT_RETURN_IF_ERROR(UnpackPanel());
    XJIT_RETURN_IF_ERROR(AllRows());
    e_.add(slot(kC0), VnniEpilogue(desc_, e_).panel_bytes());
    e_.add(slot(kResidual0), VnniEpilogue(desc_, e_).panel_bytes());
    e_.add(bias_, 128);
    e_.dec(slot(kPanels));
    e_.jnz(panel, e_.T_NEAR);
    e_.L(done);
    e_.Epilogue();
    return absl::OkStatus();
  }

 private:
  // What changes once a tile or less often is on the stack. ...0: of the call's first row in this panel; ...M: of the
  // block's first row.
  enum Slot {
    kPanels,
    kRows,
    kA0,
    kC0,
    kResidual0,
    kScratch,
    kPrefetchEnd,
    kRowsLeft,   // from the block's first row on
    kBlockRows,
    kAM,
    kCM,
    kResidualM,
    kBlockBegin,  // the k block: its blocks of 32 k
    kBlockEnd,
    kQBegin,  // 32 kBlockBegin
    kSBegin,  // where it is in scratch
    kSlots
  };
  Xbyak::Address slot(Slot s) { return e_.qword[e_.rsp + 8 * s]; }
  int64_t blocks() const { return desc_.k / 32; }
  bool k_blocked() const { return plan_.k_block < desc_.k; }

  void Arguments(const Xbyak::Label& done) {
    e_.Prologue(8 * kSlots);
    const auto arg = [&](size_t offset) { return e_.qword[e_.arg_args + offset]; };
    const auto& t = e_.rax;
    const auto& u = e_.rbx;
    e_.mov(t, e_.arg_n1);
    e_.sub(t, e_.arg_n0);
    e_.jle(done, e_.T_NEAR);
    e_.mov(slot(kPanels), t);
    e_.mov(t, e_.arg_m1);
    e_.sub(t, e_.arg_m0);
    e_.jle(done, e_.T_NEAR);
    e_.mov(slot(kRows), t);
    e_.imul(t, e_.arg_m0, static_cast<int>(desc_.lda_bytes));
    e_.add(t, arg(offsetof(GemmArgs, a)));
    e_.mov(slot(kA0), t);
    e_.imul(t, e_.arg_m0, static_cast<int>(desc_.ldc_bytes));
    e_.imul(u, e_.arg_n0, VnniEpilogue(desc_, e_).panel_bytes());
    e_.add(t, u);
    e_.mov(u, t);
    e_.add(t, arg(offsetof(GemmArgs, c)));
    e_.mov(slot(kC0), t);
    e_.add(u, arg(offsetof(GemmArgs, residual)));
    e_.mov(slot(kResidual0), u);
    e_.mov(t, arg(offsetof(GemmArgs, scratch)));
    e_.mov(slot(kScratch), t);
    e_.imul(w_, e_.arg_n0, static_cast<int>(PanelBytes(desc_.w, desc_.k)));
    e_.add(w_, arg(offsetof(GemmArgs, w)));
    e_.imul(bias_, e_.arg_n0, 128);
    e_.add(bias_, arg(offsetof(GemmArgs, bias)));
  }

  absl::Status UnpackPanel() {
    Regs regs(32);
    VnniUnpacker unpack(weights_, e_, regs);
    const auto temp = regs.Vecs("temp");
    XJIT_RETURN_IF_ERROR(regs.status());
    Xbyak::Label loop;
    unpack.Setup();
    e_.mov(s_, slot(kScratch));
    e_.mov(block_.cvt32(), static_cast<uint32_t>(desc_.k / 32 / weights_.parts));
    e_.L(loop);
    for (int group = 0; group < 2; ++group) {
      const RegExp from = RegExp(w_) + group * weights_.group_bytes;
      unpack.Header(from);
      for (int part = 0; part < weights_.parts; ++part) {
        unpack.Part(from, part, temp.Z());
        const RegExp to = RegExp(s_) + (part * unpacked_bytes_ + 64 * group);
        e_.vmovaps(e_.ptr[to + kScaleAt], unpack.scale());
        if (weights_.halves()) e_.vmovaps(e_.ptr[to + kSecondAt], unpack.scale(1));
        if (weights_.minimum) e_.vmovaps(e_.ptr[to + kSecondAt], unpack.minimum());
        for (int g = 0; g < 8; ++g) e_.vmovdqa32(e_.ptr[to + 128 * g], unpack.weights(g));
      }
    }
    e_.add(w_, weights_.step_bytes());
    e_.add(s_, weights_.parts * unpacked_bytes_);
    e_.dec(block_.cvt32());
    e_.jnz(loop, e_.T_NEAR);
    return absl::OkStatus();
  }

  absl::Status AllRows() {
    StartPrefetch();
    if (k_blocked()) return RowBlocks();
    e_.mov(rows_left_, slot(kRows));
    e_.mov(a_, slot(kA0));
    e_.mov(c_, slot(kC0));
    e_.mov(residual_, slot(kResidual0));
    return Tiles();
  }

  absl::Status RowBlocks() {
    Xbyak::Label row_block, k_block, last;
    const auto copy = [&](Slot to, Slot from) {
      e_.mov(e_.rax, slot(from));
      e_.mov(slot(to), e_.rax);
    };
    copy(kRowsLeft, kRows);
    copy(kAM, kA0);
    copy(kCM, kC0);
    copy(kResidualM, kResidual0);
    e_.L(row_block);
    e_.mov(e_.rax, slot(kRowsLeft));
    e_.mov(e_.ecx, static_cast<uint32_t>(plan_.m_block));
    e_.cmp(e_.rax, e_.rcx);
    e_.cmovg(e_.rax, e_.rcx);
    e_.mov(slot(kBlockRows), e_.rax);
    e_.mov(slot(kBlockBegin), 0);
    e_.mov(slot(kQBegin), 0);
    copy(kSBegin, kScratch);
    const auto k_blocks = static_cast<int>(plan_.k_block / 32);
    e_.mov(slot(kBlockEnd), k_blocks);

    e_.L(k_block);
    e_.mov(rows_left_, slot(kBlockRows));
    e_.mov(a_, slot(kAM));
    e_.mov(c_, slot(kCM));
    e_.mov(residual_, slot(kResidualM));
    e_.mov(partial_, slot(kScratch));
    e_.add(partial_, static_cast<int>(blocks() * unpacked_bytes_));
    XJIT_RETURN_IF_ERROR(Tiles());
    e_.mov(e_.rax, slot(kBlockEnd));
    e_.cmp(e_.rax, static_cast<int>(blocks()));
    e_.jge(last, e_.T_NEAR);
    e_.mov(slot(kBlockBegin), e_.rax);
    e_.add(slot(kQBegin), static_cast<int>(plan_.k_block));
    e_.add(slot(kSBegin), k_blocks * unpacked_bytes_);
    e_.add(e_.rax, k_blocks);
    e_.mov(e_.ecx, static_cast<uint32_t>(blocks()));
    e_.cmp(e_.rax, e_.rcx);
    e_.cmovg(e_.rax, e_.rcx);
    e_.mov(slot(kBlockEnd), e_.rax);
    e_.jmp(k_block, e_.T_NEAR);

    e_.L(last);
    e_.add(slot(kAM), static_cast<int>(plan_.m_block * desc_.lda_bytes));
    e_.add(slot(kCM), static_cast<int>(plan_.m_block * desc_.ldc_bytes));
    e_.add(slot(kResidualM), static_cast<int>(plan_.m_block * desc_.ldc_bytes));
    e_.sub(slot(kRowsLeft), static_cast<int>(plan_.m_block));
    e_.jg(row_block, e_.T_NEAR);
    return absl::OkStatus();
  }

  // rows_left_ rows, from a_ on, against the k block.
  absl::Status Tiles() {
    Xbyak::Label tile, tails, end;
    e_.L(tile);
    e_.cmp(rows_left_, plan_.tile_rows);
    e_.jl(tails, e_.T_NEAR);
    XJIT_RETURN_IF_ERROR(Tile(plan_.tile_rows));
    e_.sub(rows_left_, plan_.tile_rows);
    e_.jmp(tile, e_.T_NEAR);
    e_.L(tails);
    for (int rows = plan_.tile_rows - 1; rows > 0; --rows) {
      Xbyak::Label next;
      e_.cmp(rows_left_, rows);
      e_.jne(next, e_.T_NEAR);
      XJIT_RETURN_IF_ERROR(Tile(rows));
      e_.jmp(end, e_.T_NEAR);
      e_.L(next);
    }
    e_.L(end);
    return absl::OkStatus();
  }

  // The bytes after this panel are the next one's; after the last panel there is nothing to fetch.
  void StartPrefetch() {
    if (!plan_.prefetch_next_panel) return;
    Xbyak::Label more;
    e_.mov(prefetch_, w_);
    e_.mov(prefetch_step_.cvt32(), plan_.prefetch_every);
    e_.cmp(slot(kPanels), 1);
    e_.jne(more);
    e_.xor_(prefetch_step_.cvt32(), prefetch_step_.cvt32());
    e_.L(more);
    e_.lea(s_, e_.ptr[RegExp(w_) + static_cast<int>(PanelBytes(desc_.w, desc_.k))]);
    e_.mov(slot(kPrefetchEnd), s_);
  }
  // Once all of the next panel has been asked for, the same line is asked for again, which costs nothing but a load slot.
  void EndPrefetch() {
    if (!plan_.prefetch_next_panel) return;
    Xbyak::Label more;
    e_.cmp(prefetch_, slot(kPrefetchEnd));
    e_.jb(more);
    e_.xor_(prefetch_step_.cvt32(), prefetch_step_.cvt32());
    e_.L(more);
  }

  // `rows` rows at a_ against the unpacked panel; advances a_, c_ and residual_.
  absl::Status Tile(int rows) {
    Regs regs(32);
    const auto sums = regs.Vecs("sums", 2 * rows);
    const auto dots = regs.Vecs("dots", (weights_.halves() ? 4 : 2) * rows);
    const auto b = regs.Vecs("b", 2);
    const int free = 32 - static_cast<int>(sums.size() + dots.size() + b.size());
    const auto broadcast = regs.Vecs("broadcast", plan_.broadcast_a ? std::min(4, free) : 0);
    XJIT_RETURN_IF_ERROR(regs.status());
    EndPrefetch();
    Xbyak::Label k_loop, end;
    BeginTile(sums);
    e_.L(k_loop);
    Dots(rows, dots, b, broadcast);
    Scale(rows, sums, dots, b);
    e_.add(s_, unpacked_bytes_);
    e_.add(q_, 32);
    e_.inc(block_.cvt32());
    if (k_blocked()) {
      e_.cmp(block_, slot(kBlockEnd));
    } else {
      e_.cmp(block_.cvt32(), static_cast<uint32_t>(blocks()));
    }
    e_.jb(k_loop, e_.T_NEAR);
    if (k_blocked()) StoreUnlessLast(sums, end);

    VnniEpilogue epilogue(desc_, e_);
    const Zmm temp[3] = {b.Z(0), b.Z(1), dots.Z(0)};
    for (int row = 0; row < rows; ++row) {
      const int offset = static_cast<int>(row * desc_.ldc_bytes);
      epilogue.Row(sums.Z(static_cast<size_t>(2 * row)), sums.Z(static_cast<size_t>(2 * row + 1)), temp, bias_,
                   RegExp(c_) + offset, RegExp(residual_) + offset);
    }
    e_.L(end);
    e_.add(a_, static_cast<int>(rows * desc_.lda_bytes));
    e_.add(c_, static_cast<int>(rows * desc_.ldc_bytes));
    e_.add(residual_, static_cast<int>(rows * desc_.ldc_bytes));
    if (k_blocked()) e_.add(partial_, rows * 128);
    return absl::OkStatus();
  }

  // Sums of zero, or what the k blocks before this one left.
  void BeginTile(const Regs::VecList& sums) {
    e_.mov(q_, a_);
    if (!k_blocked()) {
      e_.mov(s_, slot(kScratch));
      e_.xor_(block_.cvt32(), block_.cvt32());
      for (size_t i = 0; i < sums.size(); ++i) e_.vpxord(sums.Z(i), sums.Z(i), sums.Z(i));
      return;
    }
    Xbyak::Label resume, begun;
    e_.mov(s_, slot(kSBegin));
    e_.add(q_, slot(kQBegin));
    e_.mov(block_, slot(kBlockBegin));
    e_.test(block_, block_);
    e_.jnz(resume, e_.T_NEAR);
    for (size_t i = 0; i < sums.size(); ++i) e_.vpxord(sums.Z(i), sums.Z(i), sums.Z(i));
    e_.jmp(begun, e_.T_NEAR);
    e_.L(resume);
    for (size_t i = 0; i < sums.size(); ++i) e_.vmovaps(sums.Z(i), e_.ptr[RegExp(partial_) + 64 * i]);
    e_.L(begun);
  }
  void StoreUnlessLast(const Regs::VecList& sums, const Xbyak::Label& stored) {
    Xbyak::Label last;
    e_.cmp(block_.cvt32(), static_cast<uint32_t>(blocks()));
    e_.je(last, e_.T_NEAR);
    for (size_t i = 0; i < sums.size(); ++i) e_.vmovaps(e_.ptr[RegExp(partial_) + 64 * i], sums.Z(i));
    e_.jmp(stored, e_.T_NEAR);
    e_.L(last);
  }

  int RowOffset(int row) const { return static_cast<int>(row * desc_.lda_bytes); }
  RegExp Activation(int row, int array, int scale = 4) const {
    return RegExp(a_) + block_ * scale + (RowOffset(row) + array);
  }

  // int32 dot products of one block of 32 k. dots: half h, row r, group g at 2 (h rows + r) + g.
  void Dots(int rows, const Regs::VecList& dots, const Regs::VecList& b, const Regs::VecList& broadcast) {
    const int halves = weights_.halves() ? 2 : 1;
    const auto dot = [&](int half, int row, int group) { return dots.Z(static_cast<size_t>(2 * (half * rows + row) + group)); };
    for (int half = 0; half < halves; ++half) {
      for (int row = 0; row < rows; ++row) {
        const Zmm first = dot(half, row, 0), second = dot(half, row, 1);
        if (weights_.offset_log2 == 0) {
          e_.vpxord(first, first, first);
          e_.vpxord(second, second, second);
          continue;
        }
        const RegExp sum = halves == 2 ? Activation(row, act_.neg_half_sum() + 4 * half, 8) : Activation(row, act_.neg_sum());
        e_.vpslld(first, e_.ptr_b[sum], static_cast<uint8_t>(weights_.offset_log2));
        e_.vmovdqa32(second, first);
      }
    }
    size_t next = 0;
    for (int i = 0; i < 8; ++i) {
      // The halves of q6_k in turn: twice as many independent chains.
      const int g = halves == 2 ? i / 2 + i % 2 * 4 : i;
      const int half = halves == 2 ? i % 2 : 0;
      for (size_t group = 0; group < 2; ++group) e_.vmovdqa32(b.Z(group), e_.ptr[RegExp(s_) + (128 * g + 64 * static_cast<int>(group))]);
      if (plan_.prefetch_next_panel && i % 4 == 0) {
        e_.prefetcht1(e_.ptr[prefetch_]);
        e_.add(prefetch_, prefetch_step_);
      }
      for (int row = 0; row < rows; ++row) {
        const RegExp a = RegExp(q_) + (RowOffset(row) + 4 * g);
        if (broadcast.size() > 0) {
          const Zmm x = broadcast.Z(next++ % broadcast.size());
          e_.vpbroadcastd(x, e_.ptr[a]);
          for (int group = 0; group < 2; ++group) e_.vpdpbusd(dot(half, row, group), b.Z(static_cast<size_t>(group)), x);
        } else {
          for (int group = 0; group < 2; ++group) {
            e_.vpdpbusd(dot(half, row, group), b.Z(static_cast<size_t>(group)), e_.ptr_b[a]);
          }
        }
      }
    }
  }

  // f32 sums += the block's dot products with both scales, and the minimum.
  void Scale(int rows, const Regs::VecList& sums, const Regs::VecList& dots, const Regs::VecList& b) {
    const auto dot = [&](int half, int row, size_t group) { return dots.Z(static_cast<size_t>(2 * (half * rows + row)) + group); };
    const auto sum = [&](int row, size_t group) { return sums.Z(static_cast<size_t>(2 * row) + group); };
    const auto load = [&](int at) {
      for (size_t group = 0; group < 2; ++group) e_.vmovaps(b.Z(group), e_.ptr[RegExp(s_) + (at + 64 * static_cast<int>(group))]);
    };
    load(kScaleAt);
    if (weights_.halves()) {
      for (int row = 0; row < rows; ++row) {
        for (size_t group = 0; group < 2; ++group) {
          e_.vcvtdq2ps(dot(0, row, group), dot(0, row, group));
          e_.vmulps(dot(0, row, group), dot(0, row, group), b.Z(group));
        }
      }
      load(kSecondAt);
      for (int row = 0; row < rows; ++row) {
        for (size_t group = 0; group < 2; ++group) {
          e_.vcvtdq2ps(dot(1, row, group), dot(1, row, group));
          e_.vfmadd231ps(dot(0, row, group), dot(1, row, group), b.Z(group));
          e_.vfmadd231ps(sum(row, group), dot(0, row, group), e_.ptr_b[Activation(row, act_.scale())]);
        }
      }
      return;
    }
    for (int row = 0; row < rows; ++row) {
      for (size_t group = 0; group < 2; ++group) {
        e_.vcvtdq2ps(dot(0, row, group), dot(0, row, group));
        e_.vmulps(dot(0, row, group), dot(0, row, group), e_.ptr_b[Activation(row, act_.scale())]);
        e_.vfmadd231ps(sum(row, group), dot(0, row, group), b.Z(group));
      }
    }
    if (!weights_.minimum) return;
    load(kSecondAt);
    for (int row = 0; row < rows; ++row) {
      for (size_t group = 0; group < 2; ++group) {
        const auto scaled_sum = e_.ptr_b[Activation(row, act_.scaled_sum())];
        if (weights_.minimum_negative) {
          e_.vfnmadd231ps(sum(row, group), b.Z(group), scaled_sum);
        } else {
          e_.vfmadd231ps(sum(row, group), b.Z(group), scaled_sum);
        }
      }
    }
  }

  const GemmDesc desc_;
  const GemmPlan plan_;
  Emitter& e_;
  const VnniWeights weights_;
  const VnniActivations act_;
  const int unpacked_bytes_;
  // r9.. first: the arguments are still read while these two are computed.
  const Xbyak::Reg64 w_ = Xbyak::util::r9, bias_ = Xbyak::util::r10;
  const Xbyak::Reg64 s_ = Xbyak::util::r11, q_ = Xbyak::util::r12, a_ = Xbyak::util::r13, block_ = Xbyak::util::r14,
                     c_ = Xbyak::util::r15, residual_ = Xbyak::util::rbx, rows_left_ = Xbyak::util::rcx,
                     prefetch_ = Xbyak::util::rdx, prefetch_step_ = Xbyak::util::rsi, partial_ = Xbyak::util::rdi;
};

}  // namespace

absl::Status EmitGemmVnniMany(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return ManyRows(desc, plan, e).Emit();
}

}  // namespace xjit
