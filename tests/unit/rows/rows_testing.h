// What the row kernel tests share: a kernel emitted for a level, called so that clobbered registers show.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/emitter.h"
#include "codegen/kernel.h"
#include "codegen/rows/rows_plan.h"
#include "tests/unit/guarded_buffer.h"
#include "tests/unit/watched_call.h"

namespace xjit::testing {

inline constexpr Isa kRowIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16};
inline constexpr int64_t kSizes[] = {1,   15,  16,  17,  31,  32,  33,  64,   95,  96,
                                     160, 256, 288, 480, 512, 544, 576, 1536, 8960};

inline TargetInfo TargetOf(Isa isa) {
  TargetInfo target;
  target.isa = isa;
  return target;
}

// Instructions with an EVEX prefix (0x62, which begins no other 64-bit instruction) up to the kernel's ret, behind
// which constants lie.
inline int CountEvex(const std::string& disassembly, const uint8_t* code) {
  int count = 0;
  std::istringstream lines(disassembly);
  for (std::string line; std::getline(lines, line);) {
    if (code[std::stoul(line, nullptr, 16)] == 0x62) ++count;
    if (line.ends_with(": ret")) break;
  }
  return count;
}

// A kernel in an arena of its own.
class EmittedKernel {
 public:
  template <class Desc, class Plan>
  EmittedKernel(const Desc& desc, const absl::StatusOr<Plan>& plan,
                absl::Status (*emit)(const Desc&, const Plan&, Emitter&)) {
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    if (!plan.ok()) return;
    Emitter e;
    absl::Status status = emit(desc, *plan, e);
    EXPECT_TRUE(status.ok()) << status.ToString();
    auto kernel = e.Finish("test", arena_);
    EXPECT_TRUE(kernel.ok()) << kernel.status().ToString();
    if (!kernel.ok()) return;
    kernel_ = *kernel;
    status = arena_.Seal();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }

  bool ok() const { return kernel_.fn != nullptr; }
  KernelFn fn() const { return kernel_.fn; }
  std::string Disassembly() const { return Disassemble({kernel_.code, kernel_.code_bytes}); }
  int EvexInstructions() const { return CountEvex(Disassembly(), kernel_.code); }

  // Runs rows [m0, m1) and expects the callee-saved registers to come back.
  void Run(const void* args, int64_t m0, int64_t m1) const {
    ASSERT_TRUE(ok());
    EXPECT_EQ(WatchedCall(kernel_.fn, args, 0, 1, m0, m1), "") << "callee-saved registers changed";
  }

 private:
  CodeArena arena_;
  Kernel kernel_;
};

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float spread = 3) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// Copies rows of `cols` values to `ld_bytes` apart, ending (or beginning) at a guard page.
inline void FillRows(GuardedBuffer& buffer, const std::vector<float>& values, int64_t rows, int64_t cols,
                     int64_t ld_bytes) {
  for (int64_t m = 0; m < rows; ++m) {
    std::memcpy(buffer.data() + m * ld_bytes, values.data() + m * cols, static_cast<size_t>(cols) * 4);
  }
}

}  // namespace xjit::testing
