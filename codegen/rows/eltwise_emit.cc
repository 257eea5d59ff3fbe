// Emits rows.eltwise for both vector widths: a loop over rows, in it a loop over columns.
#include "codegen/math_emit.h"
#include "codegen/regs.h"
#include "codegen/rows/row_vectors.h"
#include "codegen/rows/rows_plan.h"

namespace xjit {
namespace {

using Xbyak::Ymm;
using Xbyak::Zmm;

absl::Status Emit(const EltwiseDesc& desc, const EltwisePlan& plan, Emitter& e) {
  const bool wide = plan.columns.lanes == 16;
  const bool binary = desc.op != EltwiseOp::kSilu;
  const bool silu = desc.op == EltwiseOp::kSilu || desc.op == EltwiseOp::kSiluMul;
  Regs regs(wide ? 32 : 16);
  const auto a = regs.Gpr("a"), b = regs.Gpr("b"), y = regs.Gpr("y"), rows = regs.Gpr("rows"),
             index = regs.Gpr("index");
  const auto address = [&](const Xbyak::Reg64& pointer, size_t field, int64_t stride) {
    e.mov(pointer, e.ptr[e.arg_args + field]);
    if (stride == 0) return;
    e.imul(index, e.arg_m0, static_cast<int>(stride));
    e.add(pointer, index);
  };
  const int64_t ldb = desc.op == EltwiseOp::kAddRow ? 0 : desc.ldb_bytes;
  e.Prologue();
  address(a, offsetof(EltwiseArgs, a), desc.lda_bytes);
  if (binary) address(b, offsetof(EltwiseArgs, b), ldb);
  address(y, offsetof(EltwiseArgs, y), desc.ldy_bytes);
  e.mov(rows, e.arg_m1);
  regs.FreeArguments();
  Xbyak::Label row, done;
  e.sub(rows, e.arg_m0);
  e.jle(done);
  const RowVectors v(e, regs, plan.columns, index);
  const auto value = regs.Vecs("value", plan.unroll);
  const auto other = regs.Vecs("other", binary ? 1 : 0);
  const auto tmp = regs.Vecs("tmp", silu ? 3 : 0);
  VecMath math(e);

  e.L(row);
  v.ForColumns(plan.unroll, index, [&](int u, int offset, bool masked) {
    const int x = value[u];
    v.Load(x, *a + *index * 2 + offset, masked);
    if (silu) {
      wide ? math.Silu(Zmm(x), tmp.Z(0), tmp.Z(1), tmp.Z(2)) : math.Silu(Ymm(x), tmp.Y(0), tmp.Y(1), tmp.Y(2));
    }
    if (binary) {
      v.Load(other[0], *b + *index * 2 + offset, masked);
      const bool add = desc.op == EltwiseOp::kAdd || desc.op == EltwiseOp::kAddRow;
      add ? e.vaddps(v.V(x), v.V(x), v.V(other[0])) : e.vmulps(v.V(x), v.V(x), v.V(other[0]));
    }
    v.Store(*y + *index * 2 + offset, x, masked);
  });
  e.add(a, static_cast<uint32_t>(desc.lda_bytes));
  if (binary && ldb > 0) e.add(b, static_cast<uint32_t>(ldb));
  e.add(y, static_cast<uint32_t>(desc.ldy_bytes));
  e.dec(rows);
  e.jnz(row);
  e.L(done);
  e.Epilogue();
  return regs.status();
}

}  // namespace

absl::Status EmitEltwise512(const EltwiseDesc& desc, const EltwisePlan& plan, Emitter& e) {
  return Emit(desc, plan, e);
}
absl::Status EmitEltwise2(const EltwiseDesc& desc, const EltwisePlan& plan, Emitter& e) { return Emit(desc, plan, e); }

}  // namespace xjit
