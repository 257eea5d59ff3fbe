// The loops of the int8 gemm, over panels, blocks of k (few cases need them), strips, register blocks. Few rows are
// one strip of desc.rows rows whose weights stream by once.
//
// Where k is blocked, plan.m_block rows (few: all) go over one k block before the next, and their int32 sums wait in
// scratch. Without dot products A is spread to int16 in scratch first: all of it for few rows, else a k block of a
// strip.
#include <algorithm>
#include <cstddef>

#include "codegen/gemm/gemm_arguments.h"
#include "codegen/gemm/gemm_int8.h"
#include "codegen/gemm/gemm_int8_plan.h"
#include "codegen/gemm/gemm_int8_tile.h"
#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Xbyak::Label;
using Xbyak::RegExp;

class Int8Kernel {
 public:
  Int8Kernel(const GemmDesc& desc, const GemmPlan& plan, bool wide, Int8Dot dot, Emitter& e)
      : desc_(desc), plan_(plan), dot_(dot), e_(e), lanes_(e, wide) {}

  absl::Status Emit() {
    Label panel, done;
    e_.Prologue(8 * kSlots);
    EmitArguments(desc_, panel_bytes(), w_, bias_, t_, done, e_);
    if (few() && pairs()) SpreadRecords();
    e_.L(panel);
    StartPrefetch();
    Panel();
    e_.add(w_, static_cast<int>(panel_bytes()));
    e_.add(slot(kC0), PanelBytesOfC(desc_));
    e_.add(slot(kResidual0), PanelBytesOfC(desc_));
    e_.add(bias_, kPanelColumns * 4);
    e_.dec(slot(kPanels));
    e_.jnz(panel, e_.T_NEAR);
    e_.L(done);
    e_.Epilogue();
    XJIT_RETURN_IF_ERROR(gprs_.status());
    return status_;
  }

 private:
  // What changes once a block or less often is on the stack, behind the arguments, of which ...0 are in this panel. Of
  // scratch first come int16 pairs, then sums. ...M: of the first row of the m block.
  enum Slot {
    kPrefetchEnd = kArgumentSlots,
    kRowsLeft,  // from the m block's first row on
    kAM,
    kCM,
    kResidualM,
    kStrip,   // A's strip (few: first record)
    kChunk0,  // the k block's first chunk, and how many it has
    kChunks,
    kBlocks,  // register blocks left of the strip
    kSlots
  };
  Xbyak::Address slot(int s) { return e_.qword[e_.rsp + 8 * s]; }
  void Copy(int to, int from) {
    e_.mov(t_, slot(from));
    e_.mov(slot(to), t_);
  }

  bool few() const { return desc_.rows > 0; }
  bool part() const { return desc_.depth > 0; }
  bool pairs() const { return dot_ == Int8Dot::kPairs; }
  // Passes of the loop over a chunk: the stream of few rows is read in steps of 1 KiB, which prefetchers follow (2 KiB:
  // see VnniUnpacker::SuperGroup).
  int passes() const { return few() && !pairs() ? 2 : 1; }
  int body_units() const { return kInt8Chunk / 4 / passes(); }
  int strip_rows() const { return few() ? desc_.rows : kStripRows; }
  int64_t panel_bytes() const { return PanelBytes(desc_.w, desc_.k); }
  int64_t chunks() const { return CeilDiv(desc_.k, kInt8Chunk); }
  int64_t block_chunks() const { return plan_.k_block / kInt8Chunk; }
  bool k_blocked() const { return block_chunks() < chunks(); }
  StripLayout strips() const { return I8Layout{desc_.k}.strips(); }
  // Of A as the tiles read it: from row to row, and from chunk to chunk.
  int row_stride() const { return pairs() ? kInt8PairsBytes : few() ? static_cast<int>(desc_.lda_bytes) : kStripChunk; }
  int chunk_stride() const {
    if (pairs()) return strip_rows() * kInt8PairsBytes;
    return few() ? kInt8Chunk : kStripRows * kStripChunk;
  }
  int scale_stride() const { return few() ? static_cast<int>(desc_.lda_bytes) : 4; }

  // All records to pairs, once a call.
  void SpreadRecords() {
    Regs regs(lanes_.registers());
    Label chunk;
    e_.mov(a_, slot(kA0));
    e_.mov(q_, slot(kScratch));
    e_.mov((*chunk_).cvt32(), static_cast<uint32_t>(chunks()));
    e_.L(chunk);
    for (int row = 0; row < desc_.rows; ++row) {
      EmitInt8Pairs(lanes_, RegExp(a_) + static_cast<int>(row * desc_.lda_bytes), RegExp(q_) + row * kInt8PairsBytes,
                    e_, regs);
    }
    e_.add(a_, kInt8Chunk);
    e_.add(q_, chunk_stride());
    e_.dec((*chunk_).cvt32());
    e_.jnz(chunk, e_.T_NEAR);
  }

  // The k block of a strip to pairs.
  void SpreadStrip() {
    Regs regs(lanes_.registers());
    Label chunk;
    ChunkOfStrip(a_);
    e_.mov(q_, slot(kScratch));
    e_.mov(chunk_, slot(kChunks));
    e_.L(chunk);
    for (int row = 0; row < kStripRows; ++row) {
      EmitInt8Pairs(lanes_, RegExp(a_) + row * kStripChunk, RegExp(q_) + row * kInt8PairsBytes, e_, regs);
    }
    e_.add(a_, kStripRows * kStripChunk);
    e_.add(q_, chunk_stride());
    e_.dec(chunk_);
    e_.jnz(chunk, e_.T_NEAR);
  }

  void Panel() {
    if (few() || !k_blocked()) {
      for (const auto& [to, from] : {std::pair{kAM, kA0}, {kCM, kC0}, {kResidualM, kResidual0}}) Copy(to, from);
      e_.mov(rows_left_, slot(kRows));
      e_.mov(slot(kRowsLeft), rows_left_);
      return KBlocks();
    }
    Label m_block;
    for (const auto& [to, from] : {std::pair{kAM, kA0}, {kCM, kC0}, {kResidualM, kResidual0}, {kRowsLeft, kRows}}) {
      Copy(to, from);
    }
    e_.L(m_block);
    KBlocks();
    e_.add(slot(kAM), static_cast<int>(plan_.m_block / kStripRows * strips().strip_bytes()));
    e_.add(slot(kCM), static_cast<int>(plan_.m_block * desc_.ldc_bytes));
    e_.add(slot(kResidualM), static_cast<int>(plan_.m_block * desc_.ldc_bytes));
    e_.sub(slot(kRowsLeft), static_cast<int>(plan_.m_block));
    e_.jg(m_block, e_.T_NEAR);
  }

  // The rows of an m block over all k.
  void KBlocks() {
    Label k_block, last;
    e_.mov(slot(kChunk0), 0);
    e_.L(k_block);
    if (k_blocked()) {
      e_.mov((*t_).cvt32(), static_cast<uint32_t>(chunks()));
      e_.sub(t_, slot(kChunk0));
      e_.mov((*chunk_).cvt32(), static_cast<uint32_t>(block_chunks()));
      e_.cmp(t_, chunk_);
      e_.cmovg(t_, chunk_);
      e_.mov(slot(kChunks), t_);
    } else {
      e_.mov(slot(kChunks), static_cast<uint32_t>(chunks()));
    }
    e_.mov(rows_left_, slot(kRowsLeft));
    if (!few() && k_blocked()) {
      e_.mov((*t_).cvt32(), static_cast<uint32_t>(plan_.m_block));
      e_.cmp(rows_left_, t_);
      e_.cmovg(rows_left_, t_);
    }
    Copy(kStrip, kAM);
    e_.mov(c_, slot(kCM));
    e_.mov(residual_, slot(kResidualM));
    if (k_blocked()) {
      e_.mov(partial_, slot(kScratch));
      e_.add(partial_, static_cast<int>(Int8PairsScratch(desc_, plan_, pairs())));
    }
    Strips();
    if (!k_blocked()) return;
    e_.mov(t_, slot(kChunk0));
    e_.add(t_, static_cast<int>(block_chunks()));
    e_.mov(slot(kChunk0), t_);
    e_.cmp(t_, static_cast<int>(chunks()));
    e_.jl(k_block, e_.T_NEAR);
  }

  void Strips() {
    Label strip, end;
    e_.L(strip);
    if (few()) {
      e_.mov(scale_, slot(kA0));
      e_.add(scale_, static_cast<int>(I8Layout{desc_.k}.scale_offset()));
    } else {
      e_.mov(scale_, slot(kStrip));
      e_.add(scale_, static_cast<int>(strips().tail_offset()));
    }
    if (!few() && pairs()) SpreadStrip();
    FirstRows();
    const int whole = strip_rows() / plan_.tile_rows, rest = strip_rows() % plan_.tile_rows;
    if (whole > 1) {
      Label block;
      e_.mov(slot(kBlocks), whole);
      e_.L(block);
      Block(plan_.tile_rows, end);
      e_.dec(slot(kBlocks));
      e_.jnz(block, e_.T_NEAR);
    } else {
      Block(plan_.tile_rows, end);
    }
    if (rest > 0) Block(rest, end);
    if (!few()) {
      e_.add(slot(kStrip), static_cast<int>(strips().strip_bytes()));
      e_.jmp(strip, e_.T_NEAR);
    }
    e_.L(end);
  }

  // The k block in the strip (few: of the first record).
  void ChunkOfStrip(const Xbyak::Reg64& to) {
    e_.mov(to, slot(kStrip));
    if (!k_blocked()) return;
    e_.imul(t_, slot(kChunk0), few() ? kInt8Chunk : kStripRows * kStripChunk);
    e_.add(to, t_);
  }

  // a_ = the k block of the strip's first row, as tiles read it.
  void FirstRows() {
    if (!pairs()) return ChunkOfStrip(a_);
    e_.mov(a_, slot(kScratch));
    if (!few() || !k_blocked()) return;
    e_.imul(t_, slot(kChunk0), chunk_stride());
    e_.add(a_, t_);
  }

  // `rows` rows at a_ over the k block; moves all pointers to the rows after them.
  void Block(int rows, const Label& end) {
    Regs regs(lanes_.registers());
    const Int8Rows layout{row_stride(), scale_stride(), few() ? 4 : 4 * kStripRows};
    Int8Tile tile(lanes_, dot_, rows, Chains(rows), layout, {s_, q_, scale_}, e_, regs);
    if (status_.ok()) status_ = regs.status();
    Label loop, stored;
    BoundPrefetch();
    e_.lea(s_, e_.ptr[RegExp(w_) + kInt8HeaderBytes]);
    e_.mov(q_, a_);
    if (k_blocked()) {
      Label first, begun;
      e_.imul(t_, slot(kChunk0), kInt8ChunkBytes);
      e_.test(t_, t_);
      e_.jz(first, e_.T_NEAR);
      e_.add(s_, t_);
      tile.Load(partial_);
      e_.jmp(begun, e_.T_NEAR);
      e_.L(first);
      Start(tile);
      e_.L(begun);
      e_.mov(chunk_, slot(kChunks));
      if (passes() == 2) e_.add(chunk_, chunk_);
    } else {
      Start(tile);
      e_.mov((*chunk_).cvt32(), static_cast<uint32_t>(passes() * chunks()));
    }
    e_.L(loop);
    int prefetched = 0;
    tile.Units(body_units(), [&](int unit) { Prefetch(unit, &prefetched); });
    e_.add(s_, kInt8ChunkBytes / passes());
    e_.add(q_, chunk_stride() / passes());
    e_.dec((*chunk_).cvt32());
    e_.jnz(loop, e_.T_NEAR);
    if (k_blocked()) {
      Label last;
      e_.mov(t_, slot(kChunk0));
      e_.add(t_, slot(kChunks));
      e_.cmp(t_, static_cast<int>(chunks()));
      e_.je(last, e_.T_NEAR);
      tile.Store(partial_);
      e_.jmp(stored, e_.T_NEAR);
      e_.L(last);
    }
    tile.JoinChains();
    for (int row = 0; row < rows; ++row) {
      if (!few() && row > 0) {  // rows beyond the call's are computed and left
        e_.cmp(rows_left_, row);
        e_.jle(stored, e_.T_NEAR);
      }
      // A part has no epilogue: its int32 sums are stored as they are.
      const std::vector<int> sums = part() ? tile.Sums(row) : tile.Scaled(row, RegExp(w_));
      EmitRowEpilogue(desc_, sums, {c_, residual_, bias_}, static_cast<int>(row * desc_.ldc_bytes), e_, regs, lanes_);
    }
    e_.L(stored);
    if (k_blocked()) e_.add(partial_, tile.stored_bytes());
    if (few() && rows == strip_rows()) return;
    e_.add(a_, rows * row_stride());
    e_.add(scale_, rows * scale_stride());
    e_.add(c_, static_cast<int>(rows * desc_.ldc_bytes));
    e_.add(residual_, static_cast<int>(rows * desc_.ldc_bytes));
    e_.sub(rows_left_, rows);
    e_.jle(end, e_.T_NEAR);
  }

  // Whoever adds up the parts cancels the weights' offset.
  void Start(Int8Tile& tile) { part() ? tile.Zero() : tile.Start(); }

  // Two vectors of sums a row: so few rows would wait for each other's products.
  int Chains(int rows) const {
    if (!lanes_.wide() || !few()) return 1;
    return rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
  }

  // Many rows: lines of the next panel are asked for while this one's blocks run; behind the call's last panel its own.
  void StartPrefetch() {
    if (!plan_.prefetch_next_panel) return;
    Label more;
    e_.lea(prefetch_, e_.ptr[RegExp(w_) + static_cast<int>(panel_bytes())]);
    e_.cmp(slot(kPanels), 1);
    e_.jne(more);
    e_.mov(prefetch_, w_);
    e_.L(more);
    e_.lea(t_, e_.ptr[RegExp(prefetch_) + static_cast<int>(panel_bytes())]);
    e_.mov(slot(kPrefetchEnd), t_);
  }
  // Once all of them have been asked for, the last ones are again.
  void BoundPrefetch() {
    if (!plan_.prefetch_next_panel) return;
    e_.mov(t_, slot(kPrefetchEnd));
    e_.cmp(prefetch_, t_);
    e_.cmovg(prefetch_, t_);
  }
  void Prefetch(int unit, int* done) {
    if (plan_.prefetch_next_panel) {
      constexpr int kEvery = 4;  // units
      if (unit % kEvery == 0) e_.prefetcht1(e_.ptr[RegExp(prefetch_) + unit / kEvery * 64]);
      if (unit == kInt8Chunk / 4 - 1) e_.add(prefetch_, kInt8Chunk / 4 / kEvery * 64);
      if (plan_.prefetch_a && unit % 2 == 0)
        e_.prefetcht0(e_.ptr[RegExp(q_) + (chunk_stride() + unit / 2 * kStripChunk)]);
      return;
    }
    if (plan_.prefetch == PrefetchHint::kNone) return;
    for (; *done < (unit + 1) * kPanelColumns * 4; *done += plan_.prefetch_every) {
      EmitPrefetchAt(plan_.prefetch, e_.ptr[RegExp(s_) + (*done + plan_.prefetch_distance)], e_);
    }
  }

  const GemmDesc desc_;
  const GemmPlan plan_;
  const Int8Dot dot_;
  Emitter& e_;
  const Lanes lanes_;
  absl::Status status_;
  // The first three are in use while the arguments still are.
  Regs gprs_{0};
  const Regs::Gpr64 w_ = gprs_.Gpr("w"), bias_ = gprs_.Gpr("bias"), t_ = gprs_.Gpr("t");
  const Regs::Gpr64 s_ = gprs_.FreeArguments().Gpr("s"), q_ = gprs_.Gpr("q"), a_ = gprs_.Gpr("a"),
                    scale_ = gprs_.Gpr("scale"), chunk_ = gprs_.Gpr("chunk"), c_ = gprs_.Gpr("c"),
                    residual_ = gprs_.Gpr("residual"), rows_left_ = gprs_.Gpr("rows_left"),
                    prefetch_ = gprs_.Gpr("prefetch"), partial_ = gprs_.Gpr("partial");
};

}  // namespace

absl::Status EmitGemmInt8Vnni(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return Int8Kernel(desc, plan, true, Int8Dot::kEvex, e).Emit();
}
absl::Status EmitGemmInt8Avx512(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return Int8Kernel(desc, plan, true, Int8Dot::kPairs, e).Emit();
}
absl::Status EmitGemmInt8Avx2(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return Int8Kernel(desc, plan, false, plan.vex_dot ? Int8Dot::kVex : Int8Dot::kPairs, e).Emit();
}

}  // namespace xjit
