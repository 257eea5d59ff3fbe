#include "frontend/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "frontend/hf_config.h"
#include "frontend/printable.h"
#include "frontend/safetensors.h"
#include "ir/support/status.h"

namespace xjit {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kForms = "expected a folder with config.json, a .gguf file, or a model.json manifest";

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// The names in `folder` that end in `suffix`, sorted.
absl::StatusOr<std::vector<std::string>> ListFiles(const fs::path& folder, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.ends_with(suffix)) names.push_back(std::move(name));
  }
  if (error) return FailedPrecondition("{}: cannot list: {}", folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// "model-00001-of-00003.gguf" is {"model", 1, 3}.
struct SplitName {
  std::string prefix;
  int part, parts;
};
std::optional<SplitName> ParseSplitName(std::string_view path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() < kPattern.size()) return std::nullopt;
  const std::string_view tail = path.substr(path.size() - kPattern.size());
  int numbers[2] = {0, 0};
  for (size_t i = 0; i < kPattern.size(); ++i) {
    if (kPattern[i] != '0') {
      if (tail[i] != kPattern[i]) return std::nullopt;
      continue;
    }
    if (tail[i] < '0' || tail[i] > '9') return std::nullopt;
    int& number = numbers[i < kPattern.size() / 2 ? 0 : 1];
    number = number * 10 + (tail[i] - '0');
  }
  return SplitName{std::string(path.substr(0, path.size() - kPattern.size())), numbers[0], numbers[1]};
}

}  // namespace

class CheckpointBuilder {
 public:
  CheckpointBuilder(std::string path, OpenOptions options) : options_(options), out_(new Checkpoint) {
    out_->path_ = std::move(path);
  }

  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() {
    const std::string path = out_->path_;
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return FailedPrecondition("{}: no such file or folder", path);
    if (fs::is_directory(status)) {
      XJIT_RETURN_IF_ERROR(OpenFolder(path));
    } else if (path.ends_with(".xjit")) {
      return Unimplemented("{}: artifacts (.xjit) are not supported (name the model they were compiled from)", path);
    } else if (path.ends_with(".gguf")) {
      XJIT_RETURN_IF_ERROR(OpenGguf(path));
    } else if (path.ends_with(".safetensors")) {
      const fs::path folder = fs::path(path).parent_path();
      if (!Exists(folder / "config.json")) {
        return FailedPrecondition("{}: no config.json beside it ({})", path, kForms);
      }
      XJIT_RETURN_IF_ERROR(ReadConfig(folder));
      XJIT_RETURN_IF_ERROR(AddSafetensors(path));
    } else if (path.ends_with(".json")) {
      XJIT_RETURN_IF_ERROR(OpenManifest(path));
    } else {
      return InvalidArgument("{}: is not a model ({})", path, kForms);
    }
    XJIT_RETURN_IF_ERROR(Finish());
    return std::move(out_);
  }

 private:
  // config.json, generation_config.json and the texts of a checkpoint folder.
  absl::Status ReadConfig(const fs::path& folder) {
    const std::string config = (folder / "config.json").string();
    XJIT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(config));
    XJIT_ASSIGN_OR_RETURN(const Json document, ParseJson(file.text(), config));
    XJIT_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::From(document, config));
    XJIT_ASSIGN_OR_RETURN(out_->spec_, HfSpec(json));
    XJIT_ASSIGN_OR_RETURN(out_->quant_, QuantConfig::Parse(json));
    std::error_code error;
    out_->spec_.name = Printable(fs::weakly_canonical(folder, error).filename().string());
    const auto beside = [&](const char* name) {
      const fs::path path = folder / name;
      return Exists(path) ? path.string() : std::string();
    };
    TextSources& texts = out_->texts_;
    texts.tokenizer = beside("tokenizer.json");
    texts.tokenizer_config = beside("tokenizer_config.json");
    texts.generation_config = beside("generation_config.json");
    texts.chat_template = beside("chat_template.jinja");
    if (texts.chat_template.empty()) texts.chat_template = beside("chat_template.json");
    if (texts.generation_config.empty()) return absl::OkStatus();
    XJIT_ASSIGN_OR_RETURN(const MappedFile generation, MappedFile::Open(texts.generation_config));
    return ApplyGenerationConfig(generation.text(), texts.generation_config, out_->spec_);
  }

  absl::Status OpenFolder(const std::string& path) {
    const fs::path folder(path);
    if (!Exists(folder / "config.json")) {
      XJIT_ASSIGN_OR_RETURN(auto ggufs, ListFiles(folder, ".gguf"));
      std::erase_if(ggufs, [](const std::string& name) {
        const auto split = ParseSplitName(name);
        return split && split->part != 1;
      });
      if (ggufs.size() == 1) return OpenGguf((folder / ggufs[0]).string());
      if (!ggufs.empty()) {
        return FailedPrecondition("{}: no config.json in the folder, and {} GGUF files (name one, such as {})", path,
                                  ggufs.size(), Printable(ggufs[0]));
      }
      return FailedPrecondition("{}: no config.json in the folder ({})", path, kForms);
    }
    XJIT_RETURN_IF_ERROR(ReadConfig(folder));
    XJIT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFiles(folder, ".safetensors"));
    if (Exists(folder / "model.safetensors.index.json")) {
      // A folder that holds the index alone is a configuration too.
      if (names.empty() && !options_.require_weights) return absl::OkStatus();
      return AddSafetensorsIndex((folder / "model.safetensors.index.json").string());
    }
    if (names.empty()) {
      if (!options_.require_weights) return absl::OkStatus();
      return FailedPrecondition("{}: no *.safetensors files in the folder", path);
    }
    // Other safetensors files may lie beside the weights (adapters, expected outputs).
    if (std::find(names.begin(), names.end(), "model.safetensors") != names.end()) {
      return AddSafetensors((folder / "model.safetensors").string());
    }
    std::vector<std::string> shards;
    std::copy_if(names.begin(), names.end(), std::back_inserter(shards),
                 [](const std::string& name) { return name.starts_with("model-"); });
    for (const std::string& name : shards.empty() ? names : shards) {
      XJIT_RETURN_IF_ERROR(AddSafetensors((folder / name).string()));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const MappedFile*> Map(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    out_->files_.push_back(path);
    out_->total_bytes_ += file.size();
    out_->maps_.push_back(std::move(file));
    return &out_->maps_.back();
  }

  absl::Status AddSafetensors(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(const MappedFile* file, Map(path));
    XJIT_ASSIGN_OR_RETURN(std::vector<TensorView> tensors, ParseSafetensors(file->bytes(), path));
    std::move(tensors.begin(), tensors.end(), std::back_inserter(out_->tensors_));
    out_->format_ = "safetensors";
    out_->weights_.push_back(path);
    return absl::OkStatus();
  }

  // Opens the shards and keeps what the index lists: a shard may repeat another's tensors.
  absl::Status AddSafetensorsIndex(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    XJIT_ASSIGN_OR_RETURN(auto map, ParseSafetensorsIndex(file.text(), path));
    const fs::path folder = fs::path(path).parent_path();
    std::set<std::string> shards;
    for (auto& [name, shard] : map) {
      shard = (folder / shard).string();
      shards.insert(shard);
    }
    const size_t before = out_->tensors_.size();
    for (const std::string& shard : shards) XJIT_RETURN_IF_ERROR(AddSafetensors(shard));
    std::sort(map.begin(), map.end());
    std::vector<bool> found(map.size());
    const auto unlisted = [&](const TensorView& tensor) {
      const auto it = std::lower_bound(map.begin(), map.end(), std::pair(tensor.name, tensor.file));
      if (it == map.end() || it->first != tensor.name || it->second != tensor.file) return true;
      found[static_cast<size_t>(it - map.begin())] = true;
      return false;
    };
    auto& tensors = out_->tensors_;
    tensors.erase(std::remove_if(tensors.begin() + static_cast<ptrdiff_t>(before), tensors.end(), unlisted),
                  tensors.end());
    for (size_t i = 0; i < map.size(); ++i) {
      if (!found[i]) {
        return InvalidArgument("{}: weight_map.{}: the tensor is not in {}", path, Printable(map[i].first),
                               map[i].second);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GgufFile> AddGgufFile(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(const MappedFile* file, Map(path));
    XJIT_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Parse(file->bytes(), path));
    out_->tensors_.insert(out_->tensors_.end(), gguf.tensors().begin(), gguf.tensors().end());
    return gguf;
  }

  static absl::StatusOr<int64_t> SplitKey(const GgufFile& gguf, std::string_view key, int64_t fallback) {
    XJIT_ASSIGN_OR_RETURN(const std::optional<int64_t> value, gguf.Int(key));
    return value.value_or(fallback);
  }

  absl::Status AddGguf(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(GgufFile gguf, AddGgufFile(path));
    XJIT_ASSIGN_OR_RETURN(const int64_t parts, SplitKey(gguf, "split.count", 1));
    if (parts > 1) XJIT_RETURN_IF_ERROR(AddSplits(path, gguf, parts));
    out_->format_ = fmt::format("gguf v{}", gguf.version());
    out_->weights_.push_back(path);
    out_->gguf_ = std::move(gguf);
    out_->uses_gguf_vocabulary_ = true;
    return absl::OkStatus();
  }

  absl::Status AddSplits(const std::string& path, const GgufFile& first, int64_t parts) {
    const std::optional<SplitName> name = ParseSplitName(path);
    if (!name || name->parts != parts) {
      return InvalidArgument("{}: split.count: is {}, but the file is not named *-00001-of-{:05}.gguf", path, parts,
                             parts);
    }
    XJIT_ASSIGN_OR_RETURN(const int64_t number, SplitKey(first, "split.no", 0));
    if (number != 0 || name->part != 1) {
      return InvalidArgument("{}: split.no: is part {} of {} (name {}-00001-of-{:05}.gguf)", path, number + 1, parts,
                             name->prefix, parts);
    }
    for (int64_t part = 1; part < parts; ++part) {
      const std::string other = fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, part + 1, parts);
      XJIT_ASSIGN_OR_RETURN(const GgufFile gguf, AddGgufFile(other));
      XJIT_ASSIGN_OR_RETURN(const int64_t its_number, SplitKey(gguf, "split.no", -1));
      XJIT_ASSIGN_OR_RETURN(const int64_t its_parts, SplitKey(gguf, "split.count", -1));
      if (its_number != part || its_parts != parts) {
        return InvalidArgument("{}: split.no: says part {} of {}, expected {} of {}", other, its_number + 1, its_parts,
                               part + 1, parts);
      }
    }
    const auto count = static_cast<int64_t>(out_->tensors_.size());
    XJIT_ASSIGN_OR_RETURN(const int64_t expected, SplitKey(first, "split.tensors.count", count));
    if (expected != count) {
      return InvalidArgument("{}: split.tensors.count: is {}, but the {} parts hold {} tensors", path, expected, parts,
                             count);
    }
    return absl::OkStatus();
  }

  GgufModelTensors ModelTensors() const {
    return FindGgufModelTensors([this](std::string_view name) -> const TensorView* {
      const auto it =
          std::find_if(out_->tensors_.begin(), out_->tensors_.end(), [&](const auto& t) { return t.name == name; });
      return it == out_->tensors_.end() ? nullptr : &*it;
    });
  }

  absl::Status OpenGguf(const std::string& path) {
    XJIT_RETURN_IF_ERROR(AddGguf(path));
    XJIT_ASSIGN_OR_RETURN(out_->spec_, GgufSpec(*out_->gguf_, ModelTensors()));
    return absl::OkStatus();
  }

  absl::Status OpenManifest(const std::string& path) {
    XJIT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
    XJIT_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(file.text(), path));
    const fs::path folder = fs::path(path).parent_path();
    const auto resolve = [&](const std::string& name) { return name.empty() ? name : (folder / name).string(); };
    out_->spec_ = std::move(manifest.spec);
    out_->quant_ = std::move(manifest.quant);
    out_->defaults_ = std::move(manifest.defaults);
    std::vector<std::string> weights;
    for (const std::string& name : manifest.weights) weights.push_back(resolve(name));
    const bool absent =
        std::none_of(weights.begin(), weights.end(), [](const std::string& name) { return Exists(name); });
    if (absent && weights.empty() && options_.require_weights) {
      return FailedPrecondition("{}: weights: missing", path);
    }
    if (!absent || options_.require_weights) XJIT_RETURN_IF_ERROR(AddManifestWeights(path, weights));
    if (manifest.quantization == "gguf" && out_->gguf_ == std::nullopt && !weights.empty() && !absent) {
      return InvalidArgument("{}: quantization: is \"gguf\", but the weights are not a GGUF file", path);
    }
    return SetManifestTexts(manifest, resolve);
  }

  absl::Status AddManifestWeights(const std::string& manifest, const std::vector<std::string>& weights) {
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string& name = weights[i];
      if (name.ends_with(".safetensors")) {
        XJIT_RETURN_IF_ERROR(AddSafetensors(name));
      } else if (name.ends_with(".safetensors.index.json")) {
        XJIT_RETURN_IF_ERROR(AddSafetensorsIndex(name));
      } else if (name.ends_with(".gguf") && weights.size() == 1) {
        XJIT_RETURN_IF_ERROR(AddGguf(name));
        XJIT_RETURN_IF_ERROR(ApplyGgufTensors(ModelTensors(), out_->spec_));
      } else {
        return InvalidArgument(
            "{}: weights[{}]: is {}, expected *.safetensors files or one *.gguf (a split set's first)", manifest, i,
            Printable(name));
      }
    }
    return absl::OkStatus();
  }

  template <typename Resolve>
  absl::Status SetManifestTexts(const Manifest& manifest, const Resolve& resolve) {
    TextSources& texts = out_->texts_;
    texts.tokenizer_config = resolve(manifest.tokenizer_config);
    texts.generation_config = resolve(manifest.generation_config);
    const std::string& chat = manifest.chat_template;
    const bool is_text = chat.find("{{") != chat.npos || chat.find("{%") != chat.npos;
    (is_text ? texts.chat_template_text : texts.chat_template) = is_text ? chat : resolve(chat);
    const std::string tokenizer = resolve(manifest.tokenizer);
    if (tokenizer.empty()) return absl::OkStatus();  // a GGUF file's own vocabulary, if the weights are one
    if (!tokenizer.ends_with(".gguf")) {
      texts.tokenizer = tokenizer;
      out_->uses_gguf_vocabulary_ = false;
      return absl::OkStatus();
    }
    if (out_->gguf_ && out_->gguf_->file() == tokenizer) return absl::OkStatus();
    if (!options_.require_weights && !Exists(tokenizer)) return absl::OkStatus();
    // Only its metadata serve, so it is no weight file: mapped, but not listed.
    XJIT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(tokenizer));
    XJIT_ASSIGN_OR_RETURN(out_->other_vocabulary_, GgufFile::Parse(file.bytes(), tokenizer));
    out_->maps_.push_back(std::move(file));
    return absl::OkStatus();
  }

  // A multimodal checkpoint's language model under the names of a model of its own; the other parts are dropped.
  void KeepLanguageModel() {
    auto& tensors = out_->tensors_;
    // As transformers wrote them until 4.51, and since.
    constexpr std::pair<std::string_view, std::string_view> kPrefixes[] = {{"language_model.model.", "model."},
                                                                           {"model.language_model.", "model."},
                                                                           {"language_model.lm_head.", "lm_head."}};
    const auto in_language_model = [&](const TensorView& tensor) {
      return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                         [&](const auto& prefix) { return tensor.name.starts_with(prefix.first); });
    };
    if (std::none_of(tensors.begin(), tensors.end(), in_language_model)) return;
    std::erase_if(tensors, [&](const TensorView& tensor) {
      return !in_language_model(tensor) && !tensor.name.starts_with("lm_head.");
    });
    for (TensorView& tensor : tensors) {
      for (const auto& [from, to] : kPrefixes) {
        if (!tensor.name.starts_with(from)) continue;
        tensor.name = std::string(to) + tensor.name.substr(from.size());
        break;
      }
    }
  }

  absl::Status Finish() {
    if (out_->format_.empty()) out_->format_ = "no weights";
    if (out_->spec_.arch == "gemma3") KeepLanguageModel();
    auto& tensors = out_->tensors_;
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!out_->index_.emplace(tensors[i].name, i).second) {
        return InvalidArgument("{}: tensor {} is also in {}", tensors[i].file, Printable(tensors[i].name),
                               tensors[i - 1].file);
      }
    }
    return absl::OkStatus();
  }

  OpenOptions options_;
  std::unique_ptr<Checkpoint> out_;
};

const TensorView* Checkpoint::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<const TensorView*> Checkpoint::Tensor(std::string_view name) const {
  const TensorView* tensor = Find(name);
  if (tensor == nullptr) return InvalidArgument("{}: tensor {}: missing", path_, Printable(name));
  if (!tensor->type) {
    return Unimplemented("{}: tensor {}: encoding {} is not supported", tensor->file, Printable(name),
                         tensor->type_name);
  }
  return tensor;
}

void Checkpoint::Discard(const TensorView& tensor) const {
  for (const MappedFile& map : maps_) map.Discard(tensor.data);
}

const GgufFile* Checkpoint::vocabulary_file() const {
  if (other_vocabulary_) return &*other_vocabulary_;
  return uses_gguf_vocabulary_ ? gguf() : nullptr;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const std::string& path, OpenOptions options) {
  return CheckpointBuilder(path, options).Open();
}

}  // namespace xjit
