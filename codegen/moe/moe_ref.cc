#include "codegen/moe/moe_ref.h"

#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"

namespace xjit {
namespace {

void Grouped(GemmDesc gemm, const MoeDesc& desc, bool row_of_slot, const void* a, const std::byte* w,
             const int32_t* experts, int64_t rows, float* c, int64_t ldc_bytes) {
  gemm.rows = 1;
  gemm.lda_bytes = MoeRowLayoutOf(gemm.a, gemm.k).stride;
  gemm.ldc_bytes = ldc_bytes;
  const int64_t expert_bytes = gemm.panels() * PanelBytes(gemm.w, gemm.k);
  for (int64_t slot = 0; slot < rows * desc.slots; ++slot) {
    if (experts[slot] < 0 || experts[slot] >= desc.experts) continue;
    const int64_t row = row_of_slot ? slot : slot / desc.slots;
    const GemmArgs args{.a = static_cast<const std::byte*>(a) + row * gemm.lda_bytes,
                        .w = w + experts[slot] * expert_bytes,
                        .c = c + slot * ldc_bytes / 4};
    GemmRef(gemm, args, 0, gemm.panels(), 0, 1);
  }
}

}  // namespace

void GroupedUpRef(const MoeDesc& desc, const void* x, const std::byte* w, const int32_t* experts, int64_t rows,
                  float* c, int64_t ldc_bytes) {
  Grouped(UpDesc(desc), desc, false, x, w, experts, rows, c, ldc_bytes);
}

void GroupedDownRef(const MoeDesc& desc, const void* mid, const std::byte* w, const int32_t* experts, int64_t rows,
                    float* c, int64_t ldc_bytes) {
  Grouped(DownDesc(desc), desc, true, mid, w, experts, rows, c, ldc_bytes);
}

}  // namespace xjit
