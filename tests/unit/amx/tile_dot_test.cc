// Each TDP instruction against plain loops over its documented arithmetic.
#include <cmath>
#include <random>

#include "codegen/cpu.h"
#include "tests/unit/amx/amx_fixture.h"

namespace xjit {
namespace {

enum class Dot : uint8_t { kBf16, kFp16, kSS, kSU, kUS, kUU };

struct alignas(64) Frame {
  TileConfig config;
  uint32_t c[16][16] = {}, a[16][16] = {}, b[16][16] = {}, out[16][16] = {};
};

// tmm0 += tmm1 * tmm2 on a Frame.
Program DotProgram(Dot dot) {
  return Program([dot](Emitter& e) {
    const Xbyak::Tmm c(0), a(1), b(2);
    e.ldtilecfg(e.ptr[e.rdi]);
    e.mov(e.rax, 64);
    e.tileloadd(c, e.ptr[e.rdi + e.rax + offsetof(Frame, c)]);
    e.tileloaddt1(a, e.ptr[e.rdi + e.rax + offsetof(Frame, a)]);
    e.tileloadd(b, e.ptr[e.rdi + e.rax + offsetof(Frame, b)]);
    switch (dot) {
      case Dot::kBf16:
        e.tdpbf16ps(c, a, b);
        break;
      case Dot::kFp16:
        e.tdpfp16ps(c, a, b);
        break;
      case Dot::kSS:
        e.tdpbssd(c, a, b);
        break;
      case Dot::kSU:
        e.tdpbsud(c, a, b);
        break;
      case Dot::kUS:
        e.tdpbusd(c, a, b);
        break;
      case Dot::kUU:
        e.tdpbuud(c, a, b);
        break;
    }
    e.tilestored(e.ptr[e.rdi + e.rax + offsetof(Frame, out)], c);
  });
}

float FromBits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
uint32_t ToBits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
// Denormal inputs count as zero, denormal results become zero.
float Flush(float f) { return std::fpclassify(f) == FP_SUBNORMAL ? std::copysign(0.0f, f) : f; }

float Bf16(uint32_t half) { return FromBits(half << 16); }
float Fp16(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31), mantissa = static_cast<int>(half & 1023);
  float f = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
            : exponent == 31 ? (mantissa != 0 ? std::nanf("") : INFINITY)
                             : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (half & 0x8000) != 0 ? -f : f;
}

uint32_t FloatReference(const Frame& f, Dot dot, int m, int n, int k) {
  const auto widen = [dot](uint32_t half) { return dot == Dot::kBf16 ? Flush(Bf16(half)) : Fp16(half); };
  float sum[2] = {0, 0};
  for (int i = 0; i < k; ++i) {
    for (int odd = 0; odd < 2; ++odd) {
      const float a = widen(f.a[m][i] >> 16 * odd & 0xffff), b = widen(f.b[i][n] >> 16 * odd & 0xffff);
      sum[odd] = Flush(std::fma(a, b, sum[odd]));
    }
  }
  return ToBits(Flush(Flush(FromBits(f.c[m][n])) + Flush(sum[0] + sum[1])));
}

uint32_t IntReference(const Frame& f, Dot dot, int m, int n, int k) {
  const bool a_signed = dot == Dot::kSS || dot == Dot::kSU, b_signed = dot == Dot::kSS || dot == Dot::kUS;
  const auto byte = [](uint32_t dword, int i, bool is_signed) {
    const auto u = static_cast<uint8_t>(dword >> 8 * i);
    return is_signed ? int64_t{static_cast<int8_t>(u)} : int64_t{u};
  };
  int64_t sum = static_cast<int32_t>(f.c[m][n]);
  for (int i = 0; i < k; ++i) {
    for (int j = 0; j < 4; ++j) sum += byte(f.a[m][i], j, a_signed) * byte(f.b[i][n], j, b_signed);
  }
  return static_cast<uint32_t>(sum);
}

bool SameFloat(uint32_t x, uint32_t y) {
  return x == y || (std::isnan(FromBits(x)) && std::isnan(FromBits(y)));  // payloads are not documented
}

enum class Values : uint8_t { kUnit, kAny, kTiny, kHuge, kSpecial };
constexpr Values kAllValues[] = {Values::kUnit, Values::kAny, Values::kTiny, Values::kHuge, Values::kSpecial};

uint32_t HalfOf(Dot dot, Values values, std::mt19937& random) {
  const uint32_t bits = random() & 0xffff;
  const int mantissa_bits = dot == Dot::kBf16 ? 7 : 10;
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1), sign = bits & 0x8000;
  const auto with = [&](int exponent) { return sign | static_cast<uint32_t>(exponent) << mantissa_bits | mantissa; };
  const int bias = dot == Dot::kBf16 ? 127 : 15;
  switch (values) {
    case Values::kUnit:
      return with(bias - 1 - static_cast<int>(random() % 4));
    case Values::kAny:
      return random() % 8 == 0 ? bits : with(bias);
    case Values::kTiny:  // products about the smallest normal number; denormal inputs
      return dot == Dot::kBf16 ? with(random() % 8 == 0 ? 0 : 62 + static_cast<int>(random() % 4))
                               : with(static_cast<int>(random() % 2));
    case Values::kHuge:
      return dot == Dot::kBf16 ? with(188 + static_cast<int>(random() % 6)) : with(30);
    case Values::kSpecial: {
      if (random() % 64 != 0) return with(bias);
      const uint32_t infinity = dot == Dot::kBf16 ? 0x7f80 : 0x7c00;
      const uint32_t special[] = {infinity, 0, infinity + 1, 1, infinity | (1u << (mantissa_bits - 1))};
      return sign | special[random() % 5];
    }
  }
  return 0;
}

// Bytes beyond the shapes too: they must not matter.
void FillFloat(Frame& f, Dot dot, Values values, std::mt19937& random) {
  const auto pair = [&] { return HalfOf(dot, values, random) | HalfOf(dot, values, random) << 16; };
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      f.a[r][c] = pair();
      f.b[r][c] = pair();
      f.c[r][c] = values == Values::kAny ? static_cast<uint32_t>(random())
                                         : ToBits(Bf16(HalfOf(Dot::kBf16, values, random)) * 1.000123f);
      f.out[r][c] = 0xabababab;
    }
  }
}

void FillBytes(Frame& f, std::mt19937& random) {
  const bool extremes = random() % 2 == 0;
  const auto dword = [&] {
    if (!extremes) return static_cast<uint32_t>(random());
    constexpr uint8_t kBytes[] = {0, 127, 128, 255, 1};
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word = word << 8 | kBytes[random() % 5];
    return word;
  };
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      f.a[r][c] = dword();
      f.b[r][c] = dword();
      f.c[r][c] = extremes ? 0x7fffff00u : static_cast<uint32_t>(random());  // sums wrap around
      f.out[r][c] = 0xabababab;
    }
  }
}

void Shape(Frame& f, int m, int n, int k) {
  f.config = TileConfig();
  f.config.Set(0, m, 4 * n).Set(1, m, 4 * k).Set(2, k, 4 * n);
}

void Check(const Frame& f, Dot dot, int m, int n, int k) {
  const bool is_float = dot == Dot::kBf16 || dot == Dot::kFp16;
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) {
      if (r >= m || c >= n) {
        ASSERT_EQ(f.out[r][c], 0xabababab) << "not of the tile: " << r << " " << c;
      } else if (is_float) {
        const uint32_t expected = FloatReference(f, dot, r, c, k);
        ASSERT_TRUE(SameFloat(f.out[r][c], expected))
            << r << " " << c << ": " << FromBits(f.out[r][c]) << ", expected " << FromBits(expected) << std::hex << " "
            << f.out[r][c] << " " << expected;
      } else {
        ASSERT_EQ(f.out[r][c], IntReference(f, dot, r, c, k)) << r << " " << c;
      }
    }
  }
}

class TileDot : public ::testing::TestWithParam<Dot> {
 protected:
  void SetUp() override {
    XJIT_NEED_TILES();
    if (dot() == Dot::kFp16 && HostIsa() == Isa::kAmx && !HasAmxFp16(HostFeatures())) {
      GTEST_SKIP() << "this machine has no AMX-FP16";
    }
  }
  Dot dot() const { return GetParam(); }
  bool is_float() const { return dot() == Dot::kBf16 || dot() == Dot::kFp16; }
};

TEST_P(TileDot, FullTiles) {
  const Program program = DotProgram(dot());
  std::mt19937 random(1);
  for (int round = 0; round < (is_float() ? 1 : 4); ++round) {
    for (const Values values : kAllValues) {
      Frame f;
      Shape(f, 16, 16, 16);
      is_float() ? FillFloat(f, dot(), values, random) : FillBytes(f, random);
      program(&f);
      SCOPED_TRACE(static_cast<int>(values));
      Check(f, dot(), 16, 16, 16);
    }
  }
}

TEST_P(TileDot, EveryShape) {
  const Program program = DotProgram(dot());
  std::mt19937 random(2);
  for (int m = 1; m <= 16; ++m) {
    for (int n = 1; n <= 16; ++n) {
      const int k = 1 + static_cast<int>(random() % 16);
      Frame f;
      Shape(f, m, n, k);
      is_float() ? FillFloat(f, dot(), kAllValues[random() % 5], random) : FillBytes(f, random);
      program(&f);
      SCOPED_TRACE(fmt::format("m {} n {} k {}", m, n, k));
      Check(f, dot(), m, n, k);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TileDot, MxcsrIsNeitherReadNorWritten) {
  const Program program = DotProgram(dot());
  std::mt19937 random(3);
  uint32_t before;
  asm volatile("stmxcsr %0" : "=m"(before));
  for (const uint32_t mxcsr : {0x1f80u, 0x3f80u, 0x5f80u, 0x7f80u, 0x9fc0u, 0xffc0u}) {  // rounding modes, FTZ, DAZ
    Frame f;
    Shape(f, 16, 16, 16);
    is_float() ? FillFloat(f, dot(), Values::kTiny, random) : FillBytes(f, random);
    asm volatile("ldmxcsr %0" : : "m"(mxcsr));
    program(&f);
    uint32_t after;
    asm volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(after) : "m"(before));
    EXPECT_EQ(after, mxcsr);
    Check(f, dot(), 16, 16, 16);
  }
}

std::string DotName(const ::testing::TestParamInfo<Dot>& info) {
  constexpr const char* kNames[] = {"bf16", "fp16", "ss", "su", "us", "uu"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, TileDot,
                         ::testing::Values(Dot::kBf16, Dot::kFp16, Dot::kSS, Dot::kSU, Dot::kUS, Dot::kUU), DotName);

// Worked by hand, so that the reference above is not the only witness.
TEST(TileDotBf16, NamedCases) {
  XJIT_NEED_TILES();
  const Program program = DotProgram(Dot::kBf16);
  const auto one = [&](float c, uint32_t a_even, uint32_t b_even, uint32_t a_odd, uint32_t b_odd) {
    Frame f;
    Shape(f, 1, 1, 1);
    f.c[0][0] = ToBits(c);
    f.a[0][0] = a_even | a_odd << 16;
    f.b[0][0] = b_even | b_odd << 16;
    program(&f);
    return f.out[0][0];
  };
  EXPECT_EQ(one(1, 0x4000, 0x4040, 0x3f80, 0xc000), ToBits(1 + 2 * 3 - 1 * 2));
  EXPECT_EQ(one(0, 0x0001, 0x7f00, 0, 0), 0u);           // a denormal input is zero
  EXPECT_EQ(one(FromBits(0x007fffff), 0, 0, 0, 0), 0u);  // a denormal sum too
  EXPECT_EQ(one(FromBits(0x00800000), 0, 0, 0, 0), 0x00800000u);
  EXPECT_EQ(one(0, 0x0080, 0x3f00, 0, 0), 0u);         // 2^-126 / 2 is flushed
  EXPECT_EQ(one(1, 0x3380, 0x3f80, 0, 0), ToBits(1));  // 1 + 2^-24: a tie goes to even
  EXPECT_EQ(one(FromBits(0x3f800001), 0x3380, 0x3f80, 0, 0), 0x3f800002u);
  EXPECT_EQ(one(0, 0x7f00, 0x7f00, 0, 0), 0x7f800000u);  // overflow
  EXPECT_TRUE(std::isnan(FromBits(one(0, 0x7f80, 0x0000, 0, 0))));
  EXPECT_TRUE(std::isnan(FromBits(one(0, 0x7f80, 0x3f80, 0xff80, 0x3f80))));
  // The pair is summed before the destination joins: 2^30 + 1 would lose the 1.
  EXPECT_EQ(one(-1073741824.0f, 0x4e80, 0x3f80, 0x3f80, 0x3f80), ToBits(0));
}

TEST(TileDotFp16, DenormalInputsCount) {
  XJIT_NEED_TILES();
  if (HostIsa() == Isa::kAmx && !HasAmxFp16(HostFeatures())) GTEST_SKIP() << "this machine has no AMX-FP16";
  const Program program = DotProgram(Dot::kFp16);
  Frame f;
  Shape(f, 1, 1, 1);
  f.a[0][0] = 0x0001;  // 2^-24
  f.b[0][0] = 0x3c00;  // 1
  program(&f);
  EXPECT_EQ(FromBits(f.out[0][0]), std::ldexp(1.0f, -24));
}

}  // namespace
}  // namespace xjit
