#include "frontend/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "frontend/architectures.h"
#include "frontend/gguf_families.h"
#include "frontend/gguf_keys.h"
#include "frontend/hf_families.h"
#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"
#include "models/rope.h"

namespace xjit {
namespace {

absl::Status ReadHeads(const ArchKeys& keys, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(spec.heads, keys.Int("attention.head_count", 1, kMaxDim));
  if (spec.arch.starts_with("deepseek")) return ReadGgufMla(keys, spec);
  XJIT_ASSIGN_OR_RETURN(spec.kv_heads, keys.IntOr("attention.head_count_kv", spec.heads, 1, kMaxDim));
  if (spec.heads % spec.kv_heads != 0) {
    return InvalidArgument("{}: {} does not divide the {} heads", keys.Place("attention.head_count_kv"), spec.kv_heads,
                           spec.heads);
  }
  const std::string place =
      keys.Place(keys.Has("attention.key_length") ? "attention.key_length" : "attention.head_count");
  if (!keys.Has("attention.key_length") && spec.hidden_size % spec.heads != 0) {
    return InvalidArgument("{}: {} heads do not divide the embedding of {}", place, spec.heads, spec.hidden_size);
  }
  XJIT_ASSIGN_OR_RETURN(spec.head_dim, keys.IntOr("attention.key_length", spec.hidden_size / spec.heads, 1, kMaxDim));
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("{}: gives odd heads of {}, rotary embedding needs pairs", place, spec.head_dim);
  }
  XJIT_ASSIGN_OR_RETURN(const int64_t value_dim, keys.IntOr("attention.value_length", spec.head_dim, 1, kMaxDim));
  if (value_dim != spec.head_dim) {
    return Unimplemented("{}: is {} where keys have {}", keys.Place("attention.value_length"), value_dim,
                         spec.head_dim);
  }
  return absl::OkStatus();
}

absl::Status ReadVocabularySize(const GgufFile& gguf, const ArchKeys& keys, const TensorView* token_embd,
                                ModelSpec& spec) {
  if (token_embd != nullptr && token_embd->shape.size() == 2) {
    // The rows decide: the logits have as many, padding included.
    spec.vocab_size = token_embd->shape[0];
  } else if (keys.Has("vocab_size")) {
    XJIT_ASSIGN_OR_RETURN(spec.vocab_size, keys.Int("vocab_size", 1, kMaxDim));
  } else if (const GgufValue* tokens = gguf.Find("tokenizer.ggml.tokens");
             tokens != nullptr && tokens->type == GgufType::kArray) {
    spec.vocab_size = static_cast<int64_t>(tokens->count);
  }
  if (spec.vocab_size < 1 || spec.vocab_size > kMaxDim) {
    return InvalidArgument("{}: {}: the vocabulary has {} tokens, expected 1 to {}", gguf.file(),
                           keys.Key("vocab_size"), spec.vocab_size, kMaxDim);
  }
  return absl::OkStatus();
}

// Several architectures may share a name in GGUF files.
absl::StatusOr<std::string> ArchOf(const Architecture& row, const ArchKeys& keys) {
  if (row.gguf == "llama") {
    XJIT_ASSIGN_OR_RETURN(const int64_t experts, keys.IntOr("expert_count", 0, 0, kMaxExperts));
    XJIT_ASSIGN_OR_RETURN(const int64_t window, keys.IntOr("attention.sliding_window", 0, 0, kMaxDim));
    return experts > 0 ? "mixtral" : window > 0 ? "mistral" : "llama";
  }
  if (row.gguf == "deepseek2") {
    // 1 softmax, 2 sigmoid; absent in the first files of V2 (llama.cpp's llama_expert_gating_func_type).
    XJIT_ASSIGN_OR_RETURN(const int64_t gating, keys.IntOr("expert_gating_func", 1, 0, kMaxDim));
    if (gating > 2) {
      return Unimplemented("{}: is {}, expected 1 (softmax) or 2 (sigmoid)", keys.Place("expert_gating_func"), gating);
    }
    return gating == 2 ? "deepseek_v3" : "deepseek_v2";
  }
  return std::string(row.name);
}

}  // namespace

absl::StatusOr<std::vector<float>> RopeFreqFactors(const TensorView* rope_freqs, int64_t head_dim) {
  std::vector<float> factors;
  if (rope_freqs == nullptr) return factors;
  const auto error = [&](std::string_view what) {
    return InvalidArgument("{}: tensor {}: {}", rope_freqs->file, Printable(rope_freqs->name), what);
  };
  if (rope_freqs->type != DType::kF32 || rope_freqs->shape != std::vector<int64_t>{head_dim / 2}) {
    return error(fmt::format("expected F32 [{}] for heads of {}", head_dim / 2, head_dim));
  }
  factors.resize(static_cast<size_t>(head_dim / 2));  // as many as the tensor has, whose bytes are in the file
  std::memcpy(factors.data(), rope_freqs->data.data(), rope_freqs->data.size());
  for (const float factor : factors) {
    if (!std::isfinite(factor) || factor <= 0) return error(fmt::format("has factor {}, expected above 0", factor));
  }
  return factors;
}

absl::Status ApplyGgufTensors(const GgufModelTensors& tensors, ModelSpec& spec) {
  spec.tie_word_embeddings = !tensors.output;
  spec.qkv_bias = tensors.qkv_bias;
  spec.o_bias = tensors.o_bias;
  spec.mlp_bias = tensors.mlp_bias;
  spec.rope_pairs_adjacent = FindArchitecture(&Architecture::name, spec.arch)->gguf_pairs_adjacent;
  spec.norm_offset = 0;  // llama.cpp's converter adds it to the gains
  // The tensor is llama3 scaling, already computed: a manifest that names the scaling has it once.
  if (spec.rope.scaling == RopeSpec::Scaling::kLlama3) return absl::OkStatus();
  XJIT_ASSIGN_OR_RETURN(spec.rope.freq_factors, RopeFreqFactors(tensors.rope_freqs, RotaryDim(spec)));
  return absl::OkStatus();
}

absl::StatusOr<ModelSpec> GgufSpec(const GgufFile& gguf, const GgufModelTensors& tensors) {
  XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, gguf.String("general.architecture"));
  if (!name) return InvalidArgument("{}: general.architecture: missing", gguf.file());
  const Architecture* row = FindArchitecture(&Architecture::gguf, *name);
  if (row == nullptr) {
    return Unimplemented("{}: general.architecture: is \"{}\", which is not supported (known: {})", gguf.file(),
                         Printable(*name), ArchitectureList());
  }
  const ArchKeys keys(gguf, row->gguf);
  ModelSpec spec;
  XJIT_ASSIGN_OR_RETURN(spec.arch, ArchOf(*row, keys));
  XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> title, gguf.String("general.name"));
  spec.name = Printable(title.value_or(""));
  XJIT_ASSIGN_OR_RETURN(spec.layers, keys.Int("block_count", 1, kMaxLayers));
  XJIT_ASSIGN_OR_RETURN(spec.max_positions, keys.Int("context_length", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.hidden_size, keys.Int("embedding_length", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.intermediate_size, keys.Int("feed_forward_length", 1, kMaxDim));
  XJIT_RETURN_IF_ERROR(ReadHeads(keys, spec));
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> eps, keys.Decimal("attention.layer_norm_rms_epsilon", 0, 1));
  if (!eps) return InvalidArgument("{}: missing", keys.Place("attention.layer_norm_rms_epsilon"));
  spec.rms_norm_eps = *eps;
  XJIT_RETURN_IF_ERROR(ReadGgufFamily(keys, spec));
  XJIT_RETURN_IF_ERROR(ReadGgufRope(keys, tensors, spec));
  SetMlaScale(spec);
  XJIT_RETURN_IF_ERROR(ReadVocabularySize(gguf, keys, tensors.token_embd, spec));
  XJIT_RETURN_IF_ERROR(ApplyGgufTensors(tensors, spec));

  XJIT_ASSIGN_OR_RETURN(const std::optional<int32_t> bos, GgufTokenId(gguf, "tokenizer.ggml.bos_token_id"));
  if (bos) spec.bos_ids.push_back(*bos);
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    XJIT_ASSIGN_OR_RETURN(const std::optional<int32_t> id, GgufTokenId(gguf, key));
    if (id && std::find(spec.eos_ids.begin(), spec.eos_ids.end(), *id) == spec.eos_ids.end()) {
      spec.eos_ids.push_back(*id);
    }
  }
  return spec;
}

}  // namespace xjit
