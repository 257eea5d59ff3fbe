// Many rows: packed weights of a k block to f32, or to pairs of bf16 and their scales, in scratch.
#include <span>

#include "codegen/gemm/gemm_fma_panels.h"
#include "codegen/gemm/gemm_fma_weights.h"

namespace xjit {

// Vectors of step k (of pairs: pair k) to their place behind b.
WeightSink FloatPanels::Store(const Xbyak::Reg64& b) {
  return [this, b](int k, int first, std::span<const int> v) {
    for (size_t j = 0; j < v.size(); ++j) {
      e.vmovaps(e.ptr[b + k * kPanelRowBytes + (first + static_cast<int>(j)) * lanes.bytes()], lanes(v[j]));
    }
  };
}

// w = the packed k block of the panel, b = its place in scratch.
void FloatPanels::BeginPanel(const Xbyak::Reg64& panel, const Xbyak::Reg64& w, const Xbyak::Reg64& b) {
  e.mov(w, At(kW, panel));
  e.mov(b, b_stride);
  e.imul(b, panel);
  e.add(b, Arg(offsetof(GemmArgs, scratch)));
  Add(b, panels * scratch.sums);
}

// Unpacks the next k block of each panel to its place in scratch; kW is behind it afterwards.
void FloatPanels::Unpack() {
  const auto w = regs.Gpr("w"), b = regs.Gpr("b"), units = regs.Gpr("units"), inner = regs.Gpr("inner"),
             panel = regs.Gpr("panel");
  const auto reader = MakeWeightReader(desc.w, plan.vbmi, e, regs, lanes);
  WeightCursor at{*w, *b, kPanelRowBytes, *inner, kTable};
  at.touch = [&](int offset, int bytes) { EmitPrefetch(plan, w, offset, bytes, e); };
  const WeightSink store = Store(b);
  Xbyak::Label next, unit, units_done, done;
  e.xor_(panel, panel);
  e.L(next);
  BeginPanel(panel, w, b);
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
  e.mov(At(kW, panel), w);
  e.inc(panel);
  e.cmp(panel, At(kPanelCount));
  e.jl(next);
}

// The same for pairs of bf16 and their scales. Of a single scale block kUnits counts units, of several whole ones.
void FloatPanels::UnpackPairs() {
  const auto w = regs.Gpr("w"), b = regs.Gpr("b"), units = regs.Gpr("units"), header = regs.Gpr("header"),
             panel = regs.Gpr("panel"), scales = regs.Gpr("scales"), count = regs.Gpr("count");
  const auto reader = MakePairReader(desc.w, plan.vbmi, e, regs);
  reader->Constants();
  WeightCursor at{*w, *b, kPanelRowBytes / 2, *header, kTable};
  const PairSink store = Store(b);
  // Zeros behind the last k's up to a whole chunk.
  const auto pad = [&](int64_t k) {
    const auto odd = static_cast<int>(k % (2 * kTileSteps));
    if (odd == 0) return;
    const auto zero = regs.Vecs("zero");
    lanes.Zero(zero[0]);
    for (int pair = CeilDiv(odd, 2); pair < kTileSteps; ++pair) {
      for (int v = 0; v < lanes.per_panel(); ++v) {
        e.vmovaps(e.ptr[*b + pair * kPanelRowBytes - odd * kPanelRowBytes / 2 + v * lanes.bytes()], lanes(zero[0]));
      }
    }
  };
  Xbyak::Label next, unit, units_done, done, rest_done;
  e.xor_(panel, panel);
  e.L(next);
  BeginPanel(panel, w, b);
  e.lea(scales, e.ptr[*b + static_cast<int>(scratch.weights)]);
  if (several) {
    const auto block = [&](int64_t elems) {
      e.mov(header, w);
      CopyScales(header, scales);
      Add(scales, kPanelRowBytes);
      reader->LoadZeros(header);
      Add(w, scaled.header_bytes());
      ReadUnits(elems, *reader, at, units, store, e);
      e.lea(w, e.ptr[*header + static_cast<int>(scaled.block_bytes(elems))]);
    };
    e.mov(count, At(kUnits));
    e.test(count, count);
    e.jz(units_done);
    e.L(unit);
    block(scaled.depth);
    e.dec(count);
    e.jnz(unit);
    e.L(units_done);
    if (const int64_t elems = desc.k % scaled.depth; elems != 0) {
      e.cmp(At(kBlocks), 1);
      e.jne(done);
      block(elems);
      pad(elems);
      e.L(done);
    }
  } else {
    e.mov(header, At(kN));
    e.add(header, panel);
    e.mov(count, panel_bytes);
    e.imul(header, count);
    e.add(header, Arg(offsetof(GemmArgs, w)));
    Xbyak::Label begun;
    if (!one_block) {
      e.cmp(At(kBlocks), static_cast<int>(blocks));
      e.jne(begun);
    }
    CopyScales(header, scales);
    Add(w, scaled.header_bytes());
    e.L(begun);
    reader->LoadZeros(header);
    e.mov(count, At(kUnits));
    e.test(count, count);
    e.jz(units_done);
    e.L(unit);
    reader->Unit(at, store);
    e.dec(count);
    e.jnz(unit);
    e.L(units_done);
    const int64_t last = desc.k - (blocks - 1) * plan.k_block;
    if (last % (2 * kTileSteps) != 0) {
      if (!one_block) {
        e.cmp(At(kBlocks), 1);
        e.jne(done);
      }
      if (const auto tail = static_cast<int>(last % reader->unit()); tail != 0) reader->Tail(tail, at, store);
      pad(last);
      e.L(done);
    }
  }
  e.mov(At(kW, panel), w);
  e.inc(panel);
  e.cmp(panel, At(kPanelCount));
  e.jl(next);
}

void FloatPanels::CopyScales(const Xbyak::Reg64& header, const Xbyak::Reg64& scales) {
  const auto scale = regs.Vecs("scale");
  for (int v = 0; v < lanes.per_panel(); ++v) {
    if (scaled.scale == DType::kF16) {
      e.vcvtph2ps(lanes(scale[0]), e.ptr[header + v * lanes.bytes() / 2]);
    } else {
      e.vmovups(lanes(scale[0]), e.ptr[header + v * lanes.bytes()]);
    }
    e.vmovaps(e.ptr[scales + v * lanes.bytes()], lanes(scale[0]));
  }
}

}  // namespace xjit
