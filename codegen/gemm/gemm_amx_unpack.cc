// Weights of a k block become bf16 tiles in scratch: steps of 32 k, [16 pairs][32 columns], as bf16 panels have them.
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
  if (HasScalesOutside(desc_.w.type)) {
    UnpackScaled(w, x, each_panel);
  } else {
    UnpackPlain(w, x, each_panel);
  }
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
  const int64_t block = desc_.k < plan_.k_block ? desc_.k : plan_.k_block;
  each_panel([&] {
    e_.add(w, At(kWOffset));
    LoadByBlock(units, block / reader->unit(), LastK() / reader->unit());
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
  const auto in_last_block = [&](const std::function<void()>& code) {
    Label skip;
    if (Waiting()) {
      e_.cmp(At(kBlock), static_cast<int>(scratch_.k_blocks - 1));
      e_.jne(skip);
    }
    code();
    e_.L(skip);
  };
  const int unit = reader->unit();
  const int64_t block = desc_.k < plan_.k_block ? desc_.k : plan_.k_block;
  // The last k's: what is no whole unit, and zeros up to whole steps.
  const auto tail = [&](int64_t k) {
    if (k % unit != 0) reader->Tail(static_cast<int>(k % unit), at, store);
    ZeroRest(x, k);
  };
  if (layout_.scale == AmxLayout::Scale::kOnce) {
    each_panel([&] {
      reader->LoadZeros(w);
      e_.add(w, At(kWOffset));
      LoadByBlock(units, block / unit, LastK() / unit);
      Label none;
      e_.test(units, units);
      e_.jz(none);
      loop();
      e_.L(none);
      if (LastK() % layout_.step_k != 0) in_last_block([&] { tail(LastK()); });
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
    in_last_block([&] {
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
