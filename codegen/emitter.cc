#include "codegen/emitter.h"

#include <cstring>
#include <utility>

#include "ir/support/align.h"

namespace xjit {

Emitter::Emitter() : Xbyak::CodeGenerator(1 << 16, Xbyak::AutoGrow) { setDefaultJmpNEAR(true); }

void Emitter::Prologue(int stack_bytes) {
  push(rbp);
  mov(rbp, rsp);  // Epilogue restores from rbp, so a kernel must leave rbp alone
  push(rbx);
  push(r12);
  push(r13);
  push(r14);
  push(r15);
  stack_bytes_ = AlignUp(stack_bytes, 64);
  if (stack_bytes_ > 0) sub(rsp, stack_bytes_);
  and_(rsp, -64);
}

void Emitter::Epilogue() {
  lea(rsp, ptr[rbp - 5 * 8]);
  pop(r15);
  pop(r14);
  pop(r13);
  pop(r12);
  pop(rbx);
  pop(rbp);
  vzeroupper();
  ret();
}

Xbyak::Label& Emitter::Pool(const void* bytes, size_t size) {
  const auto* p = static_cast<const uint8_t*>(bytes);
  for (auto& c : pool_) {
    if (c->bytes.size() == size && std::memcmp(c->bytes.data(), p, size) == 0) return c->label;
  }
  pool_.push_back(std::make_unique<Constant>());
  pool_.back()->bytes.assign(p, p + size);
  return pool_.back()->label;
}

Xbyak::Address Emitter::ConstZmm(const void* bytes64) { return ptr[rip + Pool(bytes64, 64)]; }
Xbyak::Address Emitter::ConstYmm(const void* bytes32) { return ptr[rip + Pool(bytes32, 32)]; }
Xbyak::Address Emitter::ConstF32(float value) { return ptr[rip + Pool(&value, 4)]; }
Xbyak::RegRip Emitter::ConstLabel32(uint32_t bits) { return rip + Pool(&bits, 4); }

absl::StatusOr<Kernel> Emitter::Finish(std::string name, CodeArena& arena, int64_t scratch_bytes) {
  const size_t text_bytes = getSize();
  for (size_t size : {64u, 32u, 4u}) {  // largest first keeps each aligned
    for (auto& c : pool_) {
      if (c->bytes.size() != size) continue;
      align(size);
      L(c->label);
      for (uint8_t byte : c->bytes) db(byte);
    }
  }
  if (const int error = Xbyak::GetError(); error != 0) {
    Xbyak::ClearError();
    return Internal("{}: xbyak: {}", name, Xbyak::ConvertErrorToString(error));
  }
  ready();  // resolves the labels of a growing buffer
  if (const int error = Xbyak::GetError(); error != 0) {
    Xbyak::ClearError();
    return Internal("{}: xbyak: {}", name, Xbyak::ConvertErrorToString(error));
  }
  Kernel kernel;
  kernel.name = std::move(name);
  kernel.code_bytes = getSize();
  kernel.text_bytes = text_bytes;
  kernel.scratch_bytes = scratch_bytes;
  XJIT_ASSIGN_OR_RETURN(kernel.code, arena.Add({getCode(), getSize()}));
  kernel.fn = reinterpret_cast<KernelFn>(reinterpret_cast<uintptr_t>(kernel.code));
  return kernel;
}

}  // namespace xjit
