// xjit run and xjit chat: answer a prompt, or hold a conversation.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "frontend/generate.h"
#include "frontend/model_text.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

struct RunFlags {
  ModelFlags model;
  std::string prompt, prompt_file, system, raw_ids;
  bool chat = false, json = false, ignore_eos = false;
  int64_t max_tokens = -1;
  GenerateParams generate;
  CLI::App* app = nullptr;
};

// Set by SIGINT: ends the answer, not the program.
std::atomic<bool> interrupted{false};
void OnInterrupt(int) { interrupted = true; }

void RegisterSampling(CLI::App* app, RunFlags* f) {
  SamplerParams& s = f->generate.sampler;
  // llama.cpp's defaults, but for the seed: the same command gives the same text.
  s.temperature = 0.8f;
  s.top_k = 40;
  s.top_p = 0.95f;
  s.min_p = 0.05f;
  app->add_option("--max-tokens", f->max_tokens, "most tokens to generate (default: until the context is full)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app->add_option("--temperature", s.temperature, "0 takes the most likely token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--top-k", s.top_k, "only the k most likely tokens; 0: all")
      ->check(CLI::Range(0, 1 << 30))
      ->capture_default_str();
  app->add_option("--top-p", s.top_p, "the fewest tokens with this probability together")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--min-p", s.min_p, "tokens with at least this share of the best one's probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--repeat-penalty", s.repeat_penalty, "divides the logits of recent tokens; 1: none")
      ->check(CLI::Range(0.01, 100.0))
      ->capture_default_str();
  app->add_option("--presence-penalty", s.presence_penalty, "subtracted from the logits of recent tokens")
      ->check(CLI::Range(-100.0, 100.0))
      ->capture_default_str();
  app->add_option("--frequency-penalty", s.frequency_penalty, "subtracted for each occurrence")
      ->check(CLI::Range(-100.0, 100.0))
      ->capture_default_str();
  app->add_option("--seed", s.seed, "of the random choices")
      ->check(CLI::Range(uint64_t{0}, UINT64_MAX - 1))
      ->capture_default_str();
  app->add_option("--stop", f->generate.stop, "text that ends the answer (repeatable)");
  app->add_flag("--ignore-eos", f->ignore_eos, "do not stop at an end token");
}

using nlohmann::ordered_json;

absl::StatusOr<std::vector<int32_t>> Encode(const text::Tokenizer& tokenizer, std::string_view text, bool add_special) {
  auto ids = tokenizer.Encode(text, add_special, /*parse_special=*/true);
  if (!ids.ok()) return ToStatus(ids.error(), "prompt");
  return std::vector<int32_t>(ids->begin(), ids->end());
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const text::Tokenizer& tokenizer, const ordered_json& messages) {
  if (!tokenizer.has_chat_template()) {
    return FailedPrecondition("the model has no chat template (without --chat the prompt is continued as it is)");
  }
  text::RenderRequest request;
  const std::string text = messages.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  request.messages = text;
  auto rendered = tokenizer.Render(request);
  if (!rendered.ok()) return ToStatus(rendered.error(), "chat template");
  return Encode(tokenizer, *rendered, /*add_special=*/false);
}

void AddEndIds(const Engine& engine, const text::Tokenizer* tokenizer, GenerateParams* params) {
  params->end_ids = engine.spec().eos_ids;
  if (tokenizer == nullptr) return;
  for (uint32_t id : tokenizer->end_ids()) params->end_ids.push_back(static_cast<int32_t>(id));
}

ordered_json ToJson(const Engine& engine, const Generated& g, size_t prompt_tokens) {
  const double steps = static_cast<double>(std::max<int64_t>(g.decode_steps, 1));
  return {{"text", g.text},
          {"token_ids", g.ids},
          {"prompt_tokens", prompt_tokens},
          {"completion_tokens", g.ids.size()},
          {"finish_reason", g.finish_reason},
          {"timings",
           {{"load_ms", engine.load_ms()},
            {"compile_ms", engine.compile_ms()},
            {"ttft_ms", g.ttft_ms},
            {"tpot_ms", g.decode_steps > 0 ? g.decode_ms / steps : 0.0},
            {"prefill_tok_s", g.ttft_ms > 0 ? 1e3 * static_cast<double>(prompt_tokens) / g.ttft_ms : 0.0},
            {"decode_tok_s", g.decode_ms > 0 ? 1e3 * static_cast<double>(g.decode_steps) / g.decode_ms : 0.0}}}};
}

// One prompt, one answer.
absl::Status RunOnce(const RunFlags& f, Engine& engine, const text::Tokenizer* tokenizer,
                     std::span<const int32_t> ids) {
  XJIT_ASSIGN_OR_RETURN(const int seq, engine.NewSequence());
  XJIT_ASSIGN_OR_RETURN(const Generated g,
                        Generate(engine, seq, {}, ids, f.generate, tokenizer, [&f](std::string_view piece) {
                          if (!f.json) {
                            std::fwrite(piece.data(), 1, piece.size(), stdout);
                            std::fflush(stdout);
                          }
                          return !interrupted;
                        }));
  if (f.json) {
    fmt::print("{}\n", ToJson(engine, g, ids.size()).dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  } else if (tokenizer == nullptr) {
    fmt::print("{}\n", fmt::join(g.ids, ","));
  } else {
    fmt::print("\n");
  }
  return absl::OkStatus();
}

// The conversation's tokens; the oldest turns are dropped while it leaves no room to answer in the context.
absl::StatusOr<std::vector<int32_t>> FitChat(const text::Tokenizer& tokenizer, int64_t context,
                                             ordered_json* messages) {
  for (;;) {
    XJIT_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeChat(tokenizer, *messages));
    const size_t first = !messages->empty() && (*messages)[0]["role"] == "system" ? 1 : 0;
    if (static_cast<int64_t>(ids.size()) < context || messages->size() < first + 3) return ids;
    messages->erase(messages->begin() + static_cast<long>(first), messages->begin() + static_cast<long>(first) + 2);
    fmt::print(stderr, "xjit: the conversation is longer than the context of {}: its oldest turn is left out\n",
               context);
  }
}

// A conversation on the terminal. What the sequence already holds of the rendered conversation is not fed again.
absl::Status Converse(const RunFlags& f, Engine& engine, const text::Tokenizer& tokenizer) {
  XJIT_ASSIGN_OR_RETURN(const int seq, engine.NewSequence());
  ordered_json messages = ordered_json::array();
  if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
  std::vector<int32_t> held;
  const bool terminal = isatty(STDIN_FILENO) != 0;
  // Without SA_RESTART: at the prompt an interrupt ends the conversation, in an answer the answer.
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  sigaction(SIGINT, &action, nullptr);
  std::string line;
  for (;;) {
    if (terminal) {
      fmt::print(stderr, "> ");
      std::fflush(stderr);
    }
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});
    XJIT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, FitChat(tokenizer, engine.context(), &messages));
    size_t common = 0;
    while (common < held.size() && common + 1 < ids.size() && held[common] == ids[common]) ++common;
    engine.Truncate(seq, static_cast<int32_t>(common));
    interrupted = false;
    XJIT_ASSIGN_OR_RETURN(const Generated g,
                          Generate(engine, seq, std::span(ids).first(common), std::span(ids).subspan(common),
                                   f.generate, &tokenizer, [](std::string_view piece) {
                                     std::fwrite(piece.data(), 1, piece.size(), stdout);
                                     std::fflush(stdout);
                                     return !interrupted;
                                   }));
    fmt::print("\n");
    std::fflush(stdout);
    messages.push_back({{"role", "assistant"}, {"content", g.text}});
    held = ids;
    held.insert(held.end(), g.ids.begin(), g.ids.end());
    held.resize(static_cast<size_t>(engine.length(seq)));
  }
  return absl::OkStatus();
}

absl::Status Run(RunFlags& f) {
  std::optional<std::vector<int32_t>> raw;
  if (f.app->count("--raw-ids") > 0) {
    XJIT_ASSIGN_OR_RETURN(raw, ParseIds(f.raw_ids, "--raw-ids"));
  }
  if (f.app->count("--prompt") + f.app->count("--prompt-file") + f.app->count("--raw-ids") > 1) {
    return UsageError("--prompt, --prompt-file, --raw-ids: give one of them");
  }
  const bool have_prompt = f.app->count("--prompt") > 0 || !f.prompt_file.empty() || raw.has_value();
  if (!have_prompt && !f.chat)
    return UsageError(
        "--prompt: there is none (--prompt TEXT, --prompt-file F, --raw-ids 1,2,3, or --chat to converse)");
  if (!have_prompt && f.json) return UsageError("--json needs a prompt: a conversation has no one document");
  if (!f.prompt_file.empty()) {
    XJIT_ASSIGN_OR_RETURN(f.prompt, ReadFile(f.prompt_file));
  }
  f.generate.max_tokens = f.max_tokens;
  f.generate.ignore_eos = f.ignore_eos;

  XJIT_ASSIGN_OR_RETURN(auto model, LoadWithTokenizer(f.model));
  Engine& engine = *model.engine;
  // With raw ids a missing tokenizer only means that no text is printed.
  const text::Tokenizer* tokenizer = model.tokenizer.get();
  if (tokenizer == nullptr && !raw.has_value()) return model.tokenizer_status;
  AddEndIds(engine, tokenizer, &f.generate);
  if (!have_prompt) return Converse(f, engine, *tokenizer);

  std::vector<int32_t> ids;
  if (raw.has_value()) {
    ids = *raw;
  } else if (f.chat) {
    ordered_json messages = ordered_json::array();
    if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
    messages.push_back({{"role", "user"}, {"content", f.prompt}});
    XJIT_ASSIGN_OR_RETURN(ids, EncodeChat(*tokenizer, messages));
  } else {
    XJIT_ASSIGN_OR_RETURN(ids, Encode(*tokenizer, f.prompt, /*add_special=*/true));
  }
  if (ids.empty()) return InvalidArgument("the prompt has no tokens");
  return RunOnce(f, engine, tokenizer, ids);
}

Command Add(CLI::App& app, const char* name, const char* help, bool chat) {
  auto f = std::make_shared<RunFlags>();
  CLI::App* sub = app.add_subcommand(name, help);
  f->app = sub;
  f->chat = chat;
  f->model.Register(sub);
  sub->add_option("--prompt,-p", f->prompt, "the text to continue, or with --chat the user's message");
  sub->add_option("--prompt-file,-f", f->prompt_file, "the same, from a file");
  sub->add_option("--raw-ids", f->raw_ids, "the prompt as token ids: 1,2,3");
  if (!chat)
    sub->add_flag("--chat", f->chat, "apply the model's chat template; a conversation where there is no prompt");
  sub->add_option("--system", f->system, "the system message of a chat");
  RegisterSampling(sub, f.get());
  sub->add_flag("--json", f->json, "print one JSON document instead of text");
  Example(sub, chat ? "xjit chat model.gguf --temperature 0.7"
                    : "xjit run model.gguf --chat --prompt \"Why is the sky blue?\" --temperature 0");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace

Command AddRun(CLI::App& app) { return Add(app, "run", "answer a prompt", false); }
Command AddChat(CLI::App& app) { return Add(app, "chat", "hold a conversation (run --chat)", true); }

}  // namespace xjit::tools
