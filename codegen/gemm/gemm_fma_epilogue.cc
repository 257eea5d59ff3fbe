#include "codegen/gemm/gemm_fma_epilogue.h"

#include "codegen/math_emit.h"

namespace xjit {

void EmitRowEpilogue(const GemmDesc& desc, std::span<const int> acc, const PanelPointers& at, int row_bytes, Emitter& e,
                     Regs& regs, const Lanes& lanes) {
  if (desc.epilogue.bias) {
    for (size_t v = 0; v < acc.size(); ++v) {
      e.vaddps(lanes(acc[v]), lanes(acc[v]), e.ptr[at.bias + static_cast<int>(v) * lanes.bytes()]);
    }
  }
  std::span<const int> out = acc;
  if (desc.epilogue.silu_mul) {
    out = acc.first(acc.size() / 2);
    const auto t = regs.Vecs("silu", kSiluVectors);
    VecMath math(e);
    for (size_t v = 0; v < out.size(); ++v) {
      if (lanes.wide()) {
        math.Silu(Xbyak::Zmm(acc[v]), t.Z(0), t.Z(1), t.Z(2));
      } else {
        math.Silu(Xbyak::Ymm(acc[v]), t.Y(0), t.Y(1), t.Y(2));
      }
      e.vmulps(lanes(acc[v]), lanes(acc[v]), lanes(acc[v + out.size()]));
    }
  }
  for (size_t v = 0; v < out.size(); ++v) {
    const int offset = row_bytes + static_cast<int>(v) * lanes.bytes();
    if (desc.epilogue.residual) e.vaddps(lanes(out[v]), lanes(out[v]), e.ptr[at.residual + offset]);
    e.vmovups(e.ptr[at.c + offset], lanes(out[v]));
  }
}

}  // namespace xjit
