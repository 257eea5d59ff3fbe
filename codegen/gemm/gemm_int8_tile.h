// One register block of the int8 gemm: rows x the vectors of a panel of int32 sums, and the code for 64 k of it.
#pragma once

#include <cstdint>
#include <vector>

#include "codegen/gemm/gemm_fma_epilogue.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/regs.h"

namespace xjit {

// How four products of u8 and s8 are added to an int32, exactly.
enum class Int8Dot : uint8_t {
  kEvex,   // vpdpbusd zmm
  kVex,    // vpdpbusd ymm, AVX-VNNI
  kPairs,  // vpmaddwd of even and of odd k as int16
};

inline constexpr int kInt8Chunk = 64;                                   // k's
inline constexpr int kInt8ChunkBytes = kInt8Chunk * kPanelColumns;      // of a panel
inline constexpr int kInt8PairsBytes = 2 * kInt8Chunk;                  // of a row: int16 of even k, then of odd
inline constexpr int kInt8HeaderBytes = kPanelColumns * sizeof(float);  // of a panel

// How a block's rows of A lie, seen from its first row's chunk: bytes from row to row.
struct Int8Rows {
  int stride = 0;
  // From one row's scale to the next one's, and from a scale to the negative sum.
  int scale_stride = 0;
  int neg_sum_at = 0;
};

class Int8Tile {
 public:
  struct Pointers {
    Xbyak::Reg64 weights;  // the panel's 64 k
    Xbyak::Reg64 a;        // the same 64 k of the block's first row
    Xbyak::Reg64 scale;    // of the block's first row
  };
  // `chains` sums in turn shorten the chain of dependent products where rows are few.
  Int8Tile(const Lanes& lanes, Int8Dot dot, int rows, int chains, const Int8Rows& layout, const Pointers& pointers,
           Emitter& e, Regs& regs);

  // Sums = what cancels the weights' offset.
  void Start();
  // Sums of so many earlier k to and from memory.
  void Load(const Xbyak::Reg64& from);
  void Store(const Xbyak::Reg64& to);
  int stored_bytes() const { return rows_ * kPanelColumns * 4; }
  // Adds the products of so many units of 4 k. `before_unit` is called before each.
  template <class F>
  void Units(int units, F before_unit) {
    const Operands operands = TakeOperands();
    for (int u = 0; u < units; ++u) {
      before_unit(u);
      Unit(u, operands);
    }
  }
  // Adds up the chains: one sum a row and column is left.
  void JoinChains();
  // The registers of a row's sums, as f32 values that are scaled by the row's scale and the 32 scales at `scales`.
  std::vector<int> Scaled(int row, const Xbyak::RegExp& scales);

 private:
  int acc(int row, int v, int chain = 0) const {
    return acc_[static_cast<size_t>((row * vectors_ + v) * chains_ + chain)];
  }
  Xbyak::Address Weights(int unit, int v) const;
  Xbyak::RegExp Activations(int row, int unit) const;
  // Registers that only products need.
  struct Operands {
    Regs::VecList w, a, t;
  };
  Operands TakeOperands();
  void Unit(int unit, const Operands& o);
  void DotUnit(int unit, const Operands& o);
  void PairsUnitWide(int unit, const Operands& o);
  void PairsUnitNarrow(int unit, const Operands& o);
  void AddPairs(int acc, int w, int a, const Operands& o);

  const Lanes lanes_;
  const Int8Dot dot_;
  const int rows_, chains_, vectors_;
  const Int8Rows layout_;
  const Pointers p_;
  Emitter& e_;
  Regs& regs_;
  Regs::VecList acc_;
  int turn_ = 0;
};

// Row's 64 bytes at `from` to int16 pairs at `to`.
void EmitInt8Pairs(const Lanes& lanes, const Xbyak::RegExp& from, const Xbyak::RegExp& to, Emitter& e, Regs& regs);

}  // namespace xjit
