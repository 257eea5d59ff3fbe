// xjit bench: prompt and generation speed of a model, beside what the machine's memory and arithmetic allow.
#include <sys/resource.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "codegen/cpu.h"
#include "codegen/measure.h"
#include "frontend/host_machine.h"
#include "frontend/planner.h"
#include "ir/support/clock.h"
#include "ir/support/median.h"
#include "tools/command.h"

namespace xjit::tools {
namespace {

using nlohmann::ordered_json;

struct BenchFlags {
  ModelFlags model;
  std::vector<int64_t> prompt = {512}, gen = {128}, batch = {1};
  int64_t depth = 0;
  int repetitions = 5;
  bool json = false, breakdown = false;
};

struct Series {
  std::vector<double> values;
  void Add(double v) { values.push_back(v); }
  double median() const { return Median(values); }
  double min() const { return values.empty() ? 0 : *std::min_element(values.begin(), values.end()); }
  double max() const { return values.empty() ? 0 : *std::max_element(values.begin(), values.end()); }
  ordered_json ToJson() const { return {{"median", median()}, {"min", min()}, {"max", max()}}; }
};

// Read bandwidth of the threads that the model runs on, measured between runs of the model: machines shared with others
// change their speed within seconds.
class BandwidthProbe {
 public:
  static absl::StatusOr<BandwidthProbe> Create(Engine& engine) {
    BandwidthProbe probe(engine);
    XJIT_ASSIGN_OR_RETURN(probe.read_, ReadBytesFunction());
    // Four times a last-level cache, so that it comes from memory.
    XJIT_ASSIGN_OR_RETURN(StreamBuffer buffer,
                          StreamBuffer::Create(std::max<int64_t>(int64_t{256} << 20, 4 * engine.target().l3_bytes)));
    probe.buffer_ = std::make_unique<StreamBuffer>(std::move(buffer));
    probe.Measure();
    return probe;
  }
  // One pass, GB/s.
  double Measure() {
    const int threads = engine_.pool().threads();
    const double start = NowMs();
    engine_.pool().Run([&](int t) {
      const auto part = buffer_->Part(t, threads);
      read_(part.data(), part.size());
    });
    return static_cast<double>(buffer_->bytes()) / 1e6 / (NowMs() - start);
  }

 private:
  explicit BandwidthProbe(Engine& engine) : engine_(engine) {}
  Engine& engine_;
  ReadBytesFn read_ = nullptr;
  std::unique_ptr<StreamBuffer> buffer_;
};

struct Row {
  int64_t prompt = 0, gen = 0, batch = 1;
  Series prefill_tok_s, ttft_ms, decode_tok_s, tpot_ms, machine_gb_s, ratio;
  double bytes_per_token = 0, read_gb_s = 0, predicted_ttft_ms = 0, predicted_tpot_ms = 0;
};

// Ids that a tokenizer would rarely give in a row, so nothing is learnt from their repetition.
std::vector<int32_t> RandomIds(std::mt19937_64& random, int64_t count, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  return ids;
}

class Bench {
 public:
  Bench(const BenchFlags& flags, Engine& engine) : flags_(flags), engine_(engine) {}

  absl::Status Run() {
    // The memory of the model at work, before the probe's buffer joins it.
    XJIT_RETURN_IF_ERROR(RunOnce(*std::max_element(flags_.prompt.begin(), flags_.prompt.end()),
                                 *std::max_element(flags_.gen.begin(), flags_.gen.end()),
                                 *std::max_element(flags_.batch.begin(), flags_.batch.end())));
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    peak_rss_mb_ = static_cast<double>(usage.ru_maxrss) / 1024;
    if (engine_.backend() == Backend::kJit) {
      auto probe = BandwidthProbe::Create(engine_);
      if (!probe.ok()) return probe.status();
      probe_.emplace(*std::move(probe));
    }
    for (int64_t batch : flags_.batch) {
      for (int64_t prompt : flags_.prompt) {
        for (int64_t gen : flags_.gen) {
          XJIT_ASSIGN_OR_RETURN(Row row, RunRow(prompt, gen, batch));
          rows_.push_back(std::move(row));
        }
      }
    }
    return flags_.breakdown ? Breakdown() : absl::OkStatus();
  }

  ordered_json ToJson() const {
    const EngineMemory memory = engine_.memory();
    ordered_json out = {{"model", engine_.checkpoint().path()},
                        {"machine", CpuName()},
                        {"isa", std::string(Name(engine_.target().isa))},
                        {"threads", engine_.threads()},
                        {"mode", engine_.mode()},
                        {"load_ms", engine_.load_ms()},
                        {"compile_ms", engine_.compile_ms()},
                        {"kernel_compile_ms", engine_.kernel_compile_ms()},
                        {"peak_rss_mb", peak_rss_mb_},
                        {"memory",
                         {{"weight_mb", static_cast<double>(memory.weight_bytes) / 1048576},
                          {"arena_mb", static_cast<double>(memory.arena_bytes) / 1048576},
                          {"code_kb", static_cast<double>(memory.code_bytes) / 1024}}},
                        {"machine_read_gb_s", MachineReadGbS()}};
    out["rows"] = ordered_json::array();
    for (const Row& row : rows_) {
      out["rows"].push_back({{"prompt_tokens", row.prompt},
                             {"gen_tokens", row.gen},
                             {"batch", row.batch},
                             {"prefill_tok_s", row.prefill_tok_s.ToJson()},
                             {"ttft_ms", row.ttft_ms.ToJson()},
                             {"decode_tok_s", row.decode_tok_s.ToJson()},
                             {"tpot_ms", row.tpot_ms.ToJson()},
                             {"bytes_per_token", row.bytes_per_token},
                             {"read_gb_s", row.read_gb_s},
                             {"bandwidth_ratio", row.ratio.median()},
                             {"predicted_ttft_ms", row.predicted_ttft_ms},
                             {"predicted_tpot_ms", row.predicted_tpot_ms}});
    }
    if (!breakdown_.is_null()) out["breakdown"] = breakdown_;
    return out;
  }

  void PrintTable() const {
    const double machine = MachineReadGbS();
    fmt::print("{} | {} | {} threads{}\n\n", engine_.checkpoint().path(), Name(engine_.target().isa), engine_.threads(),
               machine > 0 ? fmt::format(" | machine reads {:.1f} GB/s", machine) : "");
    fmt::print("| {:>16} | {:>5} | {:>20} | {:>10} | {:>12} | {:>9} | {:>10} |\n", "test", "batch", "t/s", "ms",
               "predicted ms", "GB/s", "of machine");
    fmt::print("|{:-<17}:|{:-<6}:|{:-<21}:|{:-<11}:|{:-<13}:|{:-<10}:|{:-<11}:|\n", "", "", "", "", "", "", "");
    for (const Row& row : rows_) {
      auto spread = [](const Series& s) {
        return fmt::format("{:.1f} [{:.1f}, {:.1f}]", s.median(), s.min(), s.max());
      };
      if (row.prompt > 0) {
        fmt::print("| {:>16} | {:>5} | {:>20} | {:>10.2f} | {:>12.2f} | {:>9} | {:>10} |\n",
                   fmt::format("pp{}", row.prompt), row.batch, spread(row.prefill_tok_s), row.ttft_ms.median(),
                   row.predicted_ttft_ms, "", "");
      }
      if (row.gen > 0) {
        fmt::print("| {:>16} | {:>5} | {:>20} | {:>10.3f} | {:>12.3f} | {:>9.1f} | {:>9.1f}% |\n",
                   fmt::format("tg{} @ {}", row.gen, flags_.depth + row.prompt), row.batch, spread(row.decode_tok_s),
                   row.tpot_ms.median(), row.predicted_tpot_ms, row.read_gb_s, 100 * row.ratio.median());
      }
    }
    if (breakdown_.is_null()) return;
    fmt::print("\none decode step: {:.1f} us = kernels {:.1f} + barriers {:.1f} + other {:.1f}\n",
               breakdown_["step_us"].get<double>(), breakdown_["kernel_us"].get<double>(),
               breakdown_["barrier_us"].get<double>(), breakdown_["other_us"].get<double>());
    for (const auto& stage : breakdown_["stages"]) {
      fmt::print("  {:<22} {:>4} x {:>9.1f} us  barrier {:>7.1f} us  {:>8.1f} MB  {}\n",
                 stage["stage"].get<std::string>(), stage["count"].get<int>(), stage["kernel_us"].get<double>(),
                 stage["barrier_us"].get<double>(), stage["weight_mb"].get<double>(),
                 stage["kernel"].get<std::string>());
    }
  }

 private:
  // The median over all rows; 0 where it was not measured.
  double MachineReadGbS() const {
    Series machine;
    for (const Row& row : rows_) {
      for (double v : row.machine_gb_s.values) machine.Add(v);
    }
    return machine.median();
  }

  // Feeds `count` random tokens to every sequence.
  absl::Status Feed(const std::vector<int>& seqs, int64_t count) {
    for (int seq : seqs) {
      if (count > 0) XJIT_RETURN_IF_ERROR(engine_.Prefill(seq, RandomIds(random_, count, engine_.spec().vocab_size)));
    }
    return absl::OkStatus();
  }

  absl::Status Decode(const std::vector<int>& seqs, int64_t steps) {
    std::vector<int32_t> ids(seqs.size());
    std::vector<Engine::Input> inputs;
    for (size_t i = 0; i < seqs.size(); ++i) inputs.push_back({seqs[i], {&ids[i], 1}, LogitRows::kLast});
    for (int64_t step = 0; step < steps; ++step) {
      for (int32_t& id : ids) id = static_cast<int32_t>(random_() % static_cast<uint64_t>(engine_.spec().vocab_size));
      XJIT_RETURN_IF_ERROR(engine_.Step(inputs));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int>> NewSequences(int64_t count) {
    std::vector<int> seqs;
    for (int64_t i = 0; i < count; ++i) {
      XJIT_ASSIGN_OR_RETURN(const int seq, engine_.NewSequence());
      seqs.push_back(seq);
    }
    return seqs;
  }

  absl::Status RunOnce(int64_t prompt, int64_t gen, int64_t batch) {
    XJIT_ASSIGN_OR_RETURN(const std::vector<int> seqs, NewSequences(batch));
    XJIT_RETURN_IF_ERROR(Feed(seqs, flags_.depth + prompt));
    XJIT_RETURN_IF_ERROR(Decode(seqs, gen));
    for (int seq : seqs) engine_.FreeSequence(seq);
    return absl::OkStatus();
  }

  absl::StatusOr<Row> RunRow(int64_t prompt, int64_t gen, int64_t batch) {
    Row row;
    row.prompt = prompt;
    row.gen = gen;
    row.batch = batch;
    // The first run compiles and warms up; it is not counted.
    for (int r = 0; r <= flags_.repetitions; ++r) {
      XJIT_ASSIGN_OR_RETURN(const std::vector<int> seqs, NewSequences(batch));
      XJIT_RETURN_IF_ERROR(Feed(seqs, flags_.depth));
      const double start = NowMs();
      XJIT_RETURN_IF_ERROR(Feed(seqs, prompt));
      const double prefilled = NowMs();
      const double read_before = probe_.has_value() ? probe_->Measure() : 0;
      const int64_t steps = r == 0 ? std::min<int64_t>(gen, 4) : gen;
      const double decode_start = NowMs();
      XJIT_RETURN_IF_ERROR(Decode(seqs, steps));
      const double decoded = NowMs();
      const double read_after = probe_.has_value() ? probe_->Measure() : 0;
      for (int seq : seqs) engine_.FreeSequence(seq);
      if (r == 0) continue;
      const double prefill_ms = prefilled - start;
      if (prompt > 0) {
        row.ttft_ms.Add(prefill_ms / static_cast<double>(batch));
        row.prefill_tok_s.Add(1e3 * static_cast<double>(prompt * batch) / prefill_ms);
      }
      if (gen > 0) {
        const double step_ms = (decoded - decode_start) / static_cast<double>(gen);
        const double machine = (read_before + read_after) / 2;
        // Weights are read once a step for the whole batch; each sequence reads its own KV, on average half of what the
        // generation adds.
        const double bytes = static_cast<double>(engine_.weight_bytes_per_step()) +
                             static_cast<double>(batch * engine_.kv_bytes(flags_.depth + prompt + gen / 2));
        row.bytes_per_token = bytes / static_cast<double>(batch);
        row.tpot_ms.Add(step_ms);
        row.decode_tok_s.Add(1e3 * static_cast<double>(batch) / step_ms);
        row.machine_gb_s.Add(machine);
        if (machine > 0) row.ratio.Add(bytes / 1e6 / step_ms / machine);
      }
    }
    row.read_gb_s =
        row.tpot_ms.median() > 0 ? row.bytes_per_token * static_cast<double>(batch) / 1e6 / row.tpot_ms.median() : 0;
    XJIT_RETURN_IF_ERROR(Predict(&row));
    return row;
  }

  // What the cost model says of this machine, by figures measured in this run.
  absl::Status Predict(Row* row) {
    if (engine_.backend() != Backend::kJit || row->machine_gb_s.median() <= 0) return absl::OkStatus();
    if (machine_.barrier_us == 0) {
      machine_ = engine_.target();
      machine_.cores = engine_.threads();
      machine_.node_cores.clear();
      XJIT_RETURN_IF_ERROR(MeasurePeaks(engine_.threads(), &machine_));
      machine_.barrier_us = MeasureBarrierUs(engine_.pool());
    }
    PlanOptions options;
    options.target = machine_;
    options.target.node_read_gb_s = row->machine_gb_s.median();
    XJIT_ASSIGN_OR_RETURN(options.kv_dtype, ParseKvDtype(engine_.kv_dtype(), engine_.checkpoint()));
    options.depth = flags_.depth;
    options.prompt = row->prompt;
    options.gen = row->gen;
    options.batch = row->batch;
    options.chunk = engine_.max_step_rows();
    options.sampling = false;  // nor does this benchmark sample
    XJIT_ASSIGN_OR_RETURN(const ModelPlan plan, PlanModel(engine_.checkpoint(), options));
    if (row->prompt > 0) row->predicted_ttft_ms = plan.ttft_us() / 1e3;
    row->predicted_tpot_ms = plan.tpot_us() / 1e3;
    return absl::OkStatus();
  }

  absl::Status Breakdown() {
    if (engine_.backend() != Backend::kJit) return UsageError("--breakdown needs --backend jit");
    XJIT_ASSIGN_OR_RETURN(const std::vector<int> seqs, NewSequences(1));
    XJIT_RETURN_IF_ERROR(Feed(seqs, flags_.depth + flags_.prompt.front()));
    XJIT_RETURN_IF_ERROR(Decode(seqs, 2));
    XJIT_ASSIGN_OR_RETURN(Program * program, engine_.ProgramFor(1, 1));
    Profile profile(*program);
    engine_.set_profile(&profile);
    const absl::Status status = Decode(seqs, std::max<int64_t>(1, flags_.gen.front()));
    engine_.set_profile(nullptr);
    engine_.FreeSequence(seqs[0]);
    XJIT_RETURN_IF_ERROR(status);
    const Profile::Totals total = profile.Total();
    breakdown_ = {{"step_us", total.step / 1e3},
                  {"kernel_us", total.kernel / 1e3},
                  {"barrier_us", total.barrier / 1e3},
                  {"other_us", (total.other + total.wake + total.join) / 1e3},
                  {"sum_us", total.sum() / 1e3}};
    breakdown_["stages"] = ordered_json::array();
    for (const Profile::Row& stage : profile.Rows()) {
      breakdown_["stages"].push_back({{"stage", stage.label},
                                      {"kernel", stage.kernel},
                                      {"count", stage.stages},
                                      {"kernel_us", stage.kernel_ns / 1e3},
                                      {"barrier_us", stage.barrier_ns / 1e3},
                                      {"other_us", stage.other_ns / 1e3},
                                      {"weight_mb", static_cast<double>(stage.weight_bytes) / 1e6}});
    }
    return absl::OkStatus();
  }

  const BenchFlags& flags_;
  Engine& engine_;
  std::optional<BandwidthProbe> probe_;
  std::mt19937_64 random_{42};
  std::vector<Row> rows_;
  TargetInfo machine_;  // with the figures measured in this run
  double peak_rss_mb_ = 0;
  ordered_json breakdown_;
};

absl::Status Run(BenchFlags& f) {
  const int64_t batch = *std::max_element(f.batch.begin(), f.batch.end());
  // Room for the longest row, where the user did not say.
  if (f.model.context == 0) {
    f.model.context = f.depth + *std::max_element(f.prompt.begin(), f.prompt.end()) +
                      *std::max_element(f.gen.begin(), f.gen.end()) + 1;
    if (f.breakdown) f.model.context += 2;
  }
  XJIT_ASSIGN_OR_RETURN(auto engine, f.model.Load(static_cast<int>(batch)));
  Bench bench(f, *engine);
  XJIT_RETURN_IF_ERROR(bench.Run());
  if (f.json) {
    fmt::print("{}\n", bench.ToJson().dump(2, ' ', false, ordered_json::error_handler_t::replace));
  } else {
    bench.PrintTable();
  }
  return absl::OkStatus();
}

}  // namespace

Command AddBench(CLI::App& app) {
  auto f = std::make_shared<BenchFlags>();
  CLI::App* sub = app.add_subcommand("bench", "measure prompt and generation speed");
  f->model.Register(sub);
  const CLI::Range count(int64_t{0}, int64_t{1} << 24);
  sub->add_option("-p,--prompt-tokens", f->prompt, "prompt lengths: 512,1024")
      ->delimiter(',')
      ->check(count)
      ->capture_default_str();
  sub->add_option("-n,--gen-tokens", f->gen, "tokens generated after the prompt")
      ->delimiter(',')
      ->check(count)
      ->capture_default_str();
  sub->add_option("-r,--repetitions", f->repetitions, "of each row")->check(CLI::Range(1, 1000))->capture_default_str();
  sub->add_option("--batch", f->batch, "sequences at a time: 1,4")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, Engine::kMaxLogitRows))
      ->capture_default_str();
  sub->add_option("--depth", f->depth, "tokens in the cache before the prompt")->check(count)->capture_default_str();
  sub->add_flag("--breakdown", f->breakdown, "where the time of a decode step goes, by stage and kernel");
  sub->add_flag("--json", f->json, "as one JSON document");
  Example(sub, "xjit bench model.gguf -p 512,1024 -n 128 -r 5");
  return {sub, [f] { return Run(*f); }};
}

}  // namespace xjit::tools
