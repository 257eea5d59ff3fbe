#include "frontend/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "frontend/architectures.h"
#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

// The keys of one architecture: "block_count" is read as "llama.block_count".
class ArchKeys {
 public:
  ArchKeys(const GgufFile& gguf, std::string_view arch) : gguf_(gguf), arch_(arch) {}

  std::string Key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  bool Has(std::string_view name) const { return gguf_.Find(Key(name)) != nullptr; }

  absl::StatusOr<int64_t> IntOr(std::string_view name, int64_t fallback, int64_t min, int64_t max) const {
    const std::string key = Key(name);
    const GgufValue* value = gguf_.Find(key);
    if (value == nullptr) return fallback;
    int64_t number = 0;
    if (value->type == GgufType::kArray) {
      // Some converters write one number a layer.
      XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, gguf_.Ints(key));
      if (layers.empty()) return InvalidArgument("{}: {}: is an empty array", gguf_.file(), key);
      if (std::any_of(layers.begin(), layers.end(), [&](int64_t n) { return n != layers[0]; })) {
        return Unimplemented("{}: {}: differs between layers", gguf_.file(), key);
      }
      number = layers[0];
    } else {
      XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> one, gguf_.Int(key));
      number = *one;
    }
    if (number < min || number > max) {
      return InvalidArgument("{}: {}: is {}, expected {} to {}", gguf_.file(), key, number, min, max);
    }
    return number;
  }
  absl::StatusOr<int64_t> Int(std::string_view name, int64_t min, int64_t max) const {
    if (!Has(name)) return InvalidArgument("{}: {}: missing", gguf_.file(), Key(name));
    return IntOr(name, 0, min, max);
  }
  absl::StatusOr<std::optional<double>> Number(std::string_view name, double min, double max) const {
    const std::string key = Key(name);
    XJIT_ASSIGN_OR_RETURN(const std::optional<double> number, gguf_.Number(key));
    if (number && !(*number >= min && *number <= max)) {
      return InvalidArgument("{}: {}: is {}, expected {} to {}", gguf_.file(), key, *number, min, max);
    }
    return number;
  }
  absl::StatusOr<std::string> StringOr(std::string_view name, std::string_view fallback) const {
    XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> text, gguf_.String(Key(name)));
    return std::string(text.value_or(fallback));
  }

 private:
  const GgufFile& gguf_;
  std::string_view arch_;
};

// llama.cpp multiplies yarn's 0.1 ln(factor) + 1 by this; ModelSpec's attention_factor is the product.
absl::Status ReadAttentionFactor(const GgufFile& gguf, const ArchKeys& keys, RopeSpec& rope) {
  double product = 1;
  for (const std::string_view name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
    XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, keys.Number(name, kMinReal, kMaxReal));
    product *= factor.value_or(1);
  }
  if (product == 1) return absl::OkStatus();
  if (rope.scaling != RopeSpec::Scaling::kYarn) {
    return Unimplemented("{}: {}: is {} without yarn", gguf.file(), keys.Key("rope.scaling.attn_factor"), product);
  }
  rope.attention_factor = product * (0.1 * std::log(rope.factor) + 1);
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& gguf, const ArchKeys& keys, const ModelSpec& spec, RopeSpec& rope) {
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> theta, keys.Number("rope.freq_base", kMinReal, kMaxReal));
  rope.theta = theta.value_or(10000);
  XJIT_ASSIGN_OR_RETURN(const int64_t rotary, keys.IntOr("rope.dimension_count", spec.head_dim, 0, kMaxDim));
  if (rotary != spec.head_dim) {
    return Unimplemented("{}: {}: is {} of a head's {} (partial rotary embedding)", gguf.file(),
                         keys.Key("rope.dimension_count"), rotary, spec.head_dim);
  }
  // As llama.cpp: a factor without a type is linear scaling, and scale_linear is the factor's older name.
  XJIT_ASSIGN_OR_RETURN(const std::string type, keys.StringOr("rope.scaling.type", "linear"));
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> factor, keys.Number("rope.scaling.factor", 0, kMaxReal));
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> older, keys.Number("rope.scale_linear", 0, kMaxReal));
  const double scale = factor.value_or(older.value_or(0));
  if (type == "linear") {
    rope.scaling = scale == 0 || scale == 1 ? RopeSpec::Scaling::kNone : RopeSpec::Scaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeSpec::Scaling::kYarn;
  } else if (type != "none") {
    return Unimplemented("{}: {}: is \"{}\", expected none, linear or yarn", gguf.file(), keys.Key("rope.scaling.type"),
                         Printable(type));
  }
  if (rope.scaling != RopeSpec::Scaling::kNone) rope.factor = scale == 0 ? 1 : scale;
  if (rope.factor < kMinReal) {
    return InvalidArgument("{}: {}: is {}, too small", gguf.file(), keys.Key("rope.scaling.factor"), rope.factor);
  }
  if (rope.scaling == RopeSpec::Scaling::kYarn) {
    XJIT_ASSIGN_OR_RETURN(rope.original_max_positions,
                          keys.IntOr("rope.scaling.original_context_length", spec.max_positions, 1, kMaxDim));
    XJIT_ASSIGN_OR_RETURN(const auto fast, keys.Number("rope.scaling.yarn_beta_fast", kMinReal, kMaxReal));
    XJIT_ASSIGN_OR_RETURN(const auto slow, keys.Number("rope.scaling.yarn_beta_slow", kMinReal, kMaxReal));
    XJIT_ASSIGN_OR_RETURN(const auto ext, keys.Number("rope.scaling.yarn_ext_factor", -kMaxReal, kMaxReal));
    rope.beta_fast = fast.value_or(rope.beta_fast);
    rope.beta_slow = slow.value_or(rope.beta_slow);
    if (ext.value_or(1) != 1) {
      return Unimplemented("{}: {}: is {}, expected 1", gguf.file(), keys.Key("rope.scaling.yarn_ext_factor"), *ext);
    }
  }
  return ReadAttentionFactor(gguf, keys, rope);
}

absl::Status ReadHeads(const GgufFile& gguf, const ArchKeys& keys, ModelSpec& spec) {
  XJIT_ASSIGN_OR_RETURN(spec.heads, keys.Int("attention.head_count", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.kv_heads, keys.IntOr("attention.head_count_kv", spec.heads, 1, kMaxDim));
  if (spec.heads % spec.kv_heads != 0) {
    return InvalidArgument("{}: {}: {} does not divide the {} heads", gguf.file(), keys.Key("attention.head_count_kv"),
                           spec.kv_heads, spec.heads);
  }
  const std::string place =
      keys.Key(keys.Has("attention.key_length") ? "attention.key_length" : "attention.head_count");
  if (!keys.Has("attention.key_length") && spec.hidden_size % spec.heads != 0) {
    return InvalidArgument("{}: {}: {} heads do not divide the embedding of {}", gguf.file(), place, spec.heads,
                           spec.hidden_size);
  }
  XJIT_ASSIGN_OR_RETURN(spec.head_dim, keys.IntOr("attention.key_length", spec.hidden_size / spec.heads, 1, kMaxDim));
  if (spec.head_dim % 2 != 0) {
    return InvalidArgument("{}: {}: gives odd heads of {}, rotary embedding needs pairs", gguf.file(), place,
                           spec.head_dim);
  }
  XJIT_ASSIGN_OR_RETURN(const int64_t value_dim, keys.IntOr("attention.value_length", spec.head_dim, 1, kMaxDim));
  if (value_dim != spec.head_dim) {
    return Unimplemented("{}: {}: is {} where keys have {}", gguf.file(), keys.Key("attention.value_length"), value_dim,
                         spec.head_dim);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int32_t>> TokenId(const GgufFile& gguf, std::string_view key) {
  XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> id, gguf.Int(key));
  if (!id) return std::optional<int32_t>();
  // llama.cpp's converter writes -1, as a u32 too, for "none".
  if (*id == -1 || *id == UINT32_MAX) return std::optional<int32_t>();
  if (*id < 0 || *id > kMaxDim) {
    return InvalidArgument("{}: {}: is {}, expected a token id", gguf.file(), key, *id);
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
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

absl::StatusOr<ModelSpec> GgufSpec(const GgufFile& gguf, const GgufModelTensors& tensors) {
  XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> name, gguf.String("general.architecture"));
  if (!name) return InvalidArgument("{}: general.architecture: missing", gguf.file());
  const Architecture* arch = FindArchitecture(&Architecture::gguf, *name);
  if (arch == nullptr) {
    return Unimplemented("{}: general.architecture: is \"{}\", which is not supported (known: {})", gguf.file(),
                         Printable(*name), ArchitectureList());
  }
  const ArchKeys keys(gguf, arch->gguf);
  ModelSpec spec;
  spec.arch = arch->name;
  XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> title, gguf.String("general.name"));
  spec.name = Printable(title.value_or(""));
  XJIT_ASSIGN_OR_RETURN(spec.layers, keys.Int("block_count", 1, kMaxLayers));
  XJIT_ASSIGN_OR_RETURN(spec.max_positions, keys.Int("context_length", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.hidden_size, keys.Int("embedding_length", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(spec.intermediate_size, keys.Int("feed_forward_length", 1, kMaxDim));
  XJIT_ASSIGN_OR_RETURN(const int64_t experts, keys.IntOr("expert_count", 0, 0, kMaxDim));
  if (experts != 0) {
    return Unimplemented("{}: {}: is {}; mixtures of experts are not supported", gguf.file(), keys.Key("expert_count"),
                         experts);
  }
  XJIT_RETURN_IF_ERROR(ReadHeads(gguf, keys, spec));
  if (!keys.Has("attention.layer_norm_rms_epsilon")) {
    return InvalidArgument("{}: {}: missing", gguf.file(), keys.Key("attention.layer_norm_rms_epsilon"));
  }
  XJIT_ASSIGN_OR_RETURN(const std::optional<double> eps, keys.Number("attention.layer_norm_rms_epsilon", 0, 1));
  // The file holds an f32: the shortest decimal that is the same f32 is what its maker wrote.
  spec.rms_norm_eps = std::strtod(fmt::format("{}", static_cast<float>(*eps)).c_str(), nullptr);
  XJIT_RETURN_IF_ERROR(ReadRope(gguf, keys, spec, spec.rope));
  XJIT_RETURN_IF_ERROR(ReadVocabularySize(gguf, keys, tensors.token_embd, spec));

  spec.tie_word_embeddings = !tensors.output;
  spec.qkv_bias = tensors.qkv_bias;
  spec.o_bias = tensors.o_bias;
  spec.mlp_bias = tensors.mlp_bias;
  spec.rope_pairs_adjacent = arch->gguf_pairs_adjacent;
  XJIT_ASSIGN_OR_RETURN(spec.rope.freq_factors, RopeFreqFactors(tensors.rope_freqs, spec.head_dim));

  XJIT_ASSIGN_OR_RETURN(const std::optional<int32_t> bos, TokenId(gguf, "tokenizer.ggml.bos_token_id"));
  if (bos) spec.bos_ids.push_back(*bos);
  for (const std::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    XJIT_ASSIGN_OR_RETURN(const std::optional<int32_t> id, TokenId(gguf, key));
    if (id && std::find(spec.eos_ids.begin(), spec.eos_ids.end(), *id) == spec.eos_ids.end()) {
      spec.eos_ids.push_back(*id);
    }
  }
  return spec;
}

absl::StatusOr<GgufVocabulary> ReadGgufVocabulary(const GgufFile& gguf) {
  GgufVocabulary out;
  const auto text = [&](std::string_view key, std::string_view& to) -> absl::Status {
    XJIT_ASSIGN_OR_RETURN(const std::optional<std::string_view> value, gguf.String(key));
    to = value.value_or("");
    return absl::OkStatus();
  };
  XJIT_RETURN_IF_ERROR(text("tokenizer.ggml.model", out.model));
  XJIT_RETURN_IF_ERROR(text("tokenizer.ggml.pre", out.pre));
  XJIT_RETURN_IF_ERROR(text("tokenizer.chat_template", out.chat_template));
  XJIT_ASSIGN_OR_RETURN(out.tokens, gguf.Strings("tokenizer.ggml.tokens"));
  XJIT_ASSIGN_OR_RETURN(out.merges, gguf.Strings("tokenizer.ggml.merges"));
  XJIT_ASSIGN_OR_RETURN(out.scores, gguf.Floats("tokenizer.ggml.scores"));
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> types, gguf.Ints("tokenizer.ggml.token_type"));
  for (const int64_t type : types) {
    if (type < 0 || type > 255) {
      return InvalidArgument("{}: tokenizer.ggml.token_type: has {}, expected 0 to 255", gguf.file(), type);
    }
    out.types.push_back(static_cast<int32_t>(type));
  }
  const auto same_length = [&](std::string_view key, size_t size) {
    if (size == 0 || size == out.tokens.size()) return absl::OkStatus();
    return InvalidArgument("{}: {}: has {} entries for {} tokens", gguf.file(), key, size, out.tokens.size());
  };
  XJIT_RETURN_IF_ERROR(same_length("tokenizer.ggml.scores", out.scores.size()));
  XJIT_RETURN_IF_ERROR(same_length("tokenizer.ggml.token_type", out.types.size()));

  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &out.bos},     {"tokenizer.ggml.eos_token_id", &out.eos},
      {"tokenizer.ggml.eot_token_id", &out.eot},     {"tokenizer.ggml.eom_token_id", &out.eom},
      {"tokenizer.ggml.unknown_token_id", &out.unk}, {"tokenizer.ggml.seperator_token_id", &out.sep},
      {"tokenizer.ggml.padding_token_id", &out.pad}, {"tokenizer.ggml.mask_token_id", &out.mask}};
  for (const auto& [key, id] : ids) {
    XJIT_ASSIGN_OR_RETURN(*id, TokenId(gguf, key));
    if (*id && static_cast<size_t>(**id) >= out.tokens.size()) {
      return InvalidArgument("{}: {}: is {}, but there are {} tokens", gguf.file(), key, **id, out.tokens.size());
    }
  }
  const std::pair<std::string_view, std::optional<bool>*> flags[] = {
      {"tokenizer.ggml.add_bos_token", &out.add_bos},
      {"tokenizer.ggml.add_eos_token", &out.add_eos},
      {"tokenizer.ggml.add_space_prefix", &out.add_space_prefix},
      {"tokenizer.ggml.remove_extra_whitespaces", &out.remove_extra_whitespaces}};
  for (const auto& [key, flag] : flags) {
    XJIT_ASSIGN_OR_RETURN(*flag, gguf.Bool(key));
  }
  return out;
}

}  // namespace xjit
