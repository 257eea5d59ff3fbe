// Many rows: register blocks over panels side by side (gemm_fma_kernel.h).
#include "codegen/gemm/gemm_fma_panels.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/pair_reader.h"
#include "codegen/regs.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {
absl::Status FloatPanels::Emit() {
  if (panels > kMostFloatPanels) return Internal("{} panels side by side, at most {}", panels, kMostFloatPanels);
  e.Prologue(kTable + kWeightTableBytes);
  e.mov(args, e.arg_args);
  e.mov(At(kN), e.arg_n0);
  e.mov(At(kN1), e.arg_n1);
  e.mov(At(kM0), e.arg_m0);
  e.mov(At(kM1), e.arg_m1);
  regs.FreeArguments();
  Xbyak::Label panel, rows, next_panel, done;
  e.L(panel);
  {
    const auto n = regs.Gpr("n"), count = regs.Gpr("count"), most = regs.Gpr("most");
    e.mov(count, At(kN1));
    e.sub(count, At(kN));
    e.jle(done);
    e.mov(most, panels);
    e.cmp(count, most);
    e.cmovg(count, most);
    e.mov(At(kPanelCount), count);
    e.mov(n, At(kM0));
    e.mov(At(kM), n);
  }
  e.L(rows);
  {
    const auto left = regs.Gpr("left");
    e.mov(left, At(kM1));
    e.sub(left, At(kM));
    e.jle(next_panel);
    if (!one_block) {
      const auto most = regs.Gpr("most");
      e.mov(most, plan.m_block);
      e.cmp(left, most);
      e.cmovg(left, most);
    }
    e.mov(At(kRows), left);
  }
  RowBlock();
  {
    const auto count = regs.Gpr("count");
    e.mov(count, At(kRows));
    e.add(At(kM), count);
  }
  e.jmp(rows);
  e.L(next_panel);
  e.add(At(kN), static_cast<int>(panels));
  e.jmp(panel);
  e.L(done);
  e.Epilogue();
  return regs.status();
}

// Panels from n on for kRows rows from m on.
void FloatPanels::RowBlock() {
  {
    const auto at = regs.Gpr("at"), stride = regs.Gpr("stride");
    e.mov(stride, panel_bytes);
    e.mov(at, At(kN));
    e.imul(at, stride);
    e.add(at, Arg(offsetof(GemmArgs, w)));
    for (int i = 0; i < panels; ++i) {
      e.mov(At(kW + i), at);
      e.add(at, stride);
    }
    e.mov(at, At(kM));
    e.imul(at, at, static_cast<int>(a_row_bytes));
    e.add(at, Arg(offsetof(GemmArgs, a)));
    e.mov(At(kBlockA), at);
  }
  if (unpack && !pairs) {
    WeightCursor start;
    start.table = kTable;
    MakeWeightReader(desc.w, plan.vbmi, e, regs, lanes)->Begin(start);
  }
  e.mov(At(kBlocks), static_cast<int>(blocks));
  Xbyak::Label block;
  e.L(block);
  KBlock();
  e.add(At(kBlockA), static_cast<int>(block_steps / kTileSteps * a_chunk));
  e.dec(At(kBlocks));
  e.jnz(block);
}

// One k block: its loop counts, its unpacking, all rows.
void FloatPanels::KBlock() {
  const auto set = [&](Slot slot, int64_t full, int64_t last) {
    const auto value = regs.Gpr("value"), other = regs.Gpr("other");
    e.mov(value, last);
    if (!one_block && full != last) {
      e.mov(other, full);
      e.cmp(At(kBlocks), 1);
      e.cmovne(value, other);
    }
    e.mov(At(slot), value);
  };
  set(kChunks, block_steps / kTileSteps, pairs ? CeilDiv(last_block, kTileSteps) : last_block / kTileSteps);
  const int64_t packed_block = unpack ? CeilDiv(panel_bytes, blocks) : block_steps * kPanelRowBytes;
  if (several) {
    const int64_t last = desc.k - (blocks - 1) * plan.k_block;
    set(kUnits, plan.k_block / scaled.depth, last / scaled.depth);
    set(kScales, plan.k_block / scaled.depth, CeilDiv(last, scaled.depth));
  } else if (unpack) {
    const int64_t unit = pairs ? PairUnit(desc.w) : WeightUnit(desc.w);
    set(kUnits, plan.k_block / unit, (desc.k - (blocks - 1) * plan.k_block) / unit);
  }
  if (pairs) {
    UnpackPairs();
  } else if (unpack) {
    Unpack();
  }
  if (PrefetchNext()) {
    for (int i = 0; i < panels; ++i) FindNext(i, packed_block);
  }
  Groups();
  if (!unpack && !one_block) {
    for (int i = 0; i < panels; ++i) e.add(At(kW + i), static_cast<int>(block_steps * kPanelRowBytes));
  }
}

// Which packed bytes are prefetched while rows run: of the panel's next k block, or of the panels that come next.
void FloatPanels::FindNext(int panel, int64_t packed_block) {
  const auto next = regs.Gpr("next"), end = regs.Gpr("end"), stride = regs.Gpr("stride");
  Xbyak::Label found, more_rows, other, none;
  if (!one_block) {
    e.mov(next, At(kW + panel));
    if (!unpack) Add(next, packed_block);
    e.cmp(At(kBlocks), 1);
    e.jne(found);
  }
  e.mov(next, At(kM));
  e.add(next, At(kRows));
  e.cmp(next, At(kM1));
  e.mov(next, At(kN));
  e.jl(more_rows);  // these panels once more
  Add(next, panels);
  e.L(more_rows);
  Add(next, panel);
  e.cmp(next, static_cast<int>(desc.panels()));
  e.jge(none);
  e.mov(stride, panel_bytes);
  e.imul(next, stride);
  e.add(next, Arg(offsetof(GemmArgs, w)));
  e.L(found);
  e.lea(end, e.ptr[*next + static_cast<int>(packed_block)]);
  e.jmp(other);
  e.L(none);
  e.mov(next, At(kW + panel));
  e.mov(end, next);
  e.L(other);
  e.mov(At(kNext + panel), next);
  e.mov(At(kNextEnd + panel), end);
}

// The k block over all rows.
void FloatPanels::Groups() {
  {
    const auto t = regs.Gpr("t"), c = regs.Gpr("c");
    e.mov(t, At(kBlockA));
    e.mov(At(kGroupA), t);
    e.mov(t, Arg(offsetof(GemmArgs, scratch)));
    e.mov(At(kGroupSums), t);
    e.mov(t, At(kRows));
    e.mov(At(kLeft), t);
    e.imul(c, At(kM), static_cast<int>(desc.ldc_bytes));
    e.imul(t, At(kN), PanelBytesOfC(desc));
    e.add(c, t);
    e.mov(At(kGroupC), c);
  }
  Xbyak::Label group, panel;
  e.L(group);
  {
    const auto rows = regs.Gpr("rows"), most = regs.Gpr("most"), bias = regs.Gpr("bias");
    e.mov(rows, At(kLeft));
    e.mov(most, group_rows);
    e.cmp(rows, most);
    e.cmovg(rows, most);
    e.mov(At(kGroupRows), rows);
    e.mov(At(kPanel), 0);
    if (desc.epilogue.bias) {
      e.imul(bias, At(kN), kPanelRowBytes);
      e.add(bias, Arg(offsetof(GemmArgs, bias)));
      e.mov(At(kBias), bias);
    }
  }
  {
    const auto b = regs.Gpr("b"), sums = regs.Gpr("sums"), c = regs.Gpr("c");
    if (unpack) {
      e.mov(b, Arg(offsetof(GemmArgs, scratch)));
      Add(b, panels * scratch.sums);
    } else {
      e.mov(b, At(kW));
    }
    e.mov(sums, At(kGroupSums));
    e.mov(c, At(kGroupC));
    e.L(panel);
    {
      const auto a = regs.Gpr("a"), sums_row = regs.Gpr("sums_row"), c_row = regs.Gpr("c_row"), left = regs.Gpr("left");
      e.mov(a, At(kGroupA));
      e.mov(sums_row, sums);
      e.mov(c_row, c);
      e.mov(left, At(kGroupRows));
      RowsOf({a, b, sums_row, c_row}, left);
    }
    if (panels > 1) {
      const auto next = regs.Gpr("next");
      Add(b, b_stride);
      if (!one_block) Add(sums, scratch.sums);
      Add(c, PanelBytesOfC(desc));
      if (desc.epilogue.bias) e.add(At(kBias), kPanelRowBytes);
      e.mov(next, At(kPanel));
      e.inc(next);
      e.mov(At(kPanel), next);
      e.cmp(next, At(kPanelCount));
      e.jl(panel);
    }
  }
  e.add(At(kGroupA), static_cast<int>(group_rows * a_row_bytes));
  if (!one_block) e.add(At(kGroupSums), group_rows * kPanelRowBytes);
  e.add(At(kGroupC), static_cast<int>(group_rows * desc.ldc_bytes));
  e.sub(At(kLeft), group_rows);
  e.jg(group);
}

// `left` rows of one panel, in register blocks.
void FloatPanels::RowsOf(const Rows& at, const Xbyak::Reg64& left) {
  std::vector<int> sizes = {plan.tile_rows};
  if (desc.rows > 0) {
    if (desc.rows % plan.tile_rows != 0) sizes.push_back(static_cast<int>(desc.rows % plan.tile_rows));
  } else {
    for (int rows : {8, 4, 2, 1}) {
      if (rows < plan.tile_rows) sizes.push_back(rows);
    }
  }
  Xbyak::Label next, done;
  e.L(next);
  for (const int rows : sizes) {
    Xbyak::Label fewer;
    e.cmp(left, rows);
    e.jl(fewer);
    Tile(rows, at);
    Add(at.a, int64_t{rows} * a_row);
    if (!one_block) Add(at.sums, rows * kPanelRowBytes);
    Add(at.c, rows * desc.ldc_bytes);
    e.sub(left, rows);
    e.jg(next);
    e.jmp(done);
    e.L(fewer);
  }
  e.L(done);
}

// `rows` rows, all columns of the panel; with the last k block also their epilogue.
void FloatPanels::Tile(int rows, const Rows& at) {
  Xbyak::Label not_last, unfinished;
  if (PrefetchNext() && rows == plan.tile_rows) {
    if (!one_block) {
      e.cmp(At(kBlocks), 1);
      e.jne(not_last);
    }
    PrefetchC(rows, at);
    e.L(not_last);
  }
  if (several) {
    TileScaled(rows, at);
  } else {
    for (int first = 0; first < lanes.per_panel(); first += kTileVectors) TileVectors(rows, first, at);
  }
  if (!one_block) {
    e.cmp(At(kBlocks), 1);
    e.jne(unfinished);
  }
  Finish(rows, at);
  e.L(unfinished);
}

void FloatPanels::PrefetchC(int rows, const Rows& at) {
  const auto c = regs.Gpr("c");
  const auto each = [&](size_t base, auto&& prefetch) {
    e.mov(c, Arg(base));
    e.add(c, at.c);
    for (int row = 0; row < rows; ++row) {
      for (int line = 0; line < PanelBytesOfC(desc); line += 64) {
        prefetch(e.ptr[*c + static_cast<int>(row * desc.ldc_bytes) + line]);
      }
    }
  };
  if (desc.epilogue.residual) each(offsetof(GemmArgs, residual), [&](const auto& place) { e.prefetcht0(place); });
  each(offsetof(GemmArgs, c), [&](const auto& place) { e.prefetchw(place); });
}

// kTileVectors vectors of columns from `first` on.
void FloatPanels::TileVectors(int rows, int first, const Rows& at) {
  const auto a = regs.Gpr("a"), b = regs.Gpr("b"), count = regs.Gpr("count"), next = regs.Gpr("next"),
             next_step = regs.Gpr("next_step");
  const auto acc = regs.Vecs("acc", rows * kTileVectors);
  const auto sum = [&](int row, int v) { return e.ptr[at.sums + row * kPanelRowBytes + (first + v) * lanes.bytes()]; };
  const auto each = [&](auto&& action) {
    for (int row = 0; row < rows; ++row) {
      for (int v = 0; v < kTileVectors; ++v) action(row, v, acc[row * kTileVectors + v]);
    }
  };
  Xbyak::Label zero, ready;
  if (!one_block) {
    e.cmp(At(kBlocks), static_cast<int>(blocks));
    e.je(zero);
    each([&](int row, int v, int reg) { e.vmovaps(lanes(reg), sum(row, v)); });
    e.jmp(ready);
    e.L(zero);
  }
  each([&](int, int, int reg) { lanes.Zero(reg); });
  e.L(ready);
  if (PrefetchNext()) LoadNext(next, next_step);
  e.mov(a, at.a);
  e.mov(b, at.b);
  Xbyak::Label chunk, chunks_done, done;
  e.mov(count, At(kChunks));
  if (last_block < kTileSteps && !pairs) {
    e.test(count, count);
    e.jz(chunks_done);
  }
  e.L(chunk);
  TileSteps(rows, first, kTileSteps, a, b, acc, PrefetchNext() ? &*next : nullptr, &*next_step);
  e.dec(count);
  e.jnz(chunk);
  e.L(chunks_done);
  if (rest != 0) {
    if (!one_block) {
      e.cmp(At(kBlocks), 1);
      e.jne(done);
    }
    TileSteps(rows, first, rest, a, b, acc, nullptr, nullptr);
    e.L(done);
  }
  if (PrefetchNext()) StoreNext(next, count);
  each([&](int row, int v, int reg) { e.vmovaps(sum(row, v), lanes(reg)); });
}

// All columns, a scale block after the other.
void FloatPanels::TileScaled(int rows, const Rows& at) {
  const auto a = regs.Gpr("a"), b = regs.Gpr("b"), count = regs.Gpr("count"), next = regs.Gpr("next"),
             next_step = regs.Gpr("next_step");
  const auto acc = regs.Vecs("acc", rows * kTileVectors);
  const auto sum = [&](int i) {
    return e.ptr[at.sums + i / kTileVectors * kPanelRowBytes + i % kTileVectors * lanes.bytes()];
  };
  const int sums = rows * kTileVectors;
  Xbyak::Label begun, block, chunk;
  if (!one_block) {
    e.cmp(At(kBlocks), static_cast<int>(blocks));
    e.jne(begun);
  }
  lanes.Zero(acc[0]);
  for (int i = 0; i < sums; ++i) e.vmovaps(sum(i), lanes(acc[0]));
  e.L(begun);
  if (PrefetchNext()) LoadNext(next, next_step);
  e.mov(a, at.a);
  e.mov(b, at.b);
  const auto scales = regs.Gpr("scales");
  e.lea(scales, e.ptr[at.b + static_cast<int>(scratch.weights)]);
  e.mov(count, At(kScales));
  e.mov(At(kScalesLeft), count);
  e.L(block);
  for (int i = 0; i < sums; ++i) lanes.Zero(acc[i]);
  const int chunks = static_cast<int>(scaled.depth / (2 * kTileSteps));
  e.mov(count, chunks);
  if (const int64_t elems = desc.k % scaled.depth; elems != 0) {
    const int last = static_cast<int>(CeilDiv(elems, int64_t{2 * kTileSteps}));
    Xbyak::Label whole;
    e.cmp(At(kScalesLeft), 1);
    e.jne(whole);
    if (!one_block) {
      e.cmp(At(kBlocks), 1);
      e.jne(whole);
    }
    e.mov(count, last);
    e.L(whole);
  }
  e.L(chunk);
  TileSteps(rows, 0, kTileSteps, a, b, acc, PrefetchNext() ? &*next : nullptr, &*next_step);
  e.dec(count);
  e.jnz(chunk);
  {
    const auto scale = regs.Vecs("scale", kTileVectors);
    for (int v = 0; v < kTileVectors; ++v) e.vmovaps(lanes(scale[v]), e.ptr[*scales + v * lanes.bytes()]);
    for (int i = 0; i < sums; ++i) {
      e.vfmadd213ps(lanes(acc[i]), lanes(scale[i % kTileVectors]), sum(i));
      e.vmovaps(sum(i), lanes(acc[i]));
    }
  }
  Add(scales, kPanelRowBytes);
  e.dec(At(kScalesLeft));
  e.jnz(block);
  if (PrefetchNext()) StoreNext(next, count);
}

// next = where the panel's prefetching has got to, next_step = how far it goes at a time: 0 at its end.
void FloatPanels::LoadNext(const Xbyak::Reg64& next, const Xbyak::Reg64& next_step) {
  const auto t = regs.Gpr("t");
  e.mov(next_step, 32);
  e.mov(t, 64);
  e.cmp(At(kRows), kNextRows);
  e.cmovl(next_step, t);
  e.mov(t, At(kPanel));
  e.mov(next, At(kNext, t));
  e.cmp(next, At(kNextEnd, t));
  e.mov(t, 0);  // keeps the flags
  e.cmovge(next_step, t);
  e.cmp(At(kLeft), kNextRows);
  e.cmovg(next_step, t);
}

void FloatPanels::StoreNext(const Xbyak::Reg64& next, const Xbyak::Reg64& t) {
  e.mov(t, At(kPanel));
  e.mov(At(kNext, t), next);
}

void FloatPanels::TileSteps(int rows, int first, int count, const Xbyak::Reg64& a, const Xbyak::Reg64& b,
                            const Regs::VecList& acc, const Xbyak::Reg64* next, const Xbyak::Reg64* next_step) {
  const auto weight = regs.Vecs("weight", kTileVectors);
  const auto activation = regs.Vecs("activation", lanes.wide() ? 4 : 2);
  int turn = 0;
  for (int step = 0; step < count; ++step) {
    if (!unpack) EmitPrefetch(plan, b, step * kPanelRowBytes + first * lanes.bytes(), kTileVectors * lanes.bytes(), e);
    if (next != nullptr && step % kNextEvery == 0) {
      e.prefetcht1(e.ptr[*next]);
      e.add(*next, *next_step);
    }
    // A line of each row, which holds the next chunk.
    if (plan.prefetch_a && step % 2 == 0 && step / 2 < rows) e.prefetcht0(e.ptr[a + step / 2 * a_row + a_chunk]);
    for (int v = 0; v < kTileVectors; ++v) {
      e.vmovups(lanes(weight[v]), e.ptr[b + step * kPanelRowBytes + (first + v) * lanes.bytes()]);
    }
    for (int row = 0; row < rows; ++row) {
      const auto x = lanes(activation[turn++ % activation.size()]);
      e.vbroadcastss(x, e.ptr[a + row * a_row + 4 * step]);
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
  if (count < kTileSteps) return;
  Add(a, a_chunk);
  Add(b, kPanelRowBytes * count);
}

// The epilogue of the tile's rows.
void FloatPanels::Finish(int rows, const Rows& at) {
  const auto sums = regs.Gpr("sums"), left = regs.Gpr("left"), c = regs.Gpr("c"), residual = regs.Gpr("residual"),
             bias = regs.Gpr("bias");
  if (desc.epilogue.residual) {
    e.mov(residual, Arg(offsetof(GemmArgs, residual)));
    e.add(residual, at.c);
  }
  e.mov(c, Arg(offsetof(GemmArgs, c)));
  e.add(c, at.c);
  if (desc.epilogue.bias) e.mov(bias, At(kBias));
  e.mov(sums, at.sums);
  e.mov(left, rows);
  Xbyak::Label row;
  e.L(row);
  {
    const auto acc = regs.Vecs("acc", lanes.per_panel());
    std::vector<int> list;
    for (int v = 0; v < lanes.per_panel(); ++v) {
      list.push_back(acc[v]);
      e.vmovaps(lanes(acc[v]), e.ptr[*sums + v * lanes.bytes()]);
      if (pairs && !several) {
        e.vmulps(lanes(acc[v]), lanes(acc[v]), e.ptr[at.b + static_cast<int>(scratch.weights) + v * lanes.bytes()]);
      }
    }
    EmitRowEpilogue(desc, list, {*c, *residual, *bias}, 0, e, regs, lanes);
  }
  Add(sums, kPanelRowBytes);
  Add(c, desc.ldc_bytes);
  if (desc.epilogue.residual) Add(residual, desc.ldc_bytes);
  e.dec(left);
  e.jnz(row);
}

absl::Status EmitFloatPanels(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e) {
  return FloatPanels{desc, plan, ops, e}.Emit();
}

}  // namespace xjit
