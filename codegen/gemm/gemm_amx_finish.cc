// Sums of a register block become rows of C.
#include <array>

#include "codegen/gemm/gemm_amx_kernel.h"
#include "codegen/gemm/gemm_fma_epilogue.h"

namespace xjit {

using Xbyak::Label;
using Xbyak::Reg64;

void AmxKernel::Finish(const AmxShape& shape, const Reg64& sums) {
  if (shape.panels == 1) return FinishRows(shape, sums);
  e_.mov(At(kTiles), shape.panels);
  Label next;
  e_.L(next);
  FinishRows(shape, sums);
  e_.add(sums, static_cast<int>(scratch_.sums_panel));
  e_.inc(panel_);
  e_.dec(At(kTiles));
  e_.jnz(next);
  e_.sub(panel_, shape.panels);
}

// Panel panel_, the rows from row_ on that the call has.
void AmxKernel::FinishRows(const AmxShape& shape, const Reg64& sums) {
  const bool int8 = layout_.dot == TileDot::kInt8;
  const auto sum = regs_.Gpr("sum"), c = regs_.Gpr("c"), residual = regs_.Gpr("residual"), bias = regs_.Gpr("bias"),
             rows = regs_.Gpr("rows"), left = regs_.Gpr("left"), tail = regs_.Gpr("tail");
  const auto scale = regs_.Vecs("scale", 2), acc = regs_.Vecs("acc", 2);
  const std::array<int, 2> list = {acc[0], acc[1]};
  // `bias` counts panels at first.
  e_.mov(bias, At(kN));
  e_.add(bias, panel_);
  if (layout_.scale == AmxLayout::Scale::kOnce) {
    e_.imul(tail, bias, static_cast<int>(layout_.panel_bytes));
    e_.add(tail, At(kW));
    LoadScales({.rows = 1, .panels = 1}, tail, scale);
  }
  e_.imul(c, row_, static_cast<int>(desc_.ldc_bytes));
  AddTimes(c, bias, PanelBytesOfC(desc_), left);
  if (desc_.epilogue.residual) {
    e_.mov(residual, c);
    e_.add(residual, At(kResidual));
  }
  e_.add(c, At(kC));
  if (desc_.epilogue.bias) {
    e_.imul(bias, bias, kSumBytes);
    e_.add(bias, At(kBias));
  }
  if (int8) {
    e_.mov(tail, row_);
    e_.shr(tail, 4);
    e_.imul(tail, tail, static_cast<int>(layout_.strips.strip_bytes()));
    e_.add(tail, At(kA));
    e_.add(tail, static_cast<int>(layout_.strips.tail_offset()));
  }
  e_.mov(sum, sums);
  e_.mov(rows, At(kMEnd));
  e_.sub(rows, row_);
  const auto at_most = [&](const Reg64& dst, int most) {
    e_.mov(dst.cvt32(), most);
    e_.cmp(rows, dst);
    e_.cmovl(dst, rows);
  };
  at_most(left, shape.rows * kTileRows);
  Label strip, next;
  // A strip's scales are behind it; without them the rows of two strips are like those of one.
  if (int8 && shape.rows > 1) {
    e_.mov(rows, left);
    e_.L(strip);
    at_most(left, kTileRows);
  }
  e_.L(next);
  if (int8) {
    const auto offset = regs_.Vecs("offset");
    e_.vpslld(offset.Z(), e_.ptr_b[*tail + 4 * kTileRows], 7);
    for (int g = 0; g < 2; ++g) e_.vpaddd(acc.Z(g), offset.Z(), e_.ptr[*sum + 64 * g]);
    for (int g = 0; g < 2; ++g) e_.vcvtdq2ps(acc.Z(g), acc.Z(g));
    for (int g = 0; g < 2; ++g) e_.vmulps(acc.Z(g), acc.Z(g), e_.ptr_b[*tail]);
    for (int g = 0; g < 2; ++g) e_.vmulps(acc.Z(g), acc.Z(g), scale.Z(g));
    e_.add(tail, 4);
  } else {
    for (int g = 0; g < 2; ++g) {
      if (layout_.scale == AmxLayout::Scale::kOnce) {
        e_.vmulps(acc.Z(g), scale.Z(g), e_.ptr[*sum + 64 * g]);
      } else {
        e_.vmovaps(acc.Z(g), e_.ptr[*sum + 64 * g]);
      }
    }
  }
  EmitRowEpilogue(desc_, list, {*c, *residual, *bias}, 0, e_, regs_, lanes_);
  e_.add(sum, kSumBytes);
  e_.add(c, static_cast<int>(desc_.ldc_bytes));
  if (desc_.epilogue.residual) e_.add(residual, static_cast<int>(desc_.ldc_bytes));
  e_.dec(left);
  e_.jnz(next);
  if (int8 && shape.rows > 1) {
    e_.add(tail, static_cast<int>(layout_.strips.strip_bytes() - 4 * kTileRows));
    e_.sub(rows, kTileRows);
    e_.jg(strip);
  }
}

}  // namespace xjit
