// E4M3 to bf16, exact for all 256 codes (zeros of both signs, subnormals, NaN to NaN) in bytes: a table of the low half
// of each of 128 codes and one of the high half where there is vpermi2b (AVX512-VBMI), else tables of 16 by nibbles.
#pragma once

#include <array>
#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_fma_lanes.h"
#include "codegen/regs.h"

namespace xjit {

using VectorBytes = std::array<uint8_t, 64>;  // of a constant; narrow vectors take the first 32
template <typename Value>
VectorBytes MakeVectorBytes(Value value) {
  VectorBytes bytes;
  for (int i = 0; i < 64; ++i) bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(value(i));
  return bytes;
}

// low, high = the halves of 16-bit values for indices of seven bits.
class TableHalves {
 public:
  TableHalves(Emitter& e, Regs& regs, bool used = true) : e_(e), tables_(regs.Vecs("tables", used ? 4 : 0)) {}
  // Emits the loads; value(i) for i in 0 .. 127 gives 16 bits.
  template <typename Value>
  void Constants(Value value) const {
    for (int t = 0; t < 4; ++t) {
      const auto bytes = MakeVectorBytes([&](int i) { return value(t % 2 * 64 + i) >> t / 2 * 8 & 255; });
      e_.vmovdqa64(tables_.Z(static_cast<size_t>(t)), e_.ConstZmm(bytes.data()));
    }
  }
  // By the low seven bits of `index`, which may be high.
  void LookUp(const Xbyak::Zmm& index, const Xbyak::Zmm& low, const Xbyak::Zmm& high) const {
    e_.vmovdqa64(low, index);
    if (high.getIdx() != index.getIdx()) e_.vmovdqa64(high, index);
    e_.vpermi2b(low, tables_.Z(0), tables_.Z(1));
    e_.vpermi2b(high, tables_.Z(2), tables_.Z(3));
  }

 private:
  Emitter& e_;
  Regs::VecList tables_;
};

class Fp8Halves {
 public:
  // Keeps registers from its making to its end, Kept(vbmi); `vbmi` only with wide lanes. Without it, constants are also
  // kept, as far as `spare` registers hold them, which saves a load for each use.
  Fp8Halves(bool vbmi, Emitter& e, Regs& regs, const Lanes& lanes, int spare = 0);
  static int Kept(bool vbmi) { return vbmi ? 5 : 0; }
  // Further registers that Convert takes.
  static int Scratch(bool vbmi) { return vbmi ? 1 : 3; }

  // Emits the loads of what is kept.
  void Constants() const;
  // Register x holds codes in the order of pack.h; on return x and low hold pairs 0 and 1: a column's dword is two k's,
  // the even one in its low half.
  void Convert(int x, int low) const;

 private:
  // Constants of ByNibbles: tables of 16, then what a byte is compared, masked or added with.
  enum Constant {
    kSignAndExponent,
    kLowOfSmall,
    kHighOfSmall,
    kHighOfNan,
    kNanIndex,
    kMagnitude,
    kSmallIndex,
    kUpper,
    kLower,
    kConstants
  };
  static VectorBytes Bytes(Constant c);
  bool IsKept(Constant c) const { return static_cast<size_t>(c) < constants_.size(); }
  Xbyak::Address Memory(Constant c) const { return lanes_.Const(Bytes(c).data()); }
  void And(int dst, int src, Constant mask) const;
  void Add(int dst, int src, Constant c) const;
  void Pick(int dst, Constant table, int index) const;  // dst = table[index]
  void ByNibbles(int x, int low, int high) const;

  const bool vbmi_;
  Emitter& e_;
  Regs& regs_;
  const Lanes lanes_;
  const TableHalves tables_;
  const Regs::VecList sign_;
  const Regs::VecList constants_;  // the first ones
};

}  // namespace xjit
