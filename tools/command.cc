#include "tools/command.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "frontend/model_text.h"

namespace xjit::tools {
namespace {

// An error is one line, whatever a library put into its message.
std::string OneLine(std::string_view text) {
  std::string line;
  for (char c : text) line += c == '\n' || c == '\r' ? ' ' : c;
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

int Report(const CLI::App& app, int exit_status, std::string_view what) {
  std::fflush(stdout);
  fmt::print(stderr, "{}: error: {}\n", app.get_name(), OneLine(what));
  return exit_status;
}

}  // namespace

void ModelFlags::Register(CLI::App* app) {
  app_ = app;
  app->add_option("model", model, "a .gguf file, a checkpoint folder, or a model.json manifest")
      ->required()
      ->type_name("MODEL");
  app->add_option("--threads", threads, "worker threads (default: the physical cores this process may use)");
  app->add_option("--isa", isa,
                  "auto, avx2, avx512, avx512_vnni, avx512_bf16, amx: at most these instructions; amx on a machine "
                  "without it runs under a software emulator, slowly")
      ->capture_default_str();
  app->add_option("--kv-dtype", kv_dtype,
                  "bf16 or f32: how keys and values are kept (default: the manifest's, else bf16)");
  app->add_option("--ctx", context, "most tokens of a sequence (default: the model's context, as far as memory allows)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app->add_option("--backend", backend, "jit, or interp: the slow scalar reference")
      ->check(CLI::IsMember({"jit", "interp"}))
      ->capture_default_str();
  app->add_flag("--mlock", mlock, "keep the weights in memory");
  app->add_flag("--hugepages,!--no-hugepages", hugepages,
                "put weights on 2 MiB pages where the system gives them (default)");
  app->add_flag("--perf-map", perf_map, "write /tmp/perf-PID.map, so that perf names the kernels");
  app->add_flag("--verify-kernels", verify_kernels, "check each kernel against its scalar reference before it is used");
  app->add_flag("--explain", explain, "say what was fused, which kernel was chosen and why");
}

absl::StatusOr<EngineOptions> ModelFlags::Options() const {
  EngineOptions options;
  if (app_->count("--threads") > 0) options.threads = threads;
  // An absent flag leaves the word to XJIT_ISA.
  if (app_->count("--isa") > 0) options.isa = isa;
  if (!kv_dtype.empty() && kv_dtype != "bf16" && kv_dtype != "f32") {
    return UsageError("--kv-dtype {}: the KV cache is kept in bf16 or f32", kv_dtype);
  }
  options.kv_dtype = kv_dtype.empty() ? "bf16" : kv_dtype;
  options.context = context;
  options.backend = backend == "interp" ? Backend::kInterp : Backend::kJit;
  options.mlock = mlock;
  options.hugepages = hugepages;
  options.perf_map = perf_map;
  options.verify_kernels = verify_kernels;
  return options;
}

absl::StatusOr<std::unique_ptr<Engine>> ModelFlags::Load(int max_sequences) const {
  XJIT_ASSIGN_OR_RETURN(std::shared_ptr<const Checkpoint> checkpoint, OpenCheckpoint(model));
  return Load(std::move(checkpoint), max_sequences);
}

absl::StatusOr<std::unique_ptr<Engine>> ModelFlags::Load(std::shared_ptr<const Checkpoint> checkpoint,
                                                         int max_sequences) const {
  XJIT_ASSIGN_OR_RETURN(EngineOptions options, Options());
  options.max_sequences = max_sequences;
  if (kv_dtype.empty() && checkpoint->defaults().kv_dtype.has_value())
    options.kv_dtype = *checkpoint->defaults().kv_dtype;
  auto engine = Engine::Create(std::move(checkpoint), options);
  if (!engine.ok()) return engine.status();
  PrintIsaNotice((*engine)->isa_notice());
  if (!(*engine)->warning().empty()) fmt::print(stderr, "xjit: {}\n", (*engine)->warning());
  if (explain) {
    XJIT_ASSIGN_OR_RETURN(const std::string text, (*engine)->Explain(1));
    fmt::print(stderr, "{}", text);
  }
  return engine;
}

void PrintIsaNotice(const std::string& notice) {
  static bool printed = false;
  if (notice.empty() || std::exchange(printed, true)) return;
  fmt::print(stderr, "xjit: {}\n", notice);
}

absl::StatusOr<LoadedModel> LoadWithTokenizer(const ModelFlags& flags) {
  XJIT_ASSIGN_OR_RETURN(const std::shared_ptr<const Checkpoint> checkpoint, OpenCheckpoint(flags.model));
  auto tokenizer = LoadTokenizerAsync(*checkpoint);
  auto engine = flags.Load(checkpoint, 1);
  auto loaded = tokenizer.get();
  if (!engine.ok()) return engine.status();
  LoadedModel model;
  model.engine = std::move(*engine);
  model.tokenizer_status = loaded.status();
  if (loaded.ok()) model.tokenizer = *std::move(loaded);
  return model;
}

void Example(CLI::App* app, const std::string& text) { app->footer("Example:\n  " + text); }

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return FailedPrecondition("{}: {}", path, std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  size_t got = 0;
  constexpr size_t kMostBytes = size_t{256} << 20;  // a text of more was not meant
  while ((got = std::fread(buffer, 1, sizeof buffer, file)) > 0 && text.size() <= kMostBytes) text.append(buffer, got);
  const int error = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (error != 0) return FailedPrecondition("{}: {}", path, std::strerror(error));
  if (text.size() > kMostBytes) return InvalidArgument("{}: more than {} MiB", path, kMostBytes >> 20);
  return text;
}

absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view text, std::string_view flag) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string_view item = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), id);
    if (error != std::errc() || end != item.data() + item.size()) {
      return UsageError("{}: '{}' is not a token id (write 1,2,3)", flag, item);
    }
    ids.push_back(id);
  }
  if (ids.empty()) return UsageError("{}: no token ids", flag);
  return ids;
}

int RunMain(CLI::App& app, const std::vector<Command>& commands, int argc, char** argv) {
  const bool has_subcommands = !commands.empty() && commands[0].app != &app;
  const bool known =
      argc < 2 || argv[1][0] == '-' ||
      std::any_of(commands.begin(), commands.end(), [&](const Command& c) { return c.app->get_name() == argv[1]; });
  if (has_subcommands && !known) {
    return Report(app, 2, fmt::format("unknown command '{}' ({} --help lists what there is)", argv[1], app.get_name()));
  }
  try {
    app.parse(argc, argv);
    for (const Command& command : commands) {
      if (!command.app->parsed()) continue;
      const absl::Status status = command.run();
      if (!status.ok()) return Report(app, IsUsage(status) ? 2 : 1, Message(status));
      if (std::fflush(stdout) != 0) return Report(app, 1, fmt::format("standard output: {}", std::strerror(errno)));
      return 0;
    }
    return 0;
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    fmt::print("{}", (chosen.empty() ? &app : chosen.front())->help());
    return 0;
  } catch (const CLI::CallForAllHelp&) {
    fmt::print("{}", app.help("", CLI::AppFormatMode::All));
    return 0;
  } catch (const CLI::CallForVersion& version) {
    fmt::print("{}\n", version.what());
    return 0;
  } catch (const CLI::ParseError& error) {
    const auto chosen = app.get_subcommands();
    const std::string name = chosen.empty() ? app.get_name() : app.get_name() + " " + chosen.front()->get_name();
    return Report(app, 2, fmt::format("{} ({} --help lists what there is)", error.what(), name));
  } catch (const std::bad_alloc&) {
    return Report(app, 1, "out of memory");
  } catch (const std::exception& error) {
    return Report(app, 1, error.what());
  }
}

}  // namespace xjit::tools
