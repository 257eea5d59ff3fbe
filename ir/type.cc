#include "ir/type.h"

namespace xjit {

std::string DimsToString(const Type& type) {
  std::string text;
  for (const Dim& d : type.dims) {
    text += d.symbolic() ? std::string(1, d.symbol) : fmt::format("{}", d.size);
    text += " x ";
  }
  text += ToString(type.encoding());
  return text;
}

std::string ToString(const Type& type) {
  switch (type.kind) {
    case Type::Kind::kStep:
      return "!step";
    case Type::Kind::kTensor:
      return fmt::format("tensor<{}>", DimsToString(type));
    case Type::Kind::kNone:
      break;
  }
  return "none";
}

}  // namespace xjit
