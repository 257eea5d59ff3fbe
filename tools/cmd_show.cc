// xjit show: what is in a model.
#include <map>
#include <nlohmann/json.hpp>

#include "frontend/hf_config.h"
#include "frontend/model_text.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

using nlohmann::ordered_json;

struct ShowFlags {
  std::string model;
  bool tensors = false, json = false;
};

ordered_json Describe(const Checkpoint& checkpoint, bool tensors) {
  const ModelSpec& s = checkpoint.spec();
  ordered_json out;
  out["model"] = checkpoint.path();
  out["format"] = checkpoint.format();
  out["files"] = checkpoint.files();
  out["arch"] = s.arch;
  if (!s.name.empty()) out["name"] = s.name;
  int64_t parameters = 0;
  std::map<std::string, std::pair<int64_t, int64_t>> types;  // name -> tensors, bytes
  for (const TensorView& t : checkpoint.tensors()) {
    parameters += CountElements(t.shape).value_or(0);
    auto& [count, bytes] = types[t.type.has_value() ? std::string(Name(*t.type)) : t.type_name];
    ++count;
    bytes += static_cast<int64_t>(t.data.size());
  }
  out["parameters"] = parameters;
  out["config"] = ToHfKeys(s);
  ordered_json dtypes;
  int64_t weight_bytes = 0;
  for (const auto& [name, entry] : types) {
    dtypes[name] = {{"tensors", entry.first}, {"bytes", entry.second}};
    weight_bytes += entry.second;
  }
  out["dtypes"] = dtypes;
  const int64_t kv_token = s.layers * s.kv_values() * 2;
  out["memory"] = {{"weight_bytes", weight_bytes},
                   {"kv_bytes_per_token_bf16", kv_token},
                   {"kv_bytes_at_full_context_bf16", kv_token * s.max_positions}};
  auto tokenizer = LoadTokenizer(checkpoint);
  if (tokenizer.ok()) {
    ordered_json t;
    t["tokens"] = (*tokenizer)->vocab_size();
    for (const auto& [name, id] : {std::pair{"bos", (*tokenizer)->bos()}, std::pair{"eos", (*tokenizer)->eos()}}) {
      if (id.has_value()) t[name] = {{"id", *id}, {"token", (*tokenizer)->TokenSpelling(*id).value_or("")}};
    }
    t["end_ids"] = (*tokenizer)->end_ids();
    t["chat_template"] = (*tokenizer)->has_chat_template();
    t["table_bytes"] = (*tokenizer)->memory_bytes();
    out["tokenizer"] = t;
  } else {
    out["tokenizer_error"] = std::string(Message(tokenizer.status()));
  }
  if (tensors) {
    for (const TensorView& t : checkpoint.tensors()) {
      out["tensors"].push_back({{"name", t.name},
                                {"dtype", t.type.has_value() ? std::string(Name(*t.type)) : t.type_name},
                                {"shape", t.shape},
                                {"bytes", t.data.size()}});
    }
  }
  return out;
}

std::string Bytes(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.0f} bytes", bytes);
}

std::string PlainValue(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void PrintPlain(const ordered_json& d) {
  for (const auto& [key, value] : d.items()) {
    if (key == "config") {
      for (const auto& [name, entry] : value.items()) {
        if (name != "arch") fmt::print("{:<28}{}\n", name, PlainValue(entry));
      }
    } else if (key == "dtypes") {
      for (const auto& [name, entry] : value.items()) {
        fmt::print("{:<28}{:<8}{} tensors, {}\n", "dtype", name, entry["tensors"].get<int64_t>(),
                   Bytes(entry["bytes"].get<double>()));
      }
    } else if (key == "memory") {
      fmt::print("{:<28}{}\n", "weights", Bytes(value["weight_bytes"].get<double>()));
      fmt::print("{:<28}{} a token, {} at full context (bf16)\n", "kv cache",
                 Bytes(value["kv_bytes_per_token_bf16"].get<double>()),
                 Bytes(value["kv_bytes_at_full_context_bf16"].get<double>()));
    } else if (key == "tokenizer") {
      fmt::print("{:<28}{} tokens, {} of tables, chat template: {}\n", key, value["tokens"].get<int64_t>(),
                 Bytes(value["table_bytes"].get<double>()), value["chat_template"].get<bool>() ? "yes" : "no");
    } else if (key == "tensors") {
      for (const auto& t : value)
        fmt::print("{:<8}{:<20}{}\n", t["dtype"].get<std::string>(), t["shape"].dump(), t["name"].get<std::string>());
    } else {
      fmt::print("{:<28}{}\n", key, PlainValue(value));
    }
  }
}

absl::Status Run(const ShowFlags& f) {
  OpenOptions open;
  open.require_weights = false;
  XJIT_ASSIGN_OR_RETURN(auto checkpoint, OpenCheckpoint(f.model, open));
  const ordered_json description = Describe(*checkpoint, f.tensors);
  if (f.json) {
    fmt::print("{}\n", description.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    PrintPlain(description);
  }
  return absl::OkStatus();
}

}  // namespace

Command AddShow(CLI::App& app) {
  auto f = std::make_shared<ShowFlags>();
  CLI::App* sub = app.add_subcommand("show", "say what is in a model");
  sub->add_option("model", f->model, "a .gguf file, a checkpoint folder, or a model.json manifest")
      ->required()
      ->type_name("MODEL");
  sub->add_flag("--tensors", f->tensors, "list every tensor");
  sub->add_flag("--json", f->json, "as one JSON document");
  Example(sub, "xjit show model.gguf --tensors");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace xjit::tools
