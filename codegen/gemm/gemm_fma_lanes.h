// One vector width for code that is emitted for both: 16 f32 lanes (zmm, AVX-512 F/BW/DQ/VL) or 8 (ymm, AVX2 + FMA +
// F16C, VEX encodings only). What differs between the two instruction sets is here and nowhere else.
#pragma once

#include <array>
#include <cstdint>

#include "codegen/emitter.h"
#include "codegen/gemm/gemm_desc.h"

namespace xjit {

class Lanes {
 public:
  Lanes(Emitter& e, bool wide) : e_(e), wide_(wide) {}

  bool wide() const { return wide_; }
  int registers() const { return wide_ ? 32 : 16; }
  int bytes() const { return wide_ ? 64 : 32; }  // of one vector
  int count() const { return bytes() / 4; }      // f32 lanes of one vector
  int per_group() const { return kGroupColumns / count(); }
  int per_panel() const { return kPanelColumns / count(); }

  // Register `index` at this width, and at half of it (what 16-bit data of as many lanes takes).
  Xbyak::Xmm operator()(int index) const { return {wide_ ? Xbyak::Operand::ZMM : Xbyak::Operand::YMM, index}; }

  // All lanes of dst = the dword `bits`.
  void Fill(int dst, uint32_t bits) const { e_.vbroadcastss((*this)(dst), e_.ptr[e_.ConstLabel32(bits)]); }
  void Zero(int dst) const {
    const Xbyak::Xmm x(dst & 15);  // VEX clears the whole register; zmm16.. have no such short form
    if (dst < 16) {
      e_.vxorps(x, x, x);
    } else {
      e_.vpxord((*this)(dst), (*this)(dst), (*this)(dst));
    }
  }
  // A constant of one vector, the first bytes of 64.
  Xbyak::Address Const(const uint8_t* bytes) const { return wide_ ? e_.ConstZmm(bytes) : e_.ConstYmm(bytes); }
  void Load(int dst, const uint8_t* bytes) const { e_.vmovaps((*this)(dst), Const(bytes)); }
  // dst = src & mask.
  void And(int dst, int src, int mask) const {
    if (wide_) {
      e_.vpandd((*this)(dst), (*this)(src), (*this)(mask));
    } else {
      e_.vpand((*this)(dst), (*this)(src), (*this)(mask));
    }
  }
  // dst = mem & mask.
  void And(int dst, int mask, const Xbyak::Address& mem) const {
    if (wide_) {
      e_.vpandd((*this)(dst), (*this)(mask), mem);
    } else {
      e_.vpand((*this)(dst), (*this)(mask), mem);
    }
  }
  void Or(int dst, int a, int b) const {
    if (wide_) {
      e_.vpord((*this)(dst), (*this)(a), (*this)(b));
    } else {
      e_.vpor((*this)(dst), (*this)(a), (*this)(b));
    }
  }
  // dst |= bits & mask; `bits` may be overwritten.
  void OrMasked(int dst, int bits, int mask) const {
    if (wide_) {
      e_.vpternlogd((*this)(dst), (*this)(bits), (*this)(mask), 0xF8);  // A | (B & C)
    } else {
      And(bits, bits, mask);
      Or(dst, dst, bits);
    }
  }
  // dst = src, its dwords moved down by `bits` (up when negative).
  void ShiftDown(int dst, int src, int bits) const {
    if (bits > 0) {
      e_.vpsrld((*this)(dst), (*this)(src), static_cast<uint8_t>(bits));
    } else if (bits < 0) {
      e_.vpslld((*this)(dst), (*this)(src), static_cast<uint8_t>(-bits));
    } else if (dst != src) {
      e_.vmovaps((*this)(dst), (*this)(src));
    }
  }
  // Every 16 bytes of dst = the table.
  void Table(int dst, const int8_t table[16]) const {
    std::array<int8_t, 64> bytes;
    for (size_t b = 0; b < 64; ++b) bytes[b] = table[b % 16];
    e_.vmovups((*this)(dst), wide_ ? e_.ConstZmm(bytes.data()) : e_.ConstYmm(bytes.data()));
  }
  // Each dword of dst = byte i of that dword of src.
  void PickByte(int dst, int src, int i) const {
    std::array<uint8_t, 64> picks;  // an index within 16 bytes, or 0x80 for zero
    for (int b = 0; b < 64; ++b) picks[b] = static_cast<uint8_t>(b % 4 == 0 ? b % 16 + i : 0x80);
    e_.vpshufb((*this)(dst), (*this)(src), wide_ ? e_.ConstZmm(picks.data()) : e_.ConstYmm(picks.data()));
  }

 private:
  Emitter& e_;
  bool wide_;
};

}  // namespace xjit
