#include "models/registry.h"

namespace xjit {
namespace {

const ModelFamily* const kFamilies[] = {
#define XJIT_FAMILY(name) &k##name,
#include "models/families.inc"
#undef XJIT_FAMILY
};

}  // namespace

std::string KnownFamilies() {
  std::string list;
  for (const ModelFamily* family : kFamilies) list += fmt::format("{}{}", list.empty() ? "" : ", ", family->arch);
  return list;
}

absl::StatusOr<const ModelFamily*> FindFamily(std::string_view arch) {
  for (const ModelFamily* family : kFamilies) {
    if (family->arch == arch) return family;
  }
  return InvalidArgument("unknown architecture '{}' (known: {})", arch, KnownFamilies());
}

}  // namespace xjit
