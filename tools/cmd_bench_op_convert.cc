// xjit bench-op convert: packed weights unpacked by the readers of the matrix kernels, exact and in memory order; for
// E4M3 in turns with the usual shortcut, which is not exact.
#include <cstring>
#include <limits>

#include "codegen/gemm/convert.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "ir/support/align.h"
#include "ir/support/ref/dequant.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

using Xbyak::Zmm;

// E4M3 to bf16 by a shift and an OR, for a scale that takes the 2^8 back: sign, then 0x4000 | exponent and fraction.
// Zeros become 2^-7, subnormals and NaN other numbers (SGLang, sgl-kernel/csrc/cpu/vec.h, CVT_FP8_TO_BF16_EXT). In the
// packed order it is three instructions for 32 values.
struct ShortcutReader : PairReader {
  static constexpr int kUnit = 16;
  ShortcutReader(Emitter& e, Regs& regs) : PairReader(kUnit), e(e), regs(regs), kept(regs.Vecs("kept", 3)) {}
  Emitter& e;
  Regs& regs;
  Regs::VecList kept;  // zero, mask, 0x4000

  void Constants() override {
    e.vpxord(kept.Z(0), kept.Z(0), kept.Z(0));
    e.vpbroadcastd(kept.Z(1), e.ptr[e.ConstLabel32(0x87F087F0)]);
    e.vpbroadcastd(kept.Z(2), e.ptr[e.ConstLabel32(0x40004000)]);
  }
  void Unit(const WeightCursor& at, const PairSink& sink) override { Tail(kUnit, at, sink); }
  void Tail(int k, const WeightCursor& at, const PairSink& sink) override {
    const int pairs = CeilDiv(k, 2);
    for (int p = 0; p < pairs; p += 2) {
      const auto x = regs.Vecs("x", 2), low = regs.Vecs("low", 2);
      for (int g = 0; g < 2; ++g) {
        e.vmovdqu64(x.Z(g), e.ptr[at.w + p * 64 + g * 64]);
        e.vpunpcklbw(low.Z(g), kept.Z(0), x.Z(g));
        e.vpunpckhbw(x.Z(g), kept.Z(0), x.Z(g));
        for (const Zmm& z : {low.Z(g), x.Z(g)}) {
          e.vpsraw(z, z, 4);
          e.vpternlogd(z, kept.Z(1), kept.Z(2), 0xEA);  // (A & B) | C
        }
      }
      sink(p, 0, std::array{low[0], low[1]});
      if (p + 1 < pairs) sink(p + 1, 0, std::array{x[0], x[1]});
    }
    e.add(at.w, CeilDiv(k, 4) * 128);
    e.add(at.x, k * at.x_step);
  }
};

absl::StatusOr<Kernel> Shortcut(const ConvertDesc& desc, CodeArena& arena) {
  Emitter e;
  XJIT_RETURN_IF_ERROR(
      EmitConvertPairs(desc, [](Emitter& to, Regs& regs) { return std::make_unique<ShortcutReader>(to, regs); }, e));
  XJIT_ASSIGN_OR_RETURN(Kernel kernel, e.Finish("convert.shortcut", arena));
  XJIT_RETURN_IF_ERROR(arena.Seal());
  return kernel;
}

// Column n of the reference, k values as the kernel writes them.
std::vector<float> Column(const ConvertDesc& desc, const std::byte* w, int64_t n) {
  const auto k = static_cast<size_t>(desc.k);
  std::vector<float> values(k);
  if (desc.to == DType::kF32) {
    UnpackColumn(desc.w, desc.k, w, n, values.data());
    return values;
  }
  std::vector<uint8_t> codes(k), zeros(k);
  std::vector<float> scales(k);
  UnpackCodes(desc.w, desc.k, w, n, codes.data(), scales.data(), zeros.data());
  const auto depth = static_cast<size_t>(ScaledBlocksOf(desc.w, desc.k).depth);
  for (size_t i = 0; i < k; ++i) values[i] = CodeValue(desc.w.type, codes[i], zeros[i / depth]);
  return values;
}

float ValueAt(const ConvertDesc& desc, const std::byte* panel, int64_t k, int64_t column) {
  float value;
  if (desc.to == DType::kF32) {
    std::memcpy(&value, panel + (k * kPanelColumns + column) * 4, 4);
    return value;
  }
  uint16_t half;
  std::memcpy(&half, panel + (k / 2 * kPanelColumns + column) * 4 + k % 2 * 2, 2);
  return BF16ToF32(half);
}

}  // namespace

absl::Status BenchConvert(const BenchOpFlags& flags, const ConvertShape& shape) {
  XJIT_ASSIGN_OR_RETURN(const ConvertDesc desc, shape.Desc());
  XJIT_ASSIGN_OR_RETURN(const auto bench, OpBench::Create(flags));
  XJIT_ASSIGN_OR_RETURN(const Kernel* kernel, bench->library().Get(desc));
  XJIT_RETURN_IF_ERROR(bench->library().Seal());
  CodeArena arena;
  const bool compare =
      desc.w.type == DType::kF8E4M3 && desc.to == DType::kBF16 && ChosenIsa(bench->library(), desc) >= Isa::kAvx512;
  Kernel shortcut;
  if (compare) {
    XJIT_ASSIGN_OR_RETURN(shortcut, Shortcut(desc, arena));
  }

  const int64_t panels = CeilDiv(shape.n, kPanelColumns);
  const int64_t w_bytes = panels * PanelBytes(desc.w, desc.k), out_bytes = panels * desc.panel_out_bytes();
  XJIT_ASSIGN_OR_RETURN(const int64_t copies, bench->Copies(w_bytes, false));
  XJIT_RETURN_IF_ERROR(bench->CheckMemory("weights", copies * w_bytes + out_bytes));
  XJIT_ASSIGN_OR_RETURN(const HugeBuffer w, HugeBuffer::Allocate(copies * w_bytes));
  XJIT_ASSIGN_OR_RETURN(const HugeBuffer out, HugeBuffer::Allocate(out_bytes));
  RandomPanels(desc.w, panels * kPanelColumns, desc.k, 42, w.data());
  for (int64_t copy = 1; copy < copies; ++copy) {
    std::memcpy(w.data() + copy * w_bytes, w.data(), static_cast<size_t>(w_bytes));
  }

  const auto run_with = [&](KernelFn fn) {
    return [&, fn](int64_t calls) {
      bench->pool().Run([&](int thread) {
        const int64_t n0 = panels * thread / bench->threads(), n1 = panels * (thread + 1) / bench->threads();
        for (int64_t i = 0; i < calls && n0 < n1; ++i) {
          const ConvertArgs args{.w = w.data() + i % copies * w_bytes, .out = out.data()};
          fn(&args, n0, n1, 0, 1);
        }
      });
    };
  };
  OpRun op;
  op.copies = copies;
  op.bytes = static_cast<double>(w_bytes);
  op.has_peak = false;
  op.run = run_with(kernel->fn);
  if (compare) {
    op.peer = run_with(shortcut.fn);
    op.peer_name = "shift and OR, not exact";
  }
  XJIT_ASSIGN_OR_RETURN(const nlohmann::ordered_json measured, bench->Measure(op));

  op.run(1);
  OpError error;
  for (const int64_t n : {int64_t{0}, shape.n / 2, shape.n - 1}) {
    const std::vector<float> want = Column(desc, w.data(), n);
    const std::byte* panel = out.data() + n / kPanelColumns * desc.panel_out_bytes();
    for (int64_t i = 0; i < desc.k; ++i) {
      const float value = want[static_cast<size_t>(i)];
      error.Add(ValueAt(desc, panel, i, n % kPanelColumns), value, value);
    }
  }
  XJIT_RETURN_IF_ERROR(error.Check(kernel->name));
  nlohmann::ordered_json result = {{"op", "convert"}, {"kernel", kernel->name},   {"n", shape.n},
                                   {"k", shape.k},    {"weights", shape.weights}, {"to", shape.to}};
  result.update(measured);
  result.update({{"max_abs_err", error.max_abs}, {"max_rel_err", error.max_rel}});
  PrintResult(result, flags.json);
  return absl::OkStatus();
}

}  // namespace xjit::tools
