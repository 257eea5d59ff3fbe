#include "codegen/measure.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "codegen/amx/tiles.h"
#include "codegen/cpu.h"
#include "codegen/emitter.h"
#include "ir/support/align.h"

namespace xjit {
namespace {

using Clock = std::chrono::steady_clock;
using Xbyak::Xmm;
using Xbyak::Ymm;
using Xbyak::Zmm;

constexpr int kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

double Seconds(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Xmm Vector(bool wide, int index) { return wide ? static_cast<Xmm>(Zmm(index)) : static_cast<Xmm>(Ymm(index)); }

void Xor(Emitter& e, bool wide, const Xmm& into, const Xbyak::Operand& with) {
  wide ? e.vpxorq(into, into, with) : e.vpxor(into, into, with);
}

// rdi = first byte, rsi = bytes; rax = xor of the words of all whole lines.
void EmitRead(Emitter& e, bool wide) {
  const int step = wide ? 64 : 32, vectors = wide ? 8 : 16;  // 512 bytes an iteration, an accumulator a load
  Xbyak::Label loop, lines, line_loop, done;
  for (int i = 0; i < vectors; ++i) Xor(e, wide, Vector(wide, i), Vector(wide, i));
  e.and_(e.rsi, -kLine);
  e.add(e.rsi, e.rdi);  // the end
  e.lea(e.rax, e.ptr[e.rsi - vectors * step]);
  e.cmp(e.rdi, e.rax);
  e.ja(lines);
  e.align(64);
  e.L(loop);
  for (int i = 0; i < vectors; ++i) Xor(e, wide, Vector(wide, i), e.ptr[e.rdi + i * step]);
  e.add(e.rdi, vectors * step);
  e.cmp(e.rdi, e.rax);
  e.jbe(loop);
  e.L(lines);
  e.cmp(e.rdi, e.rsi);
  e.jae(done);
  e.L(line_loop);
  for (int i = 0; i < kLine / step; ++i) Xor(e, wide, Vector(wide, i), e.ptr[e.rdi + i * step]);
  e.add(e.rdi, kLine);
  e.cmp(e.rdi, e.rsi);
  e.jb(line_loop);
  e.L(done);
  for (int i = 1; i < vectors; ++i) Xor(e, wide, Vector(wide, 0), Vector(wide, i));
  if (wide) {
    e.vextracti64x4(Ymm(1), Zmm(0), 1);
    e.vpxor(Ymm(0), Ymm(0), Ymm(1));
  }
  e.vextracti128(Xmm(1), Ymm(0), 1);
  e.vpxor(Xmm(0), Xmm(0), Xmm(1));
  e.vpsrldq(Xmm(1), Xmm(0), 8);
  e.vpxor(Xmm(0), Xmm(0), Xmm(1));
  e.vmovq(e.rax, Xmm(0));
  e.vzeroupper();
  e.ret();
}

absl::StatusOr<ReadBytesFn> MakeReader() {
  static CodeArena arena;
  Emitter e;
  EmitRead(e, HostIsa() >= Isa::kAvx512);
  XJIT_ASSIGN_OR_RETURN(const Kernel kernel, e.Finish("measure.read", arena));
  XJIT_RETURN_IF_ERROR(arena.Seal());
  return reinterpret_cast<ReadBytesFn>(reinterpret_cast<uintptr_t>(kernel.code));
}

void Pin(std::span<const int> cpus, int thread) {
  if (static_cast<size_t>(thread) >= cpus.size()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpus[static_cast<size_t>(thread)]), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // a CPU that may not be used: left to the system
}

// Threads that wait here leave together. Spins, then yields: there may be fewer cores than threads.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void Wait() {
    const int round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > 1000) std::this_thread::yield();
    }
  }

 private:
  int threads_;
  std::atomic<int> arrived_{0}, round_{0};
};

// One product of the peak loop.
struct Product {
  int accumulators;
  int ops;
};

// rdi = iterations, each one product for each accumulator, which ends 52 cycles before it is needed again.
Product EmitTilePeak(Emitter& e, PeakKind kind) {
  constexpr int n = 6;
  const Xbyak::Tmm a(n), b(n + 1);
  for (int i = 0; i < 8; ++i) e.tilezero(Xbyak::Tmm(i));
  Xbyak::Label loop;
  e.align(64);
  e.L(loop);
  for (int i = 0; i < n; ++i) {
    kind == PeakKind::kBf16Dot ? e.tdpbf16ps(Xbyak::Tmm(i), a, b) : e.tdpbsud(Xbyak::Tmm(i), a, b);
  }
  e.dec(e.rdi);
  e.jnz(loop);
  e.ret();
  return {.accumulators = n, .ops = 2 * 16 * 16 * (kind == PeakKind::kBf16Dot ? 32 : 64)};
}

// rdi = iterations, each one product for each accumulator.
Product EmitPeak(Emitter& e, PeakKind kind, Isa isa) {
  if (isa == Isa::kAmx && kind != PeakKind::kF32Fma) return EmitTilePeak(e, kind);
  const bool wide = isa >= Isa::kAvx512;
  const bool three_steps = kind == PeakKind::kInt8Dot && isa < Isa::kAvx512Vnni;
  // More accumulators than latency times ports (4 x 2, or 5 x 2); two operands, for three steps also a temporary each.
  const int n = three_steps ? (wide ? 12 : 6) : (wide ? 24 : 12);
  const int a = n, b = n + 1, t = n + 2;
  const auto v = [&](int i) { return Vector(wide, i); };
  const auto fill = [&](int i, uint32_t bits) { e.vbroadcastss(v(i), e.ptr[e.ConstLabel32(bits)]); };
  for (int i = 0; i < n; ++i) e.vxorps(v(i), v(i), v(i));
  const uint32_t one_f32 = 0x3f800000, ones_bf16 = 0x3f803f80, ones_i8 = 0x01010101, ones_i16 = 0x00010001;
  const uint32_t one = kind == PeakKind::kF32Fma ? one_f32 : kind == PeakKind::kBf16Dot ? ones_bf16 : ones_i8;
  fill(a, one);
  fill(b, three_steps ? ones_i16 : one);
  Xbyak::Label loop;
  e.align(64);
  e.L(loop);
  for (int i = 0; i < n; ++i) {
    if (kind == PeakKind::kF32Fma) {
      e.vfmadd231ps(v(i), v(a), v(b));
    } else if (kind == PeakKind::kBf16Dot) {
      e.vdpbf16ps(v(i), v(a), v(b));
    } else if (!three_steps) {
      e.vpdpbusd(v(i), v(a), v(b));
    } else {
      const Xmm tmp = v(t + i % 6);
      e.vpmaddubsw(tmp, v(a), v(a));
      e.vpmaddwd(tmp, tmp, v(b));
      e.vpaddd(v(i), v(i), tmp);
    }
  }
  e.dec(e.rdi);
  e.jnz(loop);
  e.vzeroupper();
  e.ret();
  const int products = kind == PeakKind::kF32Fma ? 1 : kind == PeakKind::kBf16Dot ? 2 : 4;
  return {.accumulators = n, .ops = 2 * products * (wide ? 16 : 8)};
}

}  // namespace

absl::StatusOr<ReadBytesFn> ReadBytesFunction() {
  static const absl::StatusOr<ReadBytesFn> reader = MakeReader();
  return reader;
}

absl::StatusOr<StreamBuffer> StreamBuffer::Create(int64_t bytes) {
  if (bytes < kLine) return InvalidArgument("a buffer to read from needs {} bytes or more, not {}", kLine, bytes);
  const size_t map_bytes = static_cast<size_t>(bytes) + kHugePage;
  void* map = mmap(nullptr, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return FailedPrecondition("no memory for a buffer of {} bytes to read from", bytes);
  const uintptr_t aligned = AlignUp(reinterpret_cast<uintptr_t>(map), kHugePage);
  auto* data = reinterpret_cast<std::byte*>(aligned);
  madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a refusal costs speed only
  std::memset(data, 1, static_cast<size_t>(bytes));          // pages never written are all one page of zeros
  return StreamBuffer(map, map_bytes, data, bytes);
}

StreamBuffer::StreamBuffer(StreamBuffer&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)),
      map_bytes_(other.map_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

StreamBuffer::~StreamBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

std::span<const std::byte> StreamBuffer::Part(int part, int parts) const {
  const int64_t lines = bytes_ / kLine;
  const int64_t begin = lines * part / parts, end = lines * (part + 1) / parts;
  return {data_ + begin * kLine, static_cast<size_t>((end - begin) * kLine)};
}

absl::StatusOr<ReadBandwidth> MeasureReadBandwidth(int threads, const ReadBandwidthOptions& options) {
  if (threads < 1 || options.rounds < 1) {
    return InvalidArgument("read bandwidth: {} threads, {} rounds; both must be positive", threads, options.rounds);
  }
  XJIT_ASSIGN_OR_RETURN(const ReadBytesFn read, ReadBytesFunction());
  const int64_t bytes =
      options.bytes > 0 ? options.bytes : std::max<int64_t>(4 * HostCpu().l3_bytes, int64_t{256} << 20);
  // A buffer a thread, made by the thread that reads it: its pages are on that thread's node.
  std::vector<absl::Status> errors(static_cast<size_t>(threads));
  // When each thread began and ended each pass: a pass lasts from the first beginning to the last end.
  std::vector<std::vector<std::pair<Clock::time_point, Clock::time_point>>> times(static_cast<size_t>(threads));
  std::atomic<bool> failed{false};
  std::atomic<uint64_t> sink{0};
  int64_t read_bytes = 0;
  Barrier barrier(threads);
  const auto run = [&](int t) {
    Pin(options.cpus, t);
    auto buffer = StreamBuffer::Create(std::max<int64_t>(kLine, bytes / threads));
    if (!buffer.ok()) {
      errors[static_cast<size_t>(t)] = buffer.status();
      failed = true;
    }
    barrier.Wait();
    if (failed) return;
    const auto part = buffer->Part(0, 1);
    for (int round = 0; round <= options.rounds; ++round) {
      barrier.Wait();
      const auto start = Clock::now();
      const uint64_t sum = read(part.data(), part.size());
      times[static_cast<size_t>(t)].emplace_back(start, Clock::now());
      sink.fetch_xor(sum, std::memory_order_relaxed);
    }
    if (t == 0) read_bytes = static_cast<int64_t>(part.size()) * threads;
  };
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back(run, t);
  std::thread first(run, 0);  // not the caller, whose affinity is not ours to change
  first.join();
  for (std::thread& thread : others) thread.join();
  for (const absl::Status& status : errors) XJIT_RETURN_IF_ERROR(status);

  std::vector<double> seconds;
  for (size_t round = 1; round < times[0].size(); ++round) {
    auto [begin, end] = times[0][round];
    for (const auto& thread : times) {
      begin = std::min(begin, thread[round].first);
      end = std::max(end, thread[round].second);
    }
    seconds.push_back(std::chrono::duration<double>(end - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double total = static_cast<double>(read_bytes);
  return ReadBandwidth{.best = total / seconds.front() / 1e9, .median = total / seconds[seconds.size() / 2] / 1e9};
}

std::string_view Name(PeakKind kind) {
  switch (kind) {
    case PeakKind::kF32Fma:
      return "f32 fma";
    case PeakKind::kBf16Dot:
      return "bf16 dot";
    case PeakKind::kInt8Dot:
      return "int8 dot";
  }
  return "?";
}

absl::StatusOr<double> MeasurePeak(PeakKind kind, Isa isa) {
  XJIT_RETURN_IF_ERROR(Prefix(PrepareIsa(isa), fmt::format("peak of {}", Name(kind))));
  if (kind == PeakKind::kBf16Dot && isa < Isa::kAvx512Bf16) {
    return InvalidArgument("peak of {}: {} has no such instruction", Name(kind), Name(isa));
  }
  CodeArena arena;
  Emitter e;
  const Product product = EmitPeak(e, kind, isa);
  XJIT_ASSIGN_OR_RETURN(const Kernel kernel, e.Finish("measure.peak", arena));
  XJIT_RETURN_IF_ERROR(arena.Seal());
  ConfigureTiles();
  const auto loop = reinterpret_cast<void (*)(int64_t)>(reinterpret_cast<uintptr_t>(kernel.code));

  constexpr int kRuns = 9;
  constexpr double kRunSeconds = 2e-3;
  int64_t iterations = 1000;
  double best = 0;
  for (int run = 0; run <= kRuns; ++run) {
    const auto start = Clock::now();
    loop(iterations);
    const double seconds = Seconds(start);
    const double ops = static_cast<double>(iterations) * product.accumulators * product.ops;
    if (run > 0) best = std::max(best, ops / seconds / 1e9);
    if (run == 0)
      iterations = std::max<int64_t>(1000, static_cast<int64_t>(1000 * kRunSeconds / std::max(seconds, 1e-7)));
  }
  return best;
}

}  // namespace xjit
