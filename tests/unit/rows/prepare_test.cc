// rows.prepare against its reference: conversions and quantisation bit for bit, the norm within its computed bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "codegen/rows/rows_ref.h"
#include "ir/support/act_layout.h"
#include "ir/support/q8_layout.h"
#include "ir/support/ref/norm.h"
#include "tests/unit/rows/rows_testing.h"

namespace xjit {
namespace {

using testing::EmittedKernel;
using testing::FillRows;
using testing::GuardedBuffer;
using testing::RandomFloats;
using testing::TargetOf;

constexpr uint8_t kUntouched = 0xa5;
constexpr DType kAllOuts[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kQ8Act, DType::kI8Act};

EmittedKernel EmitFor(const PrepareDesc& desc, Isa isa) {
  const TargetInfo target = TargetOf(isa);
  return isa == Isa::kAvx2 ? EmittedKernel(desc, PlanPrepare2(desc, target), &EmitPrepare2)
                           : EmittedKernel(desc, PlanPrepare512(desc, target), &EmitPrepare512);
}

int64_t WrittenBytes(DType out, int64_t cols) {
  if (out == DType::kF32) return cols * 4;
  if (out == DType::kBF16 || out == DType::kF16) return (cols + 1) / 2 * 4;
  if (out == DType::kI8Act) return I8Layout{cols}.neg_sum_offset() + 4;
  return cols + 20 * (cols / kQ8Block);  // a record without its padding
}

PrepareDesc Describe(int64_t cols, DType out, bool norm) {
  PrepareDesc desc{.cols = cols, .norm = norm, .eps = 1e-5f, .out = out};
  desc.ldx_bytes = cols * 4 + 12;
  desc.ldo_bytes = (out == DType::kQ8Act   ? Q8Layout{cols}.row_bytes()
                    : out == DType::kI8Act ? I8Layout{cols}.row_bytes()
                                           : WrittenBytes(out, cols)) +
                   8;
  return desc;
}

// Runs `rows` rows between guard pages, in two parts, and returns the output rows.
std::vector<uint8_t> RunRows(const EmittedKernel& kernel, const PrepareDesc& desc, const std::vector<float>& x,
                             const std::vector<float>& gain, int64_t rows, GuardedBuffer::Edge edge,
                             const std::vector<int32_t>& order = {}) {
  const int64_t written = WrittenBytes(desc.out, desc.cols);
  GuardedBuffer in(static_cast<size_t>((rows - 1) * desc.ldx_bytes + desc.cols * 4), 0xff, edge);
  GuardedBuffer gains(static_cast<size_t>(desc.cols * 4), 0, edge);
  GuardedBuffer out(static_cast<size_t>((rows - 1) * desc.ldo_bytes + written), kUntouched, edge);
  FillRows(in, x, rows, desc.cols, desc.ldx_bytes);
  if (desc.norm) FillRows(gains, gain, 1, desc.cols, 0);
  GuardedBuffer orders(order.size() * 4 + 4, 0, edge);
  if (!order.empty())
    std::memcpy(orders.data() + (edge == GuardedBuffer::Edge::kEnd ? 4 : 0), order.data(), order.size() * 4);
  const PrepareArgs args{.x = in.as<float>(),
                         .gain = desc.norm ? gains.as<float>() : nullptr,
                         .out = out.data(),
                         .order = orders.as<int32_t>() + (edge == GuardedBuffer::Edge::kEnd ? 1 : 0)};
  kernel.Run(&args, 0, 0);  // an empty part
  kernel.Run(&args, 0, 1);
  kernel.Run(&args, 1, rows);
  for (int64_t m = 0; m + 1 < rows; ++m) {
    for (int64_t i = written; i < desc.ldo_bytes; ++i) {
      EXPECT_EQ(out.data()[m * desc.ldo_bytes + i], kUntouched) << "byte " << i << " behind row " << m;
    }
  }
  std::vector<uint8_t> result;
  for (int64_t m = 0; m < rows; ++m) {
    result.insert(result.end(), out.data() + m * desc.ldo_bytes, out.data() + m * desc.ldo_bytes + written);
  }
  return result;
}

std::vector<uint8_t> Reference(PrepareDesc desc, const std::vector<float>& x, const std::vector<float>& gain,
                               int64_t rows, const int32_t* order = nullptr) {
  const int64_t written = WrittenBytes(desc.out, desc.cols);
  desc.ldx_bytes = desc.cols * 4;
  desc.ldo_bytes = written;
  std::vector<uint8_t> out(static_cast<size_t>(rows * written));
  const PrepareArgs args{.x = x.data(), .gain = gain.data(), .out = out.data(), .order = order};
  PrepareRef(desc, args, 0, rows);
  return out;
}

class Prepare : public ::testing::TestWithParam<std::tuple<Isa, int64_t>> {
 protected:
  void SetUp() override {
    if (isa() > HostIsa()) GTEST_SKIP() << "this machine has no " << Name(isa());
    x_ = RandomFloats(kRows * cols(), 1);
    gain_ = RandomFloats(cols(), 2, 1);
  }
  static constexpr int64_t kRows = 3;
  Isa isa() const { return std::get<0>(GetParam()); }
  int64_t cols() const { return std::get<1>(GetParam()); }
  std::vector<uint8_t> RunFor(const PrepareDesc& desc, GuardedBuffer::Edge edge = GuardedBuffer::Edge::kEnd) {
    const EmittedKernel kernel = EmitFor(desc, isa());
    return kernel.ok() ? RunRows(kernel, desc, x_, gain_, kRows, edge) : std::vector<uint8_t>();
  }
  std::vector<float> x_, gain_;
};

TEST_P(Prepare, ConvertsExactly) {
  for (DType out : kAllOuts) {
    if (out == DType::kQ8Act && cols() % kQ8Block != 0) continue;
    const PrepareDesc desc = Describe(cols(), out, false);
    const std::vector<uint8_t> expected = Reference(desc, x_, gain_, kRows);
    EXPECT_EQ(RunFor(desc), expected) << Name(out);
    EXPECT_EQ(RunFor(desc, GuardedBuffer::Edge::kBegin), expected) << Name(out);
  }
}

TEST_P(Prepare, NormalisesWithinBound) {
  const PrepareDesc desc = Describe(cols(), DType::kF32, true);
  const std::vector<uint8_t> bytes = RunFor(desc);
  ASSERT_EQ(bytes.size(), x_.size() * 4);
  std::vector<float> y(x_.size());
  std::memcpy(y.data(), bytes.data(), bytes.size());
  const double bound = ref::RmsNormBound(cols(), 8 * (isa() == Isa::kAvx2 ? 8 : 16));
  std::vector<float> expected(static_cast<size_t>(cols()));
  for (int64_t m = 0; m < kRows; ++m) {
    ref::RmsNorm(x_.data() + m * cols(), gain_.data(), cols(), desc.eps, expected.data());
    for (int64_t i = 0; i < cols(); ++i) {
      const float want = expected[static_cast<size_t>(i)], got = y[static_cast<size_t>(m * cols() + i)];
      ASSERT_LE(std::fabs(got - want), bound * std::fabs(want) + 1e-37) << "row " << m << " column " << i;
    }
  }
}

// What a norm feeds into a conversion is the f32 that it gives by itself.
TEST_P(Prepare, ConvertsWhatItNormalised) {
  const std::vector<uint8_t> f32 = RunFor(Describe(cols(), DType::kF32, true));
  ASSERT_EQ(f32.size(), x_.size() * 4);
  std::vector<float> normalised(x_.size());
  std::memcpy(normalised.data(), f32.data(), f32.size());
  for (DType out : {DType::kBF16, DType::kF16, DType::kQ8Act, DType::kI8Act}) {
    if (out == DType::kQ8Act && cols() % kQ8Block != 0) continue;
    EXPECT_EQ(RunFor(Describe(cols(), out, true)), Reference(Describe(cols(), out, false), normalised, gain_, kRows))
        << Name(out);
  }
}

// Rows of any part of a strip, and over its end; what belongs to other rows stays.
TEST_P(Prepare, WritesStrips) {
  constexpr int64_t kCount = 37;
  const std::vector<float> x = RandomFloats(kCount * cols(), 3);
  for (DType out : {DType::kBF16, DType::kF16, DType::kI8Act}) {
    PrepareDesc desc = Describe(cols(), out, false);
    desc.ldo_bytes = 0;
    desc.strips = true;
    const EmittedKernel kernel = EmitFor(desc, isa());
    ASSERT_TRUE(kernel.ok());
    const auto bytes = static_cast<size_t>(OutputStrips(desc).bytes(kCount));
    for (const auto& [m0, m1] :
         {std::pair<int64_t, int64_t>{0, kCount}, {3, 5}, {15, 17}, {16, 32}, {20, 37}, {9, 9}}) {
      GuardedBuffer in(static_cast<size_t>((kCount - 1) * desc.ldx_bytes + cols() * 4), 0xff,
                       GuardedBuffer::Edge::kEnd);
      GuardedBuffer strips(bytes, kUntouched, GuardedBuffer::Edge::kEnd);
      FillRows(in, x, kCount, cols(), desc.ldx_bytes);
      const PrepareArgs args{.x = in.as<float>(), .out = strips.data()};
      kernel.Run(&args, m0, m1);
      std::vector<uint8_t> expected(bytes, kUntouched);
      const PrepareArgs reference{.x = in.as<float>(), .out = expected.data()};
      PrepareRef(desc, reference, m0, m1);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), strips.data()))
          << Name(out) << " rows " << m0 << " to " << m1;
    }
  }
}

// The zeros behind a row are zeros whatever its norm is.
TEST_P(Prepare, PadsRowsThatAreNoNumbers) {
  x_[0] = std::numeric_limits<float>::quiet_NaN();
  x_[static_cast<size_t>(cols())] = std::numeric_limits<float>::infinity();
  for (DType out : {DType::kBF16, DType::kF16, DType::kI8Act}) {
    PrepareDesc desc = Describe(cols(), out, true);
    desc.strips = true;
    const StripLayout layout = OutputStrips(desc);
    std::vector<uint8_t> strips(static_cast<size_t>(layout.bytes(kRows)), kUntouched);
    const PrepareArgs args{.x = x_.data(), .gain = gain_.data(), .out = strips.data()};
    desc.ldx_bytes = cols() * 4;
    EmitFor(desc, isa()).Run(&args, 0, kRows);
    const int64_t used = out == DType::kI8Act ? cols() : 2 * cols();
    for (int64_t m = 0; m < kRows; ++m) {
      for (int64_t b = used; b < layout.chunks() * kStripChunk; ++b) {
        ASSERT_EQ(strips[static_cast<size_t>(layout.offset(m, b))], 0) << "row " << m << " byte " << b;
      }
    }
  }
}

// Gathered rows are what the same kernel makes of rows whose columns were put in that order before.
TEST_P(Prepare, GathersColumns) {
  std::vector<int32_t> order(static_cast<size_t>(cols()));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  if (cols() > 2) order[0] = order[1];  // a table, not necessarily a permutation
  const auto reordered = [&](const std::vector<float>& values) {
    std::vector<float> result(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / order.size() * order.size();
      result[i] = values[row + static_cast<size_t>(order[i - row])];
    }
    return result;
  };
  for (DType out : kAllOuts) {
    for (bool norm : {false, true}) {
      if (out == DType::kQ8Act && cols() % kQ8Block != 0) continue;
      PrepareDesc desc = Describe(cols(), out, norm);
      std::vector<float> x = reordered(x_);
      if (norm) {  // the mean is of the columns as they come
        const std::vector<uint8_t> f32 = RunFor(Describe(cols(), DType::kF32, true));
        std::memcpy(x.data(), f32.data(), f32.size());
        x = reordered(x);
      }
      const std::vector<uint8_t> expected = Reference(Describe(cols(), out, false), x, {}, kRows);
      desc.gather = true;
      for (const auto edge : {GuardedBuffer::Edge::kBegin, GuardedBuffer::Edge::kEnd}) {
        const EmittedKernel kernel = EmitFor(desc, isa());
        ASSERT_TRUE(kernel.ok());
        EXPECT_EQ(RunRows(kernel, desc, x_, gain_, kRows, edge, order), expected) << Name(out) << " norm " << norm;
      }
      if (norm) continue;
      EXPECT_EQ(Reference(desc, x_, {}, kRows, order.data()), expected) << Name(out) << ": the reference itself";
    }
  }
}

TEST_P(Prepare, Avx2RowHasNoAvx512) {
  if (isa() != Isa::kAvx2) return;
  for (DType out : kAllOuts) {
    for (int forms = 0; forms < 8; ++forms) {
      if (out == DType::kQ8Act && cols() % kQ8Block != 0) continue;
      PrepareDesc desc = Describe(cols(), out, (forms & 1) != 0);
      desc.gather = (forms & 2) != 0;
      desc.strips = (forms & 4) != 0 && HasStrips(out);
      EXPECT_EQ(EmitFor(desc, Isa::kAvx2).EvexInstructions(), 0) << PrepareName(desc, "avx2");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, Prepare, ::testing::Combine(::testing::ValuesIn(testing::kRowIsas), ::testing::ValuesIn(testing::kSizes)),
    [](const auto& info) {
      return std::string(Name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
    });

class PrepareIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (GetParam() > HostIsa()) GTEST_SKIP() << "this machine has no " << Name(GetParam());
  }
  // One row of q8act or bf16 from `x`, and the reference's.
  void ExpectExact(DType out, const std::vector<float>& x) {
    const PrepareDesc desc = Describe(static_cast<int64_t>(x.size()), out, false);
    const EmittedKernel kernel = EmitFor(desc, GetParam());
    ASSERT_TRUE(kernel.ok());
    std::vector<float> twice = x;
    twice.insert(twice.end(), x.begin(), x.end());
    const std::vector<uint8_t> got = RunRows(kernel, desc, twice, {}, 2, GuardedBuffer::Edge::kEnd);
    const std::vector<uint8_t> want = Reference(desc, twice, {}, 2);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i]) << Name(out) << ": byte " << i << " of two rows of " << x.size() << " values";
    }
  }
};

TEST_P(PrepareIsa, QuantisesZeroTinyAndHugeBlocks) {
  std::vector<float> x(10 * 32, 0.0f);  // block 0 is zeros
  for (int i = 0; i < 32; ++i) {
    x[32 + i] = static_cast<float>(i - 16) * 1e-41f;                                    // denormal
    x[64 + i] = static_cast<float>(i - 15) * (std::numeric_limits<float>::max() / 16);  // to the largest f32
    x[96 + i] = static_cast<float>(i - 16) * 1e-38f;                                    // 127 / max overflows
    x[128 + i] = i == 7 ? -5.0f : -0.0f;
    x[160 + i] = static_cast<float>(i) + 0.5f;
    x[9 * 32 + i] = i == 31 ? 1.0f : 0.0f;
  }
  ExpectExact(DType::kQ8Act, x);
}

// A row has one scale: rows of zeros, of denormals whose scale is one or is 0, of the largest numbers.
TEST_P(PrepareIsa, QuantisesZeroTinyAndHugeRows) {
  for (const float size : {0.0f, -0.0f, 1e-45f, 1e-43f, 1e-41f, 1e-38f, 1.0f, std::numeric_limits<float>::max() / 64}) {
    for (const int cols : {1, 17, 64, 100}) {
      std::vector<float> x(static_cast<size_t>(cols));
      for (int i = 0; i < cols; ++i) x[static_cast<size_t>(i)] = static_cast<float>((i * 37) % 129 - 64) * size;
      ExpectExact(DType::kI8Act, x);
    }
  }
}

// Quotients at ties and their neighbours, for scales of every size.
TEST_P(PrepareIsa, DividesExactly) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 400; ++trial) {
    const auto exponent = static_cast<uint32_t>(trial < 20   ? 1 + trial
                                                : trial < 40 ? 210 + trial
                                                             : 20 + random() % 200);
    const float most = std::bit_cast<float>(exponent << 23 | static_cast<uint32_t>(random() & 0x7fffff));
    const float scale = most / 127;
    std::vector<float> x(1024);
    for (float& value : x) {
      const float tie = static_cast<float>(random() % 127) + 0.5f;
      const auto bits = std::bit_cast<uint32_t>(tie * scale) + static_cast<uint32_t>(random() % 5) - 2;
      value = std::min(std::bit_cast<float>(bits), most) * (random() % 2 == 0 ? 1.0f : -1.0f);
    }
    x[0] = most;
    ASSERT_NO_FATAL_FAILURE(ExpectExact(DType::kI8Act, x)) << "scale " << scale;
  }
}

// No number in a row or block: neither is its scale, wherever it stands and whatever its bits are; others are as ever.
TEST_P(PrepareIsa, NansAndInfinitiesReachTheScale) {
  const float inf = std::numeric_limits<float>::infinity();
  const float bad[] = {inf, -inf, std::bit_cast<float>(0x7fc00000u), std::bit_cast<float>(0xffc00001u),
                       std::bit_cast<float>(0xffffffffu)};
  for (const float value : bad) {
    for (const size_t at : {0, 15, 16, 31, 32, 63, 64, 200, 319}) {
      SCOPED_TRACE(::testing::Message() << "value " << value << " at " << at);
      std::vector<float> x = RandomFloats(320, 5);
      x[at] = value;
      ExpectExact(DType::kQ8Act, x);
      ExpectExact(DType::kI8Act, x);
      x.resize(at + 1);  // the last of a partial step
      ExpectExact(DType::kI8Act, x);
      const std::vector<uint8_t> row =
          Reference(Describe(static_cast<int64_t>(at) + 1, DType::kI8Act, false), x, {}, 1);
      float scale = 0;
      std::memcpy(&scale, row.data() + I8Layout{static_cast<int64_t>(at) + 1}.scale_offset(), 4);
      EXPECT_FALSE(std::isfinite(scale));
    }
  }
}

// max 127 makes the scale 1, so x itself is rounded: ties go to the even neighbour.
TEST_P(PrepareIsa, RoundsTiesToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127;
  for (int i = 1; i < 32; ++i) x[i] = static_cast<float>(i - 16) + 0.5f;
  ExpectExact(DType::kQ8Act, x);
  ExpectExact(DType::kI8Act, x);
  const PrepareDesc desc = Describe(32, DType::kQ8Act, false);
  const std::vector<uint8_t> row = Reference(desc, x, {}, 1);
  EXPECT_EQ(static_cast<int8_t>(row[1]), -14);  // -14.5
  EXPECT_EQ(static_cast<int8_t>(row[2]), -14);  // -13.5
  EXPECT_EQ(static_cast<int8_t>(row[16]), 0);   // 0.5
  EXPECT_EQ(static_cast<int8_t>(row[17]), 2);   // 1.5
}

TEST_P(PrepareIsa, Bf16KeepsTiesInfinitiesAndNans) {
  const float inf = std::numeric_limits<float>::infinity();
  ExpectExact(DType::kBF16,
              {std::bit_cast<float>(0x3f808000u), std::bit_cast<float>(0x3f818000u), std::bit_cast<float>(0x3f807fffu),
               std::bit_cast<float>(0x3f808001u), inf, -inf, 0.0f, -0.0f, std::numeric_limits<float>::max(),
               std::bit_cast<float>(0x7fc00001u), std::bit_cast<float>(0x7fffffffu), std::bit_cast<float>(0xffffffffu),
               std::bit_cast<float>(0x7f800001u), 1.0f, -1.0f, 3.14159f, -2.71828f, 65504.0f, 1e-30f});
}

TEST_P(PrepareIsa, F16KeepsTiesSubnormalsInfinitiesAndNans) {
  const float inf = std::numeric_limits<float>::infinity();
  ExpectExact(DType::kF16, {1 + 0x1p-11f,
                            1 + 0x3p-11f,
                            65504.0f,
                            65519.0f,
                            65520.0f,
                            65536.0f,
                            1e30f,
                            inf,
                            -inf,
                            0.0f,
                            -0.0f,
                            0x1p-14f,
                            0x1p-14f - 0x1p-26f,
                            0x1.8p-24f,
                            0x1p-25f,
                            0x1.8p-25f,
                            0x1p-26f,
                            -0x1.5p-20f,
                            1e-40f,
                            std::bit_cast<float>(0x7fc00001u),
                            std::bit_cast<float>(0xffffffffu),
                            std::bit_cast<float>(0x7f800001u),
                            3.14159f,
                            -2.71828f});
}

TEST_P(PrepareIsa, NormSurvivesZerosAndLargeValues) {
  const PrepareDesc desc = Describe(48, DType::kF32, true);
  const EmittedKernel kernel = EmitFor(desc, GetParam());
  std::vector<float> x(96, 0.0f), gain(48, 2.0f);
  for (int i = 48; i < 96; ++i) x[i] = i % 2 == 0 ? 1e18f : -1e18f;
  const std::vector<uint8_t> bytes = RunRows(kernel, desc, x, gain, 2, GuardedBuffer::Edge::kEnd);
  std::vector<float> y(96);
  std::memcpy(y.data(), bytes.data(), bytes.size());
  for (int i = 0; i < 48; ++i) EXPECT_EQ(y[i], 0.0f);
  for (int i = 48; i < 96; ++i) EXPECT_NEAR(y[i], i % 2 == 0 ? 2.0f : -2.0f, 2 * ref::RmsNormBound(48, 48));
}

INSTANTIATE_TEST_SUITE_P(Rows, PrepareIsa, ::testing::ValuesIn(testing::kRowIsas),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(PreparePlan, RefusesWithAReason) {
  const TargetInfo target = TargetOf(Isa::kAvx512Bf16);
  const auto message = [&](const PrepareDesc& desc) {
    return std::string(Message(PlanPrepare512(desc, target).status()));
  };
  EXPECT_EQ(message({.cols = 0, .ldx_bytes = 4, .ldo_bytes = 4}), "cols = 0 is not in 1..268435456");
  EXPECT_EQ(message({.cols = 33, .out = DType::kQ8Act, .ldx_bytes = 132, .ldo_bytes = 128}),
            "q8act rows are whole blocks of 32, but cols = 33");
  EXPECT_EQ(message({.cols = 32, .out = DType::kF8E4M3, .ldx_bytes = 128, .ldo_bytes = 64}),
            "no conversion from f32 to f8e4m3");
  EXPECT_EQ(message({.cols = 32, .out = DType::kQ8Act, .ldx_bytes = 128, .strips = true}),
            "rows of q8act have no strips");
  EXPECT_EQ(message({.cols = 1 << 26, .out = DType::kBF16, .ldx_bytes = 1 << 28, .strips = true}),
            "strips of 2147483648 bytes are longer than 1073741824: cols = 67108864");
  EXPECT_EQ(message({.cols = 33, .out = DType::kI8Act, .ldx_bytes = 132, .ldo_bytes = 64}),
            "ldo_bytes = 64 is not a multiple of 4 from 128 to 1073741824");
  EXPECT_EQ(message({.cols = 32, .ldx_bytes = 124, .ldo_bytes = 128}),
            "ldx_bytes = 124 is not a multiple of 4 from 128 to 1073741824");
}

TEST(PreparePlan, UsesWhatTheTargetHas) {
  const PrepareDesc desc = Describe(576, DType::kQ8Act, true);
  EXPECT_FALSE(PlanPrepare512(desc, TargetOf(Isa::kAvx512))->native_dot);
  EXPECT_TRUE(PlanPrepare512(desc, TargetOf(Isa::kAvx512Vnni))->native_dot);
  EXPECT_FALSE(PlanPrepare512(desc, TargetOf(Isa::kAvx512Vnni))->native_bf16);
  EXPECT_TRUE(PlanPrepare512(desc, TargetOf(Isa::kAvx512Bf16))->native_bf16);
  const auto disassembly = [&](DType out, Isa isa) { return EmitFor(Describe(576, out, true), isa).Disassembly(); };
  EXPECT_THAT(disassembly(DType::kBF16, Isa::kAvx512Bf16), ::testing::HasSubstr("vcvtneps2bf16"));
  EXPECT_THAT(disassembly(DType::kBF16, Isa::kAvx512Vnni), ::testing::Not(::testing::HasSubstr("vcvtneps2bf16")));
  EXPECT_THAT(disassembly(DType::kQ8Act, Isa::kAvx512Vnni), ::testing::HasSubstr("vpdpbusd"));
  EXPECT_THAT(disassembly(DType::kQ8Act, Isa::kAvx512), ::testing::Not(::testing::HasSubstr("vpdpbusd")));
}

}  // namespace
}  // namespace xjit
