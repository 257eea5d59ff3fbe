// xjit logits: logits of given token ids, as a safetensors file that checkers read.
#include <algorithm>

#include "frontend/json.h"
#include "frontend/output_file.h"
#include "tools/command.h"
#include "tools/safetensors_writer.h"

namespace xjit::tools {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string ids, out;
  bool step_by_step = false, decode = false;
  int64_t chunk = 0;
  int64_t greedy = 0;
};

absl::StatusOr<std::vector<std::vector<int32_t>>> IdLists(const Json& json, const char* key, const std::string& file) {
  std::vector<std::vector<int32_t>> lists;
  const auto it = json.find(key);
  if (!json.is_object() || it == json.end() || !it->is_array()) {
    return InvalidArgument("{}: {}: not a list of lists of token ids", file, key);
  }
  for (const Json& list : *it) {
    if (!list.is_array()) return InvalidArgument("{}: {}: not a list of lists of token ids", file, key);
    auto& ids = lists.emplace_back();
    for (const Json& id : list) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        return InvalidArgument("{}: {}: '{}' is not a token id", file, key, id.dump().substr(0, 40));
      }
      ids.push_back(id.get<int32_t>());
    }
  }
  return lists;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Feeds ids and appends the logits of every one of them.
absl::Status FeedAll(Engine& engine, int seq, std::span<const int32_t> ids, int64_t chunk, std::vector<float>* out) {
  while (!ids.empty()) {
    const size_t count = std::min<size_t>(ids.size(), static_cast<size_t>(chunk));
    const Engine::Input input{seq, ids.first(count), LogitRows::kAll};
    XJIT_RETURN_IF_ERROR(engine.Step({&input, 1}));
    for (size_t i = 0; i < count; ++i) {
      const auto row = engine.logits(static_cast<int64_t>(i));
      out->insert(out->end(), row.begin(), row.end());
    }
    ids = ids.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status Run(const LogitsFlags& flags) {
  XJIT_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.ids));
  XJIT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, flags.ids));
  XJIT_ASSIGN_OR_RETURN(const auto prompts, IdLists(json, "prompt_ids", flags.ids));
  std::vector<std::vector<int32_t>> continuations;
  if (flags.decode) {
    XJIT_ASSIGN_OR_RETURN(continuations, IdLists(json, "greedy_ids", flags.ids));
    if (continuations.size() != prompts.size())
      return InvalidArgument("{}: greedy_ids: not one list for each prompt", flags.ids);
  }
  XJIT_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, OpenCheckpoint(flags.model.model));
  std::vector<std::string> inputs = checkpoint->files();
  inputs.insert(inputs.end(), {flags.ids, flags.model.model});
  XJIT_RETURN_IF_ERROR(CheckNotInput(flags.out, inputs));
  XJIT_RETURN_IF_ERROR(CheckWritable(flags.out));
  XJIT_ASSIGN_OR_RETURN(auto engine, flags.model.Load(std::move(checkpoint), 1));
  const int64_t vocab = engine->spec().vocab_size;
  const int64_t most = engine->max_logit_rows();
  const int64_t chunk = flags.step_by_step ? 1 : std::clamp<int64_t>(flags.chunk > 0 ? flags.chunk : most, 1, most);

  SafetensorsWriter writer;
  for (size_t k = 0; k < prompts.size(); ++k) {
    if (prompts[k].empty()) return InvalidArgument("{}: prompt {} has no tokens", flags.ids, k);
    XJIT_ASSIGN_OR_RETURN(const int seq, engine->NewSequence());
    std::vector<float> logits;
    XJIT_RETURN_IF_ERROR(FeedAll(*engine, seq, prompts[k], chunk, &logits));
    const std::vector<float> last(logits.end() - vocab, logits.end());
    const auto length = static_cast<int32_t>(prompts[k].size());
    writer.AddF32(fmt::format("logits_{}", k), {length, vocab}, std::move(logits));
    if (flags.decode) {
      const auto& ids = continuations[k];
      std::vector<float> rows = last;
      if (ids.size() > 1) {
        for (size_t i = 0; i + 1 < ids.size(); ++i) XJIT_RETURN_IF_ERROR(FeedAll(*engine, seq, {&ids[i], 1}, 1, &rows));
      }
      writer.AddF32(fmt::format("decode_{}", k), {static_cast<int64_t>(std::max<size_t>(ids.size(), 1)), vocab},
                    std::move(rows));
      engine->Truncate(seq, length);
    }
    if (flags.greedy > 0) {
      std::vector<int32_t> ids = {ArgMax(last)};
      std::vector<float> row;
      while (static_cast<int64_t>(ids.size()) < flags.greedy) {
        row.clear();
        XJIT_RETURN_IF_ERROR(FeedAll(*engine, seq, {&ids.back(), 1}, 1, &row));
        ids.push_back(ArgMax(row));
      }
      writer.AddI32(fmt::format("greedy_{}", k), ids);
    }
    engine->FreeSequence(seq);
  }
  writer.Metadata("isa", std::string(Name(engine->target().isa)));
  writer.Metadata("backend", engine->backend() == Backend::kInterp ? "interp" : "jit");
  writer.Metadata("kv_dtype", std::string(engine->kv_dtype()));
  writer.Metadata("mode", engine->mode());
  writer.Metadata("threads", fmt::format("{}", engine->threads()));
  return writer.Write(flags.out);
}

}  // namespace

Command AddLogits(CLI::App& app) {
  auto flags = std::make_shared<LogitsFlags>();
  CLI::App* sub = app.add_subcommand("logits", "write the logits of given token ids to a safetensors file");
  flags->model.Register(sub);
  sub->add_option("--ids", flags->ids, "JSON file with prompt_ids: [[ids...]]")->required();
  sub->add_option("--out", flags->out, "the safetensors file to write: logits_k [tokens, vocab] f32 for prompt k")
      ->required();
  sub->add_flag("--step-by-step", flags->step_by_step, "one token a step");
  sub->add_option("--chunk", flags->chunk, "tokens a step")->check(CLI::Range(int64_t{1}, Engine::kMaxLogitRows));
  sub->add_flag("--decode", flags->decode, "also feed the file's greedy_ids and write decode_k");
  sub->add_option("--greedy", flags->greedy, "also write N tokens of the greedy continuation, greedy_k")
      ->check(CLI::Range(0, 1 << 20));
  Example(sub, "xjit logits model.gguf --ids prompts.json --out logits.safetensors --greedy 48");
  return {sub, [flags] { return Run(*flags); }};
}

}  // namespace xjit::tools
