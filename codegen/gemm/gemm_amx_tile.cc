// One register block of the AMX product: its steps, and what becomes of its sums at the end of a k block.
#include <algorithm>
#include <array>

#include "codegen/gemm/gemm_amx_kernel.h"
#include "ir/support/align.h"

namespace xjit {

using Xbyak::Label;
using Xbyak::Reg64;
using Xbyak::Tmm;

namespace {

// Steps of an unrolled loop body. Scale blocks of up to so many steps are unrolled whole, with the sums of the block
// before added up between their TDPs; longer ones hide that anyway.
constexpr int kUnroll = 4, kMostUnrolled = 8;

Tmm Sum(const AmxShape& shape, int row, int panel, int group) { return Tmm((row * shape.panels + panel) * 2 + group); }

// The tile registers that sums leave: to A in turn, and to B.
struct Operands {
  int first_a, count_a, first_b, count_b;
};
Operands OperandsOf(const AmxShape& shape) {
  const int free = 8 - shape.tiles();
  const int a = shape.rows == 2 || free == 6 ? 2 : 1;
  return {shape.tiles(), a, shape.tiles() + a, free - a};
}

}  // namespace

// The rows from row_ on, of the panels from panel_ on, over the k block.
void AmxKernel::Tile(const AmxShape& shape) {
  const auto sums = regs_.Gpr("sums");
  {
    const auto a = regs_.Gpr("a"), b = regs_.Gpr("b"), t = regs_.Gpr("t");
    e_.mov(a, row_);
    e_.shr(a, 4);
    e_.imul(a, a, static_cast<int>(layout_.strips.strip_bytes()));
    e_.add(a, At(kA));
    e_.add(a, At(kAOffset));
    e_.mov(b, At(kB));
    AddTimes(b, panel_, layout_.unpack ? scratch_.b_panel : layout_.panel_bytes, t);
    e_.mov(sums, At(kScratch));
    if (Waiting()) {
      AddTimes(sums, panel_, scratch_.sums_panel, t);
      e_.mov(t, row_);
      e_.sub(t, At(kM));
      AddTimes(sums, t, kSumBytes, t);
    }
    if (layout_.scale == AmxLayout::Scale::kBlocks) {
      ScaledSums(shape, a, b, sums);
    } else {
      PlainSums(shape, a, b, sums);
    }
  }
  Label done;
  if (Waiting()) {
    e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks - 1));
    e_.jne(done);
  }
  Finish(shape, sums);
  e_.L(done);
}

// Sums stay in tiles over the whole k block.
void AmxKernel::PlainSums(const AmxShape& shape, const Reg64& a, const Reg64& b, const Reg64& sums) {
  const auto each = [&](const auto& f) {
    for (int r = 0; r < shape.rows; ++r) {
      for (int p = 0; p < shape.panels; ++p) {
        for (int g = 0; g < 2; ++g) {
          const auto offset = static_cast<int>(r * kTileRows * kSumBytes + p * scratch_.sums_panel + g * 64);
          f(Sum(shape, r, p, g), e_.ptr[sums + *stride_ * 2 + offset]);
        }
      }
    }
  };
  Label first, begun;
  if (Waiting()) {
    e_.cmp(At(kBlock), 0);
    e_.je(first);
    each([&](const Tmm& tile, const Xbyak::Address& at) { e_.tileloadd(tile, at); });
    e_.jmp(begun);
    e_.L(first);
  }
  ZeroTiles(shape);
  e_.L(begun);
  const auto count = regs_.Gpr("count");
  e_.mov(count, At(kSteps));
  Steps(shape, a, b, count);
  each([&](const Tmm& tile, const Xbyak::Address& at) { e_.tilestored(at, tile); });
}

void AmxKernel::ZeroTiles(const AmxShape& shape) {
  for (int i = 0; i < shape.tiles(); ++i) e_.tilezero(Tmm(i));
}

// `count` > 0 steps; advances a and b past them.
void AmxKernel::Steps(const AmxShape& shape, const Reg64& a, const Reg64& b, const Reg64& count) {
  Label main, rest, one, done;
  e_.sub(count, kUnroll);
  e_.jl(rest);
  e_.L(main);
  Unrolled(shape, a, b, kUnroll);
  e_.sub(count, kUnroll);
  e_.jge(main);
  e_.L(rest);
  e_.add(count, kUnroll);
  e_.jz(done);
  e_.L(one);
  Unrolled(shape, a, b, 1);
  e_.dec(count);
  e_.jnz(one);
  e_.L(done);
}

void AmxKernel::Dot(const Tmm& sum, const Tmm& a, const Tmm& b) {
  switch (layout_.dot) {
    case TileDot::kBf16:
      return e_.tdpbf16ps(sum, a, b);
    case TileDot::kFp16:
      return e_.tdpfp16ps(sum, a, b);
    case TileDot::kInt8:
      return e_.tdpbsud(sum, a, b);
  }
}

// `between` is called after each TDP. A sum's TDPs are as far apart as the shape allows.
void AmxKernel::Unrolled(const AmxShape& shape, const Reg64& a, const Reg64& b, int steps,
                         const std::function<void()>& between) {
  const Operands regs = OperandsOf(shape);
  const auto b_panel = static_cast<int>(layout_.unpack ? scratch_.b_panel : layout_.panel_bytes);
  int next_b = 0;
  for (int s = 0; s < steps; ++s) {
    std::array<int, 2 * kMostPanels> tile_b{};
    for (int r = 0; r < shape.rows; ++r) {
      const Tmm tile_a(regs.first_a + (shape.rows == 2 ? r : s % regs.count_a));
      e_.tileloadd(tile_a, e_.ptr[a + *stride_ + static_cast<int>(r * layout_.strips.strip_bytes() + s * kTileBytes)]);
      for (int j = 0; j < 2 * shape.panels; ++j) {
        if (r == 0) {
          tile_b[j] = regs.first_b + next_b++ % regs.count_b;
          e_.tileloadd(Tmm(tile_b[j]), e_.ptr[b + *stride_ * 2 + (j / 2 * b_panel + j % 2 * 64 + s * kStepBytes)]);
        }
        const Tmm sum = Sum(shape, r, j / 2, j % 2);
        Dot(sum, tile_a, Tmm(tile_b[j]));
        between();
      }
    }
  }
  e_.add(a, steps * kTileBytes);
  e_.add(b, steps * kStepBytes);
}

// Sums of a scale block leave the tiles after it and are added up in f32, multiplied by its scales, while the next
// one's are computed.
void AmxKernel::ScaledSums(const AmxShape& shape, const Reg64& a, const Reg64& b, const Reg64& sums) {
  const auto header = regs_.Gpr("header"), stage = regs_.Gpr("stage"), blocks = regs_.Gpr("blocks"),
             count = regs_.Gpr("count");
  const auto steps = static_cast<int>(layout_.blocks.depth / layout_.step_k);
  const auto block_bytes = static_cast<int>(layout_.packed_bytes);
  const int64_t last = desc_.k % layout_.blocks.depth;  // k's of a shorter last block
  e_.mov(header, At(kN));
  e_.add(header, panel_);
  e_.imul(header, header, static_cast<int>(layout_.panel_bytes));
  e_.add(header, At(kW));
  e_.add(header, At(kWOffset));
  e_.mov(stage, At(kScratch));
  e_.add(stage, static_cast<int>(scratch_.stage));
  Label resume;
  if (Waiting()) {
    e_.cmp(At(kBlock), 0);
    e_.jne(resume);
  }
  ZeroSums(shape, sums);
  e_.L(resume);

  Label whole, folded, rest, done;
  e_.mov(blocks, At(kScaleBlocks));
  if (last != 0) {
    e_.test(blocks, blocks);
    e_.jz(rest);
  }
  ZeroTiles(shape);
  e_.mov((*count).cvt32(), steps);
  Steps(shape, a, b, count);
  StoreStage(shape, stage);
  e_.dec(blocks);
  e_.jz(folded);
  e_.L(whole);
  ZeroTiles(shape);
  if (steps <= kMostUnrolled) {
    const auto scales = regs_.Vecs("scales", 2 * shape.panels), temp = regs_.Vecs("temp", 4);
    LoadScales(shape, header, scales);
    const int rows = shape.rows * shape.panels * kTileRows, dots = steps * shape.tiles();
    int row = 0, dot = 0;
    Unrolled(shape, a, b, steps, [&] {
      for (++dot; row < rows * dot / dots; ++row) {
        // With two tiles of rows their sums are side by side like one panel's.
        const int tile = row / kTileRows, panel = shape.rows == 2 ? 0 : tile;
        const auto at = static_cast<int>(panel * scratch_.sums_panel + (row - panel * kTileRows) * kSumBytes);
        for (int g = 0; g < 2; ++g) {
          const auto sum = temp.Z(static_cast<size_t>(row % 2 * 2 + g));
          e_.vmovaps(sum, e_.ptr[sums + at + 64 * g]);
          e_.vfmadd231ps(sum, scales.Z(static_cast<size_t>(2 * panel + g)), e_.ptr[*stage + row * kSumBytes + 64 * g]);
          e_.vmovaps(e_.ptr[sums + at + 64 * g], sum);
        }
      }
    });
  } else {
    Fold(shape, sums, stage, header);
    e_.mov((*count).cvt32(), steps);
    Steps(shape, a, b, count);
  }
  StoreStage(shape, stage);
  e_.add(header, block_bytes);
  e_.dec(blocks);
  e_.jnz(whole);
  e_.L(folded);
  Fold(shape, sums, stage, header);
  if (last != 0) {
    e_.add(header, block_bytes);
    e_.L(rest);
    if (Waiting()) {
      e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks - 1));
      e_.jne(done);
    }
    ZeroTiles(shape);
    e_.mov((*count).cvt32(), static_cast<int>(layout_.steps(last)));
    Steps(shape, a, b, count);
    StoreStage(shape, stage);
    Fold(shape, sums, stage, header);
    e_.L(done);
  }
}

void AmxKernel::ZeroSums(const AmxShape& shape, const Reg64& sums) {
  const auto zero = regs_.Vecs("zero");
  const auto at = regs_.Gpr("at"), left = regs_.Gpr("left");
  e_.vpxord(zero.Z(), zero.Z(), zero.Z());
  e_.mov(at, sums);
  e_.mov((*left).cvt32(), shape.rows * kTileRows);
  Label next;
  e_.L(next);
  for (int p = 0; p < shape.panels; ++p) {
    for (int g = 0; g < 2; ++g) {
      e_.vmovaps(e_.ptr[*at + (static_cast<int>(p * scratch_.sums_panel) + 64 * g)], zero.Z());
    }
  }
  e_.add(at, kSumBytes);
  e_.dec(left);
  e_.jnz(next);
}

void AmxKernel::StoreStage(const AmxShape& shape, const Reg64& stage) {
  for (int r = 0; r < shape.rows; ++r) {
    for (int p = 0; p < shape.panels; ++p) {
      for (int g = 0; g < 2; ++g) {
        const int offset = (r + p) * kTileRows * kSumBytes + 64 * g;
        e_.tilestored(e_.ptr[stage + *stride_ * 2 + offset], Sum(shape, r, p, g));
      }
    }
  }
}

void AmxKernel::LoadScales(const AmxShape& shape, const Reg64& header, const Regs::VecList& scales) {
  for (int p = 0; p < shape.panels; ++p) {
    for (int g = 0; g < 2; ++g) {
      const auto scale = scales.Z(static_cast<size_t>(2 * p + g));
      const auto panel = static_cast<int>(p * layout_.panel_bytes);
      if (layout_.blocks.scale == DType::kF16) {
        e_.vcvtph2ps(scale, e_.yword[header + (panel + 32 * g)]);
      } else {
        e_.vmovups(scale, e_.ptr[header + (panel + 64 * g)]);
      }
    }
  }
}

// sums += stage * scales, all rows.
void AmxKernel::Fold(const AmxShape& shape, const Reg64& sums, const Reg64& stage, const Reg64& header) {
  const auto scales = regs_.Vecs("scales", 2 * shape.panels), temp = regs_.Vecs("temp", 2 * shape.panels);
  const auto at = regs_.Gpr("at"), left = regs_.Gpr("left");
  LoadScales(shape, header, scales);
  e_.mov(at, sums);
  e_.mov((*left).cvt32(), shape.rows * kTileRows);
  Label next;
  e_.L(next);
  for (int j = 0; j < 2 * shape.panels; ++j) {
    const auto sum = temp.Z(static_cast<size_t>(j)), scale = scales.Z(static_cast<size_t>(j));
    const int group = 64 * (j % 2);
    const auto to = e_.ptr[*at + (static_cast<int>(j / 2 * scratch_.sums_panel) + group)];
    e_.vmovaps(sum, to);
    e_.vfmadd231ps(sum, scale, e_.ptr[stage + (j / 2 * kTileRows * kSumBytes + group)]);
    e_.vmovaps(to, sum);
  }
  e_.add(at, kSumBytes);
  e_.add(stage, kSumBytes);
  e_.dec(left);
  e_.jnz(next);
  e_.sub(stage, shape.rows * kTileRows * kSumBytes);
}

}  // namespace xjit
