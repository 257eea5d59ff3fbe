#include "frontend/manifest.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "frontend/checkpoint.h"
#include "frontend/hf_config.h"
#include "frontend/json.h"
#include "frontend/output_file.h"
#include "frontend/printable.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTp = 1024;
constexpr std::array<std::string_view, 5> kKvDtypes = {"bf16", "int8", "fp8", "q4_0", "f32"};

absl::Status CheckPath(const std::string& path, const std::string& place) {
  if (path.empty() || path.find('\0') != path.npos) {
    return InvalidArgument("{}: \"{}\" is not a path", place, Printable(path));
  }
  return absl::OkStatus();
}

absl::Status ReadPath(const JsonObject& json, std::string_view key, std::string& to) {
  if (!json.Has(key)) return absl::OkStatus();
  XJIT_ASSIGN_OR_RETURN(to, json.String(key));
  return CheckPath(to, json.Place(key));
}

absl::Status ReadDefaults(const JsonObject& json, PlanDefaults& to) {
  if (json.Has("tp")) {
    XJIT_ASSIGN_OR_RETURN(const int64_t tp, json.Int("tp", 1, kMaxTp));
    to.tp = static_cast<int>(tp);
  }
  if (json.Has("bind")) {
    XJIT_ASSIGN_OR_RETURN(to.bind, json.String("bind"));
  }
  if (json.Has("kv_dtype")) {
    XJIT_ASSIGN_OR_RETURN(to.kv_dtype, json.String("kv_dtype"));
    if (std::find(kKvDtypes.begin(), kKvDtypes.end(), *to.kv_dtype) == kKvDtypes.end()) {
      return InvalidArgument("{}: is \"{}\", expected bf16, int8, fp8, q4_0 or f32", json.Place("kv_dtype"),
                             Printable(*to.kv_dtype));
    }
  }
  return absl::OkStatus();
}

// `quantization` repeats what quantization_config says, or names the GGUF file's own.
absl::Status ReadQuantization(const JsonObject& json, Manifest& out) {
  XJIT_ASSIGN_OR_RETURN(out.quant, QuantConfig::Parse(json));
  const std::string method(MethodName(out.quant.method));
  XJIT_ASSIGN_OR_RETURN(out.quantization, json.StringOr("quantization", method));
  if (out.quantization == method) return absl::OkStatus();
  if (out.quant.method != QuantConfig::Method::kNone) {
    return InvalidArgument("{}: is \"{}\", but quantization_config says {}", json.Place("quantization"),
                           Printable(out.quantization), method);
  }
  if (out.quantization == "gguf") return absl::OkStatus();
  for (const auto known : {QuantConfig::Method::kFp8, QuantConfig::Method::kCompressedTensors,
                           QuantConfig::Method::kAwq, QuantConfig::Method::kGptq, QuantConfig::Method::kMxfp4}) {
    if (out.quantization == MethodName(known)) {
      return InvalidArgument("{}: missing, but quantization is \"{}\"", json.Place("quantization_config"),
                             out.quantization);
    }
  }
  return Unimplemented("{}: \"{}\" is not supported (known: none, gguf, fp8, compressed-tensors, awq, gptq, mxfp4)",
                       json.Place("quantization"), Printable(out.quantization));
}

std::string Relative(const std::string& path, const fs::path& folder) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  if (error) return path;
  return target.lexically_proximate(folder).string();
}

}  // namespace

absl::StatusOr<Manifest> ParseManifest(std::string_view text, std::string_view file) {
  XJIT_ASSIGN_OR_RETURN(const Json document, ParseJson(text, file));
  XJIT_ASSIGN_OR_RETURN(const JsonObject json, JsonObject::From(document, file));
  if (!json.Has("arch")) {
    return InvalidArgument("{}: missing{}", json.Place("arch"),
                           json.Has("model_type") ? " (this looks like a config.json: name its folder instead)" : "");
  }
  Manifest out;
  XJIT_ASSIGN_OR_RETURN(const std::string arch, json.String("arch"));
  if (arch.empty()) return InvalidArgument("{}: is empty", json.Place("arch"));
  XJIT_ASSIGN_OR_RETURN(out.spec, HfSpec(json, arch));
  XJIT_ASSIGN_OR_RETURN(const std::string name, json.StringOr("name", ""));
  out.spec.name = Printable(name);

  XJIT_RETURN_IF_ERROR(ReadQuantization(json, out));
  XJIT_ASSIGN_OR_RETURN(out.weights, json.Strings("weights"));
  for (size_t i = 0; i < out.weights.size(); ++i) {
    XJIT_RETURN_IF_ERROR(CheckPath(out.weights[i], fmt::format("{}[{}]", json.Place("weights"), i)));
  }
  XJIT_RETURN_IF_ERROR(ReadPath(json, "tokenizer", out.tokenizer));
  XJIT_RETURN_IF_ERROR(ReadPath(json, "tokenizer_config", out.tokenizer_config));
  XJIT_RETURN_IF_ERROR(ReadPath(json, "generation_config", out.generation_config));
  XJIT_ASSIGN_OR_RETURN(out.chat_template, json.StringOr("chat_template", ""));
  XJIT_RETURN_IF_ERROR(ReadDefaults(json, out.defaults));
  return out;
}

absl::Status WriteManifest(const Checkpoint& checkpoint, const std::string& out_path) {
  std::error_code error;
  const fs::path out = fs::weakly_canonical(out_path, error);
  const fs::path folder = (error ? fs::path(out_path) : out).parent_path();
  const TextSources& texts = checkpoint.texts();
  std::vector<std::string> sources = checkpoint.files();
  sources.push_back(checkpoint.path());
  for (const char* name : {"config.json", "model.safetensors.index.json"}) {
    sources.push_back((fs::path(checkpoint.path()) / name).string());
  }
  for (const std::string* path :
       {&texts.tokenizer, &texts.tokenizer_config, &texts.generation_config, &texts.chat_template}) {
    if (!path->empty()) sources.push_back(*path);
  }
  XJIT_RETURN_IF_ERROR(CheckNotInput(out_path, sources));

  nlohmann::ordered_json json;
  if (!checkpoint.spec().name.empty()) json["name"] = checkpoint.spec().name;
  json.update(ToHfKeys(checkpoint.spec()));
  for (const std::string& file : checkpoint.weights()) json["weights"].push_back(Relative(file, folder));
  const QuantConfig& quant = checkpoint.quant();
  json["quantization"] = checkpoint.gguf() != nullptr ? "gguf" : MethodName(quant.method);
  if (!quant.source.is_null()) json["quantization_config"] = quant.source;
  if (quant.plain != DType::kBF16) json["torch_dtype"] = quant.plain == DType::kF16 ? "float16" : "float32";
  const std::pair<const char*, const std::string*> paths[] = {{"tokenizer", &texts.tokenizer},
                                                              {"tokenizer_config", &texts.tokenizer_config},
                                                              {"generation_config", &texts.generation_config},
                                                              {"chat_template", &texts.chat_template}};
  for (const auto& [key, path] : paths) {
    if (!path->empty()) json[key] = Relative(*path, folder);
  }
  if (texts.tokenizer.empty() && checkpoint.vocabulary_file() != nullptr) {
    json["tokenizer"] = Relative(checkpoint.vocabulary_file()->file(), folder);
  }
  if (!texts.chat_template_text.empty()) json["chat_template"] = texts.chat_template_text;
  const PlanDefaults& defaults = checkpoint.defaults();
  if (defaults.tp) json["tp"] = *defaults.tp;
  if (defaults.bind) json["bind"] = *defaults.bind;
  if (defaults.kv_dtype) json["kv_dtype"] = *defaults.kv_dtype;

  // Paths may hold bytes that are not UTF-8; they become U+FFFD rather than an exception.
  const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  return WriteFile(out_path, text);
}

}  // namespace xjit
