// ISA detection from given CPUID words, and the choice of a level by name.
#include "codegen/cpu.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "codegen/amx/emulator.h"
#include "codegen/amx/tiles.h"

namespace xjit {
namespace {

// A processor with everything, on a system that saves everything.
CpuFeatures Everything() {
  return {.leaf1_ecx = ~0u,
          .leaf7_ebx = ~0u,
          .leaf7_ecx = ~0u,
          .leaf7_edx = ~0u,
          .leaf7_1_eax = ~0u,
          .xcr0 = ~uint64_t{0},
          .tile_permission = true};
}

template <typename Change>
std::optional<Isa> Without(Change change) {
  CpuFeatures f = Everything();
  change(f);
  return IsaOf(f);
}

TEST(IsaOf, EachMissingBitCapsTheLevel) {
  EXPECT_EQ(IsaOf(Everything()), Isa::kAmx);
  EXPECT_EQ(Without([](auto& f) { f.leaf7_edx &= ~(1u << 24); }), Isa::kAvx512Bf16);
  EXPECT_EQ(Without([](auto& f) { f.leaf7_edx &= ~(1u << 22); }), Isa::kAvx512Bf16);
  EXPECT_EQ(Without([](auto& f) { f.leaf7_1_eax &= ~(1u << 5); }), Isa::kAvx512Vnni);
  EXPECT_EQ(Without([](auto& f) { f.leaf7_ecx &= ~(1u << 11); }), Isa::kAvx512);
  for (int bit : {16, 17, 30, 31}) {
    EXPECT_EQ(Without([&](auto& f) { f.leaf7_ebx &= ~(1u << bit); }), Isa::kAvx2) << bit;
  }
  EXPECT_EQ(Without([](auto& f) { f.leaf7_ebx &= ~(1u << 5); }), std::nullopt);
  for (int bit : {12, 28, 29}) {
    EXPECT_EQ(Without([&](auto& f) { f.leaf1_ecx &= ~(1u << bit); }), std::nullopt) << bit;
  }
}

TEST(IsaOf, RegistersMustBeSavedByTheSystem) {
  EXPECT_EQ(Without([](auto& f) { f.tile_permission = false; }), Isa::kAvx512Bf16);
  EXPECT_EQ(Without([](auto& f) { f.xcr0 &= ~(uint64_t{1} << 18); }), Isa::kAvx512Bf16);
  for (int bit : {5, 6, 7}) {
    EXPECT_EQ(Without([&](auto& f) { f.xcr0 &= ~(uint64_t{1} << bit); }), Isa::kAvx2) << bit;
  }
  EXPECT_EQ(Without([](auto& f) { f.xcr0 = 3; }), std::nullopt);
  EXPECT_EQ(Without([](auto& f) { f.xcr0 = 0; }), std::nullopt);
}

// The kernel lists the features that it lets processes use: an independent reading of the same words.
TEST(HostIsa, AgreesWithTheKernel) {
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (std::getline(file, line) && flags.empty()) {
    if (line.starts_with("flags")) flags = line + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  const auto has = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (flags.find(std::string(" ") + name + " ") == std::string::npos) return false;
    }
    return true;
  };
  Isa expected = Isa::kAvx2;
  ASSERT_TRUE(has({"avx2", "fma", "f16c"}));
  if (has({"avx512f", "avx512dq", "avx512bw", "avx512vl"})) expected = Isa::kAvx512;
  if (expected == Isa::kAvx512 && has({"avx512_vnni"})) expected = Isa::kAvx512Vnni;
  if (expected == Isa::kAvx512Vnni && has({"avx512_bf16"})) expected = Isa::kAvx512Bf16;
  if (expected == Isa::kAvx512Bf16 && has({"amx_bf16", "amx_tile", "amx_int8"})) expected = Isa::kAmx;
  EXPECT_EQ(HostIsa(), expected);
}

// A processor whose best level is this one.
CpuFeatures Machine(std::optional<Isa> isa) {
  CpuFeatures f = Everything();
  if (isa == Isa::kAmx) return f;
  f.leaf7_edx &= ~(1u << 24);
  f.tile_permission = false;
  if (isa < Isa::kAvx512Bf16) f.leaf7_1_eax &= ~(1u << 5);
  if (isa < Isa::kAvx512Vnni) f.leaf7_ecx &= ~(1u << 11);
  if (isa < Isa::kAvx512) f.leaf7_ebx &= ~(1u << 16);
  if (!isa) f.leaf7_ebx = 0;
  EXPECT_EQ(IsaOf(f), isa);
  return f;
}
// A processor with AMX under a system that does not let processes use it.
CpuFeatures TilesRefused() {
  CpuFeatures f = Everything();
  f.tile_permission = false;
  return f;
}

std::string Error(std::string_view name, const CpuFeatures& host) {
  const auto isa = ChooseIsa(name, "--isa " + std::string(name), host);
  return isa.ok() ? "ok" : isa.status().ToString();
}

TEST(RunnableIsa, TheEmulatorNeedsAllBelowAmx) {
  EXPECT_EQ(RunnableIsa(Everything()), Isa::kAmx);
  EXPECT_EQ(RunnableIsa(Machine(Isa::kAvx512Bf16)), Isa::kAmx);
  EXPECT_EQ(RunnableIsa(TilesRefused()), Isa::kAvx512Bf16);  // its ldtilecfg would not come to the emulator
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni}) EXPECT_EQ(RunnableIsa(Machine(isa)), isa);
  EXPECT_EQ(RunnableIsa(Machine(std::nullopt)), std::nullopt);
}

TEST(ChooseIsa, AutoIsTheProcessorsOwn) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    for (const std::optional<std::string_view> name : {std::optional<std::string_view>(), {"auto"}}) {
      const auto choice = ChooseIsa(name, "", Machine(isa));
      ASSERT_TRUE(choice.ok());
      EXPECT_EQ(choice->isa, isa);
      EXPECT_EQ(choice->notice, "");
    }
  }
}

TEST(ChooseIsa, ANameCaps) {
  EXPECT_EQ(ChooseIsa("avx2", "", Everything())->isa, Isa::kAvx2);
  const auto amx = ChooseIsa("amx", "--isa amx", Everything());
  EXPECT_EQ(amx->isa, Isa::kAmx);
  EXPECT_EQ(amx->notice, "");
  EXPECT_EQ(ChooseIsa("avx512", "", TilesRefused())->notice, "");
}

TEST(ChooseIsa, AmxIsEmulatedWhenAskedFor) {
  const auto choice = ChooseIsa("amx", "--isa amx", Machine(Isa::kAvx512Bf16));
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->isa, Isa::kAmx);
  EXPECT_EQ(choice->notice, "--isa amx: this machine has no AMX, running under the software emulator (slow)");
}

TEST(ChooseIsa, RefusedTilesAreSaidOnce) {
  const auto choice = ChooseIsa(std::nullopt, "", TilesRefused());
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->isa, Isa::kAvx512Bf16);
  EXPECT_EQ(choice->notice,
            "the system refuses AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM), falling back to avx512_bf16");
}

TEST(ChooseIsa, ErrorsNameTheWayOut) {
  EXPECT_EQ(Error("amx", Machine(Isa::kAvx512Vnni)),
            "FAILED_PRECONDITION: --isa amx: this machine has no AMX, whose emulator needs AVX-512 BF16; it has avx2, "
            "avx512, avx512_vnni");
  EXPECT_EQ(Error("amx", TilesRefused()),
            "FAILED_PRECONDITION: --isa amx: the system refuses AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM); there are "
            "avx2, avx512, avx512_vnni, avx512_bf16");
  EXPECT_EQ(Error("avx512_bf16", Machine(Isa::kAvx512)),
            "FAILED_PRECONDITION: --isa avx512_bf16: this machine has no AVX-512 BF16; it has avx2, avx512");
  EXPECT_EQ(Error("avx512", Machine(Isa::kAvx2)),
            "FAILED_PRECONDITION: --isa avx512: this machine has no AVX-512; it has avx2");
  EXPECT_EQ(Error("sse9", Everything()),
            "INVALID_ARGUMENT: --isa sse9: not an ISA; known are auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  EXPECT_EQ(Error("", Everything()),
            "INVALID_ARGUMENT: --isa : not an ISA; known are auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  EXPECT_EQ(Error("avx2", Machine(std::nullopt)),
            "FAILED_PRECONDITION: this machine's processor has no AVX2 with FMA and F16C, the least xjit needs");
}

TEST(ChooseIsa, FlagGoesBeforeTheEnvironment) {
  setenv("XJIT_ISA", "sse9", 1);
  const auto from_env = ChooseIsa(std::nullopt), from_flag = ChooseIsa("avx2");
  setenv("XJIT_ISA", "", 1);
  const auto empty = ChooseIsa(std::nullopt);
  unsetenv("XJIT_ISA");
  EXPECT_EQ(Message(from_env.status()),
            "XJIT_ISA=sse9: not an ISA; known are auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  EXPECT_EQ(from_flag->isa, Isa::kAvx2);
  EXPECT_EQ(empty->isa, HostIsa());
}

TEST(PrepareIsa, TileInstructionsRunAfterwards) {
  if (RunnableIsa() < Isa::kAmx) {
    EXPECT_EQ(PrepareIsa(Isa::kAmx).code(), absl::StatusCode::kFailedPrecondition);
    GTEST_SKIP() << "this machine can neither run nor emulate AMX";
  }
  ASSERT_TRUE(PrepareIsa(Isa::kAmx).ok());
  EXPECT_EQ(AmxEmulated(), HostIsa() < Isa::kAmx);
  const auto config = [] {
    alignas(64) std::array<uint8_t, 64> bytes = {};
    asm volatile(".byte 0xc4, 0xe2, 0x79, 0x49, 0x07" : : "D"(bytes.data()) : "memory");  // sttilecfg [rdi]
    return bytes;
  };
  const auto none = std::array<uint8_t, 64>();
  std::thread([&] {
    EXPECT_EQ(config(), none);
    for (int i = 0; i < 2; ++i) {
      ConfigureTiles();
      EXPECT_EQ(std::memcmp(config().data(), kTileConfig, 64), 0);
    }
    asm volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0" : : : "memory");  // tilerelease
    EXPECT_EQ(config(), none);
    ConfigureTiles();
    EXPECT_EQ(std::memcmp(config().data(), kTileConfig, 64), 0);
  }).join();
}

TEST(HostCpu, CachesAreOfASensibleSize) {
  const TargetInfo cpu = HostCpu();
  EXPECT_GE(cpu.l1d_bytes, 8 << 10);
  EXPECT_LE(cpu.l1d_bytes, 1 << 20);
  EXPECT_GE(cpu.l2_bytes, 128 << 10);
  EXPECT_GE(cpu.l3_bytes, cpu.l2_bytes);
  EXPECT_EQ(cpu.isa, HostIsa());
  EXPECT_EQ(HostCpu(Isa::kAvx2).isa, Isa::kAvx2);
  EXPECT_FALSE(HostCpu(Isa::kAvx2).vbmi);
  EXPECT_FALSE(HostCpu(Isa::kAvx512Bf16).amx_fp16);
  EXPECT_TRUE(HostCpu(Isa::kAmx).amx_fp16 || HasTiles(HostFeatures()));  // the emulator has it
  EXPECT_FALSE(CpuName().empty());
}

}  // namespace
}  // namespace xjit
