// Many rows: a panel is unpacked once into scratch (u8 and f32 scales), then tiles of rows run over it, int32 and f32
// sums of a tile in registers. While the last of them run, the next panel is prefetched into L2.
//
// Where k is blocked (plan.k_block < k), plan.m_block rows go over one k block, which then stays in cache, before the
// next; meanwhile their f32 sums are in scratch, behind the panel. Storing and loading a sum changes no bit of it.
// A call of at most plan.near_rows rows unpacks a k block of plan.near_k_block just before its rows go over it.
#include <bit>
#include <cstddef>

#include "codegen/gemm/gemm_arguments.h"
#include "codegen/gemm/gemm_vnni_tile.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Xbyak::RegExp;
using Xbyak::Zmm;

// Rows whose tiles ask for the next panel, 20 lines or more for each block of 32 k, of which a panel has 17 at most.
// Asked for from the first row on, a panel leaves L2 again while many rows pass (EPYC 9005, 512x8960x1536, q8_0 74.2
// and 75.1% of the peak, 2 threads 72.9 and 73.7, q4_1 67.2 and 67.6; k = 8960 the same).
constexpr int kNextRows = 64;

class ManyRows {
 public:
  ManyRows(const GemmDesc& desc, const GemmPlan& plan, Emitter& e)
      : desc_(desc),
        plan_(plan),
        e_(e),
        weights_(VnniWeightsOf(desc.w, desc.k)),
        unpacked_bytes_(VnniUnpackedBytes(weights_)) {}

  absl::Status Emit() {
    XJIT_RETURN_IF_ERROR(gprs_.status());
    Xbyak::Label panel, done;
    {
      Regs regs(32);
      e_.Prologue(kFrame + VnniUnpacker(weights_, true, e_, regs).frame_bytes());
    }
    EmitArguments(desc_, PanelBytes(desc_.w, desc_.k), w_, bias_, t_, done, e_);
    ChooseBlocks();
    e_.L(panel);
    StartPrefetch();
    XJIT_RETURN_IF_ERROR(Panel());
    e_.add(w_, static_cast<int>(PanelBytes(desc_.w, desc_.k)));
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
  // What changes once a tile or less often is on the stack, behind the arguments, of which ...0 are in this panel.
  // ...M: of the block's first row.
  enum Slot {
    kPrefetchEnd = kArgumentSlots,
    // What the number of rows decides: blocks of 32 k that are walked and that are unpacked at a time, rows that go
    // over them.
    kDepth,
    kUnpackDepth,
    kRowsTogether,
    kRowsLeft,  // from the row block's first on
    kBlockRows,
    kAM,
    kCM,
    kResidualM,
    kBlockBegin,  // of the k block
    kBlockEnd,
    kQBegin,  // in a row of A
    kSBegin,  // in scratch
    kUnpackedBegin,
    kUnpackedEnd,
    kPacked,  // what is unpacked next
    kHeader,  // with far_header(): the one met last, and how many steps are left of it
    kHeaderLeft,
    kSlots
  };
  static constexpr int kFrame = AlignUp(8 * kSlots, 64);  // where the unpacker's begins
  Xbyak::Address slot(int s) { return e_.qword[e_.rsp + 8 * s]; }
  int64_t blocks() const { return desc_.k / 32; }
  // Sums wait in scratch for the k blocks after theirs.
  bool k_blocked() const { return plan_.k_block < desc_.k || plan_.near_rows > 0; }
  void Copy(int to, int from) {
    e_.mov(t_, slot(from));
    e_.mov(slot(to), t_);
  }

  void ChooseBlocks() {
    const auto choose = [&](int64_t depth, int64_t unpacked, int64_t rows) {
      e_.mov(slot(kDepth), static_cast<int>(depth / 32));
      e_.mov(slot(kUnpackDepth), static_cast<int>(unpacked / 32));
      if (rows > 0) {
        e_.mov(slot(kRowsTogether), static_cast<int>(rows));
      } else {
        Copy(kRowsTogether, kRows);
      }
    };
    Xbyak::Label chosen;
    choose(plan_.k_block, desc_.k, plan_.m_block);
    if (plan_.near_rows > 0) {
      e_.cmp(slot(kRows), static_cast<int>(plan_.near_rows));
      e_.jg(chosen);
      choose(plan_.near_k_block, plan_.near_k_block, 0);
    }
    e_.L(chosen);
  }

  // to = the end of `depth` blocks behind `begin`.
  void EndOf(const Xbyak::Reg64& to, Slot begin, Slot depth) {
    e_.mov(to, slot(begin));
    e_.add(to, slot(depth));
    e_.mov((*u_).cvt32(), static_cast<uint32_t>(blocks()));
    e_.cmp(to, u_);
    e_.cmovg(to, u_);
  }

  // The blocks from the k block's first on, to scratch.
  absl::Status Unpack() {
    Regs regs(32);
    VnniUnpacker unpack(weights_, true, e_, regs);
    const auto temp = regs.Vecs("temp");
    XJIT_RETURN_IF_ERROR(regs.status());
    Xbyak::Label loop;
    unpack.Setup(kFrame);
    // Not in use while weights are unpacked.
    const Xbyak::Reg64 w = c_, header = q_, left = a_;
    Copy(kUnpackedBegin, kBlockBegin);
    EndOf(block_, kBlockBegin, kUnpackDepth);
    e_.mov(slot(kUnpackedEnd), block_);
    e_.sub(block_, slot(kBlockBegin));
    if (weights_.super_blocks()) e_.shr(block_, std::countr_zero(static_cast<unsigned>(weights_.parts)));
    e_.mov(w, slot(kPacked));
    e_.mov(s_, slot(kScratch));
    if (weights_.far_header()) {
      e_.mov(header, slot(kHeader));
      e_.mov(left, slot(kHeaderLeft));
    }
    const auto store = [&](const RegExp& to) {
      for (int half = 0; half < (weights_.halves() ? 2 : 1); ++half) {
        e_.vmovaps(e_.ptr[to + kVnniScaleAt + 128 * half], unpack.scale(half));
        if (weights_.minimum) e_.vmovaps(e_.ptr[to + VnniMinimumAt(weights_) + 128 * half], unpack.minimum(half));
      }
      for (int g = 0; g < 8; ++g) e_.vmovdqa32(e_.ptr[to + 128 * g], unpack.weights(g));
    };
    const int block_bytes = weights_.parts * unpacked_bytes_;
    e_.L(loop);
    if (weights_.super_blocks()) {
      for (int group = 0; group < 2; ++group) {
        if (group > 0) e_.sub(s_, block_bytes);
        unpack.SuperGroup(
            w, left, 1, temp.Z(), [](int) {},
            [&] {
              store(RegExp(s_) + 64 * group);
              e_.add(s_, unpacked_bytes_);
            });
      }
    } else {
      if (weights_.far_header()) unpack.FarHeader(w, header, left, 1);
      for (int group = 0; group < 2; ++group) {
        unpack.Part(RegExp(weights_.far_header() ? header : w), RegExp(w), group, temp.Z());
        store(RegExp(s_) + 64 * group);
      }
      e_.add(w, weights_.step_bytes);
      e_.add(s_, block_bytes);
    }
    e_.dec(block_);
    e_.jnz(loop, e_.T_NEAR);
    e_.mov(slot(kPacked), w);
    if (weights_.far_header()) {
      e_.mov(slot(kHeader), header);
      e_.mov(slot(kHeaderLeft), left);
    }
    return absl::OkStatus();
  }

  // kRowsTogether rows over all k blocks, then the next rows.
  absl::Status Panel() {
    Xbyak::Label row_block, k_block, unpacked;
    Copy(kRowsLeft, kRows);
    Copy(kAM, kA0);
    Copy(kCM, kC0);
    Copy(kResidualM, kResidual0);
    e_.mov(slot(kPacked), w_);
    e_.mov(slot(kUnpackedEnd), 0);
    if (weights_.far_header()) e_.mov(slot(kHeaderLeft), 0);

    e_.L(row_block);
    e_.mov(t_, slot(kRowsLeft));
    e_.mov(u_, slot(kRowsTogether));
    e_.cmp(t_, u_);
    e_.cmovg(t_, u_);
    e_.mov(slot(kBlockRows), t_);
    e_.mov(slot(kBlockBegin), 0);

    e_.L(k_block);
    EndOf(t_, kBlockBegin, kDepth);
    e_.mov(slot(kBlockEnd), t_);
    e_.mov(t_, slot(kBlockBegin));
    e_.cmp(t_, slot(kUnpackedEnd));
    e_.jl(unpacked, e_.T_NEAR);
    XJIT_RETURN_IF_ERROR(Unpack());
    e_.L(unpacked);
    e_.imul(t_, slot(kBlockBegin), 32);
    e_.mov(slot(kQBegin), t_);
    e_.mov(t_, slot(kBlockBegin));
    e_.sub(t_, slot(kUnpackedBegin));
    e_.imul(t_, t_, unpacked_bytes_);
    e_.add(t_, slot(kScratch));
    e_.mov(slot(kSBegin), t_);
    e_.mov(rows_left_, slot(kBlockRows));
    e_.mov(a_, slot(kAM));
    e_.mov(c_, slot(kCM));
    e_.mov(residual_, slot(kResidualM));
    if (k_blocked()) {
      e_.mov(partial_, slot(kScratch));
      e_.add(partial_, static_cast<int>(blocks() * unpacked_bytes_));
    }
    XJIT_RETURN_IF_ERROR(Tiles());
    Copy(kBlockBegin, kBlockEnd);  // through t_
    e_.cmp(t_, static_cast<int>(blocks()));
    e_.jl(k_block, e_.T_NEAR);

    const auto advance = [&](Slot to, int64_t row_bytes) {
      e_.imul(t_, slot(kRowsTogether), static_cast<int>(row_bytes));
      e_.add(slot(to), t_);
    };
    advance(kAM, desc_.lda_bytes);
    advance(kCM, desc_.ldc_bytes);
    advance(kResidualM, desc_.ldc_bytes);
    e_.mov(t_, slot(kRowsTogether));
    e_.sub(slot(kRowsLeft), t_);
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
    const int panel_bytes = static_cast<int>(PanelBytes(desc_.w, desc_.k));
    e_.lea(prefetch_, e_.ptr[RegExp(w_) + panel_bytes]);
    e_.lea(s_, e_.ptr[RegExp(prefetch_) + panel_bytes]);
    e_.cmp(slot(kPanels), 1);
    e_.cmove(s_, prefetch_);
    e_.mov(slot(kPrefetchEnd), s_);
  }
  // The last rows fetch. Before, and once all of the next panel has been asked for, the same line is asked for again,
  // which costs nothing but a load slot.
  void StepPrefetch() {
    if (!plan_.prefetch_next_panel) return;
    e_.mov((*prefetch_step_).cvt32(), plan_.prefetch_every);
    e_.xor_((*t_).cvt32(), (*t_).cvt32());
    e_.cmp(prefetch_, slot(kPrefetchEnd));
    e_.cmovae(prefetch_step_, t_);
    e_.cmp(rows_left_, kNextRows);
    e_.cmovg(prefetch_step_, t_);
    if (plan_.m_block == 0) return;
    e_.mov(u_, slot(kRowsLeft));  // not the last row block's
    e_.cmp(u_, slot(kRowsTogether));
    e_.cmovg(prefetch_step_, t_);
  }

  // `rows` rows at a_ against the k block; advances a_, c_, residual_ and partial_.
  absl::Status Tile(int rows) {
    VnniTile tile(desc_, plan_, rows, {s_, a_, q_, block_, prefetch_, prefetch_step_}, e_);
    XJIT_RETURN_IF_ERROR(tile.status());
    Xbyak::Label k_loop, end;
    StepPrefetch();
    BeginTile(tile.sums());
    e_.L(k_loop);
    tile.Block();
    e_.add(s_, unpacked_bytes_);
    e_.add(q_, 32);
    e_.inc((*block_).cvt32());
    if (k_blocked()) {
      e_.cmp(block_, slot(kBlockEnd));
    } else {
      e_.cmp((*block_).cvt32(), static_cast<uint32_t>(blocks()));
    }
    e_.jb(k_loop, e_.T_NEAR);
    if (k_blocked()) StoreUnlessLast(tile.sums(), end);

    VnniEpilogue epilogue(desc_, e_);
    const Zmm temp[3] = {tile.temp(0), tile.temp(1), tile.temp(2)};
    for (int row = 0; row < rows; ++row) {
      const int offset = static_cast<int>(row * desc_.ldc_bytes);
      epilogue.Row(tile.sum(row, 0), tile.sum(row, 1), temp, bias_, RegExp(c_) + offset, RegExp(residual_) + offset);
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
    e_.mov(s_, slot(kSBegin));
    if (!k_blocked()) {
      e_.xor_((*block_).cvt32(), (*block_).cvt32());
      for (size_t i = 0; i < sums.size(); ++i) e_.vpxord(sums.Z(i), sums.Z(i), sums.Z(i));
      return;
    }
    Xbyak::Label resume, begun;
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
    e_.cmp((*block_).cvt32(), static_cast<uint32_t>(blocks()));
    e_.je(last, e_.T_NEAR);
    for (size_t i = 0; i < sums.size(); ++i) e_.vmovaps(e_.ptr[RegExp(partial_) + 64 * i], sums.Z(i));
    e_.jmp(stored, e_.T_NEAR);
    e_.L(last);
  }

  const GemmDesc desc_;
  const GemmPlan plan_;
  Emitter& e_;
  const VnniWeights weights_;
  const int unpacked_bytes_;
  // The first four are in use while the arguments still are.
  Regs gprs_{0};
  const Regs::Gpr64 w_ = gprs_.Gpr("w"), bias_ = gprs_.Gpr("bias"), t_ = gprs_.Gpr("t"), u_ = gprs_.Gpr("u");
  const Regs::Gpr64 s_ = gprs_.FreeArguments().Gpr("s"), q_ = gprs_.Gpr("q"), a_ = gprs_.Gpr("a"),
                    block_ = gprs_.Gpr("block"), c_ = gprs_.Gpr("c"), residual_ = gprs_.Gpr("residual"),
                    rows_left_ = gprs_.Gpr("rows_left"), prefetch_ = gprs_.Gpr("prefetch"),
                    prefetch_step_ = gprs_.Gpr("prefetch_step"), partial_ = gprs_.Gpr("partial");
};

}  // namespace

absl::Status EmitGemmVnniMany(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return ManyRows(desc, plan, e).Emit();
}

}  // namespace xjit
