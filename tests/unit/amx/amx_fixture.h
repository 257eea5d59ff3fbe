// Tile instructions for tests: on the processor where it has AMX, else under the emulator.
#pragma once

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>

#include <cstdint>
#include <cstring>

#include "codegen/emitter.h"

namespace xjit {

// A signal that a guarded call ended with.
struct Fault {
  int signal = 0;  // 0: the call returned
  int code = 0;
  uint64_t address = 0;  // si_addr
  uint64_t rip = 0;
};

// Installs handlers of SIGILL and SIGSEGV that end a guarded call, then the emulator above them where the processor has
// no tiles. Returns why tests cannot run, or "".
const std::string& PrepareTileTests();

#define XJIT_NEED_TILES() \
  if (!PrepareTileTests().empty()) GTEST_SKIP() << PrepareTileTests()

// Code of up to five arguments; ends with ret.
class Program {
 public:
  template <typename EmitFn>
  explicit Program(EmitFn emit) {
    Emitter e;
    emit(e);
    e.ret();
    auto kernel = e.Finish("test", arena_);
    if (!kernel.ok() || !arena_.Seal().ok()) {
      fmt::print(stderr, "{}\n", Message(kernel.status()));
      std::abort();
    }
    kernel_ = *kernel;
  }
  void operator()(const void* a = nullptr, const void* b = nullptr, const void* c = nullptr,
                  const void* d = nullptr) const {
    kernel_.fn(a, Int(b), Int(c), Int(d), 0);
  }
  // The same, ended by a signal if there is one.
  Fault Guarded(const void* a = nullptr, const void* b = nullptr, const void* c = nullptr) const;
  uint64_t address() const { return reinterpret_cast<uint64_t>(kernel_.code); }

 private:
  static int64_t Int(const void* p) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(p)); }
  CodeArena arena_;
  Kernel kernel_;
};

inline void EmitBytes(Emitter& e, std::initializer_list<uint8_t> bytes) {
  for (const uint8_t byte : bytes) e.db(byte);
}

// Calls raise(signal) guarded.
Fault GuardedRaise(int signal);

struct alignas(64) TileConfig {
  uint8_t bytes[64] = {};

  // Every tile 16 rows of 64 bytes.
  static TileConfig Full() {
    TileConfig c;
    for (int t = 0; t < 8; ++t) c.Set(t, 16, 64);
    return c;
  }
  TileConfig& Set(int tile, int rows, int row_bytes) {
    bytes[0] = 1;
    bytes[48 + tile] = static_cast<uint8_t>(rows);
    bytes[16 + 2 * tile] = static_cast<uint8_t>(row_bytes & 255);
    bytes[17 + 2 * tile] = static_cast<uint8_t>(row_bytes >> 8);
    return *this;
  }
};

}  // namespace xjit
