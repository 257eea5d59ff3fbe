// What both shapes share: which of them a descriptor wants.
#include "codegen/gemm/gemm_vnni.h"

namespace xjit {

absl::Status EmitGemmVnni(const GemmDesc& desc, const GemmPlan& plan, Emitter& e) {
  return desc.rows > 0 ? EmitGemmVnniFew(desc, plan, e) : EmitGemmVnniMany(desc, plan, e);
}

}  // namespace xjit
