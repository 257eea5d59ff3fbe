#include "codegen/gemm/convert.h"

#include <fmt/format.h>

#include <cstddef>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/regs.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

constexpr int kRowBytes = kPanelColumns * 4;  // of one k in f32, of one pair of bf16

// The loop over panels; `panel` emits what converts one, from w to out, and leaves both at the next one.
struct Panels {
  Emitter& e;
  Lanes lanes;
  Regs regs{lanes.registers()};

  struct Cursor {
    WeightCursor at;
    Xbyak::Reg64 units, blocks;
  };
  template <typename Panel>
  absl::Status Emit(const ConvertDesc& desc, int x_step, Panel panel) {
    e.Prologue(kWeightTableBytes);
    const auto n = regs.Gpr("n"), w = regs.Gpr("w"), out = regs.Gpr("out"), units = regs.Gpr("units"),
               blocks = regs.Gpr("blocks"), inner = regs.Gpr("inner");
    Xbyak::Label next, done;
    e.mov(n, e.arg_n1);
    e.sub(n, e.arg_n0);
    e.jle(done);
    e.mov(w, PanelBytes(desc.w, desc.k));
    e.imul(w, e.arg_n0);
    e.add(w, e.ptr[e.arg_args + offsetof(ConvertArgs, w)]);
    e.mov(out, desc.panel_out_bytes());
    e.imul(out, e.arg_n0);
    e.add(out, e.ptr[e.arg_args + offsetof(ConvertArgs, out)]);
    e.L(next);
    panel(Cursor{{*w, *out, x_step, *inner, 0}, *units, *blocks});
    e.dec(n);
    e.jnz(next);
    e.L(done);
    e.Epilogue();
    return regs.status();
  }

  void Store(const Xbyak::Reg64& out, int row, int first, std::span<const int> vectors) {
    for (size_t j = 0; j < vectors.size(); ++j) {
      const int column = (first + static_cast<int>(j)) * lanes.bytes();
      e.vmovups(e.ptr[out + row * kRowBytes + column], lanes(vectors[j]));
    }
  }
};

absl::Status EmitConvertFloats(const ConvertDesc& desc, const ConvertPlan& plan, Emitter& e) {
  Panels panels{e, Lanes(e, plan.wide)};
  const auto reader = MakeWeightReader(desc.w, plan.vbmi, e, panels.regs, panels.lanes);
  return panels.Emit(desc, kRowBytes, [&](const Panels::Cursor& c) {
    const WeightSink store = [&](int k, int first, std::span<const int> v) { panels.Store(c.at.x, k, first, v); };
    reader->Begin(c.at);
    ReadUnits(desc.k, *reader, c.at, c.units, store, e);
    if (const int64_t unread = UnreadBytes(desc.w, desc.k); unread > 0) e.add(c.at.w, static_cast<int>(unread));
  });
}

absl::Status Check(const ConvertDesc& desc) {
  if (!HasPanels(desc.w)) return Unimplemented("{} weights have no packed layout", ToString(desc.w));
  if (desc.to != DType::kF32 && desc.to != DType::kBF16) {
    return InvalidArgument("conversion is to f32 or bf16, not {}", Name(desc.to));
  }
  const int block = IsQuantized(desc.w.type) ? PackedBlockElems(desc.w.type) : 1;
  if (desc.k <= 0 || desc.k % block != 0) {
    return InvalidArgument("k = {} is no multiple of {}, the block of {}", desc.k, block, ToString(desc.w));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ConvertDesc::panel_out_bytes() const { return (to == DType::kF32 ? k : CeilDiv(k, 2)) * kRowBytes; }

std::string ConvertName(const ConvertDesc& desc, const char* row) {
  return fmt::format("convert.{}.{}_{}.k{}", row, EncodingName(desc.w), Name(desc.to), desc.k);
}

absl::StatusOr<ConvertPlan> PlanConvert512(const ConvertDesc& desc, const TargetInfo& target) {
  XJIT_RETURN_IF_ERROR(Check(desc));
  if (desc.to == DType::kBF16 && !HasScalesOutside(desc.w.type)) {
    return Unimplemented("{} weights to bf16; f8e4m3, i8 and i4 are exact in it", ToString(desc.w));
  }
  return ConvertPlan{.wide = true, .vbmi = target.vbmi, .cost = 8};
}

absl::StatusOr<ConvertPlan> PlanConvert2(const ConvertDesc& desc, const TargetInfo&) {
  XJIT_RETURN_IF_ERROR(Check(desc));
  if (desc.to == DType::kBF16) return Unimplemented("pairs of bf16, which avx2 kernels do not multiply");
  return ConvertPlan{.wide = false, .cost = 16};
}

absl::Status EmitConvertPairs(const ConvertDesc& desc, const PairReaderMaker& make, Emitter& e) {
  Panels panels{e, Lanes(e, true)};
  const auto reader = make(e, panels.regs);
  // A pair's row is two k's; at an odd end the last store is of a row that x then half passes.
  return panels.Emit(desc, kRowBytes / 2, [&](const Panels::Cursor& c) {
    const PairSink store = [&](int pair, int first, std::span<const int> v) { panels.Store(c.at.x, pair, first, v); };
    reader->Constants();
    ReadBlocks(desc.w, desc.k, *reader, c.at, c.units, c.blocks, store, [] {}, e);
    if (desc.k % 2 != 0) e.add(c.at.x, kRowBytes / 2);
  });
}

absl::Status EmitConvert(const ConvertDesc& desc, const ConvertPlan& plan, Emitter& e) {
  if (desc.to == DType::kF32) return EmitConvertFloats(desc, plan, e);
  return EmitConvertPairs(
      desc, [&](Emitter& to, Regs& regs) { return MakePairReader(desc.w, plan.vbmi, to, regs); }, e);
}

}  // namespace xjit
