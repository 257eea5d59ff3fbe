// Named registers with scopes: two live names never share one, and running out is an error while emitting.
//
//   Regs regs(32);                             // vector registers: 16 for AVX2
//   const auto a = regs.Gpr("a");              // freed when `a` goes out of scope
//   const auto acc = regs.Vecs("acc", 12);     // acc[i] is the register's index: Zmm(acc[i]) or Ymm(acc[i])
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/emitter.h"
#include "ir/support/status.h"

namespace xjit {

class Regs {
 public:
  // Vector registers 0 .. vectors-1 (16 for AVX2). General registers: all but rsp and the argument registers, which a
  // kernel frees with FreeArguments() once it has moved them.
  explicit Regs(int vectors) : vectors_(vectors) {}

  class Gpr64 {
   public:
    Gpr64(Regs* regs, int index) : regs_(regs), reg_(index) {}
    Gpr64(Gpr64&& o) noexcept : regs_(std::exchange(o.regs_, nullptr)), reg_(o.reg_) {}
    Gpr64& operator=(Gpr64&&) = delete;
    ~Gpr64() {
      if (regs_ != nullptr) regs_->gpr_used_ &= ~(1u << reg_.getIdx());
    }
    operator const Xbyak::Reg64&() const { return reg_; }
    const Xbyak::Reg64& operator*() const { return reg_; }

   private:
    Regs* regs_;
    Xbyak::Reg64 reg_;
  };

  class VecList {
   public:
    VecList(Regs* regs, std::vector<int> v) : regs_(regs), v_(std::move(v)) {}
    VecList(VecList&& o) noexcept : regs_(std::exchange(o.regs_, nullptr)), v_(std::move(o.v_)) {}
    VecList& operator=(VecList&&) = delete;
    ~VecList() {
      if (regs_ != nullptr)
        for (int i : v_) regs_->vec_used_ &= ~(1u << i);
    }
    int operator[](size_t i) const { return v_[i]; }
    Xbyak::Zmm Z(size_t i = 0) const { return Xbyak::Zmm(v_[i]); }
    Xbyak::Ymm Y(size_t i = 0) const { return Xbyak::Ymm(v_[i]); }
    Xbyak::Xmm X(size_t i = 0) const { return Xbyak::Xmm(v_[i]); }
    size_t size() const { return v_.size(); }

   private:
    Regs* regs_;
    std::vector<int> v_;
  };

  Gpr64 Gpr(std::string_view name);
  VecList Vecs(std::string_view name, int count = 1);
  // Vector registers that no name has.
  int FreeVecs() const { return vectors_ - std::popcount(vec_used_); }
  // rdi, rsi, rdx, rcx, r8 may be handed out from now on.
  Regs& FreeArguments() {
    gpr_used_ &= ~kArguments;
    return *this;
  }
  // The first name that found no register; a kernel's emit function returns it.
  const absl::Status& status() const { return status_; }

 private:
  static constexpr uint32_t kArguments = (1u << 7) | (1u << 6) | (1u << 2) | (1u << 1) | (1u << 8);
  int vectors_;
  uint32_t gpr_used_ = (1u << 4) | (1u << 5) | kArguments;  // rsp, and rbp which Epilogue restores from
  uint32_t vec_used_ = 0;
  absl::Status status_;
};

}  // namespace xjit
