#include "codegen/attention/attention_desc.h"

#include <fmt/format.h>

#include "ir/support/align.h"

namespace xjit {

std::string KvLayout(DType kv, int64_t k_dim, int64_t v_dim, bool latent) {
  if ((kv != DType::kBF16 && kv != DType::kF32) || k_dim < 1 || v_dim < 1) return "";
  // Values side by side that one dot product takes.
  const int64_t pair = kv == DType::kBF16 ? 2 : 1;
  const std::string last = pair == 1 ? "" : fmt::format(" x {}", pair);
  constexpr int64_t kPart = 64;
  std::string v = fmt::format("{} x {}{}", kPageTokens / pair, v_dim, last);
  if (latent && v_dim % kPart == 0) v = fmt::format("{} x {} x {}{}", v_dim / kPart, kPageTokens / pair, kPart, last);
  return fmt::format("k: {} x {}{}; v: {}", CeilDiv(k_dim, pair), kPageTokens, last, v);
}

std::string AttentionName(const AttentionDesc& desc, const char* row) {
  std::string name = fmt::format("attention.{}.{}_{}_f32.h{}kv{}d{}", row, Name(desc.q), Name(desc.kv), desc.heads,
                                 desc.kv_heads, desc.head_dim);
  if (desc.window > 0) name += fmt::format(".window{}", desc.window);
  return name;
}

std::string RopeStoreName(const RopeStoreDesc& desc, const char* row) {
  return fmt::format("rope_store.{}.{}_{}.h{}kv{}d{}r{}{}", row, Name(desc.q), Name(desc.kv), desc.heads, desc.kv_heads,
                     desc.head_dim, desc.rope_dim, desc.head_norm ? ".norm" : "");
}

std::string AttentionMergeName(const AttentionDesc& desc, const char* row) {
  return fmt::format("attention_merge.{}.h{}kv{}d{}", row, desc.heads, desc.kv_heads, desc.head_dim);
}

}  // namespace xjit
