// Many rows: register blocks over a panel (gemm_fma_kernel.h).
#include <cstddef>
#include <vector>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/regs.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

constexpr int kRowBytes = kPanelColumns * 4;  // of the tile of sums and of the unpacked block

struct Panels {
  const GemmDesc& desc;
  const GemmPlan& plan;
  const FloatOps& ops;
  Emitter& e;
  Lanes lanes{e, ops.wide};
  Regs regs{lanes.registers()};

  const int64_t steps = Steps(desc, ops);
  const int64_t panel_bytes = PanelBytes(desc.w, desc.k);
  const bool unpack = ReadAs(desc, ops).type != DType::kF32;
  const int64_t blocks = CeilDiv(steps, plan.k_block);
  const int64_t last_block = steps - (blocks - 1) * plan.k_block;

  // Loop state that lives in the frame.
  enum Slot { kN1, kM0, kM1, kRows, kBlocks, kMain, kRest, kUnits, kSlots };
  static constexpr int kTable = AlignUp(kSlots * 8, 64);
  Xbyak::Address At(Slot slot) { return e.qword[e.rsp + slot * 8]; }

  const Regs::Gpr64 args = regs.Gpr("args"), n = regs.Gpr("n"), m = regs.Gpr("m"), w = regs.Gpr("w");

  absl::Status Emit();
  void RowBlock();
  void ZeroSums();
  void KBlock(const Xbyak::Reg64& a_block);
  void Unpack(const Xbyak::Reg64& b);
  void RowsOverBlock(const Xbyak::Reg64& a_block, const Xbyak::Reg64& b_block);
  void Tile(int rows, const Xbyak::Reg64& a_row, const Xbyak::Reg64& b_block, const Xbyak::Reg64& c_row);
  void TileSteps(int rows, int first, int count, const Xbyak::Reg64& a, const Xbyak::Reg64& b,
                 const Regs::VecList& acc);
  void Finish();
};

absl::Status Panels::Emit() {
  e.Prologue(kTable + kWeightTableBytes);
  e.mov(args, e.arg_args);
  e.mov(n, e.arg_n0);
  e.mov(At(kN1), e.arg_n1);
  e.mov(At(kM0), e.arg_m0);
  e.mov(At(kM1), e.arg_m1);
  regs.FreeArguments();
  Xbyak::Label panel, rows, next_panel, done;
  e.L(panel);
  e.cmp(n, At(kN1));
  e.jge(done);
  e.mov(m, At(kM0));
  e.L(rows);
  e.cmp(m, At(kM1));
  e.jge(next_panel);
  RowBlock();
  e.add(m, static_cast<int>(plan.m_block));
  e.jmp(rows);
  e.L(next_panel);
  e.inc(n);
  e.jmp(panel);
  e.L(done);
  e.Epilogue();
  return regs.status();
}

// Panel n for up to m_block rows from m on.
void Panels::RowBlock() {
  {
    const auto rows = regs.Gpr("rows"), most = regs.Gpr("most");
    e.mov(rows, At(kM1));
    e.sub(rows, m);
    e.mov(most, plan.m_block);
    e.cmp(rows, most);
    e.cmovg(rows, most);
    e.mov(At(kRows), rows);
  }
  ZeroSums();
  e.mov(w, panel_bytes);
  e.imul(w, n);
  e.add(w, e.ptr[*args + offsetof(GemmArgs, w)]);
  {
    const auto a_block = regs.Gpr("a_block");
    e.imul(a_block, m, static_cast<int>(desc.lda_bytes));
    e.add(a_block, e.ptr[*args + offsetof(GemmArgs, a)]);
    e.mov(At(kBlocks), static_cast<int>(blocks));
    if (unpack) {
      WeightCursor start;
      start.table = kTable;
      MakeWeightReader(desc.w, plan.vbmi, e, regs, lanes)->Begin(start);
    }
    Xbyak::Label block;
    e.L(block);
    KBlock(a_block);
    e.add(a_block, static_cast<int>(plan.k_block * 4));
    if (!unpack) e.add(w, static_cast<int>(plan.k_block * kRowBytes));
    e.dec(At(kBlocks));
    e.jnz(block);
  }
  Finish();
}

void Panels::ZeroSums() {
  const auto sums = regs.Gpr("sums"), left = regs.Gpr("left");
  const auto zero = regs.Vecs("zero");
  lanes.Zero(zero[0]);
  e.mov(sums, e.ptr[*args + offsetof(GemmArgs, scratch)]);
  e.mov(left, At(kRows));
  Xbyak::Label row;
  e.L(row);
  for (int v = 0; v < lanes.per_panel(); ++v) e.vmovaps(e.ptr[*sums + v * lanes.bytes()], lanes(zero[0]));
  e.add(sums, kRowBytes);
  e.dec(left);
  e.jnz(row);
}

// One k block: its loop counts, its unpacking, all rows.
void Panels::KBlock(const Xbyak::Reg64& a_block) {
  const int64_t unit = unpack ? WeightUnit(desc.w) : 1;
  const auto set = [&](Slot slot, int64_t full, int64_t last) {
    const auto value = regs.Gpr("value"), other = regs.Gpr("other");
    e.mov(value, last);
    if (blocks > 1 && full != last) {
      e.mov(other, full);
      e.cmp(At(kBlocks), 1);
      e.cmovne(value, other);
    }
    e.mov(At(slot), value);
  };
  set(kMain, plan.k_block / kTileUnroll, last_block / kTileUnroll);
  set(kRest, plan.k_block % kTileUnroll, last_block % kTileUnroll);
  if (!unpack) return RowsOverBlock(a_block, w);
  set(kUnits, plan.k_block / unit, last_block / unit);
  const auto b = regs.Gpr("b");
  Unpack(b);
  e.mov(b, e.ptr[*args + offsetof(GemmArgs, scratch)]);
  e.add(b, static_cast<int>(plan.m_block * kRowBytes));
  RowsOverBlock(a_block, b);
}

void Panels::Unpack(const Xbyak::Reg64& b) {
  const auto units = regs.Gpr("units"), inner = regs.Gpr("inner");
  const auto reader = MakeWeightReader(desc.w, plan.vbmi, e, regs, lanes);
  WeightCursor at{*w, b, kRowBytes, *inner, kTable};
  at.touch = [&](int offset, int bytes) { EmitPrefetch(plan, w, offset, bytes, e); };
  const WeightSink store = [&](int k, int first, std::span<const int> v) {
    for (size_t j = 0; j < v.size(); ++j) {
      e.vmovaps(e.ptr[b + k * kRowBytes + (first + static_cast<int>(j)) * lanes.bytes()], lanes(v[j]));
    }
  };
  e.mov(b, e.ptr[*args + offsetof(GemmArgs, scratch)]);
  e.add(b, static_cast<int>(plan.m_block * kRowBytes));
  Xbyak::Label unit, units_done, done;
  e.mov(units, At(kUnits));
  e.test(units, units);
  e.jz(units_done);
  e.L(unit);
  reader->Unit(at, store);
  e.dec(units);
  e.jnz(unit);
  e.L(units_done);
  if (const int tail = static_cast<int>(last_block % reader->unit()); tail != 0) {
    e.cmp(At(kBlocks), 1);
    e.jne(done);
    reader->Tail(tail, at, store);
    e.L(done);
  }
}

void Panels::RowsOverBlock(const Xbyak::Reg64& a_block, const Xbyak::Reg64& b_block) {
  const auto a_row = regs.Gpr("a_row"), c_row = regs.Gpr("c_row"), left = regs.Gpr("left");
  e.mov(a_row, a_block);
  e.mov(c_row, e.ptr[*args + offsetof(GemmArgs, scratch)]);
  e.mov(left, At(kRows));
  Xbyak::Label full, tail, done;
  e.L(full);
  e.cmp(left, plan.tile_rows);
  e.jl(tail);
  Tile(plan.tile_rows, a_row, b_block, c_row);
  e.add(a_row, static_cast<int>(plan.tile_rows * desc.lda_bytes));
  e.add(c_row, plan.tile_rows * kRowBytes);
  e.sub(left, plan.tile_rows);
  e.jmp(full);
  e.L(tail);
  for (int rows = plan.tile_rows - 1; rows > 0; --rows) {
    Xbyak::Label fewer;
    e.cmp(left, rows);
    e.jne(fewer);
    Tile(rows, a_row, b_block, c_row);
    if (rows > 1) e.jmp(done);
    e.L(fewer);
  }
  e.L(done);
}

// `rows` rows of the block, all columns of the panel, kTileVectors at a time.
void Panels::Tile(int rows, const Xbyak::Reg64& a_row, const Xbyak::Reg64& b_block, const Xbyak::Reg64& c_row) {
  const auto a = regs.Gpr("a"), b = regs.Gpr("b"), count = regs.Gpr("count");
  for (int first = 0; first < lanes.per_panel(); first += kTileVectors) {
    const auto acc = regs.Vecs("acc", rows * kTileVectors);
    const auto sum = [&](int row, int v) { return e.ptr[c_row + row * kRowBytes + (first + v) * lanes.bytes()]; };
    for (int row = 0; row < rows; ++row) {
      for (int v = 0; v < kTileVectors; ++v) e.vmovaps(lanes(acc[row * kTileVectors + v]), sum(row, v));
    }
    e.mov(a, a_row);
    e.mov(b, b_block);
    const auto loop = [&](Slot slot, int unroll) {
      Xbyak::Label next, done;
      e.mov(count, At(slot));
      e.test(count, count);
      e.jz(done);
      e.L(next);
      TileSteps(rows, first, unroll, a, b, acc);
      e.dec(count);
      e.jnz(next);
      e.L(done);
    };
    loop(kMain, kTileUnroll);
    loop(kRest, 1);
    for (int row = 0; row < rows; ++row) {
      for (int v = 0; v < kTileVectors; ++v) e.vmovaps(sum(row, v), lanes(acc[row * kTileVectors + v]));
    }
  }
}

void Panels::TileSteps(int rows, int first, int count, const Xbyak::Reg64& a, const Xbyak::Reg64& b,
                       const Regs::VecList& acc) {
  const auto weight = regs.Vecs("weight", kTileVectors);
  const auto activation = regs.Vecs("activation", lanes.wide() ? 4 : 2);
  int turn = 0;
  for (int step = 0; step < count; ++step) {
    if (!unpack) EmitPrefetch(plan, b, step * kRowBytes + first * lanes.bytes(), kTileVectors * lanes.bytes(), e);
    for (int v = 0; v < kTileVectors; ++v) {
      e.vmovups(lanes(weight[v]), e.ptr[b + step * kRowBytes + (first + v) * lanes.bytes()]);
    }
    for (int row = 0; row < rows; ++row) {
      const auto x = lanes(activation[turn++ % activation.size()]);
      e.vbroadcastss(x, e.ptr[a + row * desc.lda_bytes + 4 * step]);
      for (int v = 0; v < kTileVectors; ++v) {
        const auto sum = lanes(acc[row * kTileVectors + v]);
        if (ops.dot) {
          e.vdpbf16ps(sum, lanes(weight[v]), x);
        } else {
          e.vfmadd231ps(sum, lanes(weight[v]), x);
        }
      }
    }
  }
  e.add(a, 4 * count);
  e.add(b, kRowBytes * count);
}

// The epilogue of the rows from m on.
void Panels::Finish() {
  const auto sums = regs.Gpr("sums"), left = regs.Gpr("left"), c = regs.Gpr("c"), residual = regs.Gpr("residual"),
             bias = regs.Gpr("bias");
  const auto offset = regs.Gpr("offset");
  e.imul(c, m, static_cast<int>(desc.ldc_bytes));
  e.imul(offset, n, PanelBytesOfC(desc));
  e.add(c, offset);
  if (desc.epilogue.residual) {
    e.mov(residual, e.ptr[*args + offsetof(GemmArgs, residual)]);
    e.add(residual, c);
  }
  e.add(c, e.ptr[*args + offsetof(GemmArgs, c)]);
  if (desc.epilogue.bias) {
    e.imul(bias, n, kRowBytes);
    e.add(bias, e.ptr[*args + offsetof(GemmArgs, bias)]);
  }
  e.mov(sums, e.ptr[*args + offsetof(GemmArgs, scratch)]);
  e.mov(left, At(kRows));
  Xbyak::Label row;
  e.L(row);
  {
    const auto acc = regs.Vecs("acc", lanes.per_panel());
    std::vector<int> list;
    for (int v = 0; v < lanes.per_panel(); ++v) {
      list.push_back(acc[v]);
      e.vmovaps(lanes(acc[v]), e.ptr[*sums + v * lanes.bytes()]);
    }
    EmitRowEpilogue(desc, list, {*c, *residual, *bias}, 0, e, regs, lanes);
  }
  e.add(sums, kRowBytes);
  e.add(c, static_cast<int>(desc.ldc_bytes));
  if (desc.epilogue.residual) e.add(residual, static_cast<int>(desc.ldc_bytes));
  e.dec(left);
  e.jnz(row);
}

}  // namespace

absl::Status EmitFloatPanels(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e) {
  return Panels{desc, plan, ops, e}.Emit();
}

}  // namespace xjit
