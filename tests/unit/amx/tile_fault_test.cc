// What the hardware refuses is refused the same way: #UD is SIGILL, #GP and bad addresses are SIGSEGV, each at the
// instruction. Illegal instructions that are not tiles' go where they went before.
#include <sys/mman.h>

#include "codegen/amx/emulator.h"
#include "codegen/cpu.h"
#include "tests/unit/amx/amx_fixture.h"

namespace xjit {
namespace {

using Xbyak::Tmm;

// The tile instruction under test stands behind five bytes (ldtilecfg [rdi]); rsi is an address, rax a stride.
template <typename EmitFn>
Fault AfterConfig(const TileConfig& config, EmitFn emit, uint64_t* offset) {
  alignas(64) static uint8_t memory[4096];
  const Program program([&](Emitter& e) {
    e.mov(e.eax, 64);
    e.ldtilecfg(e.ptr[e.rdi]);
    e.nop();
    emit(e);
  });
  const Fault fault = program.Guarded(&config, memory);
  *offset = fault.rip - program.address();
  return fault;
}

template <typename EmitFn>
void ExpectUndefined(const char* what, const TileConfig& config, EmitFn emit) {
  uint64_t offset = 0;
  const Fault fault = AfterConfig(config, emit, &offset);
  EXPECT_EQ(fault.signal, SIGILL) << what;
  EXPECT_EQ(offset, 11u) << what;
}

TEST(TileFault, UndefinedInstructions) {
  XJIT_NEED_TILES();
  const TileConfig full = TileConfig::Full(), none;
  const auto zero = [](Emitter& e) { e.tilezero(Tmm(0)); };
  const auto load = [](Emitter& e) { e.tileloadd(Tmm(0), e.ptr[e.rsi + e.rax]); };
  const auto store = [](Emitter& e) { e.tilestored(e.ptr[e.rsi + e.rax], Tmm(0)); };
  const auto dot = [](Emitter& e) { e.tdpbf16ps(Tmm(0), Tmm(1), Tmm(2)); };
  ExpectUndefined("tilezero, not configured", none, zero);
  ExpectUndefined("tileloadd, not configured", none, load);
  ExpectUndefined("tilestored, not configured", none, store);
  ExpectUndefined("tdpbf16ps, not configured", none, dot);

  const auto same = [&](int d, int a, int b) {
    ExpectUndefined("one tile twice", full, [=](Emitter& e) { e.tdpbssd(Tmm(d), Tmm(a), Tmm(b)); });
  };
  same(1, 1, 2);
  same(2, 1, 2);
  same(0, 1, 1);

  TileConfig config = full;
  ExpectUndefined("rows of a", config.Set(1, 15, 64), dot);
  config = full;
  ExpectUndefined("columns of b", config.Set(2, 16, 60), dot);
  config = full;
  ExpectUndefined("depth", config.Set(1, 16, 60), dot);
  config = full;
  ExpectUndefined("a tile without rows", config.Set(2, 0, 0), dot);
  config = full;
  ExpectUndefined("bytes not of dwords", config.Set(0, 16, 63).Set(2, 16, 63), dot);
  ExpectUndefined("bytes not of dwords, loaded", config, load);
  config = full;
  ExpectUndefined("a tile without rows, loaded", config.Set(0, 0, 0), load);
  ExpectUndefined("a tile without rows, cleared", config, zero);
  config = full;
  config.Set(0, 4, 64).bytes[1] = 4;
  ExpectUndefined("start row behind the last", config, load);
  ExpectUndefined("start row behind the last, stored", config, store);

  const auto raw = [&](const char* what, std::initializer_list<uint8_t> code) {
    ExpectUndefined(what, full, [&](Emitter& e) { EmitBytes(e, code); });
  };
  raw("a second source", {0xc4, 0xe2, 0x73, 0x4b, 0x04, 0x06});  // tileloadd with vvvv = 1
  raw("no SIB byte", {0xc4, 0xe2, 0x7b, 0x4b, 0x06});            // tileloadd tmm0, [rsi]
  raw("a ninth tile", {0xc4, 0x62, 0x7b, 0x4b, 0x04, 0x06});     // VEX.R
  raw("W", {0xc4, 0xe2, 0xfb, 0x49, 0xc0});                      // tilezero with W1
  raw("a register", {0xc4, 0xe2, 0x7b, 0x4b, 0xc4});             // tileloadd of mod 3
  raw("memory", {0xc4, 0xe2, 0x6a, 0x5c, 0x06});                 // tdpbf16ps of memory
  raw("tilezero of rm 1", {0xc4, 0xe2, 0x7b, 0x49, 0xc1});
  raw("ldtilecfg of reg 1", {0xc4, 0xe2, 0x78, 0x49, 0x0f});
}

TEST(TileFault, BadConfigurations) {
  XJIT_NEED_TILES();
  const Program program([](Emitter& e) {
    e.nop();
    e.ldtilecfg(e.ptr[e.rdi]);
  });
  const Program store([](Emitter& e) { e.sttilecfg(e.ptr[e.rdi]); });
  const auto expect_bad = [&](const char* what, const TileConfig& config) {
    const TileConfig good = TileConfig::Full();
    program(&good);
    const Fault fault = program.Guarded(&config);
    EXPECT_EQ(fault.signal, SIGSEGV) << what;
    EXPECT_EQ(fault.code, SI_KERNEL) << what;
    EXPECT_EQ(fault.rip, program.address() + 1) << what;
    TileConfig after;
    store(&after);
    EXPECT_EQ(std::memcmp(&after, &good, 64), 0) << what << ": the old configuration is gone";
  };
  const auto with = [](int index, int value) {
    TileConfig config = TileConfig::Full();
    config.bytes[index] = static_cast<uint8_t>(value);
    return config;
  };
  expect_bad("palette 2", with(0, 2));
  expect_bad("palette 255", with(0, 255));
  expect_bad("reserved byte 2", with(2, 1));
  expect_bad("reserved byte 15", with(15, 1));
  expect_bad("ninth tile's bytes", with(32, 1));
  expect_bad("sixteenth tile's bytes", with(47, 1));
  expect_bad("ninth tile's rows", with(56, 1));
  expect_bad("last byte", with(63, 0x80));
  expect_bad("17 rows", with(48, 17));
  expect_bad("65 bytes", with(16, 65));
  expect_bad("320 bytes", with(17, 1));
  expect_bad("rows without bytes", with(16, 0));
  expect_bad("bytes without rows", with(55, 0));
}

TEST(TileFault, BadAddresses) {
  XJIT_NEED_TILES();
  auto* pages = static_cast<uint8_t*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_NONE), 0);
  const TileConfig config = TileConfig::Full();
  const Program load([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.eax, 64);
    e.tileloadd(Tmm(0), e.ptr[e.rsi + e.rax]);
  });
  const Program store([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.eax, 64);
    e.tilestored(e.ptr[e.rsi + e.rax], Tmm(0));
  });
  for (const Program* program : {&load, &store}) {
    EXPECT_EQ(program->Guarded(&config, pages + 4096 - 1024).signal, 0);
    const Fault fault = program->Guarded(&config, pages + 4096 - 512);
    EXPECT_EQ(fault.signal, SIGSEGV);
    EXPECT_EQ(fault.code, SEGV_ACCERR);
    EXPECT_EQ(fault.address & ~uint64_t{63}, reinterpret_cast<uint64_t>(pages + 4096));
  }
  uint32_t mxcsr;
  asm volatile("stmxcsr %0" : "=m"(mxcsr));
  EXPECT_EQ(mxcsr & 0xffc0, 0x1f80u);
  EXPECT_EQ(load.Guarded(&config, pages).signal, 0);  // tiles work as before
  munmap(pages, 8192);
}

TEST(TileFault, OtherIllegalInstructionsAreTheOthers) {
  XJIT_NEED_TILES();
  const Program program([](Emitter& e) {
    e.ldtilecfg(e.ptr[e.rdi]);
    e.tilezero(Tmm(0));
    e.ud2();
  });
  const TileConfig config = TileConfig::Full();
  const Fault fault = program.Guarded(&config);
  EXPECT_EQ(fault.signal, SIGILL);
  EXPECT_EQ(fault.code, ILL_ILLOPN);
  EXPECT_EQ(fault.rip, program.address() + 10);
  const Fault sent = GuardedRaise(SIGILL);  // at whatever instruction: nothing is decoded
  EXPECT_EQ(sent.signal, SIGILL);
  EXPECT_LE(sent.code, 0);
}

// In a process of their own, whose SIGILL nobody handled before.
TEST(TileFaultDeathTest, WithoutAHandlerTheProcessDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (HostIsa() == Isa::kAmx || !IsaOf(HostFeatures())) GTEST_SKIP() << "not under the emulator";
  const auto enabled = [] {
    if (!EnableAmxEmulator().ok() || !EnableAmxEmulator().ok() || !AmxEmulated()) _exit(3);
  };
  const auto illegal = [&](auto emit) {
    enabled();
    const TileConfig config = TileConfig::Full();
    const Program program(emit);
    program(&config);
  };
  EXPECT_EXIT(illegal([](Emitter& e) { e.ud2(); }), ::testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(illegal([](Emitter& e) { e.tilezero(Tmm(1)); }), ::testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(
      {
        enabled();
        raise(SIGILL);
      },
      ::testing::KilledBySignal(SIGILL), "");
  EXPECT_EXIT(
      {
        enabled();
        signal(SIGSEGV, SIG_DFL);
        TileConfig bad = TileConfig::Full();
        bad.bytes[0] = 9;
        const Program program([](Emitter& e) { e.ldtilecfg(e.ptr[e.rdi]); });
        program(&bad);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace xjit
