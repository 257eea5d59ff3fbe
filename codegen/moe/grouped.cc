#include "codegen/moe/grouped.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "codegen/rows/rows_desc.h"
#include "ir/support/align.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

// Row `token` of x to row r of the unit, which are in strips.
void GatherIntoStrips(const GroupedUpArgs& a, const std::byte* x, int64_t r) {
  const MoeRowLayout& layout = a.x_layout;
  const StripLayout& strips = layout.strips;
  std::byte* strip = a.rows + r / kStripRows * strips.strip_bytes();
  std::byte* to = strip + r % kStripRows * kStripChunk;
  const int64_t step = kStripRows * kStripChunk;
  const int64_t values = layout.type == DType::kI8Act ? strips.row_bytes : layout.row_bytes;
  for (int64_t c = 0; c < values / kStripChunk; ++c) std::memcpy(to + c * step, x + c * kStripChunk, kStripChunk);
  if (const int64_t rest = values % kStripChunk; rest != 0) {
    std::byte* last = to + values / kStripChunk * step;
    std::memcpy(last, x + values - rest, static_cast<size_t>(rest));
    std::memset(last + rest, 0, static_cast<size_t>(kStripChunk - rest));
  }
  if (layout.type != DType::kI8Act) return;
  // scale, then neg_sum: neighbours in a row, 16 apart in a strip
  std::byte* tail = strip + strips.tail_offset() + r % kStripRows * 4;
  std::memcpy(tail, x + strips.row_bytes, 4);
  std::memcpy(tail + 4 * kStripRows, x + strips.row_bytes + 4, 4);
}

// The rows of a unit side by side.
const std::byte* RowsOfUnit(const GroupedUpArgs& a, int64_t number) {
  const MoeUnit& unit = a.runs->unit[number];
  const int32_t* slot = a.runs->slot + unit.first;
  const bool many = unit.rows > a.weights.few_rows;
  if (unit.rows == 1 && !many) return a.x + slot[0] / a.slots * a.ldx_bytes;
  GatherTag& tag = *a.tag;
  if (tag.runs != a.runs || tag.generation != a.runs->generation || tag.unit != number) {
    for (int64_t r = 0; r < unit.rows; ++r) {
      const std::byte* x = a.x + slot[r] / a.slots * a.ldx_bytes;
      if (many && a.many_strips) {
        GatherIntoStrips(a, x, r);
      } else {
        std::memcpy(a.rows + r * a.x_layout.stride, x, static_cast<size_t>(a.x_layout.row_bytes));
      }
    }
    tag = {a.runs, a.runs->generation, number};
  }
  return a.rows;
}

void UpTask(const GroupedUpArgs& a, int64_t number, int64_t chunk) {
  const MoeUnit& unit = a.runs->unit[number];
  const bool many = unit.rows > a.weights.few_rows;
  float* c = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(a.c) + unit.row0 * a.ldc_bytes);
  const GemmArgs args{.a = RowsOfUnit(a, number),
                      .w = a.weights.w + unit.expert * a.weights.expert_bytes,
                      .c = c,
                      .scratch = a.scratch};
  const int64_t n0 = chunk * a.chunk;
  a.weights.FnFor(unit.rows)(&args, n0, std::min(n0 + a.chunk, a.weights.panels), 0, unit.rows);
  if (a.convert == nullptr) return;
  // Every task of the unit has written its columns when the last one is counted.
  std::atomic_ref<int32_t> done(a.done[number]);
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < a.chunks) return;
  done.store(0, std::memory_order_relaxed);
  const PrepareArgs prepare{.x = c, .out = a.mid + unit.row0 * a.mid_stride};
  (many && a.mid_strips ? a.convert_strips : a.convert)(&prepare, 0, 1, 0, unit.rows);
}

// GCC's vector types: one AVX2 operation each. Without FMA: multiplied, rounded, added on every machine.
using F8 = float __attribute__((vector_size(32), aligned(4), may_alias));

// out += weight * c.
__attribute__((target("avx2"))) void AddWeighed(float* out, const float* c, float weight, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) *reinterpret_cast<F8*>(out + i) += weight * *reinterpret_cast<const F8*>(c + i);
  for (; i < n; ++i) out[i] += weight * c[i];
}

}  // namespace

MoeRowLayout MoeRowLayoutOf(DType type, int64_t k) {
  MoeRowLayout layout{.type = type, .k = k};
  switch (type) {
    case DType::kQ8Act:
      layout.row_bytes = Q8Layout{k}.row_bytes();
      break;
    case DType::kI8Act:
      layout.row_bytes = I8Layout{k}.row_bytes();
      layout.strips = I8Layout{k}.strips();
      break;
    case DType::kBF16:
    case DType::kF16:
      layout.row_bytes = AlignUp(2 * k, 4);
      layout.strips = HalfStrips(k);
      break;
    default:
      layout.row_bytes = 4 * k;
  }
  layout.stride = AlignUp(layout.row_bytes, 64);
  return layout;
}

void GroupedUpKernel(const void* args, int64_t n0, int64_t n1, int64_t, int64_t) {
  const auto& a = *static_cast<const GroupedUpArgs*>(args);
  const int64_t end = std::min(n1, a.runs->units * a.chunks);
  for (int64_t n = n0; n < end; ++n) UpTask(a, n / a.chunks, n % a.chunks);
}

void GroupedDownKernel(const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const GroupedDownArgs*>(args);
  const int64_t column = n0 * kPanelColumns, count = std::min(n1 * kPanelColumns, a.columns) - column;
  if (count <= 0) return;
  const auto at = [column](auto* base, int64_t ld_bytes, int64_t row) { return base + row * ld_bytes / 4 + column; };
  for (int64_t m = m0; m < m1; ++m) {
    float* out = at(a.out, a.ldo_bytes, m);
    if (a.residual == nullptr) {
      std::memset(out, 0, static_cast<size_t>(count) * 4);
    } else if (a.residual != a.out) {
      std::memcpy(out, at(a.residual, a.ldr_bytes, m), static_cast<size_t>(count) * 4);
    }
  }
  for (int64_t u = 0; u < a.runs->units; ++u) {
    const MoeUnit& unit = a.runs->unit[u];
    const GemmArgs gemm{.a = a.mid + unit.row0 * a.mid_stride,
                        .w = a.weights.w + unit.expert * a.weights.expert_bytes + n0 * a.weights.panel_bytes,
                        .c = a.c,
                        .scratch = a.scratch};
    a.weights.FnFor(unit.rows)(&gemm, 0, n1 - n0, 0, unit.rows);
    for (int64_t r = 0; r < unit.rows; ++r) {
      const int64_t slot = a.runs->slot[unit.first + r], token = slot / a.slots;
      const float weight = a.weight[token * a.ldweight_bytes / 4 + slot % a.slots];
      AddWeighed(at(a.out, a.ldo_bytes, token), a.c + r * a.ldc_bytes / 4, weight, count);
    }
  }
}

}  // namespace xjit
