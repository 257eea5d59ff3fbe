// xjit tokenize: text to token ids and back.
#include <nlohmann/json.hpp>

#include "frontend/model_text.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

struct TokenizeFlags {
  std::string model, text, ids;
  bool no_special = false, parse_special = false, json = false;
  CLI::App* app = nullptr;
};

absl::Status Run(const TokenizeFlags& f) {
  const bool have_text = f.app->count("--text") > 0;
  if (have_text != f.ids.empty()) return UsageError("--text TEXT or --detokenize 1,2,3: give one of them");
  OpenOptions open;
  open.require_weights = false;
  XJIT_ASSIGN_OR_RETURN(auto checkpoint, OpenCheckpoint(f.model, open));
  XJIT_ASSIGN_OR_RETURN(auto tokenizer, LoadTokenizer(*checkpoint));
  if (have_text) {
    auto ids = tokenizer->Encode(f.text, !f.no_special, f.parse_special);
    if (!ids.ok()) return AsUsage(ToStatus(ids.error(), "--text"));
    const std::string list = fmt::format("{}", fmt::join(*ids, ","));
    fmt::print("{}\n", f.json ? fmt::format("{{\"ids\":[{}]}}", list) : list);
    return absl::OkStatus();
  }
  XJIT_ASSIGN_OR_RETURN(const auto ids, ParseIds(f.ids, "--detokenize"));
  for (int32_t id : ids) {
    if (id < 0 || id >= static_cast<int64_t>(tokenizer->vocab_size())) {
      return UsageError("--detokenize: token id {} is outside the vocabulary of {}", id, tokenizer->vocab_size());
    }
  }
  const std::vector<uint32_t> unsigned_ids(ids.begin(), ids.end());
  auto text = tokenizer->Decode(unsigned_ids, f.no_special);
  if (!text.ok()) return ToStatus(text.error(), "--detokenize");
  using nlohmann::json;
  fmt::print("{}\n", f.json ? json{{"text", *text}}.dump(-1, ' ', false, json::error_handler_t::replace) : *text);
  return absl::OkStatus();
}

}  // namespace

Command AddTokenize(CLI::App& app) {
  auto f = std::make_shared<TokenizeFlags>();
  CLI::App* sub = app.add_subcommand("tokenize", "print a text's token ids, or the text of token ids");
  f->app = sub;
  sub->add_option("model", f->model, "a model, or a GGUF file with a vocabulary alone")->required()->type_name("MODEL");
  sub->add_option("--text", f->text, "the text to encode");
  sub->add_option("--detokenize", f->ids, "token ids to decode: 1,2,3");
  sub->add_flag("--no-special", f->no_special, "add no special tokens; leave them out when decoding");
  sub->add_flag("--parse-special", f->parse_special, "special tokens written in the text are read as such");
  sub->add_flag("--json", f->json, "as one JSON document");
  Example(sub, "xjit tokenize model.gguf --text \"Hello world\"");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace xjit::tools
