// Packed panels to dense ones: the readers of the gemm kernels as a kernel of their own. It serves tests, which run
// every code of every encoding through the code that kernels unpack with, and measurement (`xjit bench-op convert`).
#pragma once

#include <cstdint>
#include <string>

#include "codegen/emitter.h"
#include "codegen/gemm/pair_reader.h"
#include "ir/support/dtype.h"
#include "ir/support/encoding.h"
#include "ir/support/status.h"
#include "ir/support/target.h"

namespace xjit {

struct ConvertDesc {
  Encoding w;
  // kF32: f32[k][32] a panel, the values (UnpackColumn's bits). kBF16, with scales outside only: bf16[ceil(k /
  // 2)][32][2] unscaled, the partner of an odd last k zero.
  DType to = DType::kBF16;
  int64_t k = 0;
  bool operator==(const ConvertDesc&) const = default;

  int64_t panel_out_bytes() const;
};

// Converts panels [n0, n1); m counts nothing.
struct ConvertArgs {
  const void* w = nullptr;  // panel p at w + p * PanelBytes(desc.w, desc.k); 64-byte aligned
  void* out = nullptr;      // panel p at out + p * desc.panel_out_bytes(); 64-byte aligned
};

struct ConvertPlan {
  bool wide = false;  // zmm
  bool vbmi = false;
  int64_t scratch_bytes = 0;
  double cost = 0;  // estimated cycles for one k of a panel
  bool operator==(const ConvertPlan&) const = default;
};

// "convert.avx512.f8e4m3_b128x128_bf16.k3072"
std::string ConvertName(const ConvertDesc& desc, const char* row);

absl::StatusOr<ConvertPlan> PlanConvert512(const ConvertDesc& desc, const TargetInfo& target);
absl::StatusOr<ConvertPlan> PlanConvert2(const ConvertDesc& desc, const TargetInfo& target);
absl::Status EmitConvert(const ConvertDesc& desc, const ConvertPlan& plan, Emitter& e);
// The kernel to kBF16 with a reader of the caller's, which measurements compare with ours.
using PairReaderMaker = std::function<std::unique_ptr<PairReader>(Emitter& e, Regs& regs)>;
absl::Status EmitConvertPairs(const ConvertDesc& desc, const PairReaderMaker& make, Emitter& e);

}  // namespace xjit
