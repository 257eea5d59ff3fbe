#include "codegen/gemm/gemm_amx_kernel.h"

#include <cstddef>

#include "codegen/gemm/gemm_amx.h"
#include "codegen/gemm/gemm_fma_weights.h"

namespace xjit {

using Xbyak::Label;
using Xbyak::Reg64;

absl::Status AmxKernel::Emit() {
  e_.Prologue(kFrame + kWeightTableBytes);
  SaveArguments();
  e_.mov((*stride_).cvt32(), kStripChunk);
  Label columns, done;
  {
    const auto t = regs_.Gpr("t");
    e_.mov(t, At(kM1));
    e_.cmp(t, At(kM0));
    e_.jle(done);
    if (desc_.rows > 0) {
      e_.mov(t, At(kN1));
      e_.cmp(t, At(kN));
      e_.jle(done);
      CopyRows();
    }
  }
  e_.L(columns);
  {
    const auto left = regs_.Gpr("left"), most = regs_.Gpr("most");
    e_.mov(left, At(kN1));
    e_.sub(left, At(kN));
    e_.jle(done);
    e_.mov(most, plan_.n_block);
    e_.cmp(left, most);
    e_.cmovg(left, most);
    e_.mov(At(kPanels), left);
  }
  Rows();
  {
    const auto t = regs_.Gpr("t");
    e_.mov(t, At(kPanels));
    e_.add(At(kN), t);
  }
  e_.jmp(columns);
  e_.L(done);
  e_.Epilogue();
  return regs_.status();
}

void AmxKernel::AddTimes(const Reg64& dst, const Reg64& src, int64_t factor, const Reg64& t) {
  e_.imul(t, src, static_cast<int>(factor));
  e_.add(dst, t);
}

void AmxKernel::LoadByBlock(const Reg64& dst, int64_t full, int64_t last) {
  e_.mov(dst, last);
  if (!Waiting() || full == last) return;
  const auto other = regs_.Gpr("other");
  e_.mov(other, full);
  e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks - 1));
  e_.cmovne(dst, other);
}

void AmxKernel::SetByBlock(Slot slot, int64_t full, int64_t last) {
  const auto value = regs_.Gpr("value");
  LoadByBlock(value, full, last);
  e_.mov(At(slot), value);
}

void AmxKernel::SaveArguments() {
  {
    const auto t = regs_.Gpr("t");
    const auto save = [&](Slot slot, size_t offset) {
      e_.mov(t, e_.ptr[e_.arg_args + offset]);
      e_.mov(At(slot), t);
    };
    save(kA, offsetof(GemmArgs, a));
    save(kW, offsetof(GemmArgs, w));
    save(kC, offsetof(GemmArgs, c));
    save(kResidual, offsetof(GemmArgs, residual));
    save(kBias, offsetof(GemmArgs, bias));
    save(kScratch, offsetof(GemmArgs, scratch));
  }
  e_.mov(At(kN), e_.arg_n0);
  e_.mov(At(kN1), e_.arg_n1);
  e_.mov(At(kM0), e_.arg_m0);
  e_.mov(At(kM1), e_.arg_m1);
  regs_.FreeArguments();
}

// A becomes a strip in scratch. What the strip's other rows hold does not matter: it meets only their own sums.
void AmxKernel::CopyRows() {
  const auto from = regs_.Gpr("from"), to = regs_.Gpr("to"), left = regs_.Gpr("left");
  const auto chunk = regs_.Vecs("chunk", desc_.rows);
  e_.mov(from, At(kA));
  e_.mov(to, At(kScratch));
  e_.add(to, static_cast<int>(scratch_.a));
  e_.mov(At(kA), to);
  const auto source = [&](int row) { return e_.ptr[*from + static_cast<int>(row * desc_.lda_bytes)]; };
  if (const int64_t whole = layout_.a_row_bytes / kStripChunk; whole > 0) {
    e_.mov(left, whole);
    Label next;
    e_.L(next);
    for (int r = 0; r < desc_.rows; ++r) e_.vmovdqu32(chunk.Z(r), source(r));
    for (int r = 0; r < desc_.rows; ++r) e_.vmovdqa32(e_.ptr[*to + r * kStripChunk], chunk.Z(r));
    e_.add(from, kStripChunk);
    e_.add(to, kTileBytes);
    e_.dec(left);
    e_.jnz(next);
  }
  if (const int64_t rest = layout_.a_row_bytes % kStripChunk; rest > 0) {
    e_.mov((*left).cvt32(), (1u << (rest / 4)) - 1);
    e_.kmovw(e_.k1, (*left).cvt32());
    for (int r = 0; r < desc_.rows; ++r) e_.vmovdqu32(chunk.Z(r) | e_.k1 | e_.T_z, source(r));
    for (int r = 0; r < desc_.rows; ++r) e_.vmovdqa32(e_.ptr[*to + r * kStripChunk], chunk.Z(r));
  }
  if (layout_.dot != TileDot::kInt8) return;
  // Scale and negative sum follow in the record, and all rows' of each in the strip.
  for (int field = 0; field < 2; ++field) {
    for (int r = 0; r < desc_.rows; ++r) {
      e_.mov((*left).cvt32(), e_.ptr[*from + static_cast<int>(r * desc_.lda_bytes) + 4 * field]);
      e_.mov(e_.ptr[*to + 4 * (r + kTileRows * field)], (*left).cvt32());
    }
  }
}

void AmxKernel::Rows() {
  Label next, done;
  const auto move = [&](Slot to, Slot from) {
    const auto t = regs_.Gpr("t");
    e_.mov(t, At(from));
    e_.mov(At(to), t);
  };
  move(kM, kM0);
  e_.L(next);
  {
    const auto m = regs_.Gpr("m"), end = regs_.Gpr("end");
    e_.mov(m, At(kM));
    e_.mov(end, At(kM1));
    e_.cmp(m, end);
    e_.jge(done);
    if (plan_.m_block > 0) {
      e_.add(m, static_cast<int>(plan_.m_block));
      e_.cmp(end, m);
      e_.cmovg(end, m);
    }
    e_.mov(At(kMEnd), end);
  }
  KBlocks();
  move(kM, kMEnd);
  e_.jmp(next);
  e_.L(done);
}

void AmxKernel::KBlocks() {
  e_.mov(At(kAOffset), 0);
  e_.mov(At(kWOffset), static_cast<int>(layout_.first_bytes));
  e_.mov(At(kBlock), 0);
  Label next;
  e_.L(next);
  SetByBlock(kSteps, layout_.steps(plan_.k_block), layout_.steps(LastK()));
  if (layout_.scale == AmxLayout::Scale::kBlocks) {
    SetByBlock(kScaleBlocks, plan_.k_block / layout_.blocks.depth, LastK() / layout_.blocks.depth);
  }
  if (layout_.unpack) Unpack();
  {
    const auto b = regs_.Gpr("b");
    if (layout_.unpack) {
      e_.mov(b, At(kScratch));
      e_.add(b, static_cast<int>(scratch_.b));
    } else {
      e_.imul(b, At(kN), static_cast<int>(layout_.panel_bytes));
      e_.add(b, At(kW));
      e_.add(b, At(kWOffset));
    }
    e_.mov(At(kB), b);
  }
  Units();
  if (!Waiting()) return;
  e_.add(At(kAOffset), static_cast<int>(layout_.steps(plan_.k_block) * kTileBytes));
  e_.add(At(kWOffset), static_cast<int>(layout_.BytesOf(plan_.k_block)));
  e_.inc(At(kBlock));
  e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks));
  e_.jl(next);
}

// The block's rows, 32 at a time, over the block's panels, and the last 16 or fewer.
void AmxKernel::Units() {
  Label unit, last, done;
  e_.mov(row_, At(kM));
  if (desc_.rows == 0) {
    e_.mov(At(kTurn), 1);
    e_.xor_((*panel_).cvt32(), (*panel_).cvt32());
    e_.L(unit);
    {
      const auto t = regs_.Gpr("t");
      e_.mov(t, At(kMEnd));
      e_.sub(t, row_);
      e_.cmp(t, kTileRows);
      e_.jle(last);
      e_.mov(t, At(kPanels));
      e_.mov(At(kLeft), t);
    }
    Label next, turn;
    e_.L(next);
    Tile({.rows = 2, .panels = 1});
    e_.dec(At(kLeft));
    e_.jz(turn);
    e_.add(panel_, At(kTurn));
    e_.jmp(next);
    e_.L(turn);
    e_.neg(At(kTurn));
    e_.add(row_, 2 * kTileRows);
    e_.jmp(unit);
    e_.L(last);
  }
  {
    const auto t = regs_.Gpr("t");
    e_.cmp(row_, At(kMEnd));
    e_.jge(done);
    e_.xor_((*panel_).cvt32(), (*panel_).cvt32());
    e_.mov(t, At(kPanels));
    e_.mov(At(kLeft), t);
  }
  Label few, three, one;
  e_.L(few);
  e_.cmp(At(kLeft), 3);
  e_.je(three);
  e_.cmp(At(kLeft), 1);
  e_.je(one);
  e_.jl(done);
  Tile({.rows = 1, .panels = 2});
  e_.add(panel_, 2);
  e_.sub(At(kLeft), 2);
  e_.jmp(few);
  e_.L(three);
  Tile({.rows = 1, .panels = 3});
  e_.jmp(done);
  e_.L(one);
  Tile({.rows = 1, .panels = 1});
  e_.L(done);
}

absl::Status EmitGemmAmxBf16(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return AmxKernel(desc, plan, TileDot::kBf16, e).Emit();
}
absl::Status EmitGemmAmxFp16(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return AmxKernel(desc, plan, TileDot::kFp16, e).Emit();
}
absl::Status EmitGemmAmxInt8(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return AmxKernel(desc, plan, TileDot::kInt8, e).Emit();
}

}  // namespace xjit
