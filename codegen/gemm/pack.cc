#include "codegen/gemm/pack.h"

#include <algorithm>
#include <cstring>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack_block.h"
#include "codegen/gemm/pack_block_low.h"
#include "codegen/gemm/pack_scaled.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

// Elements of k that all columns of a panel advance through together: the sources are then four streams at a time,
// and the packed chunk (at most 32 KiB) stays in L1 while its column quads are filled in.
constexpr int kChunkElems = 256;

// Blocks that are packed and read as a whole, not group by group.
template <typename Block>
constexpr bool kBothGroups = requires { Block::kBothGroups; };

template <typename Block>
void PackPanelsOf(int64_t k, std::span<const std::byte* const> rows, int64_t panel_begin, int64_t panel_end,
                  std::byte* dst) {
  constexpr int kElems = Block::kElems, kSourceBytes = Block::kSourceBytes, kGroup = Block::kGroupBytes;
  // What a column of zeros is packed from.
  alignas(16) static constexpr std::byte kZeros[kSourceBytes] = {};
  const int64_t blocks = k / kElems;
  constexpr int64_t kStep = std::max(1, kChunkElems / kElems);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const std::byte* const* panel_rows = rows.data() + p * kPanelColumns;
    std::byte* panel = dst + p * blocks * 2 * kGroup;
    for (int64_t b0 = 0; b0 < blocks; b0 += kStep) {
      const int64_t b1 = std::min(blocks, b0 + kStep);
      for (int quad = 0; quad < kPanelColumns / 4; ++quad) {
        const std::byte* src[4];
        int64_t step[4];
        for (int c = 0; c < 4; ++c) {
          const std::byte* row = panel_rows[4 * quad + c];
          step[c] = row == nullptr ? 0 : kSourceBytes;
          src[c] = row == nullptr ? kZeros : row + b0 * kSourceBytes;
        }
        std::byte* out = panel + (2 * b0 + (kBothGroups<Block> ? 0 : quad / 4)) * kGroup;
        for (int64_t b = b0; b < b1; ++b, out += 2 * kGroup) {
          Block::PackQuad(src, kBothGroups<Block> ? quad : quad % 4, out);
          for (int c = 0; c < 4; ++c) src[c] += step[c];
        }
      }
    }
  }
}

template <typename Block>
concept Quantized = requires { Block::kHasAdd; };

// The first group (or block) that has packed column n, and which of its columns that is.
template <typename Block>
const std::byte* FirstGroup(int64_t k, const std::byte* packed, int64_t n) {
  const std::byte* panel = packed + n / kPanelColumns * (k / Block::kElems) * 2 * Block::kGroupBytes;
  return kBothGroups<Block> ? panel : panel + n % kPanelColumns / kGroupColumns * Block::kGroupBytes;
}
template <typename Block>
int ColumnIn(int64_t n) {
  return static_cast<int>(n % (kBothGroups<Block> ? kPanelColumns : kGroupColumns));
}

template <typename Block>
void UnpackColumnOf(int64_t k, const std::byte* packed, int64_t n, float* out) {
  const int column = ColumnIn<Block>(n);
  const std::byte* p = FirstGroup<Block>(k, packed, n);
  for (int64_t b = 0; b < k / Block::kElems; ++b, p += 2 * Block::kGroupBytes) {
    if constexpr (Quantized<Block>) {
      for (int part = 0; part < Block::kElems / 32; ++part, out += 32) {
        ColumnBlock values;
        Block::Column(p, column, part, &values);
        for (int i = 0; i < 32; ++i) out[i] = values.scale[i / 16] * static_cast<float>(values.q[i]);
        if constexpr (Block::kHasAdd) {
          for (int i = 0; i < 32; ++i) out[i] += values.add[i / 16];
        }
      }
    } else {
      Block::Unpack(p, column, out);
      out += Block::kElems;
    }
  }
}

// bf16 panels are padded to whole tiles: the even part of k as other encodings, then the last pair and zeros.
void PackBF16(int64_t k, std::span<const std::byte* const> rows, int64_t panel_begin, int64_t panel_end,
              std::byte* dst) {
  const int64_t bytes = PanelBytes(DType::kBF16, k), even = k / 2 * 128;
  if (even == bytes) return PackPanelsOf<PackBlockBF16>(k, rows, panel_begin, panel_end, dst);
  for (int64_t p = panel_begin; p < panel_end; ++p) {
    const auto columns = rows.subspan(static_cast<size_t>(p * kPanelColumns), kPanelColumns);
    std::byte* panel = dst + p * bytes;
    PackPanelsOf<PackBlockBF16>(k / 2 * 2, columns, 0, 1, panel);
    std::memset(panel + even, 0, static_cast<size_t>(bytes - even));
    if (k % 2 == 0) continue;
    for (size_t n = 0; n < columns.size(); ++n) {
      if (columns[n] != nullptr) std::memcpy(panel + even + 4 * n, columns[n] + 2 * (k - 1), 2);
    }
  }
}

void UnpackBF16(int64_t k, const std::byte* packed, int64_t n, float* out) {
  const std::byte* p = packed + n / kPanelColumns * PanelBytes(DType::kBF16, k) + n % kPanelColumns * 4;
  for (int64_t i = 0; i < k; ++i) {
    uint16_t h;
    std::memcpy(&h, p + i / 2 * 128 + i % 2 * 2, 2);
    out[i] = BF16ToF32(h);
  }
}

// Calls visit.template operator()<Block>() with the block type of a quantised encoding, f32 or f16.
template <typename Visit>
void Dispatch(DType encoding, Visit visit) {
  switch (encoding) {
    case DType::kF32:
      return visit.template operator()<PackBlockF32>();
    case DType::kF16:
      return visit.template operator()<PackBlockF16>();
    case DType::kBF16:
      return visit.template operator()<PackBlockBF16>();
    case DType::kQ8_0:
      return visit.template operator()<PackBlockQ8_0>();
    case DType::kQ4_0:
      return visit.template operator()<PackBlockQ4_0>();
    case DType::kQ4_1:
      return visit.template operator()<PackBlockQ4_1>();
    case DType::kQ5_0:
      return visit.template operator()<PackBlockQ5_0>();
    case DType::kQ5_1:
      return visit.template operator()<PackBlockQ5_1>();
    case DType::kQ4_K:
      return visit.template operator()<PackBlockQ4_K>();
    case DType::kQ5_K:
      return visit.template operator()<PackBlockQ5_K>();
    case DType::kQ6_K:
      return visit.template operator()<PackBlockQ6_K>();
    case DType::kQ2_K:
      return visit.template operator()<PackBlockQ2_K>();
    case DType::kQ3_K:
      return visit.template operator()<PackBlockQ3_K>();
    case DType::kIQ4_NL:
      return visit.template operator()<PackBlockIQ4_NL>();
    case DType::kIQ4_XS:
      return visit.template operator()<PackBlockIQ4_XS>();
    case DType::kMxfp4:
      return visit.template operator()<PackBlockMxfp4>();
    default:
      return;  // no panels: HasPanels() is false
  }
}

}  // namespace

int PackedBlockElems(DType encoding) {
  int elems = 1;
  Dispatch(encoding, [&]<typename Block>() { elems = Block::kElems; });
  return elems;
}

int PackedGroupBytes(DType encoding) {
  int bytes = 0;
  Dispatch(encoding, [&]<typename Block>() { bytes = Block::kGroupBytes; });
  return bytes;
}

int64_t PackedColumns(int64_t n, bool interleaved) {
  const int64_t columns = interleaved ? n / 2 : n, share = interleaved ? kGroupColumns : kPanelColumns;
  return CeilDiv(columns, share) * kPanelColumns;
}

bool HasScalesOutside(DType type) { return type == DType::kI8 || type == DType::kF8E4M3 || type == DType::kI4; }

bool HasPanels(const Encoding& encoding) {
  using Kind = Scales::Kind;
  const Scales& s = encoding.scales;
  if (!HasScalesOutside(encoding.type)) return s.kind == Kind::kNone && PackedGroupBytes(encoding.type) > 0;
  if (encoding.type == DType::kI4) return s.kind == Kind::kGroup && s.cols % 32 == 0;
  return s.kind == Kind::kTensor || s.kind == Kind::kChannel ||
         ((s.kind == Kind::kGroup || s.kind == Kind::kBlock) && s.cols > 0 && s.cols % 64 == 0);
}

int64_t PanelBytes(const Encoding& encoding, int64_t k) {
  if (HasScalesOutside(encoding.type)) {
    const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
    const int64_t last = blocks.count(k) - 1;
    return blocks.offset(last) + blocks.block_bytes(blocks.elems(k, last));
  }
  // Whole tiles of 32 k.
  if (encoding.type == DType::kBF16) return AlignUp(k, 32) / 2 * 2 * PackedGroupBytes(encoding.type);
  return CeilDiv(k, PackedBlockElems(encoding.type)) * 2 * PackedGroupBytes(encoding.type);
}

void PackPanels(DType encoding, int64_t k, std::span<const std::byte* const> rows, int64_t panel_begin,
                int64_t panel_end, std::byte* dst) {
  if (encoding == DType::kBF16) return PackBF16(k, rows, panel_begin, panel_end, dst);
  Dispatch(encoding, [&]<typename Block>() { PackPanelsOf<Block>(k, rows, panel_begin, panel_end, dst); });
}

void UnpackColumn(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, float* out) {
  if (HasScalesOutside(encoding.type)) return UnpackScaledColumn(encoding, k, packed, n, out);
  if (encoding.type == DType::kBF16) return UnpackBF16(k, packed, n, out);
  Dispatch(encoding.type, [&]<typename Block>() { UnpackColumnOf<Block>(k, packed, n, out); });
}

void UnpackColumnBlock(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, int64_t block,
                       ColumnBlock* out) {
  if (encoding.type == DType::kI4) return UnpackInt4Block(encoding, k, packed, n, block, out);
  Dispatch(encoding.type, [&]<typename Block>() {
    if constexpr (Quantized<Block>) {
      constexpr int kParts = Block::kElems / 32;
      Block::Column(FirstGroup<Block>(k, packed, n) + block / kParts * 2 * Block::kGroupBytes, ColumnIn<Block>(n),
                    static_cast<int>(block % kParts), out);
    }
  });
}

}  // namespace xjit
