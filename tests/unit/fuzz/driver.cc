// Feeds LLVMFuzzerTestOneInput without libFuzzer, so that every compiler can run the fuzz tests:
//   fuzz_NAME CORPUS [--seconds S] [--seed N] [--runs N]
// CORPUS is a folder of samples or one file. Each sample runs as it is, then seeded mutations of them for S seconds
// (default 3) or N runs. The seed is printed; the input at hand is kept in fuzz_NAME.crash when the process dies.
// Any input of at most 64 KiB may be asked of the parsers here: a mutation never grows past that.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;
using Clock = std::chrono::steady_clock;
constexpr size_t kMaxBytes = 64 << 10;
// One input that takes longer than this hangs, as far as a user can tell.
constexpr int kHangSeconds = 20;

// What the signal handler writes out; plain pointers, since it may not allocate.
const uint8_t* current_data = nullptr;
size_t current_size = 0;
char crash_path[512];

void KeepInput(int signal_number) {
  const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    size_t done = 0;
    while (done < current_size) {
      const ssize_t n = write(fd, current_data + done, current_size - done);
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    close(fd);
  }
  constexpr std::string_view text = "\nthe input that did it: ";
  (void)!write(STDERR_FILENO, text.data(), text.size());
  (void)!write(STDERR_FILENO, crash_path, strlen(crash_path));
  (void)!write(STDERR_FILENO, "\n", 1);
  // The default action again, so that the process ends as it would have without us.
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

// On a stack of its own: what overflowed may be the usual one.
void CatchSignals() {
  static std::array<uint8_t, 64 << 10> stack;
  stack_t other = {};
  other.ss_sp = stack.data();
  other.ss_size = stack.size();
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = KeepInput;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM}) sigaction(s, &action, nullptr);
}

void RunOne(const Bytes& input) {
  // An exact heap copy: a sanitizer sees a read of the byte past the end.
  const Bytes copy(input.begin(), input.end());
  current_data = copy.data();
  current_size = copy.size();
  alarm(kHangSeconds);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  alarm(0);
  current_size = 0;
}

// Values at which parsers go wrong: signs, widths, one off a power of two.
constexpr std::array<uint64_t, 20> kIntegers = {
    0,          1,          2,          0x7f,       0x80,       0xff,        0x7fff,     0x8000,
    0xffff,     0x10000,    0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 1ull << 40, 0x7fffffffffffffff,
    1ull << 62, 1ull << 63, ~0ull - 31, ~0ull};
constexpr std::array<std::string_view, 16> kTokens = {
    "{", "}", "[",        "]",       "\"", "\\", "\\u", ":", ",", "-", "1e999", "99999999999999999999",
    "%", "@", "\xff\xfe", "\xf0\x9f"};

class Mutator {
 public:
  Mutator(const std::vector<Bytes>& samples, uint64_t seed) : samples_(samples), random_(seed) {}

  Bytes Next() {
    Bytes b = Sample();
    for (int n = 1 + static_cast<int>(Below(4)); n > 0; --n) Mutate(b);
    if (b.size() > kMaxBytes) b.resize(kMaxBytes);
    return b;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  const Bytes& Sample() { return samples_[Below(samples_.size())]; }

  void Mutate(Bytes& b) {
    const size_t at = Below(b.size());
    switch (Below(9)) {
      case 0:
        if (!b.empty()) b[at] ^= static_cast<uint8_t>(1u << Below(8));
        break;
      case 1:
        if (!b.empty()) b[at] = static_cast<uint8_t>(random_());
        break;
      case 2:
        b.resize(Below(b.size() + 1));
        break;
      case 3: {  // an integer of 1, 2, 4 or 8 bytes
        const uint64_t value = kIntegers[Below(kIntegers.size())];
        const size_t width = size_t{1} << Below(4);
        if (b.size() >= width) memcpy(&b[Below(b.size() - width + 1)], &value, width);
        break;
      }
      case 4: {  // splice: the head of this one, the tail of another
        const Bytes& other = Sample();
        const size_t from = Below(other.size());
        b.resize(at);
        b.insert(b.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
      case 5: {  // a stretch said twice
        const size_t length = std::min(b.size() - at, 1 + Below(64));
        const Bytes part(b.begin() + static_cast<ptrdiff_t>(at), b.begin() + static_cast<ptrdiff_t>(at + length));
        b.insert(b.begin() + static_cast<ptrdiff_t>(at), part.begin(), part.end());
        break;
      }
      case 6: {  // a stretch left out
        const size_t length = std::min(b.size() - at, 1 + Below(64));
        b.erase(b.begin() + static_cast<ptrdiff_t>(at), b.begin() + static_cast<ptrdiff_t>(at + length));
        break;
      }
      case 7: {
        const std::string_view token = kTokens[Below(kTokens.size())];
        b.insert(b.begin() + static_cast<ptrdiff_t>(at), token.begin(), token.end());
        break;
      }
      case 8: {  // deep nesting: one byte many times
        const uint8_t byte = b.empty() ? '[' : b[at];
        b.insert(b.begin() + static_cast<ptrdiff_t>(at), 1 + Below(32768), byte);
        break;
      }
    }
  }

  const std::vector<Bytes>& samples_;
  std::mt19937_64 random_;
};

std::optional<std::vector<Bytes>> ReadSamples(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path, error)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());  // the order of a folder is not the same everywhere
  } else if (std::filesystem::exists(path, error)) {
    files.push_back(path);
  }
  std::vector<Bytes> samples;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      fprintf(stderr, "cannot read %s\n", file.c_str());
      return std::nullopt;
    }
    samples.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return samples;
}

std::optional<uint64_t> Number(const char* text) {
  uint64_t value = 0;
  const char* end = text + strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  std::string corpus;
  uint64_t seconds = 3, runs = 0, seed = std::random_device{}();
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    uint64_t* value = arg == "--seconds" ? &seconds : arg == "--seed" ? &seed : arg == "--runs" ? &runs : nullptr;
    if (value != nullptr) {
      const auto number = ++i < argc ? Number(argv[i]) : std::nullopt;
      if (!number) {
        fprintf(stderr, "%s needs a number\n", argv[i - 1]);
        return 2;
      }
      *value = *number;
    } else {
      corpus = arg;
    }
  }
  auto samples = ReadSamples(corpus);
  if (!samples) return 1;
  const std::string name = std::filesystem::path(argv[0]).filename();
  snprintf(crash_path, sizeof(crash_path), "%s.crash", name.c_str());
  CatchSignals();

  for (const Bytes& sample : *samples) RunOne(sample);
  printf("%s: %zu samples as they are; mutating with --seed %llu\n", name.c_str(), samples->size(),
         static_cast<unsigned long long>(seed));
  fflush(stdout);
  samples->emplace_back();  // the empty input, and something to mutate where there is no corpus
  Mutator mutator(*samples, seed);
  uint64_t done = 0;
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  while (runs > 0 ? done < runs : Clock::now() < end) {
    RunOne(mutator.Next());
    ++done;
  }
  printf("%s: %llu mutations\n", name.c_str(), static_cast<unsigned long long>(done));
  return 0;
}
