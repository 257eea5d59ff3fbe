// ISA detection from given CPUID words, and the choice of a level by name.
#include "codegen/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

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

std::string Error(std::string_view name, std::optional<Isa> host) {
  const auto isa = ChooseIsa(name, "--isa " + std::string(name), host);
  return isa.ok() ? "ok" : isa.status().ToString();
}

TEST(ChooseIsa, AutoIsTheBestWithKernels) {
  EXPECT_EQ(*ChooseIsa(std::nullopt, "", Isa::kAmx), Isa::kAvx512Bf16);
  EXPECT_EQ(*ChooseIsa("auto", "", Isa::kAvx512Vnni), Isa::kAvx512Vnni);
  EXPECT_EQ(*ChooseIsa("avx2", "", Isa::kAmx), Isa::kAvx2);
  EXPECT_EQ(*ChooseIsa("amx", "", Isa::kAmx), Isa::kAmx);
}

TEST(ChooseIsa, ErrorsNameTheWayOut) {
  EXPECT_EQ(Error("amx", Isa::kAvx512Bf16),
            "FAILED_PRECONDITION: --isa amx: this machine has no AMX; it has avx2, avx512, avx512_vnni, avx512_bf16");
  EXPECT_EQ(Error("avx512", Isa::kAvx2), "FAILED_PRECONDITION: --isa avx512: this machine has no AVX-512; it has avx2");
  EXPECT_EQ(Error("sse9", Isa::kAmx),
            "INVALID_ARGUMENT: --isa sse9: not an ISA; known are auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  EXPECT_EQ(Error("", Isa::kAmx),
            "INVALID_ARGUMENT: --isa : not an ISA; known are auto, avx2, avx512, avx512_vnni, avx512_bf16, amx");
  EXPECT_EQ(Error("avx2", std::nullopt),
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
  EXPECT_EQ(*from_flag, Isa::kAvx2);
  EXPECT_EQ(*empty, std::min(HostIsa(), Isa::kAvx512Bf16));
}

TEST(HostCpu, CachesAreOfASensibleSize) {
  const TargetInfo cpu = HostCpu();
  EXPECT_GE(cpu.l1d_bytes, 8 << 10);
  EXPECT_LE(cpu.l1d_bytes, 1 << 20);
  EXPECT_GE(cpu.l2_bytes, 128 << 10);
  EXPECT_GE(cpu.l3_bytes, cpu.l2_bytes);
  EXPECT_EQ(cpu.isa, HostIsa());
  EXPECT_FALSE(CpuName().empty());
}

}  // namespace
}  // namespace xjit
