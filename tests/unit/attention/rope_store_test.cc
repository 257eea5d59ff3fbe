// rope_store against its reference, bit by bit, with everything around the stored tokens unchanged.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ir/support/ref/norm.h"
#include "tests/unit/attention/attention_testing.h"

namespace xjit::testing {
namespace {

struct RopeRow {
  const char* name;
  Isa isa;
  absl::StatusOr<RopeStorePlan> (*plan)(const RopeStoreDesc&, const TargetInfo&);
  absl::Status (*emit)(const RopeStoreDesc&, const RopeStorePlan&, Emitter&);
};
constexpr RopeRow kRopeRows[] = {
    {"avx512_bf16", Isa::kAvx512Bf16, PlanRopeStore512, EmitRopeStore512},
    {"avx512", Isa::kAvx512, PlanRopeStore512, EmitRopeStore512},
    {"avx2", Isa::kAvx2, PlanRopeStore2, EmitRopeStore2},
};

RopeStoreDesc Desc(int heads, int kv_heads, int head_dim, DType q, DType kv) {
  RopeStoreDesc desc;
  desc.heads = heads;
  desc.kv_heads = kv_heads;
  desc.head_dim = desc.rope_dim = head_dim;
  desc.q = q;
  desc.kv = kv;
  desc.q_scale = 0.127f;
  // Columns of one joined matrix.
  desc.ldqin_bytes = desc.ldkin_bytes = desc.ldvin_bytes = (heads + 2 * kv_heads) * head_dim * 4 + 64;
  desc.ldq_bytes = heads * head_dim * (q == DType::kBF16 ? 2 : 4) + 64;
  return desc;
}

class RopeStoreTest : public ::testing::TestWithParam<RopeRow> {
 protected:
  void SetUp() override {
    if (HostIsa() < GetParam().isa) GTEST_SKIP() << "this machine has no " << Name(GetParam().isa);
  }
  void Check(const RopeStoreDesc& desc) {
    const std::string name = RopeStoreName(desc, GetParam().name);
    const auto plan = GetParam().plan(desc, Target(GetParam().isa));
    ASSERT_TRUE(plan.ok()) << Message(plan.status());
    EXPECT_EQ(plan->convert_bf16, GetParam().isa == Isa::kAvx512Bf16);
    Emitter e;
    const absl::Status status = GetParam().emit(desc, *plan, e);
    ASSERT_TRUE(status.ok()) << Message(status);
    CodeArena arena;
    const auto kernel = e.Finish(name, arena);
    ASSERT_TRUE(kernel.ok() && arena.Seal().ok());
    if (GetParam().isa == Isa::kAvx2) {
      EXPECT_EQ(UsesEvex(*kernel), "");
    }

    // Two sequences; the first crosses a page boundary, both begin inside a page.
    const std::vector<int32_t> pages[2] = {{3, 0}, {1, 2}};
    const SeqView seq[2] = {{pages[0].data(), 0, 5, 29}, {pages[1].data(), 5, 2, 32}};
    const std::vector<int32_t> position = {29, 30, 31, 32, 33, 32, 33}, row_seq = {0, 0, 0, 0, 0, 1, 1};
    const int64_t rows = 7, page_count = 4;
    std::mt19937 rng(static_cast<uint32_t>(desc.head_dim));
    std::normal_distribution<float> normal;
    GuardedBuffer qkv(static_cast<size_t>(rows * desc.ldqin_bytes - 64));
    GuardedBuffer table(static_cast<size_t>(rows * desc.head_dim * 4));
    for (size_t i = 0; i < qkv.size() / 4; ++i) qkv.as<float>()[i] = normal(rng);
    for (size_t i = 0; i < table.size() / 4; ++i) table.as<float>()[i] = normal(rng);
    // Values where rounding decides, in V (they are stored as they are): ties, infinity, NaN, overflow.
    const uint32_t special[] = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f800000, 0xff800000,
                                0x7f800001, 0xffffffff, 0x7f7fffff, 0x7fff8000, 0x00000000, 0x80000000};
    for (int64_t row = 0; row < rows; ++row) {
      float* v = qkv.as<float>() + row * desc.ldqin_bytes / 4 + (desc.heads + desc.kv_heads) * desc.head_dim;
      for (size_t i = 0; i < std::size(special); ++i) {
        v[(i + static_cast<size_t>(row) * 3) % 16] = std::bit_cast<float>(special[i]);
      }
    }
    const size_t head_bytes = static_cast<size_t>(page_count * KvPageBytes(desc.kv, desc.head_dim));
    GuardedBuffer kv(desc.kv_heads * head_bytes, 0xa5), q(static_cast<size_t>(rows * desc.ldq_bytes - 64), 0xa5);
    GuardedBuffer want_kv(kv.size(), 0xa5), want_q(q.size(), 0xa5);
    StepView step;
    step.rows = rows;
    step.seqs = 2;
    step.seq = seq;
    step.position = position.data();
    step.row_seq = row_seq.data();
    GuardedBuffer q_gain(static_cast<size_t>(desc.head_dim * 4)), k_gain(q_gain.size());
    for (int i = 0; i < desc.head_dim; ++i) {
      q_gain.as<float>()[i] = 1 + 0.3f * normal(rng);
      k_gain.as<float>()[i] = 2 + 0.3f * normal(rng);
    }
    const float* joined = qkv.as<float>();
    RopeStoreArgs args{joined,
                       joined + desc.heads * desc.head_dim,
                       joined + (desc.heads + desc.kv_heads) * desc.head_dim,
                       table.as<float>(),
                       q.data(),
                       kv.data(),
                       static_cast<int64_t>(head_bytes),
                       &step,
                       desc.head_norm ? q_gain.as<float>() : nullptr,
                       desc.head_norm ? k_gain.as<float>() : nullptr};
    RopeStoreArgs want = args;
    want.q = want_q.data();
    want.kv = want_kv.data();
    // In parts, later rows first: neighbours must survive.
    EXPECT_TRUE(CallKeepsRegisters(kernel->fn, &args, 0, 1, 4, 7));
    RopeStoreRef(desc, want, 0, 1, 4, 7);
    const auto differ = [&](GuardedBuffer& a, GuardedBuffer& b, DType type) {
      return desc.head_norm ? FirstFar(desc, a, b, type) : FirstDifference(a, b);
    };
    EXPECT_EQ(differ(kv, want_kv, desc.kv), kv.size()) << name << ": part of the rows";
    kernel->fn(&args, 0, 1, 1, 4);
    kernel->fn(&args, 0, 1, 0, 1);
    kernel->fn(&args, 0, 1, 5, 5);
    RopeStoreRef(desc, want, 0, 1, 0, 4);
    EXPECT_EQ(differ(q, want_q, desc.q), q.size()) << name << ": q";
    EXPECT_EQ(differ(kv, want_kv, desc.kv), kv.size()) << name << ": kv";
  }

  static size_t FirstDifference(GuardedBuffer& a, GuardedBuffer& b) {
    size_t i = 0;
    while (i < a.size() && a.data()[i] == b.data()[i]) ++i;
    return i;
  }
  // The first byte of a value that differs by more than its norm's rounding explains: of bytes that nobody wrote, any.
  static size_t FirstFar(const RopeStoreDesc& desc, GuardedBuffer& a, GuardedBuffer& b, DType type) {
    const size_t size = type == DType::kBF16 ? 2 : 4;
    const auto value = [size](GuardedBuffer& buffer, size_t i) {
      return size == 2 ? Bf16ToF32(buffer.as<uint16_t>()[i]) : buffer.as<float>()[i];
    };
    // Normed values are below sqrt(dim) times a gain of at most 4, the table's below 5; each result is a sum of two.
    const double error = ref::RmsNormBound(desc.head_dim, 8) * 2 * std::sqrt(desc.head_dim * 1.0) * 4 * 5;
    for (size_t i = 0; i < a.size() / size; ++i) {
      if (std::memcmp(a.data() + i * size, b.data() + i * size, size) == 0) continue;
      const double got = value(a, i), want = value(b, i);
      if (!(std::fabs(got - want) <= error + (size == 2 ? std::fabs(want) * 0x1p-7 : 0))) return i * size;
    }
    return a.size();
  }
};

TEST_P(RopeStoreTest, Shapes) {
  for (int head_dim : {16, 32, 48, 64, 80, 96, 112, 128, 256}) {
    for (const DType q : {DType::kBF16, DType::kF32}) {
      for (const DType kv : {DType::kBF16, DType::kF32}) {
        Check(Desc(1, 1, head_dim, q, kv));
        Check(Desc(6, 2, head_dim, q, kv));
      }
    }
  }
}

TEST_P(RopeStoreTest, HeadNorms) {
  for (int head_dim : {16, 48, 64, 112, 128, 256}) {
    for (const DType q : {DType::kBF16, DType::kF32}) {
      for (const DType kv : {DType::kBF16, DType::kF32}) {
        for (const int group : {1, 3}) {
          RopeStoreDesc desc = Desc(2 * group, 2, head_dim, q, kv);
          desc.head_norm = true;
          desc.eps = 1e-6f;
          Check(desc);
          desc.eps = 0.5f;
          Check(desc);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, RopeStoreTest, ::testing::ValuesIn(kRopeRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RopeStorePlanTest, Refusals) {
  RopeStoreDesc desc = Desc(6, 2, 64, DType::kBF16, DType::kBF16);
  EXPECT_FALSE(PlanRopeStore512(desc, Target(Isa::kAvx2)).ok());
  desc.rope_dim = 32;
  EXPECT_EQ(Message(PlanRopeStore2(desc, Target(Isa::kAvx2)).status()),
            "rope_store: 32 rotated dimensions of 64 (all or nothing is known)");
  desc.rope_dim = 64;
  desc.kv = DType::kF16;
  EXPECT_EQ(Message(PlanRopeStore2(desc, Target(Isa::kAvx2)).status()),
            "rope_store: type f16 (bf16 and f32 are known)");
  desc.kv = DType::kBF16;
  RopeStoreDesc many = Desc(1024, 1, 16, DType::kBF16, DType::kBF16);
  EXPECT_TRUE(PlanRopeStore2(many, Target(Isa::kAvx2)).ok());
  many.head_norm = true;
  EXPECT_EQ(Message(PlanRopeStore2(many, Target(Isa::kAvx2)).status()),
            "rope_store: norms of 1025 heads (at most 1024)");
  desc.ldq_bytes = 8;
  EXPECT_FALSE(PlanRopeStore2(desc, Target(Isa::kAvx2)).ok());
}

}  // namespace
}  // namespace xjit::testing
