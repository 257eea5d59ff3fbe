// A model's files, whichever form they have: hyper-parameters, tensors over mapped memory, and where the texts
// (tokenizer, chat template) are. The one entrance to reading models.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/gguf.h"
#include "frontend/gguf_config.h"
#include "frontend/manifest.h"
#include "frontend/mapped_file.h"
#include "frontend/quant_config.h"
#include "frontend/tensor_view.h"
#include "models/spec.h"

namespace xjit {

// Paths of the files that the text side reads; empty where there is none.
struct TextSources {
  std::string tokenizer;           // tokenizer.json
  std::string tokenizer_config;    // tokenizer_config.json
  std::string generation_config;   // generation_config.json; its token ids are in the spec already
  std::string chat_template;       // chat_template.jinja, or a JSON file with a "chat_template" key
  std::string chat_template_text;  // the template itself, where a manifest holds it inline
};

// Immutable once open; every method may be called from several threads.
class Checkpoint {
 public:
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::string& path() const { return path_; }      // as given to OpenCheckpoint
  const std::string& format() const { return format_; }  // "gguf v2", "gguf v3", "safetensors", "no weights"
  // The mapped weight files, in order; their sizes' sum.
  const std::vector<std::string>& files() const { return files_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // What a manifest lists under `weights`: the safetensors files, or the first GGUF file.
  const std::vector<std::string>& weights() const { return weights_; }

  const ModelSpec& spec() const { return spec_; }
  // How safetensors files are quantised; method kNone for a GGUF file, whose tensors say it themselves.
  const QuantConfig& quant() const { return quant_; }
  const TextSources& texts() const { return texts_; }
  const PlanDefaults& defaults() const { return defaults_; }

  // Every tensor, sorted by name, readable or not.
  std::span<const TensorView> tensors() const { return tensors_; }
  // The tensor of that name, or null.
  const TensorView* Find(std::string_view name) const;
  // The tensor for use: `type` is set. InvalidArgument when there is none of that name; Unimplemented, naming the
  // tensor and its encoding, when xjit does not read it.
  absl::StatusOr<const TensorView*> Tensor(std::string_view name) const;
  // Drops the tensor's pages from the resident set: see MappedFile::Discard.
  void Discard(const TensorView& tensor) const;

  // The GGUF file of the weights (the first of a split set), or null.
  const GgufFile* gguf() const { return gguf_ ? &*gguf_ : nullptr; }
  // The GGUF file that holds the vocabulary, or null: the tokenizer is then texts().tokenizer, if any. A manifest can
  // name another one than the weights'.
  const GgufFile* vocabulary_file() const;
  // Of vocabulary_file(), which must not be null. Its text points into the mapping: valid while this object lives.
  absl::StatusOr<GgufVocabulary> Vocabulary() const { return ReadGgufVocabulary(*vocabulary_file()); }

 private:
  friend class CheckpointBuilder;
  Checkpoint() = default;

  std::string path_, format_;
  std::vector<std::string> files_, weights_;
  uint64_t total_bytes_ = 0;
  ModelSpec spec_;
  QuantConfig quant_;
  TextSources texts_;
  PlanDefaults defaults_;
  std::vector<MappedFile> maps_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
  std::optional<GgufFile> gguf_, other_vocabulary_;
  bool uses_gguf_vocabulary_ = false;
};

struct OpenOptions {
  // False: a configuration without weights opens too, with no tensors (to plan from it alone).
  bool require_weights = true;
};

// Opens a folder with config.json and safetensors files (or with one GGUF file), a *.gguf file (the first of a split
// set), a model.json manifest, or a *.safetensors file beside its config.json. Errors are one line, "FILE: PLACE: WHAT
// (HINT)".
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path, OpenOptions options = {});

}  // namespace xjit
