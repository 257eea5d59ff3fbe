#include "codegen/gemm/split.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "codegen/gemm/blocking.h"
#include "codegen/gemm/pack.h"
#include "ir/support/act_layout.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Two for each core of a socket of 64, so that another takes the second of a core that was held up. With fewer cores
// each has more of them, of the same size, since their number must not depend on threads.
constexpr int64_t kWantedUnits = 128;
constexpr int64_t kRowBytes = kPanelColumns * 4;  // of sums

bool OneScale(const GemmDesc& desc) {
  return HasScalesOutside(desc.w.type) && ScaledBlocksOf(desc.w, desc.k).count(desc.k) == 1;
}

// What a part's depth is a multiple of.
int64_t BlockOf(const GemmDesc& desc) {
  if (desc.a == DType::kI8Act) return 64;
  if (HasScalesOutside(desc.w.type)) return ScaledBlocksOf(desc.w, desc.k).depth;
  return std::max(32, PackedBlockElems(desc.w.type));
}

// What DepthParts takes a multiple of. Where it was measured fastest (PrefetchTuning::k_block, at most 256), a pass of
// the loop over blocks of 32 takes several of them, or as many fewer as divide the part's depth (gemm_plan_vnni.cc): of
// multiples of 128 never less than four. q8_0, one row and thread on Zen 5, four blocks at a time, share of an
// ascending read: depth 1216 93%, 1280 104%.
int64_t DepthUnit(const GemmDesc& desc) {
  constexpr int64_t kLoopDepth = 128;
  const int64_t block = BlockOf(desc);
  return desc.a == DType::kQ8Act && desc.k % kLoopDepth == 0 ? std::lcm(block, kLoopDepth) : block;
}

// From part to part of a panel, which is their concatenation; with one scale a column a header stands in front.
int64_t PartBytes(const GemmDesc& desc, int64_t parts) {
  const int64_t k = desc.k / parts;
  if (!OneScale(desc)) return PanelBytes(desc.w, k);
  const ScaledBlocks blocks = ScaledBlocksOf(desc.w, desc.k);
  return k / blocks.unit * blocks.unit_bytes;
}

// GCC's vector types: one AVX2 operation each. Without FMA: each operation rounds, as the kernels' epilogues do.
using F8 = float __attribute__((vector_size(32), aligned(4), may_alias));
using I8 = int32_t __attribute__((vector_size(32), aligned(4), may_alias));
using U8 = uint32_t __attribute__((vector_size(32), aligned(4), may_alias));

template <typename V>
__attribute__((target("avx2"))) inline V Load(const void* base, int64_t bytes) {
  return *reinterpret_cast<const V*>(static_cast<const std::byte*>(base) + bytes);
}

// The sums of a row and 8 columns, whose first part is at `sums`.
template <typename V>
__attribute__((target("avx2"))) V AddParts(const std::byte* sums, int64_t parts, int64_t part_bytes) {
  V sum = Load<V>(sums, 0);
  for (int64_t p = 1; p < parts; ++p) sum += Load<V>(sums, p * part_bytes);
  return sum;
}

__attribute__((target("avx2"))) void FinishPanel(const SplitGemmArgs& a, int64_t panel) {
  const int64_t part_bytes = a.rows * kRowBytes;
  const std::byte* w = static_cast<const std::byte*>(a.gemm.w) + panel * a.panel_bytes;
  for (int64_t row = 0; row < a.rows; ++row) {
    const std::byte* sums = a.sums + panel * a.parts * part_bytes + row * kRowBytes;
    const int64_t at = row * a.ldc_bytes + panel * kRowBytes;
    float row_scale = 0;
    uint32_t offset = 0;
    if (a.int8) {
      const std::byte* tail = static_cast<const std::byte*>(a.gemm.a) + row * a.lda_bytes + a.scale_offset;
      std::memcpy(&row_scale, tail, 4);
      std::memcpy(&offset, tail + 4, 4);
      offset <<= 7;  // cancels the 128 that all weights have too much
    }
    for (int64_t c = 0; c < kRowBytes; c += 32) {
      F8 v;
      if (a.int8) {
        const U8 sum = AddParts<U8>(sums + c, a.parts, part_bytes) + offset;
        v = __builtin_convertvector(reinterpret_cast<const I8&>(sum), F8) * row_scale * Load<F8>(w, c);
      } else {
        v = AddParts<F8>(sums + c, a.parts, part_bytes);
      }
      if (a.epilogue.bias) v += Load<F8>(a.gemm.bias, panel * kRowBytes + c);
      if (a.epilogue.residual) v += Load<F8>(a.gemm.residual, at + c);
      *reinterpret_cast<F8*>(reinterpret_cast<std::byte*>(a.gemm.c) + at + c) = v;
    }
  }
}

void Unit(const SplitGemmArgs& a, int64_t panel, int64_t part) {
  const GemmArgs args{
      .a = static_cast<const std::byte*>(a.gemm.a) + part * a.a_bytes,
      .w = static_cast<const std::byte*>(a.gemm.w) + panel * a.panel_bytes + part * a.w_bytes,
      .c = reinterpret_cast<float*>(a.sums + (panel * a.parts + part) * a.rows * kRowBytes),
      .scratch = a.gemm.scratch,
      .k0 = part * a.k,
  };
  a.part(&args, 0, 1, 0, a.rows);
  // Every part of the panel has stored its sums when the last one is counted.
  std::atomic_ref<int32_t> ended(a.ended[panel].count);
  if (ended.fetch_add(1, std::memory_order_acq_rel) + 1 < a.parts) return;
  ended.store(0, std::memory_order_relaxed);
  FinishPanel(a, panel);
}

}  // namespace

absl::Status CheckParts(const GemmDesc& desc, int64_t parts) {
  if (parts < 1 || desc.k < 1 || desc.k % parts != 0) {
    return InvalidArgument("a depth of {} cannot be cut into {} parts", desc.k, parts);
  }
  if (parts == 1) return absl::OkStatus();
  if (!HasPanels(desc.w)) return Unimplemented("{} weights have no packed layout", ToString(desc.w));
  if (desc.epilogue.silu_mul) return Unimplemented("products with silu_mul are not cut over depth");
  if (desc.rows < 1 || desc.rows > kMaxFewRows) {
    return Unimplemented("only products of 1 to {} rows are cut over depth", kMaxFewRows);
  }
  if (OneScale(desc) && desc.a != DType::kI8Act) {
    return Unimplemented("{} by {}: a scale of all k is not cut over depth", Name(desc.a), ToString(desc.w));
  }
  const int64_t block = BlockOf(desc);
  if (desc.k / parts % block != 0) {
    return InvalidArgument("{} parts of {} are no whole blocks of {}", parts, desc.k, block);
  }
  return absl::OkStatus();
}

int64_t DepthParts(const GemmDesc& desc) {
  if (desc.rows == 0 || desc.panels() < 1 || desc.k < 1 || !HasPanels(desc.w)) return 1;
  const int64_t unit = DepthUnit(desc);
  const int64_t most = std::min(CeilDiv(kWantedUnits, desc.panels()), desc.k / unit);
  for (int64_t parts = most; parts > 1; --parts) {
    if (desc.k % (parts * unit) == 0 && CheckParts(desc, parts).ok() && PartBytes(desc, parts) >= kMinTaskBytes)
      return parts;
  }
  return 1;
}

GemmDesc PartOf(const GemmDesc& desc, int64_t parts) {
  GemmDesc part = desc;
  part.n = kPanelColumns;
  part.k = desc.k / parts;
  part.ldc_bytes = kRowBytes;
  part.epilogue = {};
  if (desc.a == DType::kQ8Act || desc.a == DType::kI8Act) part.depth = desc.k;
  return part;
}

int64_t SplitSumBytes(const GemmDesc& desc, int64_t parts) { return desc.panels() * parts * desc.rows * kRowBytes; }

void SplitGemmKernel(const void* args, int64_t n0, int64_t n1, int64_t, int64_t) {
  const auto& a = *static_cast<const SplitGemmArgs*>(args);
  for (int64_t n = n0; n < n1; ++n) Unit(a, n / a.parts, n % a.parts);
}

SplitGemmArgs SplitArgs(const GemmDesc& desc, int64_t parts, const GemmArgs& gemm, KernelFn part, std::byte* sums,
                        EndedParts* ended) {
  const int64_t k = desc.k / parts;
  return {.gemm = gemm,
          .part = part,
          .parts = parts,
          .rows = desc.rows,
          .int8 = desc.a == DType::kI8Act,
          .panel_bytes = PanelBytes(desc.w, desc.k),
          .w_bytes = PartBytes(desc, parts),
          // Of kQ8Act the kernel goes to GemmArgs::k0 of each of a record's arrays.
          .a_bytes = desc.a == DType::kQ8Act ? 0 : ActivationValueBytes(desc.a, k),
          .k = desc.a == DType::kQ8Act ? k : 0,
          .lda_bytes = desc.lda_bytes,
          .scale_offset = I8Layout{desc.k}.scale_offset(),
          .ldc_bytes = desc.ldc_bytes,
          .epilogue = desc.epilogue,
          .sums = sums,
          .ended = ended};
}

}  // namespace xjit
