#include "codegen/attention/attention_desc.h"

#include <fmt/format.h>

namespace xjit {

std::string AttentionName(const AttentionDesc& desc, const char* row) {
  std::string name = fmt::format("attention.{}.{}_{}_f32.h{}kv{}d{}", row, Name(desc.q), Name(desc.kv), desc.heads,
                                 desc.kv_heads, desc.head_dim);
  if (desc.window > 0) name += fmt::format(".window{}", desc.window);
  return name;
}

std::string RopeStoreName(const RopeStoreDesc& desc, const char* row) {
  return fmt::format("rope_store.{}.{}_{}.h{}kv{}d{}r{}", row, Name(desc.q), Name(desc.kv), desc.heads, desc.kv_heads,
                     desc.head_dim, desc.rope_dim);
}

std::string AttentionMergeName(const AttentionDesc& desc, const char* row) {
  return fmt::format("attention_merge.{}.h{}kv{}d{}", row, desc.heads, desc.kv_heads, desc.head_dim);
}

}  // namespace xjit
