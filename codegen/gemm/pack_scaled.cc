#include "codegen/gemm/pack_scaled.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack_block.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using pack_internal::Byte;
using pack_internal::HalfAt;
using pack_internal::Load;
using pack_internal::Store;

// The bits of an f16 that is exactly `x`.
absl::StatusOr<uint16_t> ExactHalf(float x) {
  const uint16_t half = F32ToF16(x);
  if (F16ToF32(half) != x) {
    return InvalidArgument("a scale of int4 weights is {}, which f16 cannot hold (--backend interp runs it)", x);
  }
  return half;
}

// Elements of k that all columns of a panel advance through together; a multiple of every unit.
constexpr int64_t kChunkElems = 256;

// Where element k of a column is: in its unit, from the unit's start.
int ByteOf(DType type, int column, int64_t k) {
  const int group = column / kGroupColumns * 64, c = column % kGroupColumns, i = static_cast<int>(k % 4);
  return type == DType::kI8 ? group + 4 * c + i : group + 16 * (c / 4) + 8 * (i / 2) + 2 * (c % 4) + i % 2;
}

// Of int4, the byte of element k (of 32) and whether it is the high half.
struct NibbleAt {
  int byte;
  bool high;
};
NibbleAt NibbleOf(int column, int64_t k) {
  const int g = static_cast<int>(k % 32 / 4);
  return {column / kGroupColumns * 256 + 64 * (g % 4) + 4 * (column % kGroupColumns) + static_cast<int>(k % 4), g >= 4};
}

// Puts a column's codes of one unit.
void PutUnit(DType type, int column, const std::byte* codes, std::byte* unit) {
  const int group = column / kGroupColumns, c = column % kGroupColumns;
  if (type == DType::kI4) {
    for (int g = 0; g < 4; ++g) {
      Store(unit + group * 256 + 64 * g + 4 * c, Load<uint32_t>(codes + 4 * g) | Load<uint32_t>(codes + 4 * g + 16)
                                                                                     << 4);
    }
  } else if (type == DType::kI8) {
    Store(unit + group * 64 + 4 * c, Load<uint32_t>(codes) ^ 0x80808080u);
  } else {
    Store(unit + ByteOf(type, column, 0), Load<uint16_t>(codes));
    Store(unit + ByteOf(type, column, 2), Load<uint16_t>(codes + 2));
  }
}

// The same of `elems` consecutive elements, the last unit filled up with zeros.
void PutCodes(DType type, const ScaledBlocks& blocks, int column, const std::byte* codes, int64_t elems,
              std::byte* units) {
  const int64_t whole = elems / blocks.unit;
  for (int64_t u = 0; u < whole; ++u) {
    PutUnit(type, column, codes + u * blocks.unit, units + u * blocks.unit_bytes);
  }
  if (elems == whole * blocks.unit) return;
  std::byte last[32] = {};
  std::memcpy(last, codes + whole * blocks.unit, static_cast<size_t>(elems - whole * blocks.unit));
  PutUnit(type, column, last, units + whole * blocks.unit_bytes);
}

float ScaleAt(const ScaledBlocks& blocks, const std::byte* header, int column) {
  return blocks.scale == DType::kF16 ? HalfAt(header + 2 * column) : Load<float>(header + 4 * column);
}

}  // namespace

int64_t ScaledBlocks::count(int64_t k) const { return CeilDiv(k, depth); }
int64_t ScaledBlocks::elems(int64_t k, int64_t block) const { return std::min(depth, k - block * depth); }
int64_t ScaledBlocks::block_bytes(int64_t elems) const {
  return header_bytes() + CeilDiv(AlignUp(elems, pad), unit) * unit_bytes;
}

ScaledBlocks ScaledBlocksOf(const Encoding& encoding, int64_t k) {
  ScaledBlocks blocks;
  const bool int4 = encoding.type == DType::kI4;
  blocks.unit = int4 ? 32 : 4;
  blocks.unit_bytes = int4 ? 512 : 128;
  blocks.pad = encoding.type == DType::kI8 ? 64 : blocks.unit;
  const Scales& s = encoding.scales;
  const bool cut = s.kind == Scales::Kind::kGroup || s.kind == Scales::Kind::kBlock;
  blocks.depth = cut ? std::min<int64_t>(s.cols, k) : k;
  blocks.scale = int4 ? DType::kF16 : DType::kF32;
  blocks.scale_bytes = kPanelColumns * (int4 ? 2 : 4);
  blocks.zero_bytes = s.zeros ? kPanelColumns : 0;
  return blocks;
}

absl::Status PackScaledPanel(const Encoding& encoding, int64_t k, std::span<const ScaledColumn> columns,
                             std::byte* dst) {
  const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
  // A zero of each: i8's is stored as 128, E4M3's and the padding of int4 (of value -zero * scale, but the scale is 0)
  // as 0.
  const auto fill = encoding.type == DType::kI8 ? 128 : 0;
  std::memset(dst, fill, static_cast<size_t>(PanelBytes(encoding, k)));
  for (int64_t b = 0; b < blocks.count(k); ++b) {
    std::byte* header = dst + blocks.offset(b);
    std::memset(header, 0, static_cast<size_t>(blocks.header_bytes()));
    for (int c = 0; c < kPanelColumns; ++c) {
      const ScaledColumn& column = columns[static_cast<size_t>(c)];
      if (column.codes == nullptr) continue;
      if (blocks.scale == DType::kF16) {
        XJIT_ASSIGN_OR_RETURN(const uint16_t half, ExactHalf(column.scales[b]));
        Store(header + 2 * c, half);
      } else {
        Store(header + 4 * c, column.scales[b]);
      }
      if (blocks.zero_bytes > 0) header[blocks.scale_bytes + c] = std::byte{column.zeros[b]};
    }
    // All columns go through a chunk of the depth together, which stays in L1.
    const int64_t elems = blocks.elems(k, b);
    for (int64_t at = 0; at < elems; at += kChunkElems) {
      std::byte* units = header + blocks.header_bytes() + at / blocks.unit * blocks.unit_bytes;
      for (int c = 0; c < kPanelColumns; ++c) {
        const auto* codes = reinterpret_cast<const std::byte*>(columns[static_cast<size_t>(c)].codes);
        if (codes == nullptr) continue;
        PutCodes(encoding.type, blocks, c, codes + b * blocks.depth + at, std::min(kChunkElems, elems - at), units);
      }
    }
  }
  return absl::OkStatus();
}

void UnpackCodes(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, uint8_t* codes, float* scales,
                 uint8_t* zeros) {
  const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
  const std::byte* panel = packed + n / kPanelColumns * PanelBytes(encoding, k);
  const int c = static_cast<int>(n % kPanelColumns);
  for (int64_t b = 0; b < blocks.count(k); ++b) {
    const std::byte* header = panel + blocks.offset(b);
    scales[b] = ScaleAt(blocks, header, c);
    zeros[b] = blocks.zero_bytes > 0 ? Byte(header + blocks.scale_bytes + c) : encoding.type == DType::kI4 ? 8 : 0;
    for (int64_t i = 0; i < blocks.elems(k, b); ++i) {
      const std::byte* unit = header + blocks.header_bytes() + i / blocks.unit * blocks.unit_bytes;
      uint8_t& code = codes[b * blocks.depth + i];
      if (encoding.type == DType::kI4) {
        const NibbleAt at = NibbleOf(c, i);
        code = Byte(unit + at.byte) >> (at.high ? 4 : 0) & 15;
      } else {
        code = Byte(unit + ByteOf(encoding.type, c, i)) ^ (encoding.type == DType::kI8 ? 128 : 0);
      }
    }
  }
}

float CodeValue(DType type, uint8_t code, int zero) {
  if (type == DType::kI8) return static_cast<float>(static_cast<int8_t>(code));
  return type == DType::kF8E4M3 ? E4M3ToF32(code) : static_cast<float>(code - zero);
}

void UnpackScaledColumn(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, float* out) {
  const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
  std::vector<uint8_t> codes(static_cast<size_t>(k)), zeros(static_cast<size_t>(blocks.count(k)));
  std::vector<float> scales(zeros.size());
  UnpackCodes(encoding, k, packed, n, codes.data(), scales.data(), zeros.data());
  for (int64_t i = 0; i < k; ++i) {
    const auto b = static_cast<size_t>(i / blocks.depth);
    out[i] = CodeValue(encoding.type, codes[static_cast<size_t>(i)], zeros[b]) * scales[b];
  }
}

void UnpackInt4Block(const Encoding& encoding, int64_t k, const std::byte* packed, int64_t n, int64_t block,
                     ColumnBlock* out) {
  const ScaledBlocks blocks = ScaledBlocksOf(encoding, k);
  const int64_t first = block * 32;
  const std::byte* header = packed + n / kPanelColumns * PanelBytes(encoding, k) + blocks.offset(first / blocks.depth);
  const std::byte* unit = header + blocks.header_bytes() + first % blocks.depth / blocks.unit * blocks.unit_bytes;
  const int c = static_cast<int>(n % kPanelColumns);
  pack_internal::Nibbles(unit + c / kGroupColumns * 256, c % kGroupColumns, out->q);
  out->scale[0] = out->scale[1] = ScaleAt(blocks, header, c);
  if (blocks.zero_bytes == 0) {
    pack_internal::Subtract(8, out->q);
    out->add[0] = out->add[1] = 0;
  } else {
    out->add[0] = out->add[1] = -(out->scale[0] * static_cast<float>(Byte(header + blocks.scale_bytes + c)));
  }
}

}  // namespace xjit
