#include "codegen/gemm/gemm_vnni_tile.h"

#include <algorithm>

namespace xjit {

using Xbyak::RegExp;
using Xbyak::Zmm;

namespace {
constexpr int kPrefetchA = 128;  // bytes of a row ahead: four blocks
}

int VnniUnpackedBytes(const VnniWeights& weights) {
  const int scales = VnniMinimumAt(weights) - kVnniScaleAt;
  return kVnniScaleAt + (weights.minimum ? 2 : 1) * scales;
}

VnniTile::VnniTile(const GemmDesc& desc, const GemmPlan& plan, int rows, const Pointers& pointers, Emitter& e)
    : weights_(VnniWeightsOf(desc.w, desc.k)),
      act_{desc.k},
      lda_bytes_(desc.lda_bytes),
      rows_(rows),
      prefetch_(plan.prefetch_next_panel),
      prefetch_a_(plan.prefetch_a),
      p_(pointers),
      e_(e),
      sums_(regs_.Vecs("sums", 2 * rows)),
      dots_(regs_.Vecs("dots", (weights_.halves() ? 4 : 2) * rows)),
      b_(regs_.Vecs("b", 2)),
      broadcast_(regs_.Vecs("broadcast", 4)) {}

void VnniTile::Block() {
  Start();
  if (!weights_.halves()) {
    Dots(0, 8, 0);
    return Scale();
  }
  // The first half's sums are scaled while the second's are multiplied (Zen 5, data in L2: 69% of the speed of vpdpbusd
  // alone, against 66.5% with both halves at once, scaled at the end).
  Dots(0, 4, 0);
  ScaleFirstHalf();
  Dots(4, 8, 1);
  ScaleSecondHalf();
}

// Where the dword of the block is in an array of the row's record.
RegExp VnniTile::Activation(int row, int array, int scale) const {
  return p_.a + p_.block * scale + (RowOffset(row) + array);
}

// Both groups' vectors at `at` in the unpacked block.
void VnniTile::Load(int at) {
  for (int group = 0; group < 2; ++group) e_.vmovaps(b(group), e_.ptr[p_.weights + (at + 64 * group)]);
}

// int32 sums that cancel the offset of the unsigned weights.
void VnniTile::Start() {
  for (int half = 0; half < (weights_.halves() ? 2 : 1); ++half) {
    for (int row = 0; row < rows_; ++row) {
      const Zmm first = dot(half, row, 0), second = dot(half, row, 1);
      if (weights_.offset_log2 == 0) {
        e_.vpxord(first, first, first);
        e_.vpxord(second, second, second);
        continue;
      }
      const RegExp sum =
          weights_.halves() ? Activation(row, act_.neg_half_sum() + 4 * half, 8) : Activation(row, act_.neg_sum());
      e_.vpslld(first, e_.ptr_b[sum], static_cast<uint8_t>(weights_.offset_log2));
      e_.vmovdqa32(second, first);
    }
  }
}

// Of k = 4 begin .. 4 end - 1, to the sums of `half`.
void VnniTile::Dots(int begin, int end, int half) {
  size_t next = 0;
  for (int g = begin; g < end; ++g) {
    Load(128 * g);
    if (prefetch_ && g % 4 == 0) {
      e_.prefetcht1(e_.ptr[p_.prefetch]);
      e_.add(p_.prefetch, p_.prefetch_step);
    }
    if (prefetch_a_ && g < rows_) e_.prefetcht0(e_.ptr[p_.q + (RowOffset(g) + kPrefetchA)]);
    // What the next tile's rows are scaled by (EPYC 9005, 512x1536x8960, q6_k 63.3 and 63.6% of the peak, 2
    // threads 58.6 and 60.9, q2_k 48.1 and 52.2; of whole blocks it gains nothing).
    if (weights_.halves() && g < rows_) {
      e_.prefetcht0(e_.ptr[Activation(rows_ + g, act_.scale())]);
      e_.prefetcht0(e_.ptr[Activation(rows_ + g, act_.neg_half_sum(), 8)]);
    }
    for (int row = 0; row < rows_; ++row) {
      const RegExp a = p_.q + (RowOffset(row) + 4 * g);
      const Zmm x = broadcast_.Z(next++ % broadcast_.size());
      e_.vpbroadcastd(x, e_.ptr[a]);
      for (int group = 0; group < 2; ++group) e_.vpdpbusd(dot(half, row, group), b(group), x);
    }
  }
}

void VnniTile::Scale() {
  Load(kVnniScaleAt);
  for (int row = 0; row < rows_; ++row) {
    for (int group = 0; group < 2; ++group) {
      const Zmm d = dot(0, row, group);
      e_.vcvtdq2ps(d, d);
      e_.vmulps(d, d, e_.ptr_b[Activation(row, act_.scale())]);
      e_.vfmadd231ps(sum(row, group), d, b(group));
    }
  }
  if (!weights_.minimum) return;
  Load(VnniMinimumAt(weights_));
  for (int row = 0; row < rows_; ++row) {
    const auto scaled_sum = e_.ptr_b[Activation(row, act_.scaled_sum())];
    for (int group = 0; group < 2; ++group) {
      if (weights_.minimum_negative) {
        e_.vfnmadd231ps(sum(row, group), b(group), scaled_sum);
      } else {
        e_.vfmadd231ps(sum(row, group), b(group), scaled_sum);
      }
    }
  }
}

void VnniTile::ScaleFirstHalf() {
  Load(kVnniScaleAt);
  for (int row = 0; row < rows_; ++row) {
    for (int group = 0; group < 2; ++group) {
      e_.vcvtdq2ps(dot(0, row, group), dot(0, row, group));
      e_.vmulps(dot(0, row, group), dot(0, row, group), b(group));
    }
  }
}

void VnniTile::ScaleSecondHalf() {
  Load(kVnniScaleAt + 128);
  for (int row = 0; row < rows_; ++row) {
    for (int group = 0; group < 2; ++group) {
      e_.vcvtdq2ps(dot(1, row, group), dot(1, row, group));
      e_.vfmadd231ps(dot(0, row, group), dot(1, row, group), b(group));
      if (weights_.minimum) continue;
      e_.vfmadd231ps(sum(row, group), dot(0, row, group), e_.ptr_b[Activation(row, act_.scale())]);
    }
  }
  if (weights_.minimum) MinimaOfHalves();
}

// Negative sums: the minima are subtracted.
void VnniTile::MinimaOfHalves() {
  for (int half = 0; half < 2; ++half) {
    Load(VnniMinimumAt(weights_) + 128 * half);
    for (int row = 0; row < rows_; ++row) {
      const Zmm sums = dot(1, row, half);
      e_.vcvtdq2ps(sums, e_.ptr_b[Activation(row, act_.neg_half_sum() + 4 * half, 8)]);
      for (int group = 0; group < 2; ++group) {
        e_.vfmadd231ps(dot(0, row, group), sums, b(group));
        if (half == 0) continue;
        e_.vfmadd231ps(sum(row, group), dot(0, row, group), e_.ptr_b[Activation(row, act_.scale())]);
      }
    }
  }
}

}  // namespace xjit
