#include "frontend/quant_config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "frontend/printable.h"
#include "frontend/spec_limits.h"
#include "ir/support/status.h"

namespace xjit {
namespace {

using Method = QuantConfig::Method;
using Kind = Scales::Kind;

constexpr std::string_view kMethods = "fp8, compressed-tensors, awq, gptq, mxfp4";
constexpr int64_t kMaxGroup = 1 << 20;

absl::Status Expect(const JsonObject& json, std::string_view key, std::string_view fallback, std::string_view value) {
  XJIT_ASSIGN_OR_RETURN(std::string is, json.StringOr(key, std::string(fallback)));
  std::transform(is.begin(), is.end(), is.begin(), [](unsigned char c) { return std::tolower(c); });
  if (is == value) return absl::OkStatus();
  return Unimplemented("{}: is \"{}\", expected {}", json.Place(key), Printable(is), value);
}

absl::Status ExpectInt(const JsonObject& json, std::string_view key, int64_t value) {
  XJIT_ASSIGN_OR_RETURN(const int64_t is, json.IntOr(key, value, -kMaxDim, kMaxDim));
  if (is == value) return absl::OkStatus();
  return Unimplemented("{}: is {}, expected {}", json.Place(key), is, value);
}

// group_size: -1 is a whole row.
absl::StatusOr<int32_t> GroupSize(const JsonObject& json, int64_t fallback) {
  XJIT_ASSIGN_OR_RETURN(const int64_t group, json.IntOr("group_size", fallback, -1, kMaxGroup));
  if (group == -1) return QuantConfig::kWholeRow;
  // Kernels read a group's elements eight at a time, as the files' 32-bit words hold them.
  if (group < 8 || group % 8 != 0) {
    return InvalidArgument("{}: is {}, expected -1 or a multiple of 8", json.Place("group_size"), group);
  }
  return static_cast<int32_t>(group);
}

// "re:..." is an expression, the rest are names. `to_patterns`: all are expressions.
absl::Status ReadModules(const JsonObject& json, std::string_view key, bool all_patterns,
                         std::vector<std::string>& names, std::vector<ModulePattern>& patterns) {
  // All are tried on every module of every layer.
  constexpr size_t kMaxPatterns = 8192;
  size_t size = 0;
  XJIT_ASSIGN_OR_RETURN(std::vector<std::string> entries, json.Strings(key));
  for (std::string& entry : entries) {
    const bool expression = entry.starts_with("re:");
    if (expression || all_patterns) {
      const std::string_view text = std::string_view(entry).substr(expression ? 3 : 0);
      XJIT_ASSIGN_OR_RETURN(ModulePattern pattern, ModulePattern::Parse(text, json.Place(key)));
      size += pattern.size();
      if (size > kMaxPatterns)
        return InvalidArgument("{}: its {} patterns are too large", json.Place(key), entries.size());
      patterns.push_back(std::move(pattern));
    }
    if (!expression) names.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<int32_t, int32_t>> BlockShape(const JsonObject& json, std::string_view key) {
  XJIT_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, json.Ints(key, 1, kMaxGroup));
  if (shape.size() != 2) return InvalidArgument("{}: expected two numbers, such as [128, 128]", json.Place(key));
  return std::pair(static_cast<int32_t>(shape[0]), static_cast<int32_t>(shape[1]));
}

absl::Status ReadFp8(const JsonObject& json, QuantConfig& out) {
  XJIT_RETURN_IF_ERROR(Expect(json, "fmt", "e4m3", "e4m3"));
  XJIT_RETURN_IF_ERROR(Expect(json, "expert_dtype", "fp8", "fp8"));
  if (json.Has("modules_to_convert")) return Unimplemented("{}: is not supported", json.Place("modules_to_convert"));
  Encoding encoding{DType::kF8E4M3, {.kind = Kind::kTensor}};
  if (json.Has("weight_block_size")) {
    XJIT_ASSIGN_OR_RETURN(const auto block, BlockShape(json, "weight_block_size"));
    encoding.scales = {.kind = Kind::kBlock, .rows = block.first, .cols = block.second};
  }
  out.schemes.push_back({.encoding = encoding, .linears = true});
  // transformers' should_convert_module: an expression up to a module's end, or a suffix.
  out.skip_rule = QuantConfig::SkipRule::kSuffix;
  out.skip_end = ModulePattern::End::kModule;
  const char* key = json.Has("modules_to_not_convert") ? "modules_to_not_convert" : "ignored_layers";
  return ReadModules(json, key, true, out.skip_names, out.skip_patterns);
}

absl::Status ReadMxfp4(const JsonObject& json, QuantConfig& out) {
  // Only stacks of experts are stored so.
  QuantConfig::Scheme scheme{.encoding = DType::kMxfp4};
  XJIT_ASSIGN_OR_RETURN(ModulePattern experts, ModulePattern::Parse(R"(.*\.experts(\..*)?$)", "mxfp4"));
  scheme.patterns.push_back(std::move(experts));
  out.schemes.push_back(std::move(scheme));
  out.skip_rule = QuantConfig::SkipRule::kSuffix;
  out.skip_end = ModulePattern::End::kModule;
  return ReadModules(json, "modules_to_not_convert", true, out.skip_names, out.skip_patterns);
}

absl::Status ReadAwq(const JsonObject& json, QuantConfig& out) {
  XJIT_RETURN_IF_ERROR(ExpectInt(json, json.Has("w_bit") ? "w_bit" : "bits", 4));
  XJIT_RETURN_IF_ERROR(Expect(json, "version", "gemm", "gemm"));
  XJIT_ASSIGN_OR_RETURN(const int32_t group, GroupSize(json, 128));
  XJIT_ASSIGN_OR_RETURN(const bool zeros, json.BoolOr("zero_point", true));
  out.schemes.push_back({.encoding = Encoding::Int4(group, zeros), .linears = true});
  out.skip_rule = QuantConfig::SkipRule::kSubstring;  // as AutoAWQ, which makes the files
  return ReadModules(json, "modules_to_not_convert", false, out.skip_names, out.skip_patterns);
}

absl::Status ReadGptq(const JsonObject& json, QuantConfig& out) {
  XJIT_RETURN_IF_ERROR(ExpectInt(json, "bits", 4));
  XJIT_ASSIGN_OR_RETURN(const auto dynamic, json.Object("dynamic"));
  if (dynamic && !json.Find("dynamic")->empty()) {
    return Unimplemented("{}: other settings for some modules are not supported", json.Place("dynamic"));
  }
  XJIT_ASSIGN_OR_RETURN(const bool marlin, json.BoolOr("is_marlin_format", false));
  if (marlin) return Unimplemented("{}: is true, expected false", json.Place("is_marlin_format"));
  const std::string_view key = json.Has("checkpoint_format") ? "checkpoint_format" : "format";
  XJIT_ASSIGN_OR_RETURN(const std::string format, json.StringOr(key, "gptq"));
  if (format != "gptq" && format != "gptq_v2") {
    return Unimplemented("{}: is \"{}\", expected gptq or gptq_v2", json.Place(key), Printable(format));
  }
  out.zero_offset = format == "gptq" ? 1 : 0;
  XJIT_ASSIGN_OR_RETURN(const int32_t group, GroupSize(json, 128));
  XJIT_ASSIGN_OR_RETURN(const bool act_order, json.BoolOr("desc_act", false));
  XJIT_ASSIGN_OR_RETURN(const bool symmetric, json.BoolOr("sym", true));
  XJIT_ASSIGN_OR_RETURN(out.head, json.BoolOr("lm_head", false));
  // In one group the order means nothing.
  const bool ordered = act_order && group != QuantConfig::kWholeRow;
  out.schemes.push_back({.encoding = Encoding::Int4(group, !symmetric, ordered), .linears = true});
  if (const Json* blocks = json.Find("modules_in_block_to_quantize")) {
    // A list of lists: what is quantised together.
    for (const Json& block : *blocks) {
      for (const Json& name : block.is_array() ? block : Json::array({block})) {
        if (!name.is_string()) {
          return InvalidArgument("{}: expected names of modules", json.Place("modules_in_block_to_quantize"));
        }
        out.only_suffixes.push_back("." + name.get<std::string>());
      }
    }
  }
  return ReadModules(json, "modules_to_not_convert", false, out.skip_names, out.skip_patterns);
}

// `weights` of a config group.
absl::StatusOr<Encoding> GroupEncoding(const JsonObject& weights) {
  XJIT_ASSIGN_OR_RETURN(const int64_t bits, weights.Int("num_bits", 1, 64));
  XJIT_ASSIGN_OR_RETURN(const std::string type, weights.StringOr("type", "int"));
  XJIT_ASSIGN_OR_RETURN(const bool symmetric, weights.BoolOr("symmetric", true));
  const bool grouped = weights.Has("group_size");
  XJIT_ASSIGN_OR_RETURN(const std::string strategy, weights.StringOr("strategy", grouped ? "group" : "tensor"));
  const auto unknown = [&](std::string_view key, std::string_view value) {
    return Unimplemented("{}: \"{}\" is not supported for weights of {} bits of type {}", weights.Place(key),
                         Printable(value), bits, Printable(type));
  };
  if (bits == 4 && type == "int") {
    if (strategy != "group" && strategy != "channel") return unknown("strategy", strategy);
    int32_t group = QuantConfig::kWholeRow;
    if (strategy == "group") {
      XJIT_ASSIGN_OR_RETURN(group, GroupSize(weights, 128));
    }
    // Of the orders only "group" leaves a table in the file; a flag in the first versions.
    const Json* order = weights.Find("actorder");
    const bool ordered = order != nullptr && (order->is_string() ? *order == "group" : *order == true);
    return Encoding::Int4(group, !symmetric, ordered && group != QuantConfig::kWholeRow);
  }
  if (bits != 8 || (type != "int" && type != "float")) return unknown("type", type);
  if (!symmetric) return unknown("symmetric", "false");
  if (type == "int") {
    if (strategy != "channel" && strategy != "tensor") return unknown("strategy", strategy);
    return Encoding::Int8();
  }
  Encoding encoding{DType::kF8E4M3, {.kind = Kind::kTensor}};
  if (strategy == "channel") {
    encoding.scales.kind = Kind::kChannel;
  } else if (strategy == "block") {
    XJIT_ASSIGN_OR_RETURN(const auto block, BlockShape(weights, "block_structure"));
    encoding.scales = {.kind = Kind::kBlock, .rows = block.first, .cols = block.second};
  } else if (strategy != "tensor") {
    return unknown("strategy", strategy);
  }
  return encoding;
}

absl::Status ReadGroup(const JsonObject& group, QuantConfig& out) {
  XJIT_ASSIGN_OR_RETURN(const auto weights, group.Object("weights"));
  XJIT_ASSIGN_OR_RETURN(const auto inputs, group.Object("input_activations"));
  if (!weights) return Unimplemented("{}: missing (activations alone are not quantised)", group.Place("weights"));
  if (group.Has("output_activations")) {
    return Unimplemented("{}: are not supported", group.Place("output_activations"));
  }
  QuantConfig::Scheme scheme;
  XJIT_ASSIGN_OR_RETURN(scheme.encoding, GroupEncoding(*weights));
  bool int8_inputs = false;
  if (inputs) {
    XJIT_ASSIGN_OR_RETURN(const std::string type, inputs->StringOr("type", "int"));
    // Float activations are not rounded at all, which is nearer to the model; int8 ones are, for each token.
    const Json* dynamic = inputs->Find("dynamic");
    if (type == "int" && (dynamic == nullptr || *dynamic != true)) {
      return Unimplemented("{}: expected true (scales of activations that are fixed beforehand are not supported)",
                           inputs->Place("dynamic"));
    }
    if (type == "int") {
      XJIT_RETURN_IF_ERROR(ExpectInt(*inputs, "num_bits", 8));
      int8_inputs = true;
    }
  }
  // W8A16: what a model was not calibrated for must not be rounded.
  if (scheme.encoding.type == DType::kI8) scheme.encoding.scales.weight_only = !int8_inputs;
  XJIT_RETURN_IF_ERROR(ReadModules(group, "targets", false, scheme.names, scheme.patterns));
  scheme.linears = std::erase(scheme.names, "Linear") > 0;
  if (std::find(scheme.names.begin(), scheme.names.end(), "Embedding") != scheme.names.end()) {
    return Unimplemented("{}: Embedding is not supported", group.Place("targets"));
  }
  out.schemes.push_back(std::move(scheme));
  return absl::OkStatus();
}

absl::Status ReadCompressedTensors(const JsonObject& json, QuantConfig& out) {
  XJIT_ASSIGN_OR_RETURN(const auto sparsity, json.Object("sparsity_config"));
  if (sparsity) XJIT_RETURN_IF_ERROR(Expect(*sparsity, "format", "dense", "dense"));
  if (json.Has("transform_config") && !json.Find("transform_config")->empty()) {
    return Unimplemented("{}: is not supported", json.Place("transform_config"));
  }
  XJIT_ASSIGN_OR_RETURN(const std::string format, json.StringOr("format", "dense"));
  constexpr std::array<std::string_view, 6> kFormats = {"dense",           "int-quantized",  "float-quantized",
                                                        "naive-quantized", "pack-quantized", "mixed-precision"};
  if (std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end()) {
    return Unimplemented("{}: is \"{}\", expected int-quantized, float-quantized, naive-quantized or pack-quantized",
                         json.Place("format"), Printable(format));
  }
  XJIT_ASSIGN_OR_RETURN(const auto groups, json.Object("config_groups"));
  if (!groups) return InvalidArgument("{}: missing", json.Place("config_groups"));
  for (const auto& [name, unused] : json.Find("config_groups")->items()) {
    XJIT_ASSIGN_OR_RETURN(const auto group, groups->Object(name));
    if (group) XJIT_RETURN_IF_ERROR(ReadGroup(*group, out));
  }
  out.head = true;  // a linear module like others: files that leave it alone name it in `ignore`
  return ReadModules(json, "ignore", false, out.skip_names, out.skip_patterns);
}

std::string_view LastPart(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

// Whether a module in the layers is a linear one, by its name: no embedding, lm_head, norm, router, bias or sink.
bool IsLinearModule(std::string_view module) {
  if (module.find("layers.") == module.npos) return false;
  const std::string_view last = LastPart(module);
  // The last three belong to DeepSeek's layers that predict further tokens.
  for (const std::string_view other :
       {"gate", "router", "sinks", "shared_expert_gate", "embed_tokens", "eh_proj", "head"}) {
    if (last == other) return false;
  }
  return !last.ends_with("norm") && !last.ends_with("bias");
}

bool Skipped(const QuantConfig& quant, std::string_view module) {
  using Rule = QuantConfig::SkipRule;
  const auto by_name = [&](const std::string& name) {
    return quant.skip_rule == Rule::kSubstring ? module.find(name) != module.npos
           : quant.skip_rule == Rule::kSuffix  ? module.ends_with(name)
                                               : module == name;
  };
  return std::any_of(quant.skip_names.begin(), quant.skip_names.end(), by_name) ||
         std::any_of(quant.skip_patterns.begin(), quant.skip_patterns.end(),
                     [&](const ModulePattern& pattern) { return pattern.Matches(module, quant.skip_end); });
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kNone:
      return "none";
    case Method::kFp8:
      return "fp8";
    case Method::kCompressedTensors:
      return "compressed-tensors";
    case Method::kAwq:
      return "awq";
    case Method::kGptq:
      return "gptq";
    case Method::kMxfp4:
      return "mxfp4";
  }
  return "none";
}

absl::StatusOr<QuantConfig> QuantConfig::Parse(const JsonObject& config) {
  QuantConfig out;
  for (const std::string_view key : {"torch_dtype", "dtype"}) {
    XJIT_ASSIGN_OR_RETURN(const std::string dtype, config.StringOr(key, ""));
    if (dtype == "float16") out.plain = DType::kF16;
    if (dtype == "float32") out.plain = DType::kF32;
  }
  const std::string_view key = config.Has("quantization_config") ? "quantization_config" : "compression_config";
  XJIT_ASSIGN_OR_RETURN(const std::optional<JsonObject> json, config.Object(key));
  if (!json) return out;
  out.source = *config.Find(key);
  XJIT_ASSIGN_OR_RETURN(const std::string method, json->StringOr("quant_method", "unnamed"));
  constexpr std::pair<Method, absl::Status (*)(const JsonObject&, QuantConfig&)> kReaders[] = {
      {Method::kFp8, ReadFp8},
      {Method::kCompressedTensors, ReadCompressedTensors},
      {Method::kAwq, ReadAwq},
      {Method::kGptq, ReadGptq},
      {Method::kMxfp4, ReadMxfp4}};
  for (const auto& [known, read] : kReaders) {
    if (method != MethodName(known)) continue;
    out.method = known;
    XJIT_RETURN_IF_ERROR(read(*json, out));
    return out;
  }
  return Unimplemented("{}: is \"{}\", which is not supported (known: {})", json->Place("quant_method"),
                       Printable(method), kMethods);
}

std::optional<Encoding> QuantConfig::Of(std::string_view module) const {
  if (method == Method::kNone || Skipped(*this, module)) return std::nullopt;
  // A module's name is a better match than its class.
  for (const Scheme& scheme : schemes) {
    if (std::find(scheme.names.begin(), scheme.names.end(), module) != scheme.names.end() ||
        std::any_of(scheme.patterns.begin(), scheme.patterns.end(),
                    [&](const ModulePattern& pattern) { return pattern.Matches(module); })) {
      return scheme.encoding;
    }
  }
  if (!IsLinearModule(module) && !(head && module == "lm_head")) return std::nullopt;
  if (!only_suffixes.empty() && module != "lm_head" &&
      std::none_of(only_suffixes.begin(), only_suffixes.end(),
                   [&](const std::string& suffix) { return module.ends_with(suffix); })) {
    return std::nullopt;
  }
  const auto scheme = std::find_if(schemes.begin(), schemes.end(), [](const Scheme& s) { return s.linears; });
  return scheme == schemes.end() ? std::nullopt : std::optional(scheme->encoding);
}

std::string ModuleOf(std::string_view tensor, int64_t layer) {
  std::string name(tensor.substr(0, tensor.find('[')));
  for (const auto& [hole, number] : {std::pair("{}", layer), {"{e}", int64_t{0}}}) {
    const size_t at = name.find(hole);
    if (at != name.npos) name.replace(at, std::string_view(hole).size(), fmt::format("{}", number));
  }
  for (const std::string_view suffix : {".weight", "_blocks"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

absl::StatusOr<ModelWeights> ConfigWeights(const ModelSpec& spec, const ModelFamily& family, const QuantConfig& quant,
                                           std::optional<std::string_view> quantize) {
  std::optional<Encoding> forced;
  if (quantize) {
    const std::pair<std::string_view, Encoding> kNames[] = {{"bf16", DType::kBF16},
                                                            {"int8", Encoding::Int8()},
                                                            {"fp8", Encoding::Fp8Blocks()},
                                                            {"int4", Encoding::Int4(128, false)}};
    for (const auto& [name, encoding] : kNames) {
      if (*quantize == name) forced = encoding;
    }
    if (!forced) {
      return InvalidArgument("quantize: is \"{}\", expected bf16, int8, fp8 or int4", Printable(*quantize));
    }
  }
  ModelWeights weights;
  weights.outer[""] = quant.plain;
  weights.layers.assign(static_cast<size_t>(spec.layers), {{"", quant.plain}});
  for (const TensorName& tensor : family.tensors) {
    if (tensor.hf.empty()) continue;
    const bool in_layers = tensor.hf.find("{}") != tensor.hf.npos;
    for (int64_t layer = 0; layer < (in_layers ? spec.layers : 1); ++layer) {
      Encodings& to = in_layers ? weights.layers[static_cast<size_t>(layer)] : weights.outer;
      std::optional<Encoding> encoding;
      if (!forced)
        encoding = quant.Of(ModuleOf(tensor.hf, layer));
      else if (IsLinearModule(ModuleOf(tensor.hf, 0)))
        encoding = forced;
      if (encoding) to[std::string(tensor.symbol)] = *encoding;
    }
  }
  return weights;
}

}  // namespace xjit
