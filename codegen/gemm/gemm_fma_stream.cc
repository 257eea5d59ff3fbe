// Few rows: the weights stream once through the registers (gemm_fma_kernel.h).
#include <cstddef>
#include <vector>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/pair_reader.h"
#include "codegen/regs.h"

namespace xjit {
namespace {

constexpr int kBroadcasts = 2;  // registers of activations, at most

struct Stream {
  const GemmDesc& desc;
  const GemmPlan& plan;
  const FloatOps& ops;
  Emitter& e;
  Lanes lanes{e, ops.wide};
  Regs regs{lanes.registers()};

  absl::Status Emit();
  void SumUnits(const Regs::VecList& acc, WeightReader& reader, const WeightCursor& at, const Xbyak::Reg64& units);
  void SumBlocks(const Regs::VecList& acc, PairReader& reader, const WeightCursor& at, const Xbyak::Reg64& units);
  void EndBlock(const Regs::VecList& acc, const Regs::VecList& totals, const Xbyak::Reg64& header);
  void Multiply(const Regs::VecList& acc, const Xbyak::Reg64& a, int k, int first, std::span<const int> w);
};

// acc[row][first + j] += a[row][k] * w[j].
void Stream::Multiply(const Regs::VecList& acc, const Xbyak::Reg64& a, int k, int first, std::span<const int> w) {
  const int vectors = lanes.per_panel();
  const auto add = [&](int sum, int weight, const Xbyak::Operand& activation) {
    if (ops.dot) {
      e.vdpbf16ps(lanes(sum), lanes(weight), activation);
    } else {
      e.vfmadd231ps(lanes(sum), lanes(weight), activation);
    }
  };
  const auto t = regs.Vecs("broadcast", lanes.wide() ? 0 : 1);
  const auto t2 = regs.Vecs("broadcast", lanes.wide() && w.size() > 1 ? kBroadcasts : 0);
  for (int row = 0; row < plan.tile_rows; ++row) {
    const int offset = static_cast<int>(row * desc.lda_bytes) + 4 * k;
    if (lanes.wide() && w.size() == 1) {
      add(acc[row * vectors + first], w[0], e.ptr_b[a + offset]);
      continue;
    }
    const int broadcast = lanes.wide() ? t2[row % 2] : t[0];
    e.vbroadcastss(lanes(broadcast), e.ptr[a + offset]);
    for (size_t j = 0; j < w.size(); ++j) add(acc[row * vectors + first + j], w[j], lanes(broadcast));
  }
}

void Stream::SumUnits(const Regs::VecList& acc, WeightReader& reader, const WeightCursor& at,
                      const Xbyak::Reg64& units) {
  reader.Begin(at);
  const WeightSink sink = [&](int k, int first, std::span<const int> v) { Multiply(acc, at.x, k, first, v); };
  ReadUnits(Steps(desc, ops), reader, at, units, sink, e);
  if (const int64_t unread = UnreadBytes(desc.w, desc.k); unread > 0) e.add(at.w, static_cast<int>(unread));
}

// acc = the sums of a panel, by scale blocks. If there are several, totals are in a second set of registers or, where
// there are not as many, in the frame.
void Stream::SumBlocks(const Regs::VecList& acc, PairReader& reader, const WeightCursor& at,
                       const Xbyak::Reg64& units) {
  const bool several = ScaledBlocksOf(desc.w, desc.k).count(desc.k) > 1;
  const int taken = PairVectors(desc.w, plan.vbmi) + static_cast<int>(2 * acc.size()) + kBroadcasts;
  const bool kept = several && taken <= lanes.registers();
  const auto totals = regs.Vecs("totals", kept ? static_cast<int>(acc.size()) : 0);
  for (int i = 0; i < static_cast<int>(acc.size()); ++i) {
    if (kept) lanes.Zero(totals[i]);
    if (several && !kept) e.vmovaps(e.ptr[e.rsp + i * lanes.bytes()], lanes(acc[i]));
  }
  const auto blocks = regs.Gpr("blocks");
  const PairSink sink = [&](int pair, int first, std::span<const int> v) { Multiply(acc, at.x, pair, first, v); };
  ReadBlocks(desc.w, desc.k, reader, at, units, blocks, sink, [&] { EndBlock(acc, totals, at.inner); }, e);
  for (int i = 0; i < static_cast<int>(acc.size()); ++i) {
    if (kept) e.vmovaps(lanes(acc[i]), lanes(totals[i]));
    if (several && !kept) e.vmovaps(lanes(acc[i]), e.ptr[e.rsp + i * lanes.bytes()]);
  }
}

// Adds a block's scaled sums to the totals and leaves acc zero; those of the only block stay in acc.
void Stream::EndBlock(const Regs::VecList& acc, const Regs::VecList& totals, const Xbyak::Reg64& header) {
  const ScaledBlocks blocks = ScaledBlocksOf(desc.w, desc.k);
  const auto scale = regs.Vecs("scale", lanes.per_panel());
  for (int v = 0; v < lanes.per_panel(); ++v) {
    if (blocks.scale == DType::kF16) {
      e.vcvtph2ps(lanes(scale[v]), e.ptr[header + v * lanes.bytes() / 2]);
    } else {
      e.vmovups(lanes(scale[v]), e.ptr[header + v * lanes.bytes()]);
    }
  }
  for (int i = 0; i < static_cast<int>(acc.size()); ++i) {
    const auto sum = lanes(acc[i]), by = lanes(scale[i % lanes.per_panel()]);
    if (blocks.count(desc.k) == 1) {
      e.vmulps(sum, sum, by);
      continue;
    }
    if (totals.size() > 0) {
      e.vfmadd231ps(lanes(totals[i]), sum, by);
    } else {
      const auto total = e.ptr[e.rsp + i * lanes.bytes()];
      e.vfmadd213ps(sum, by, total);
      e.vmovaps(total, sum);
    }
    lanes.Zero(acc[i]);
  }
}

absl::Status Stream::Emit() {
  const int c_bytes = PanelBytesOfC(desc);
  const Epilogue& epilogue = desc.epilogue;
  e.Prologue(kWeightTableBytes);
  const auto args = regs.Gpr("args"), panels = regs.Gpr("panels"), w = regs.Gpr("w"), a = regs.Gpr("a"),
             c = regs.Gpr("c"), n = regs.Gpr("n");
  e.mov(args, e.arg_args);
  e.mov(n, e.arg_n0);
  e.mov(panels, e.arg_n1);
  regs.FreeArguments();
  const auto residual = regs.Gpr("residual"), bias = regs.Gpr("bias"), units = regs.Gpr("units"),
             inner = regs.Gpr("inner");

  Xbyak::Label panel, done;
  e.sub(panels, n);
  e.jle(done, Xbyak::CodeGenerator::T_NEAR);
  e.mov(w, PanelBytes(desc.w, desc.k));
  e.imul(w, n);
  e.add(w, e.ptr[*args + offsetof(GemmArgs, w)]);
  e.imul(c, n, c_bytes);
  if (epilogue.residual) {
    e.mov(residual, e.ptr[*args + offsetof(GemmArgs, residual)]);
    e.add(residual, c);
  }
  e.add(c, e.ptr[*args + offsetof(GemmArgs, c)]);
  if (epilogue.bias) {
    e.imul(bias, n, kPanelColumns * 4);
    e.add(bias, e.ptr[*args + offsetof(GemmArgs, bias)]);
  }

  const bool pairs = ReadsPairs(desc, ops);
  const auto pair_reader = pairs ? MakePairReader(desc.w, plan.vbmi, e, regs) : nullptr;
  const auto reader = pairs ? nullptr : MakeWeightReader(ReadAs(desc, ops), plan.vbmi, e, regs, lanes);
  if (pairs) pair_reader->Constants();
  WeightCursor at{*w, *a, pairs ? 2 : 4, *inner, 0};
  at.touch = [&](int offset, int bytes) { EmitPrefetch(plan, w, offset, bytes, e); };
  const int vectors = lanes.per_panel();
  e.L(panel);
  {
    const auto acc = regs.Vecs("acc", plan.tile_rows * vectors);
    for (size_t i = 0; i < acc.size(); ++i) lanes.Zero(acc[i]);
    e.mov(a, e.ptr[*args + offsetof(GemmArgs, a)]);
    if (pairs) {
      SumBlocks(acc, *pair_reader, at, units);
    } else {
      SumUnits(acc, *reader, at, units);
    }
    for (int row = 0; row < plan.tile_rows; ++row) {
      std::vector<int> sums;
      for (int v = 0; v < vectors; ++v) sums.push_back(acc[row * vectors + v]);
      EmitRowEpilogue(desc, sums, {*c, *residual, *bias}, static_cast<int>(row * desc.ldc_bytes), e, regs, lanes);
    }
  }
  e.add(c, c_bytes);
  if (epilogue.residual) e.add(residual, c_bytes);
  if (epilogue.bias) e.add(bias, kPanelColumns * 4);
  e.dec(panels);
  e.jnz(panel);
  e.L(done);
  e.Epilogue();
  return regs.status();
}

}  // namespace

absl::Status EmitFloatStream(const GemmDesc& desc, const GemmPlan& plan, const FloatOps& ops, Emitter& e) {
  return Stream{desc, plan, ops, e}.Emit();
}

}  // namespace xjit
