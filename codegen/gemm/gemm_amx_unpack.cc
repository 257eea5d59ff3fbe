// Weights of a k block become bf16 (f16) tiles in scratch: steps of 32 k, [16 pairs][32 columns], as bf16 panels have
// them.
#include <array>

#include "codegen/gemm/gemm_amx_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pair_reader.h"
#include "ir/support/align.h"

namespace xjit {

using Xbyak::Label;
using Xbyak::Reg64;

namespace {

constexpr int kPairBytes = kPanelColumns * 4;

}  // namespace

// All panels of the block of columns.
void AmxKernel::Unpack() {
  const auto w = regs_.Gpr("w"), x = regs_.Gpr("x");
  e_.xor_((*panel_).cvt32(), (*panel_).cvt32());
  const auto each_panel = [&](const std::function<void()>& one) {
    Label next;
    e_.L(next);
    e_.mov(w, At(kN));
    e_.add(w, panel_);
    e_.imul(w, w, static_cast<int>(layout_.panel_bytes));
    e_.add(w, At(kW));
    e_.imul(x, panel_, static_cast<int>(scratch_.b_panel));
    e_.add(x, At(kScratch));
    e_.add(x, static_cast<int>(scratch_.b));
    one();
    e_.inc(panel_);
    e_.cmp(panel_, At(kPanels));
    e_.jl(next);
  };
  if (layout_.dot == TileDot::kFp16) {
    UnpackHalves(w, x, each_panel);
  } else if (HasScalesOutside(desc_.w.type)) {
    UnpackScaled(w, x, each_panel);
  } else {
    UnpackPlain(w, x, each_panel);
  }
}

void AmxKernel::InLastBlock(const std::function<void()>& code) {
  Label skip;
  if (Waiting()) {
    e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks - 1));
    e_.jne(skip);
  }
  code();
  e_.L(skip);
}

// f16: rows of 32 columns, two of which become a row of pairs.
void AmxKernel::UnpackHalves(const Reg64& w, const Reg64& x, const EachPanel& each_panel) {
  constexpr int kRowBytes = kPanelColumns * 2, kPairs = 4;
  const auto left = regs_.Gpr("left");
  const auto order = regs_.Vecs("order", 2), rows = regs_.Vecs("rows", 2), pairs = regs_.Vecs("pairs", 2);
  for (int g = 0; g < 2; ++g) {
    std::array<uint16_t, 32> from;  // from 32 on: of the second row
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint16_t>(16 * g + i / 2 + i % 2 * 32);
    e_.vmovdqa64(order.Z(g), e_.ConstZmm(from.data()));
  }
  const auto pair = [&](int i, bool second) {
    e_.vmovdqu64(rows.Z(0), e_.ptr[w + 2 * i * kRowBytes]);
    if (second) {
      e_.vmovdqu64(rows.Z(1), e_.ptr[w + (2 * i + 1) * kRowBytes]);
    } else {
      e_.vpxord(rows.Z(1), rows.Z(1), rows.Z(1));
    }
    for (size_t g = 0; g < 2; ++g) {
      e_.vmovdqa64(pairs.Z(g), order.Z(g));
      e_.vpermi2w(pairs.Z(g), rows.Z(0), rows.Z(1));
      e_.vmovdqa64(e_.ptr[x + (i * kPairBytes + 64 * static_cast<int>(g))], pairs.Z(g));
    }
  };
  const auto loop = [&](int unroll) {
    Label next, none;
    e_.test(left, left);
    e_.jz(none);
    e_.L(next);
    for (int i = 0; i < unroll; ++i) pair(i, true);
    e_.add(w, unroll * 2 * kRowBytes);
    e_.add(x, unroll * kPairBytes);
    e_.dec(left);
    e_.jnz(next);
    e_.L(none);
  };
  const int64_t last = LastK();
  each_panel([&] {
    e_.add(w, At(kWOffset));
    LoadByBlock(left, plan_.k_block / (2 * kPairs), last / (2 * kPairs));
    loop(kPairs);
    if (last % layout_.step_k == 0) return;
    InLastBlock([&] {
      e_.mov((*left).cvt32(), static_cast<int>(last % (2 * kPairs) / 2));
      loop(1);
      if (last % 2 == 1) {
        pair(0, false);
        e_.add(x, kPairBytes / 2);
      }
      ZeroRest(x, last);
    });
  });
}

// GGUF's encodings: f32 values are rounded to bf16, two k's of a column into a dword.
void AmxKernel::UnpackPlain(const Reg64& w, const Reg64& x, const EachPanel& each_panel) {
  const auto units = regs_.Gpr("units"), inner = regs_.Gpr("inner");
  const auto reader = MakeWeightReader(desc_.w, plan_.vbmi, e_, regs_, lanes_);
  const auto even = regs_.Vecs("even", 2), interleave = regs_.Vecs("interleave");
  std::array<uint16_t, 32> order;
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  e_.vmovdqa64(interleave.Z(), e_.ConstZmm(order.data()));
  const WeightSink store = [&](int k, int first, std::span<const int> v) {
    for (size_t j = 0; j < v.size(); ++j) {
      const auto group = static_cast<size_t>(first) + j;
      if (k % 2 == 0) {
        e_.vmovaps(even.Z(group), Xbyak::Zmm(v[j]));
      } else {
        e_.vcvtne2ps2bf16(even.Z(group), Xbyak::Zmm(v[j]), even.Z(group));
        e_.vpermw(even.Z(group), interleave.Z(), even.Z(group));
        e_.vmovdqa64(e_.ptr[x + (k / 2 * kPairBytes + 64 * static_cast<int>(group))], even.Z(group));
      }
    }
  };
  const WeightCursor at{w, x, kPairBytes / 2, *inner, kFrame};
  each_panel([&] {
    e_.add(w, At(kWOffset));
    LoadByBlock(units, plan_.k_block / reader->unit(), LastK() / reader->unit());
    Label unit;
    e_.L(unit);
    reader->Unit(at, store);
    e_.dec(units);
    e_.jnz(unit);
  });
}

// i8, f8e4m3, i4: exact values, without scales.
void AmxKernel::UnpackScaled(const Reg64& w, const Reg64& x, const EachPanel& each_panel) {
  const auto units = regs_.Gpr("units"), inner = regs_.Gpr("inner");
  const auto reader = MakePairReader(desc_.w, plan_.vbmi, e_, regs_);
  reader->Constants();
  const PairSink store = [&](int pair, int first, std::span<const int> v) {
    for (size_t j = 0; j < v.size(); ++j) {
      e_.vmovdqa64(e_.ptr[x + (pair * kPairBytes + 64 * (first + static_cast<int>(j)))], Xbyak::Zmm(v[j]));
    }
  };
  const WeightCursor at{w, x, kPairBytes / 2, *inner, kFrame};
  // Units counted by the register `units`, which is not 0.
  const auto loop = [&] {
    Label unit;
    e_.L(unit);
    reader->Unit(at, store);
    e_.dec(units);
    e_.jnz(unit);
  };
  const int unit = reader->unit();
  // The last k's: what is no whole unit, and zeros up to whole steps.
  const auto tail = [&](int64_t k) {
    if (k % unit != 0) reader->Tail(static_cast<int>(k % unit), at, store);
    ZeroRest(x, k);
  };
  if (layout_.scale == AmxLayout::Scale::kOnce) {
    each_panel([&] {
      reader->LoadZeros(w);
      e_.add(w, At(kWOffset));
      LoadByBlock(units, plan_.k_block / unit, LastK() / unit);
      Label none;
      e_.test(units, units);
      e_.jz(none);
      loop();
      e_.L(none);
      if (LastK() % layout_.step_k != 0) InLastBlock([&] { tail(LastK()); });
    });
    return;
  }
  const auto blocks = regs_.Gpr("blocks");
  const int64_t depth = layout_.blocks.depth, last = desc_.k % depth;
  each_panel([&] {
    e_.add(w, At(kWOffset));
    Label next, done;
    e_.mov(blocks, At(kScaleBlocks));
    e_.test(blocks, blocks);
    e_.jz(done);
    e_.L(next);
    reader->LoadZeros(w);
    e_.add(w, layout_.blocks.header_bytes());
    e_.mov((*units).cvt32(), static_cast<int>(depth / unit));
    loop();
    e_.dec(blocks);
    e_.jnz(next);
    e_.L(done);
    if (last == 0) return;
    InLastBlock([&] {
      reader->LoadZeros(w);
      e_.add(w, layout_.blocks.header_bytes());
      if (last >= unit) {
        e_.mov((*units).cvt32(), static_cast<int>(last / unit));
        loop();
      }
      tail(last);
    });
  });
}

// Zeros for the pairs behind the last of `k` k's of a step that has some; x counts k's.
void AmxKernel::ZeroRest(const Reg64& x, int64_t k) {
  const auto used = static_cast<int>(k % layout_.step_k);
  if (used == 0) return;
  const auto zero = regs_.Vecs("zero");
  e_.vpxord(zero.Z(), zero.Z(), zero.Z());
  // x is past an odd k, in the middle of its pair.
  for (int pair = static_cast<int>(CeilDiv(used, 2)); pair < layout_.step_k / 2; ++pair) {
    const int offset = pair * kPairBytes - used * (kPairBytes / 2);
    for (int g = 0; g < 2; ++g) e_.vmovdqa64(e_.ptr[x + (offset + 64 * g)], zero.Z());
  }
}

}  // namespace xjit
