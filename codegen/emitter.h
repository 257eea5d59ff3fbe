// The Xbyak code generator that every kernel is emitted with: near jumps, growing buffer, the System V frame, and the
// one place where Xbyak's error state is checked. Emitted code must be position independent (it is copied to a
// CodeArena): constants go through `Const*`, which emits them behind the code and addresses them rip-relative.
#pragma once

#include <xbyak/xbyak.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "codegen/kernel.h"
#include "ir/support/status.h"

namespace xjit {

class Emitter : public Xbyak::CodeGenerator {
 public:
  Emitter();

  // Kernel arguments as they arrive (see KernelFn).
  const Xbyak::Reg64 arg_args = rdi, arg_n0 = rsi, arg_n1 = rdx, arg_m0 = rcx, arg_m1 = r8;

  // Pushes rbx, rbp, r12-r15 and reserves `stack_bytes` (64-byte aligned rsp).
  void Prologue(int stack_bytes = 0);
  // Undoes Prologue, vzeroupper, ret.
  void Epilogue();

  // Address of a 64-byte (32, 4) constant behind the code; equal constants share one place.
  Xbyak::Address ConstZmm(const void* bytes64);
  Xbyak::Address ConstYmm(const void* bytes32);
  Xbyak::Address ConstF32(float value);       // one dword: use with vbroadcastss or {1to16} (ptr_b built by caller)
  Xbyak::RegRip ConstLabel32(uint32_t bits);  // rip-relative place of one dword, for ptr[...] and ptr_b[...]

  // Emits the constant pool, checks Xbyak's error state, copies the code into `arena`.
  absl::StatusOr<Kernel> Finish(std::string name, CodeArena& arena, int64_t scratch_bytes = 0);

 private:
  struct Constant {
    std::vector<uint8_t> bytes;
    Xbyak::Label label;
  };
  Xbyak::Label& Pool(const void* bytes, size_t size);
  std::vector<std::unique_ptr<Constant>> pool_;
  int stack_bytes_ = 0;
};

}  // namespace xjit
