// Few rows: the weights stream once through the registers (gemm_fma_kernel.h).
#include <cstddef>
#include <vector>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "codegen/gemm/gemm_fma_kernel.h"
#include "codegen/gemm/gemm_fma_weights.h"
#include "codegen/gemm/pack.h"
#include "codegen/regs.h"

namespace xjit {
namespace {

struct Stream {
  const GemmDesc& desc;
  const GemmPlan& plan;
  const FloatOps& ops;
  Emitter& e;
  Lanes lanes{e, ops.wide};
  Regs regs{lanes.registers()};

  absl::Status Emit();
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
  const auto t2 = regs.Vecs("broadcast", lanes.wide() && w.size() > 1 ? 2 : 0);
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

absl::Status Stream::Emit() {
  const int64_t steps = Steps(desc, ops);
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

  const auto reader = MakeWeightReader(ReadAs(desc, ops), e, regs, lanes);
  WeightCursor at{*w, *a, 4, *inner, 0};
  at.touch = [&](int offset, int bytes) { EmitPrefetch(plan, w, offset, bytes, e); };
  const int vectors = lanes.per_panel();
  e.L(panel);
  {
    const auto acc = regs.Vecs("acc", plan.tile_rows * vectors);
    const WeightSink sink = [&](int k, int first, std::span<const int> v) { Multiply(acc, a, k, first, v); };
    for (size_t i = 0; i < acc.size(); ++i) lanes.Zero(acc[i]);
    e.mov(a, e.ptr[*args + offsetof(GemmArgs, a)]);
    if (steps >= reader->unit()) {
      Xbyak::Label unit;
      e.mov(units, steps / reader->unit());
      e.L(unit);
      reader->Unit(at, sink);
      e.dec(units);
      e.jnz(unit);
    }
    if (steps % reader->unit() != 0) reader->Tail(static_cast<int>(steps % reader->unit()), at, sink);
    for (int row = 0; row < plan.tile_rows; ++row) {
      std::vector<int> sums;
      for (int v = 0; v < vectors; ++v) sums.push_back(acc[row * vectors + v]);
      EmitRowEpilogue(desc, sums, {*c, *residual, *bias}, static_cast<int>(row * desc.ldc_bytes), e, regs, lanes);
    }
  }
  // bf16 panels are padded to whole tiles.
  const int64_t pad = desc.w.type == DType::kBF16 ? PanelBytes(desc.w, desc.k) - CeilDiv(desc.k, 2) * 128 : 0;
  if (pad > 0) e.add(w, static_cast<int>(pad));
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
