#include "codegen/regs.h"

namespace xjit {

Regs::Gpr64 Regs::Gpr(std::string_view name) {
  for (int i = 0; i < 16; ++i) {
    if ((gpr_used_ >> i & 1) == 0) {
      gpr_used_ |= 1u << i;
      return Gpr64(this, i);
    }
  }
  if (status_.ok()) status_ = Internal("emit: no general register left for '{}'", name);
  return Gpr64(nullptr, 0);
}

Regs::VecList Regs::Vecs(std::string_view name, int count) {
  std::vector<int> got;
  for (int i = 0; i < vectors_ && static_cast<int>(got.size()) < count; ++i) {
    if ((vec_used_ >> i & 1) == 0) {
      vec_used_ |= 1u << i;
      got.push_back(i);
    }
  }
  if (static_cast<int>(got.size()) < count) {
    if (status_.ok()) status_ = Internal("emit: no vector registers left for '{}' ({} wanted)", name, count);
    got.resize(static_cast<size_t>(count), 0);
  }
  return VecList(this, std::move(got));
}

}  // namespace xjit
