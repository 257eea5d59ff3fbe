// xjit bench-op: one kernel on random data: its speed beside what memory and arithmetic of this machine allow, measured
// in the same run, and its distance from the scalar reference.
#include <algorithm>
#include <cmath>

#include "codegen/cpu.h"
#include "ir/support/clock.h"
#include "ir/support/median.h"
#include "runtime/topology.h"
#include "tools/bench_op.h"

namespace xjit::tools {
namespace {

using nlohmann::ordered_json;

constexpr char kOperations[] = "gemm, moe, convert, attention, rows";

// What a read has to pass over so that it comes from memory.
int64_t MemorySize(const TargetInfo& target) { return std::max<int64_t>(int64_t{256} << 20, 4 * target.l3_bytes); }

}  // namespace

void BenchOpFlags::Register(CLI::App* app) {
  app->add_option("--isa", isa, "at most these instructions: auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  app->add_option("--threads", threads, "worker threads (default: the physical cores this process may use)")
      ->check(CLI::Range(1, 4096));
  app->add_option(
         "--copies", copies,
         "copies of the weights or the KV cache to rotate over (default: from memory when there are few rows, else 1)")
      ->check(CLI::Range(int64_t{1}, kMostCopies));
  app->add_option("--reps", reps, "repetitions; results are their medians")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app->add_flag("--json", json, "as one JSON document");
}

absl::StatusOr<Isa> BenchOpFlags::Level() const {
  XJIT_ASSIGN_OR_RETURN(const IsaChoice choice,
                        ChooseIsa(isa.empty() ? std::nullopt : std::optional<std::string_view>(isa)));
  PrintIsaNotice(choice.notice);
  return choice.isa;
}

void OpError::Add(double got, double want, double magnitude) {
  const double abs = std::isfinite(got) ? std::fabs(got - want) : INFINITY;
  max_abs = std::max(max_abs, abs);
  if (abs > 0) max_rel = std::max(max_rel, magnitude > 0 ? abs / magnitude : INFINITY);
}

absl::Status OpError::Check(std::string_view kernel) const {
  if (max_rel <= rel_bound) return absl::OkStatus();
  return Internal("{}: results are {:.3g} from the reference ({:.3g} relative), rounding explains {:.3g} relative",
                  kernel, max_abs, max_rel, rel_bound);
}

PeakKind PeakOf(DType activations) {
  switch (activations) {
    case DType::kQ8Act:
    case DType::kI8Act:
      return PeakKind::kInt8Dot;
    case DType::kBF16:
    case DType::kF16:
      return PeakKind::kBf16Dot;
    default:
      return PeakKind::kF32Fma;
  }
}

std::vector<int64_t> Sample(int64_t count, int64_t most) {
  std::vector<int64_t> picks;
  const int64_t n = std::min(count, most);
  for (int64_t i = 0; i < n; ++i) picks.push_back(n == 1 ? 0 : i * (count - 1) / (n - 1));
  return picks;
}

// In any order a sum of k products is within k u sum|a w| of the exact one (Higham, Accuracy and Stability, 3.1); 40
// more roundings cover dequantisation and epilogue. silu has a slope of at most 1.1 and its own error of 6e-7
// (math_emit.h), so that silu(gate) * up is within 2.1 of that.
double ProductBound(int64_t k, bool silu_mul) {
  const double bound = static_cast<double>(k + 40) * 0x1p-24;
  return silu_mul ? 2.1 * bound + 6e-7 : bound;
}

absl::StatusOr<std::unique_ptr<OpBench>> OpBench::Create(const BenchOpFlags& flags) {
  XJIT_ASSIGN_OR_RETURN(const Isa isa, flags.Level());
  TargetInfo target = HostCpu(isa);
  XJIT_ASSIGN_OR_RETURN(const ThreadChoice choice,
                        ChooseThreads(flags.threads > 0 ? std::optional<int>(flags.threads) : std::nullopt));
  if (!choice.warning.empty()) fmt::print(stderr, "xjit: {}\n", choice.warning);
  target.threads = choice.threads();
  target.cores = choice.usable;
  XJIT_ASSIGN_OR_RETURN(auto pool, WorkerPool::Create({.cpus = choice.cpus}));
  return std::unique_ptr<OpBench>(new OpBench(flags, std::move(target), choice.cpus, std::move(pool)));
}

absl::StatusOr<int64_t> OpBench::Copies(int64_t bytes, bool from_memory, int64_t most) const {
  if (flags_.copies > most) return UsageError("--copies {}: at most {}", flags_.copies, most);
  int64_t copies = flags_.copies;
  if (copies == 0) copies = from_memory ? std::min(most, 4 * target().l3_bytes / bytes + 1) : 1;
  XJIT_ASSIGN_OR_RETURN(const int64_t available, MemoryAvailable());
  if (copies <= available / bytes) return copies;
  return FailedPrecondition("{:.1f} MB, {} times (--copies), are more than the {:.0f} MB of memory available",
                            static_cast<double>(bytes) / 1e6, copies, static_cast<double>(available) / 1e6);
}

void OpBench::Use(const PrefetchTuning& tuning) {
  TargetInfo tuned = target();
  tuned.prefetch.push_back(tuning);
  library_ = std::make_unique<KernelLibrary>(std::move(tuned));
}

absl::Status OpBench::CheckMemory(std::string_view what, int64_t bytes) const {
  XJIT_ASSIGN_OR_RETURN(const int64_t available, MemoryAvailable());
  if (bytes <= available) return absl::OkStatus();
  return FailedPrecondition("{} are more than the {:.0f} MB of memory available", what,
                            static_cast<double>(available) / 1e6);
}

absl::Status OpBench::MakeScratch(int64_t bytes) {
  scratch_.clear();
  for (int t = 0; t < threads(); ++t) {
    XJIT_ASSIGN_OR_RETURN(HugeBuffer buffer, HugeBuffer::Allocate(bytes));
    scratch_.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::StatusOr<ordered_json> OpBench::Measure(const OpRun& op) {
  XJIT_ASSIGN_OR_RETURN(const ReadBytesFn read, ReadBytesFunction());
  XJIT_ASSIGN_OR_RETURN(const StreamBuffer buffer, StreamBuffer::Create(MemorySize(target())));
  const auto timed = [&](auto&& part) {
    const double start = NowMs();
    pool_->Run(part);
    return (NowMs() - start) / 1e3;
  };
  const auto read_gb_s = [&] {
    const double seconds = timed([&](int t) {
      const auto part = buffer.Part(t, threads());
      read(part.data(), part.size());
    });
    return static_cast<double>(buffer.bytes()) / seconds / 1e9;
  };
  std::vector<absl::StatusOr<double>> peaks(static_cast<size_t>(threads()), 0.0);
  const auto peak_gflops = [&]() -> absl::StatusOr<double> {
    pool_->Run([&](int t) { peaks[static_cast<size_t>(t)] = MeasurePeak(op.peak, op.peak_isa); });
    double sum = 0;
    for (const auto& peak : peaks) {
      if (!peak.ok()) return peak.status();
      sum += *peak;
    }
    return sum;
  };

  // Every copy at least once, and so many calls that starting the threads does not show: waking and joining them takes
  // up to a few microseconds. The first calls also warm up. Calls on one copy that arithmetic bounds find their data in
  // caches in a program too, but here the read of memory in front of each sample has emptied these: the calls that
  // fill them again have to be a small part, and one call of many rows alone can last 4 ms.
  const double least_seconds = op.has_peak && op.copies == 1 ? 20e-3 : 4e-3;
  int64_t calls = op.copies;
  const auto timed_calls = [&](const std::function<void(int64_t)>& f) {
    const double start = NowMs();
    f(calls);
    return (NowMs() - start) / 1e3;
  };
  const auto run = [&] { return timed_calls(op.run); };
  for (double seconds = run(); seconds < least_seconds; seconds = run()) {
    calls = op.copies *
            std::max<int64_t>(2 * calls / op.copies, static_cast<int64_t>(static_cast<double>(calls / op.copies) *
                                                                          least_seconds / std::max(seconds, 1e-6)));
  }

  read_gb_s();
  if (op.peer) timed_calls(op.peer);
  std::vector<double> peer_us, vs_peer, us, gflops, peak, ratio, gb_s, machine, bandwidth_ratio;
  for (int r = 0; r < flags_.reps; ++r) {
    const double before = read_gb_s();
    const double seconds = run() / static_cast<double>(calls);
    machine.push_back((before + read_gb_s()) / 2);
    us.push_back(seconds * 1e6);
    if (op.peer) peer_us.push_back(timed_calls(op.peer) / static_cast<double>(calls) * 1e6);
    if (op.peer) vs_peer.push_back(peer_us.back() / us.back());
    gb_s.push_back(op.bytes / seconds / 1e9);
    bandwidth_ratio.push_back(gb_s.back() / machine.back());
    if (!op.has_peak) continue;
    XJIT_ASSIGN_OR_RETURN(const double most, peak_gflops());
    peak.push_back(most);
    gflops.push_back(op.flops / seconds / 1e9);
    ratio.push_back(gflops.back() / most);
  }
  ordered_json out = {{"isa", std::string(xjit::Name(target().isa))},
                      {"threads", threads()},
                      {"copies", op.copies},
                      {"reps", flags_.reps},
                      {"us", Median(us)}};
  if (op.has_peak) {
    out["gflops"] = Median(gflops);
    out["peak_gflops"] = Median(peak);
    out["peak_of"] = fmt::format("{}, {}", xjit::Name(op.peak), xjit::Name(op.peak_isa));
    out["ratio"] = Median(ratio);
  }
  if (op.peer) {
    out["peer"] = op.peer_name;
    out["peer_us"] = Median(peer_us);
    if (op.has_peak) out["peer_gflops"] = op.flops / Median(peer_us) / 1e3;
    out["vs_peer"] = Median(vs_peer);
  }
  out["gb_s"] = Median(gb_s);
  out["machine_read_gb_s"] = Median(machine);
  out["bandwidth_ratio"] = Median(bandwidth_ratio);
  return out;
}

void PrintResult(const ordered_json& result, bool json) {
  if (json) {
    fmt::print("{}\n", result.dump(2));
    return;
  }
  for (const auto& [key, value] : result.items()) {
    fmt::print("{:<18}  {}\n", key,
               value.is_string()         ? value.get<std::string>()
               : value.is_number_float() ? fmt::format("{:.4g}", value.get<double>())
                                         : value.dump());
  }
}

Command AddBenchOp(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("bench-op", "measure one kernel on random data");
  auto flags = std::make_shared<BenchOpFlags>();
  auto gemm = std::make_shared<GemmShape>();
  auto convert = std::make_shared<ConvertShape>();
  auto attention = std::make_shared<AttentionShape>();
  auto rows = std::make_shared<PrepareShape>();
  auto moe = std::make_shared<MoeShape>();

  CLI::App* gemm_app = sub->add_subcommand("gemm", "a matrix product with packed weights");
  gemm->Register(gemm_app);
  flags->Register(gemm_app);
  gemm_app->add_option("--vs", flags->vs, "measure another library in turns: onednn (where xjit was built with it)");
  gemm_app->add_flag("--prepared", flags->prepared,
                     "many rows: activations are converted beforehand, the product alone is measured");
  Example(gemm_app, "xjit bench-op gemm --m 1 --n 8960 --k 1536 --weights q4_k --threads 2");
  CLI::App* moe_app = sub->add_subcommand("moe", "a mixture of experts: routing, gate and up, down");
  moe->Register(moe_app);
  flags->Register(moe_app);
  Example(moe_app, "xjit bench-op moe --experts 128 --top-k 8 --hidden 2048 --intermediate 768 --weights int8");
  CLI::App* convert_app = sub->add_subcommand("convert", "packed weights unpacked, in cache");
  convert->Register(convert_app);
  flags->Register(convert_app);
  Example(convert_app, "xjit bench-op convert --weights fp8 --to bf16");
  CLI::App* attention_app = sub->add_subcommand("attention", "attention over a paged KV cache");
  attention->Register(attention_app);
  flags->Register(attention_app);
  Example(attention_app, "xjit bench-op attention --heads 12 --kv-heads 2 --head-dim 128 --past 4096");
  CLI::App* rows_app = sub->add_subcommand("rows", "RMSNorm and conversion of activations");
  rows->Register(rows_app);
  flags->Register(rows_app);
  Example(rows_app, "xjit bench-op rows --rows 512 --cols 1536 --out q8act --norm");

  sub->require_subcommand(0, 1);
  sub->allow_extras();  // so that an unknown operation is answered with the known ones
  Example(sub, "xjit bench-op gemm --m 1 --n 8960 --k 1536 --weights q4_k --threads 2");
  return {sub, [=]() -> absl::Status {
            if (gemm_app->parsed()) return BenchGemm(*flags, *gemm);
            if (moe_app->parsed()) return BenchMoe(*flags, *moe);
            if (convert_app->parsed()) return BenchConvert(*flags, *convert);
            if (attention_app->parsed()) return BenchAttention(*flags, *attention);
            if (rows_app->parsed()) return BenchPrepare(*flags, *rows);
            const std::vector<std::string> words = sub->remaining();
            if (words.empty()) return UsageError("bench-op: which operation? There are {}", kOperations);
            return UsageError("bench-op: no operation {}; there are {}", words.front(), kOperations);
          }};
}

}  // namespace xjit::tools
