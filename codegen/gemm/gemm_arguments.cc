#include "codegen/gemm/gemm_arguments.h"

#include <cstddef>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "ir/support/act_layout.h"

namespace xjit {

void EmitArguments(const GemmDesc& desc, int64_t panel_bytes, const Xbyak::Reg64& w, const Xbyak::Reg64& bias,
                   const Xbyak::Reg64& t, const Xbyak::Label& done, Emitter& e) {
  const auto slot = [&](ArgumentSlot s) { return e.qword[e.rsp + 8 * s]; };
  const auto arg = [&](size_t offset) { return e.qword[e.arg_args + offset]; };
  e.mov(t, e.arg_n1);
  e.sub(t, e.arg_n0);
  e.jle(done, e.T_NEAR);
  e.mov(slot(kPanels), t);
  if (desc.rows > 0) {
    e.mov(t.cvt32(), desc.rows);
    e.mov(slot(kRows), t);
    e.mov(t, arg(offsetof(GemmArgs, a)));
    e.mov(slot(kA0), t);
    e.xor_(t.cvt32(), t.cvt32());
  } else {
    e.mov(t, e.arg_m1);
    e.sub(t, e.arg_m0);
    e.jle(done, e.T_NEAR);
    e.mov(slot(kRows), t);
    if (desc.strips) {
      e.mov(t, e.arg_m0);
      e.shr(t, 4);
      e.imul(t, t, static_cast<int>(StripsOf(desc.a, desc.k).strip_bytes()));
    } else {
      e.imul(t, e.arg_m0, static_cast<int>(desc.lda_bytes));
    }
    e.add(t, arg(offsetof(GemmArgs, a)));
    e.mov(slot(kA0), t);
    e.imul(t, e.arg_m0, static_cast<int>(desc.ldc_bytes));
  }
  e.imul(w, e.arg_n0, PanelBytesOfC(desc));
  e.add(t, w);
  e.mov(w, t);
  e.add(t, arg(offsetof(GemmArgs, c)));
  e.mov(slot(kC0), t);
  e.add(w, arg(offsetof(GemmArgs, residual)));
  e.mov(slot(kResidual0), w);
  e.mov(t, arg(offsetof(GemmArgs, scratch)));
  e.mov(slot(kScratch), t);
  e.imul(w, e.arg_n0, static_cast<int>(panel_bytes));
  e.add(w, arg(offsetof(GemmArgs, w)));
  e.imul(bias, e.arg_n0, kPanelColumns * 4);
  e.add(bias, arg(offsetof(GemmArgs, bias)));
}

}  // namespace xjit
