// The readers of packed weights by themselves: every code of every encoding with scales outside, bit for bit, as bf16
// pairs and as f32, at every place of a panel; guard pages around both sides.
#include "codegen/gemm/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/gemm_desc.h"
#include "codegen/gemm/pack.h"
#include "codegen/gemm/random_panels.h"
#include "tests/unit/gemm_float/float_harness.h"

namespace xjit::testing {
namespace {

struct Way {
  Isa isa;
  bool vbmi;
};

class Convert : public ::testing::TestWithParam<std::tuple<Way, Encoding, DType>> {
 protected:
  static Way way() { return std::get<0>(GetParam()); }
  static Encoding w() { return std::get<1>(GetParam()); }
  static DType to() { return std::get<2>(GetParam()); }
  void SetUp() override {
    if (HostIsa() < way().isa) GTEST_SKIP() << "the host has no " << Name(way().isa);
    if (way().vbmi && !HostHasVbmi()) GTEST_SKIP() << "the host has no VBMI";
    if (way().isa == Isa::kAvx2 && to() == DType::kBF16) GTEST_SKIP() << "no such row";
  }

  // [panels][rows][32] as it comes out.
  static std::vector<float> Run(int64_t k, int64_t panels, GuardedBuffer& packed) {
    const ConvertDesc desc{.w = w(), .to = to(), .k = k};
    TargetInfo target;
    target.vbmi = way().vbmi;
    const auto plan = way().isa == Isa::kAvx2 ? PlanConvert2(desc, target) : PlanConvert512(desc, target);
    EXPECT_TRUE(plan.ok());
    Emitter e;
    CodeArena arena;
    EXPECT_TRUE(EmitConvert(desc, *plan, e).ok());
    auto kernel = e.Finish("convert", arena);
    EXPECT_TRUE(kernel.ok() && arena.Seal().ok());
    GuardedBuffer out(static_cast<size_t>(panels * desc.panel_out_bytes()), 0xA5);
    ConvertArgs args{.w = packed.data(), .out = out.data()};
    kernel->fn(&args, 1, panels, 0, 1);  // in two parts
    kernel->fn(&args, 0, 1, 0, 1);
    std::vector<float> values;
    for (int64_t p = 0; p < panels; ++p) {
      const uint8_t* panel = out.data() + p * desc.panel_out_bytes();
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t c = 0; c < kPanelColumns; ++c) {
          uint32_t bits = 0;
          if (to() == DType::kF32) {
            std::memcpy(&bits, panel + (i * kPanelColumns + c) * 4, 4);
          } else {
            std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, panel + (i / 2 * kPanelColumns + c) * 4 + i % 2 * 2, 2);
          }
          values.push_back(std::bit_cast<float>(bits));
        }
      }
      for (int64_t c = 0; c < kPanelColumns && to() == DType::kBF16 && k % 2 != 0; ++c) {
        uint16_t partner = 1;
        std::memcpy(&partner, panel + (k / 2 * kPanelColumns + c) * 4 + 2, 2);
        EXPECT_EQ(partner, 0) << "beside the last k of column " << c;
      }
    }
    return values;
  }

  // Every code stands in every column at every place of a unit: code (k / 32 + k + column) of `codes`. Scales and zero
  // points differ from column to column.
  static void ExpectExact(int64_t k) {
    const int64_t panels = 3;
    const int codes = w().type == DType::kI4 ? 16 : 256;
    const ScaledBlocks layout = ScaledBlocksOf(w(), k);
    const auto blocks = static_cast<size_t>(layout.count(k));
    GuardedBuffer packed(static_cast<size_t>(panels * PanelBytes(w(), k)));
    std::vector<std::vector<uint8_t>> code(96), zero(96);
    std::vector<std::vector<float>> scale(96);
    for (size_t n = 0; n < 96; ++n) {
      for (int64_t i = 0; i < k; ++i) {
        code[n].push_back(static_cast<uint8_t>((i / 32 + i + 7 * static_cast<int64_t>(n)) % codes));
      }
      for (size_t b = 0; b < blocks; ++b) {
        scale[n].push_back(static_cast<float>(1 + (n + 5 * b) % 31) * 0x1.8p-7f);
        zero[n].push_back(static_cast<uint8_t>((n + b) % 17));
      }
    }
    for (int64_t p = 0; p < panels; ++p) {
      std::vector<ScaledColumn> columns;
      for (size_t c = 0; c < 32; ++c) {
        const size_t n = static_cast<size_t>(p) * 32 + c;
        columns.push_back({code[n].data(), scale[n].data(), zero[n].data()});
      }
      ASSERT_TRUE(PackScaledPanel(w(), k, columns, packed.as<std::byte>() + p * PanelBytes(w(), k)).ok());
    }
    const std::vector<float> got = Run(k, panels, packed);
    for (size_t n = 0; n < 96; ++n) {
      for (int64_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(i);
        const size_t b = at / static_cast<size_t>(layout.depth);
        const int z = w().scales.zeros ? zero[n][b] : 8;
        float want = CodeValue(w().type, code[n][at], z);
        if (to() == DType::kF32) want *= scale[n][b];
        const float value = got[(n / 32 * static_cast<size_t>(k) + at) * 32 + n % 32];
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(value)) << "code " << int{code[n][at]};
          continue;
        }
        ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(want))
            << "k " << k << " column " << n << " element " << i << " code " << int{code[n][at]} << " zero " << z << ": "
            << value << " for " << want;
      }
    }
  }
};

std::string ParamName(const ::testing::TestParamInfo<std::tuple<Way, Encoding, DType>>& info) {
  const auto& [way, w, to] = info.param;
  return std::string(Name(way.isa)) + (way.vbmi ? "_vbmi_" : "_") + TestName(w) + "_" + std::string(Name(to));
}

INSTANTIATE_TEST_SUITE_P(
    All, Convert,
    ::testing::Combine(::testing::Values(Way{Isa::kAvx512, true}, Way{Isa::kAvx512, false}, Way{Isa::kAvx2, false}),
                       ::testing::ValuesIn(ScaledEncodings()), ::testing::Values(DType::kBF16, DType::kF32)),
    ParamName);

TEST_P(Convert, EveryCodeAtEveryPlace) { ExpectExact(w().type == DType::kI4 ? 17 * 32 * 4 : 256 * 4); }

TEST_P(Convert, AnyDepth) {
  for (int64_t k = 1; k <= 131; ++k) {
    if (w().type == DType::kI4 && k % 32 != 0) continue;
    ExpectExact(k);
    if (HasFatalFailure()) return;
  }
}

TEST(ConvertRandom, F32IsUnpackColumnForEveryEncoding) {
  for (const bool wide : {true, false}) {
    if (HostIsa() < (wide ? Isa::kAvx512 : Isa::kAvx2)) GTEST_SKIP() << "the host has no avx512";
    for (const DType w : WeightEncodings()) {
      const ConvertDesc desc{.w = w, .to = DType::kF32, .k = 512};
      const auto plan = wide ? PlanConvert512(desc, {}) : PlanConvert2(desc, {});
      ASSERT_TRUE(plan.ok());
      Emitter e;
      CodeArena arena;
      ASSERT_TRUE(EmitConvert(desc, *plan, e).ok());
      auto kernel = e.Finish("convert", arena);
      ASSERT_TRUE(kernel.ok() && arena.Seal().ok());
      GuardedBuffer packed(static_cast<size_t>(PanelBytes(w, 512))), out(512 * 32 * 4);
      RandomPanels(w, 32, 512, 3, packed.as<std::byte>());
      ConvertArgs args{.w = packed.data(), .out = out.data()};
      kernel->fn(&args, 0, 1, 0, 1);
      std::vector<float> column(512);
      for (int64_t n = 0; n < 32; ++n) {
        UnpackColumn(w, 512, packed.as<std::byte>(), n, column.data());
        for (size_t i = 0; i < 512; ++i) {
          ASSERT_EQ(out.as<float>()[i * 32 + static_cast<size_t>(n)], column[i]) << Name(w) << " wide " << wide;
        }
      }
    }
  }
}

TEST(ConvertPlan, RefusesWithTheReason) {
  const auto reason = [](const absl::StatusOr<ConvertPlan>& plan) {
    return plan.ok() ? std::string("accepted") : std::string(Message(plan.status()));
  };
  EXPECT_EQ(reason(PlanConvert512({.w = DType::kQ4_0, .to = DType::kBF16, .k = 32}, {})),
            "q4_0 weights to bf16; f8e4m3, i8 and i4 are exact in it");
  EXPECT_EQ(reason(PlanConvert2({.w = Encoding::Fp8Blocks(), .to = DType::kBF16, .k = 32}, {})),
            "pairs of bf16, which avx2 kernels do not multiply");
  EXPECT_EQ(reason(PlanConvert512({.w = DType::kF32, .to = DType::kF16, .k = 32}, {})),
            "conversion is to f32 or bf16, not f16");
  EXPECT_EQ(reason(PlanConvert512({.w = DType::kQ4_0, .to = DType::kF32, .k = 33}, {})),
            "k = 33 is no multiple of 32, the block of q4_0");
  EXPECT_EQ(reason(PlanConvert2({.w = DType::kI32, .to = DType::kF32, .k = 32}, {})),
            "i32 weights have no packed layout");
}

}  // namespace
}  // namespace xjit::testing
