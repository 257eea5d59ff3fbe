// The measuring loops: that they read what they say, and that peaks stand in the right relation to each other.
#include "codegen/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codegen/cpu.h"
#include "tests/unit/guarded_buffer.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;

TEST(ReadBytes, SeesEveryWordOnceAndNothingElse) {
  const auto read = ReadBytesFunction();
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  std::mt19937_64 rng(1);
  for (size_t bytes : {0, 63, 64, 128, 448, 511, 512, 576, 1024, 4096, 5000, 8192 + 448}) {
    for (auto edge : {testing::GuardedBuffer::Edge::kEnd, testing::GuardedBuffer::Edge::kBegin}) {
      testing::GuardedBuffer buffer(bytes, 0, edge);
      uint64_t expected = 0;
      for (size_t i = 0; i + 8 <= bytes; i += 8) {
        const uint64_t word = rng();
        std::memcpy(buffer.data() + i, &word, 8);
        if (i < bytes / 64 * 64) expected ^= word;
      }
      EXPECT_EQ((*read)(buffer.data(), bytes), expected) << bytes;
    }
  }
}

TEST(StreamBuffer, PartsCoverItOnce) {
  const auto buffer = StreamBuffer::Create((int64_t{1} << 20) + 192);
  ASSERT_TRUE(buffer.ok());
  const std::byte* next = buffer->data();
  for (int part = 0; part < 3; ++part) {
    const auto span = buffer->Part(part, 3);
    EXPECT_EQ(span.data(), next);
    EXPECT_EQ(span.size() % 64, 0u);
    next = span.data() + span.size();
  }
  EXPECT_EQ(next, buffer->data() + buffer->bytes());
  EXPECT_EQ(StreamBuffer::Create(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MeasureReadBandwidth, GivesPositiveFiguresInOrder) {
  for (int threads : {1, 2}) {
    const auto bandwidth = MeasureReadBandwidth(threads, {.bytes = int64_t{8} << 20, .rounds = 3});
    ASSERT_TRUE(bandwidth.ok()) << bandwidth.status().ToString();
    EXPECT_GT(bandwidth->median, 0);
    EXPECT_GE(bandwidth->best, bandwidth->median);
  }
  EXPECT_EQ(MeasureReadBandwidth(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MeasurePeak, MoreBitsMoreOperations) {
  const auto f32 = MeasurePeak(PeakKind::kF32Fma, HostIsa());
  ASSERT_TRUE(f32.ok()) << f32.status().ToString();
  EXPECT_GT(*f32, 1);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (isa > RunnableIsa()) continue;
    const auto int8 = MeasurePeak(PeakKind::kInt8Dot, isa);
    ASSERT_TRUE(int8.ok()) << int8.status().ToString();
    EXPECT_GT(*int8, 1);
    if (isa < Isa::kAvx512Bf16) continue;
    const auto bf16 = MeasurePeak(PeakKind::kBf16Dot, isa);
    ASSERT_TRUE(bf16.ok()) << bf16.status().ToString();
    EXPECT_GT(*bf16, 1);
  }
}

TEST(MeasurePeak, ErrorsSayWhy) {
  EXPECT_THAT(MeasurePeak(PeakKind::kBf16Dot, Isa::kAvx2).status().ToString(),
              HasSubstr("peak of bf16 dot: avx2 has no such instruction"));
  if (RunnableIsa() < Isa::kAmx) {
    EXPECT_THAT(MeasurePeak(PeakKind::kInt8Dot, Isa::kAmx).status().ToString(),
                HasSubstr("peak of int8 dot: this machine has no AMX, whose emulator needs AVX-512 BF16; it has avx2"));
  }
}

}  // namespace
}  // namespace xjit
