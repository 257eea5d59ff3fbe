// Calls a kernel with known values in the callee-saved registers.
#pragma once

#include <xbyak/xbyak.h>

#include <cstdint>
#include <string>

#include "codegen/kernel.h"

namespace xjit::testing {

struct WatchCode : Xbyak::CodeGenerator {
  WatchCode() {
    const Xbyak::Reg64 saved[] = {rbx, rbp, r12, r13, r14, r15};
    for (const auto& r : saved) push(r);
    sub(rsp, 24);
    for (int i = 0; i < 6; ++i) mov(saved[i], 0x5A5A000000 + i);
    call(r9);
    xor_(eax, eax);
    for (int i = 0; i < 6; ++i) {
      mov(rcx, 0x5A5A000000 + i);
      Xbyak::Label same;
      cmp(saved[i], rcx);
      je(same);
      or_(eax, 1 << i);
      L(same);
    }
    add(rsp, 24);
    for (int i = 5; i >= 0; --i) pop(saved[i]);
    ret();
  }
};

// fn(args, n0, n1, m0, m1); names those of rbx, rbp, r12-r15 that it has not preserved ("" if none).
inline std::string WatchedCall(KernelFn fn, const void* args, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
  using Watch = int64_t (*)(const void*, int64_t, int64_t, int64_t, int64_t, KernelFn);
  static const WatchCode* code = new WatchCode;
  const int64_t changed = code->getCode<Watch>()(args, n0, n1, m0, m1, fn);
  std::string names;
  const char* const all[] = {"rbx ", "rbp ", "r12 ", "r13 ", "r14 ", "r15 "};
  for (int i = 0; i < 6; ++i) {
    if ((changed >> i & 1) != 0) names += all[i];
  }
  return names;
}

}  // namespace xjit::testing
