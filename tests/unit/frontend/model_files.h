// Small model files for the reader tests: writers of GGUF and safetensors bytes, and a folder to put them in.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/gguf.h"
#include "models/spec.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit::testing {

template <typename T>
std::string Bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline std::string GgufString(std::string_view text) { return Bytes<uint64_t>(text.size()) + std::string(text); }

// Collects metadata and tensors, then writes the file. Every method adds exactly what it is told, so that wrong files
// can be written too.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; not written by itself

  GgufWriter& Raw(std::string_view key, GgufType type, std::string_view value) {
    entries_ += GgufString(key) + Bytes(static_cast<uint32_t>(type)) + std::string(value);
    ++num_entries_;
    return *this;
  }
  GgufWriter& U32(std::string_view key, uint32_t value) { return Raw(key, GgufType::kU32, Bytes(value)); }
  GgufWriter& U16(std::string_view key, uint16_t value) { return Raw(key, GgufType::kU16, Bytes(value)); }
  GgufWriter& I32(std::string_view key, int32_t value) { return Raw(key, GgufType::kI32, Bytes(value)); }
  GgufWriter& F32(std::string_view key, float value) { return Raw(key, GgufType::kF32, Bytes(value)); }
  GgufWriter& Bool(std::string_view key, bool value) { return Raw(key, GgufType::kBool, Bytes<uint8_t>(value)); }
  GgufWriter& String(std::string_view key, std::string_view value) {
    return Raw(key, GgufType::kString, GgufString(value));
  }
  GgufWriter& Array(std::string_view key, GgufType element, uint64_t count, std::string_view elements) {
    return Raw(key, GgufType::kArray, Bytes(static_cast<uint32_t>(element)) + Bytes(count) + std::string(elements));
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& values) {
    std::string elements;
    for (const std::string& value : values) elements += GgufString(value);
    return Array(key, GgufType::kString, values.size(), elements);
  }

  // `dims` as the file has them: the contiguous one first.
  GgufWriter& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, std::string_view data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    return TensorAt(name, dims, type, data_.size(), data);
  }
  GgufWriter& TensorAt(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset,
                       std::string_view data) {
    tensors_ += GgufString(name) + Bytes(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) tensors_ += Bytes(dim);
    tensors_ += Bytes(type) + Bytes(offset);
    data_ += data;
    ++num_tensors_;
    return *this;
  }

  std::string File() const {
    std::string out = "GGUF" + Bytes(version) + Bytes(num_tensors_) + Bytes(num_entries_) + entries_ + tensors_;
    if (!data_.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

 private:
  uint64_t num_entries_ = 0, num_tensors_ = 0;
  std::string entries_, tensors_, data_;
};

// The hyper-parameters of a tiny model: hidden 8, 2 heads of 4, one layer, 5 tokens.
inline GgufWriter TinyGguf(const std::string& arch = "llama") {
  GgufWriter out;
  out.String("general.architecture", arch).String("general.name", "tiny");
  out.U32(arch + ".block_count", 1).U32(arch + ".context_length", 64).U32(arch + ".embedding_length", 8);
  out.U32(arch + ".feed_forward_length", 16).U32(arch + ".attention.head_count", 2);
  out.F32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  return out;
}

// TinyGguf with a vocabulary and two tensors, whose data end the file.
inline GgufWriter TinyGgufModel(const std::string& arch = "llama") {
  GgufWriter out = TinyGguf(arch);
  out.String("tokenizer.ggml.model", "gpt2").String("tokenizer.ggml.pre", "gpt-2");
  out.Strings("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b", "ab"}).Strings("tokenizer.ggml.merges", {"a b"});
  std::string types, scores;
  for (int32_t i = 0; i < 5; ++i) {
    types += Bytes<int32_t>(i < 2 ? 3 : 1);
    scores += Bytes(-0.5f * static_cast<float>(i));
  }
  out.Array("tokenizer.ggml.token_type", GgufType::kI32, 5, types);
  out.Array("tokenizer.ggml.scores", GgufType::kF32, 5, scores);
  out.U32("tokenizer.ggml.bos_token_id", 0).U32("tokenizer.ggml.eos_token_id", 1);
  out.Bool("tokenizer.ggml.add_bos_token", true).String("tokenizer.chat_template", "{{ x }}");
  out.Tensor("token_embd.weight", {8, 5}, 0, std::string(8 * 5 * 4, 'e'));
  out.Tensor("blk.0.attn_q.weight", {8, 8}, 1, std::string(8 * 8 * 2, 'q'));
  return out;
}

inline std::string Safetensors(std::string_view header, std::string_view data) {
  return Bytes<uint64_t>(header.size()) + std::string(header) + std::string(data);
}
// [2, 3] F32 "b", [4] BF16 "a" and a U8 scalar "c".
inline std::string TinySafetensors() {
  return Safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}})",
      std::string(24, 'b') + std::string(8, 'a') + "c");
}

inline constexpr std::string_view kTinyConfig = R"({
  "model_type": "llama", "hidden_act": "silu", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 16,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": [1, 2]
})";

// A folder that is removed with its files.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "xjit-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string Path(std::string_view name) const { return (std::filesystem::path(path_) / name).string(); }
  const std::string& path() const { return path_; }
  std::string Write(std::string_view name, std::string_view bytes) const {
    const std::string path = Path(name);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::string path_;
};

// Calls `read` with each strict prefix of `bytes`, up against an inaccessible page.
template <typename Read>
void ForEachPrefix(std::string_view bytes, const Read& read) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    GuardedBuffer buffer(size);
    std::memcpy(buffer.data(), bytes.data(), size);
    read(std::span(buffer.as<const std::byte>(), size), size);
  }
}

// Calls `read` with `count` copies of `bytes`, each with one to four bytes changed.
template <typename Read>
void ForEachMutation(std::string_view bytes, uint32_t seed, int count, const Read& read) {
  std::mt19937 rng(seed);
  GuardedBuffer buffer(bytes.size());
  for (int i = 0; i < count; ++i) {
    std::memcpy(buffer.data(), bytes.data(), bytes.size());
    for (uint32_t flips = 1 + rng() % 4; flips > 0; --flips) {
      static constexpr uint8_t kValues[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
      const uint32_t choice = rng() % 8;
      uint8_t& byte = buffer.data()[rng() % bytes.size()];
      byte = choice < 5 ? kValues[choice] : static_cast<uint8_t>(byte ^ (1u << rng() % 8));
    }
    read(std::span(buffer.as<const std::byte>(), bytes.size()));
  }
}

inline std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads every byte, so that a span past its buffer faults.
inline uint64_t Sum(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<uint64_t>(byte);
  return sum;
}

// All fields but the name, to compare and to print.
inline std::string Describe(const ModelSpec& s) {
  const RopeSpec& r = s.rope;
  return fmt::format(
      "{} vocab={} hidden={} ffn={} layers={} heads={}/{}x{} max={} eps={} tie={} bias={}{}{} windows=[{}] adjacent={} "
      "bos={} eos={} rope={} {} x{} low={} high={} orig={} beta={}/{} attn={} mscale={}/{} trunc={} factors={}",
      s.arch, s.vocab_size, s.hidden_size, s.intermediate_size, s.layers, s.heads, s.kv_heads, s.head_dim,
      s.max_positions, s.rms_norm_eps, s.tie_word_embeddings, int{s.qkv_bias}, int{s.o_bias}, int{s.mlp_bias},
      fmt::join(s.windows, ","), s.rope_pairs_adjacent, fmt::join(s.bos_ids, ","),
      fmt::join(s.eos_ids, ","), r.theta, static_cast<int>(r.scaling), r.factor, r.low_freq_factor, r.high_freq_factor,
      r.original_max_positions, r.beta_fast, r.beta_slow, r.attention_factor.value_or(-1), r.mscale.value_or(-1),
      r.mscale_all_dim.value_or(-1), r.truncate, fmt::join(r.freq_factors, ","));
}

}  // namespace xjit::testing
