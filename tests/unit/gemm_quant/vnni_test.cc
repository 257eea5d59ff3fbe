// The AVX512-VNNI gemm against its reference: bit for bit where no SiLU is involved.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/gemm/gemm_plan.h"
#include "codegen/gemm/gemm_ref.h"
#include "codegen/gemm/pack.h"
#include "ir/support/align.h"
#include "ir/support/ref/dequant.h"
#include "quant_data.h"
#include "tests/unit/guarded_buffer.h"
#include "tests/unit/watched_call.h"

namespace xjit {
namespace {

using testing::GuardedBuffer;
using testing::WatchedCall;

// A product with its operands, each against a guard page, and its emitted kernel.
class Product {
 public:
  Product(const Encoding& w, int rows, int64_t m, int64_t n, int64_t k, Epilogue epilogue, uint32_t seed = 1)
      : m_(m), w_(static_cast<size_t>(n / kPanelColumns * PanelBytes(w, k))) {
    desc_.n = n;
    desc_.k = k;
    desc_.a = DType::kQ8Act;
    desc_.w = w;
    desc_.rows = rows;
    desc_.epilogue = epilogue;
    // Rows further apart than they are long, so that a wrong stride shows.
    desc_.lda_bytes = Q8Layout{k}.row_bytes() + 64;
    const int64_t columns = epilogue.silu_mul ? n / 2 : n;
    desc_.ldc_bytes = 4 * columns + 32;

    const auto a = testing::RandomActivations(m, k, desc_.lda_bytes, seed);
    const auto a_bytes = static_cast<size_t>((m - 1) * desc_.lda_bytes + Q8Layout{k}.row_bytes());
    a_ = std::make_unique<GuardedBuffer>(a_bytes);
    std::memcpy(a_->data(), a.data(), a_bytes);

    std::mt19937 rng(seed + 2);
    if (w.type == DType::kI4) {
      PackInt4(rng);
    } else {
      const auto weights = testing::RandomWeights(w.type, n, k, seed + 1);
      std::vector<const std::byte*> columns_of_w;
      for (int64_t i = 0; i < n; ++i) columns_of_w.push_back(&weights[static_cast<size_t>(i * RowBytes(w.type, k))]);
      PackPanels(w.type, k, columns_of_w, 0, n / kPanelColumns, w_.as<std::byte>());
    }

    const auto c_bytes = static_cast<size_t>((m - 1) * desc_.ldc_bytes + 4 * columns);
    residual_ = std::make_unique<GuardedBuffer>(c_bytes);
    bias_ = std::make_unique<GuardedBuffer>(static_cast<size_t>(4 * n));
    for (size_t i = 0; i < c_bytes / 4; ++i) residual_->as<float>()[i] = static_cast<float>(rng() % 1000) / 64 - 8;
    for (int64_t i = 0; i < n; ++i) bias_->as<float>()[i] = static_cast<float>(rng() % 1000) / 256 - 2;
    c_bytes_ = c_bytes;
  }

  // Codes and zeros of any size, scales of either sign.
  void PackInt4(std::mt19937& rng) {
    const auto blocks = static_cast<size_t>(ScaledBlocksOf(desc_.w, desc_.k).count(desc_.k));
    for (int64_t p = 0; p < desc_.panels(); ++p) {
      std::vector<std::vector<uint8_t>> codes(kPanelColumns), zeros(kPanelColumns);
      std::vector<std::vector<float>> scales(kPanelColumns);
      std::vector<ScaledColumn> columns;
      for (size_t c = 0; c < kPanelColumns; ++c) {
        for (int64_t i = 0; i < desc_.k; ++i) codes[c].push_back(rng() & 15);
        for (size_t b = 0; b < blocks; ++b) {
          scales[c].push_back(F16ToF32(static_cast<uint16_t>(testing::RandomHalf(rng) | (rng() & 1) << 15)));
          zeros[c].push_back(static_cast<uint8_t>(rng() % 17));
        }
        columns.push_back({codes[c].data(), scales[c].data(), zeros[c].data()});
      }
      ASSERT_TRUE(
          PackScaledPanel(desc_.w, desc_.k, columns, w_.as<std::byte>() + p * PanelBytes(desc_.w, desc_.k)).ok());
    }
  }

  static TargetInfo Target() {
    TargetInfo target;
    target.isa = Isa::kAvx512Vnni;
    return target;
  }
  absl::Status Compile(const TargetInfo& target = Target()) {
    XJIT_ASSIGN_OR_RETURN(plan_, PlanGemmVnni(desc_, target));
    Emitter e;
    XJIT_RETURN_IF_ERROR(EmitGemmVnni(desc_, plan_, e));
    XJIT_ASSIGN_OR_RETURN(kernel_, e.Finish(GemmName(desc_, "avx512_vnni"), arena_, plan_.scratch_bytes));
    scratch_ = std::make_unique<GuardedBuffer>(static_cast<size_t>((plan_.scratch_bytes + 63) / 64 * 64));
    return arena_.Seal();
  }

  GemmArgs Args(GuardedBuffer& c) {
    GemmArgs args;
    args.a = a_->data();
    args.w = w_.data();
    args.c = c.as<float>();
    args.residual = desc_.epilogue.residual ? residual_->as<float>() : nullptr;
    args.bias = desc_.epilogue.bias ? bias_->as<float>() : nullptr;
    args.scratch = scratch_ == nullptr ? nullptr : scratch_->data();
    return args;
  }
  // C starts as a pattern: what a kernel leaves alone stays equal between two runs.
  std::unique_ptr<GuardedBuffer> NewC() { return std::make_unique<GuardedBuffer>(c_bytes_, 0x5a); }

  std::unique_ptr<GuardedBuffer> Run() {
    auto c = NewC();
    Call(*c, 0, desc_.panels(), 0, m_);
    return c;
  }
  void Call(GuardedBuffer& c, int64_t n0, int64_t n1, int64_t m0, int64_t m1) {
    const GemmArgs args = Args(c);
    kernel_.fn(&args, n0, n1, m0, m1);
  }
  std::unique_ptr<GuardedBuffer> Reference() {
    auto c = NewC();
    GemmRef(desc_, Args(*c), 0, desc_.panels(), 0, m_);
    return c;
  }

  const GemmDesc& desc() const { return desc_; }
  const GemmPlan& plan() const { return plan_; }
  const Kernel& kernel() const { return kernel_; }
  int64_t m() const { return m_; }
  size_t c_bytes() const { return c_bytes_; }
  const std::byte* a_row(int64_t m) const {
    return reinterpret_cast<const std::byte*>(a_->data()) + m * desc_.lda_bytes;
  }
  std::byte* w() { return w_.as<std::byte>(); }
  std::byte* a() { return a_->as<std::byte>(); }

 private:
  GemmDesc desc_;
  int64_t m_;
  GemmPlan plan_;
  GuardedBuffer w_;
  std::unique_ptr<GuardedBuffer> a_, residual_, bias_, scratch_;
  size_t c_bytes_ = 0;
  CodeArena arena_;
  Kernel kernel_;
};

// Equal bits, the bytes between rows included.
void ExpectSame(const GuardedBuffer& want, const GuardedBuffer& got, const std::string& what) {
  ASSERT_EQ(want.size(), got.size());
  const auto* x = const_cast<GuardedBuffer&>(want).as<float>();
  const auto* y = const_cast<GuardedBuffer&>(got).as<float>();
  for (size_t i = 0; i < want.size() / 4; ++i) {
    ASSERT_EQ(std::memcmp(x + i, y + i, 4), 0) << what << ": float " << i << ": " << x[i] << " and " << y[i];
  }
}

// SiLU's relative error (math_emit.h: 6e-7) carries over to the product; the residual sum adds half an ulp on each
// side.
void ExpectNear(Product& product, const GuardedBuffer& want, const GuardedBuffer& got, const std::string& what) {
  const auto* x = const_cast<GuardedBuffer&>(want).as<float>();
  const auto* y = const_cast<GuardedBuffer&>(got).as<float>();
  const size_t stride = static_cast<size_t>(product.desc().ldc_bytes / 4);
  for (size_t i = 0; i < want.size() / 4; ++i) {
    if (i % stride >= static_cast<size_t>(product.desc().n / 2)) {
      ASSERT_EQ(std::memcmp(x + i, y + i, 4), 0) << what << ": byte between rows changed, float " << i;
      continue;
    }
    // |residual| <= 8: it bounds what the sum's cancellation can lose.
    const float bound = 8e-7f * (std::fabs(x[i]) + (product.desc().epilogue.residual ? 8.0f : 0.0f)) + 0x1p-110f;
    ASSERT_LE(std::fabs(x[i] - y[i]), bound) << what << ": float " << i;
  }
}

class Vnni : public ::testing::TestWithParam<Encoding> {
 protected:
  void SetUp() override {
    if (HostIsa() < Isa::kAvx512Vnni) GTEST_SKIP() << "this machine has no AVX512-VNNI";
  }
  int64_t block() const { return GetParam().type == DType::kI4 ? 32 : Info(GetParam().type).block_elems; }
  std::vector<int64_t> Depths() const {
    return block() == 256 ? std::vector<int64_t>{256, 512, 768} : std::vector<int64_t>{32, 64, 96, 256, 576};
  }
};

constexpr Epilogue kEpilogues[] = {{},
                                   {.bias = true},
                                   {.residual = true},
                                   {.bias = true, .residual = true},
                                   {.silu_mul = true},
                                   {.bias = true, .silu_mul = true, .residual = true},
                                   {.silu_mul = true, .residual = true}};

void Check(Product& product, const std::string& what) {
  ASSERT_TRUE(product.Compile().ok());
  const auto want = product.Reference(), got = product.Run();
  if (product.desc().epilogue.silu_mul) {
    ExpectNear(product, *want, *got, what);
  } else {
    ExpectSame(*want, *got, what);
  }
}

TEST_P(Vnni, FewRows) {
  for (int rows = 1; rows <= kMaxFewRows; ++rows) {
    for (const int64_t k : Depths()) {
      for (const int64_t n : {32, 96}) {
        Product product(GetParam(), rows, rows, n, k, {}, static_cast<uint32_t>(rows));
        ASSERT_NO_FATAL_FAILURE(Check(product, fmt::format("rows {} n {} k {}", rows, n, k)));
      }
    }
  }
}

TEST_P(Vnni, ManyRows) {
  for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 33}) {
    for (const int64_t k : Depths()) {
      Product product(GetParam(), 0, m, 64, k, {}, static_cast<uint32_t>(m));
      ASSERT_NO_FATAL_FAILURE(Check(product, fmt::format("m {} k {}", m, k)));
    }
  }
}

TEST_P(Vnni, Epilogues) {
  for (const Epilogue& epilogue : kEpilogues) {
    for (const int rows : {0, 1, 3, 8}) {
      Product product(GetParam(), rows, rows == 0 ? 13 : rows, 64, 256, epilogue);
      ASSERT_NO_FATAL_FAILURE(Check(product, fmt::format("{}", GemmName(product.desc(), "avx512_vnni"))));
    }
  }
}

// The same row gives the same bits alone, among eight and among many.
TEST_P(Vnni, RowCountChangesNoBit) {
  for (const Epilogue& epilogue : {Epilogue{}, Epilogue{.bias = true, .silu_mul = true, .residual = true}}) {
    Product many(GetParam(), 0, 8, 64, 768, epilogue);
    ASSERT_TRUE(many.Compile().ok());
    const auto want = many.Run();
    for (int rows = 1; rows <= kMaxFewRows; ++rows) {
      Product few(GetParam(), rows, 8, 64, 768, epilogue);
      ASSERT_TRUE(few.Compile().ok());
      const auto got = few.Run();
      const auto bytes = static_cast<size_t>((rows - 1) * few.desc().ldc_bytes + few.desc().ldc_bytes - 32);
      ASSERT_EQ(std::memcmp(want->data(), got->data(), bytes), 0) << rows;
    }
  }
}

// How far a pass of the loop goes is a matter of speed alone.
TEST_P(Vnni, LoopDepthChangesNoBit) {
  for (const int rows : {1, 3}) {
    Product product(GetParam(), rows, rows, 64, 1792, {});
    const auto want = product.Reference();
    std::set<int64_t> depths;
    for (const int depth : {32, 64, 96, 128, 256}) {
      TargetInfo target = Product::Target();
      target.prefetch.push_back({.w = GetParam().type,
                                 .one_row = rows == 1,
                                 .hint = PrefetchHint::kT0,
                                 .distance = 64,
                                 .every = 64,
                                 .k_block = depth});
      ASSERT_TRUE(product.Compile(target).ok());
      depths.insert(product.plan().k_block);
      const auto got = product.Run();
      ExpectSame(*want, *got, fmt::format("{} rows, depth {}", rows, depth));
    }
    EXPECT_EQ(*depths.begin(), 32);
    if (GetParam().type == DType::kI4 && GetParam().scales.cols == 160) {
      // Five blocks of 32 share a scale, and the last of 56 has its own: no pass takes more than one.
      EXPECT_EQ(depths, std::set<int64_t>{32});
    } else {
      EXPECT_GE(depths.size(), 2u);
    }
  }
}

TEST_P(Vnni, PartitionChangesNoBit) {
  const Epilogue epilogue{.bias = true, .silu_mul = true, .residual = true};
  const int64_t panels = 5, m = 29;
  Product product(GetParam(), 0, m, panels * kPanelColumns, 256, epilogue);
  ASSERT_TRUE(product.Compile().ok());
  const auto want = product.Run();
  for (int64_t n_cut = 0; n_cut <= panels; ++n_cut) {
    for (const int64_t m_cut : {int64_t{0}, int64_t{1}, int64_t{6}, int64_t{13}, int64_t{28}}) {
      auto c = product.NewC();
      product.Call(*c, n_cut, panels, 0, m_cut);
      product.Call(*c, 0, n_cut, m_cut, m);
      product.Call(*c, n_cut, panels, m_cut, m);
      product.Call(*c, 0, n_cut, 0, m_cut);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*want, *c, fmt::format("cut at panel {} row {}", n_cut, m_cut)));
    }
  }
  Product few(GetParam(), 3, 3, panels * kPanelColumns, 256, epilogue);
  ASSERT_TRUE(few.Compile().ok());
  const auto want_few = few.Run();
  for (int64_t n_cut = 0; n_cut <= panels; ++n_cut) {
    auto c = few.NewC();
    few.Call(*c, n_cut, panels, 0, 3);
    few.Call(*c, 0, n_cut, 0, 3);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(*want_few, *c, fmt::format("cut at panel {}", n_cut)));
  }
}

// Caches change the plan (blocks of k, prefetch), never the result.
TEST_P(Vnni, PlanChangesNoBit) {
  for (const Epilogue& epilogue : {Epilogue{}, Epilogue{.bias = true, .silu_mul = true, .residual = true}}) {
    for (const int64_t m : {1, 5, 119, 120, 127, 245}) {
      Product product(GetParam(), 0, m, 64, 768, epilogue);
      TargetInfo roomy = Product::Target();
      roomy.l1d_bytes = 1 << 20;
      ASSERT_TRUE(product.Compile(roomy).ok());
      ASSERT_EQ(product.plan().k_block, 768);
      const auto want = product.Run();
      // One, five, 12 blocks of 32 to a k block, whole superblocks, and a last k block that is shorter.
      for (const int64_t l2 : {2400, 13000, 34000}) {
        Product blocked(GetParam(), 0, m, 64, 768, epilogue);
        TargetInfo target = Product::Target();
        target.l2_bytes = l2;
        ASSERT_TRUE(blocked.Compile(target).ok());
        ASSERT_LT(blocked.plan().k_block, 768);
        ASSERT_NO_FATAL_FAILURE(
            ExpectSame(*want, *blocked.Run(), fmt::format("m {}, {}", m, ToString(blocked.plan()))));
      }
    }
    // Blocks that are unpacked one by one up to so many rows, all at once beyond.
    for (const int64_t m : {1, 7, 119, 120, 121, 245}) {
      Product whole(GetParam(), 0, m, 64, 768, epilogue), blocked(GetParam(), 0, m, 64, 768, epilogue);
      TargetInfo target = Product::Target();
      target.l1d_bytes = 1 << 20;
      ASSERT_TRUE(whole.Compile(target).ok());
      ASSERT_EQ(whole.plan().near_rows, 0);
      target.l1d_bytes = 16 << 10;
      target.l2_bytes = 120 * Q8Layout{768}.row_bytes() * 4 / 3;
      ASSERT_TRUE(blocked.Compile(target).ok());
      ASSERT_EQ(blocked.plan().near_rows, 120);
      ASSERT_LT(blocked.plan().near_k_block, 768);
      ASSERT_NO_FATAL_FAILURE(
          ExpectSame(*whole.Run(), *blocked.Run(), fmt::format("m {}, {}", m, ToString(blocked.plan()))));
    }
    for (const int rows : {1, 2, 5}) {
      Product plain(GetParam(), rows, rows, 64, 768, epilogue), large(GetParam(), rows, rows, 64, 768, epilogue);
      TargetInfo target = Product::Target();
      target.l1d_bytes = 48 << 10;
      ASSERT_TRUE(plain.Compile().ok());
      ASSERT_TRUE(large.Compile(target).ok());
      ASSERT_NE(plain.plan(), large.plan());
      ASSERT_NO_FATAL_FAILURE(ExpectSame(*plain.Run(), *large.Run(), ToString(large.plan())));
    }
  }
}

// C may be the residual.
TEST_P(Vnni, ResidualInPlace) {
  for (const int rows : {0, 2}) {
    Product product(GetParam(), rows, rows == 0 ? 9 : rows, 64, 256, {.residual = true});
    ASSERT_TRUE(product.Compile().ok());
    const auto want = product.Run();
    auto c = product.NewC();
    GemmArgs args = product.Args(*c);
    std::memcpy(c->data(), args.residual, c->size());
    args.residual = args.c;
    product.kernel().fn(&args, 0, 2, 0, product.m());
    const auto columns = static_cast<size_t>(product.desc().n);
    for (int64_t row = 0; row < product.m(); ++row) {
      ASSERT_EQ(std::memcmp(want->data() + row * product.desc().ldc_bytes, c->data() + row * product.desc().ldc_bytes,
                            4 * columns),
                0);
    }
  }
}

// How large the minimum is that element e of column j was computed with: its rounding counts even where it cancels.
double MinimumSize(Product& product, int64_t j, int64_t e) {
  ColumnBlock block;
  UnpackColumnBlock(product.desc().w, product.desc().k, product.w(), j, e / 32, &block);
  return 2 * std::fabs(static_cast<double>(block.add[e % 32 / 16]));
}

// The reference itself: against plain double arithmetic on dequantised weights and activations.
TEST_P(Vnni, ReferenceIsTheProduct) {
  const int64_t k = 768, m = 3, n = 64;
  Product product(GetParam(), 3, m, n, k, {});
  const auto c = product.Reference();
  const Q8Layout layout{k};
  std::vector<float> column(static_cast<size_t>(k));
  for (int64_t j = 0; j < n; ++j) {
    UnpackColumn(GetParam(), k, product.w(), j, column.data());
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0, norm = 0;
      for (int64_t e = 0; e < k; ++e) {
        float scale;
        std::memcpy(&scale, product.a_row(i) + layout.scale_offset() + e / 32 * 4, 4);
        const double a = static_cast<double>(scale) * static_cast<int8_t>(product.a_row(i)[e]);
        sum += a * static_cast<double>(column[static_cast<size_t>(e)]);
        norm += std::fabs(a) *
                (std::fabs(static_cast<double>(column[static_cast<size_t>(e)])) + MinimumSize(product, j, e));
      }
      const float got = *reinterpret_cast<const float*>(c->data() + i * product.desc().ldc_bytes + 4 * j);
      // Each of k / 32 blocks adds at most 4 roundings of its own terms and 2 of the running sum.
      ASSERT_NEAR(got, sum, (static_cast<double>(k / 32) * 2 + 4) * 0x1p-24 * norm) << i << " " << j;
    }
  }
}

// Callee-saved registers hold their values over a call (System V AMD64 ABI, 3.2.1).
TEST_P(Vnni, CalleeSavedRegisters) {
  for (const int rows : {0, 2}) {
    Product product(GetParam(), rows, rows == 0 ? 7 : rows, 64, 256,
                    {.bias = true, .silu_mul = true, .residual = true});
    ASSERT_TRUE(product.Compile().ok());
    auto c = product.NewC();
    const GemmArgs args = product.Args(*c);
    EXPECT_EQ(WatchedCall(product.kernel().fn, &args, 0, 2, 0, product.m()), "");
    ExpectSame(*product.Run(), *c, "the call itself");
  }
}

TEST_P(Vnni, LargeDepth) {
  for (const int rows : {1, 2, 4, 0}) {
    Product product(GetParam(), rows, rows == 0 ? 7 : rows, 32, 17920, {}, 5);
    ASSERT_NO_FATAL_FAILURE(Check(product, fmt::format("rows {}", rows)));
  }
}

// A row with a NaN (whose block's scale then is one, ir/support/q8_layout.h) is NaN in every column; the others keep
// their bits.
TEST_P(Vnni, NanStaysInItsRow) {
  for (const int rows : {0, 3, 8}) {
    const int64_t k = 512, m = rows == 0 ? 13 : rows, row = 2;
    Product product(GetParam(), rows, m, 64, k, {.bias = true, .residual = true});
    ASSERT_TRUE(product.Compile().ok());
    const auto want = product.Run();
    const Q8Layout layout{k};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::byte* a = product.a() + row * product.desc().lda_bytes;
    std::memcpy(a + layout.scale_offset() + 4, &nan, 4);
    std::memcpy(a + layout.scaled_sum_offset() + 4, &nan, 4);
    const auto got = product.Run();
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < 64; ++j) {
        const int64_t at = i * product.desc().ldc_bytes / 4 + j;
        if (i == row) {
          ASSERT_TRUE(std::isnan(got->as<float>()[at])) << j;
        } else {
          ASSERT_EQ(got->as<float>()[at], want->as<float>()[at]) << i << " " << j;
        }
      }
    }
  }
}

// Scales of zero, and the zero columns that pad a panel.
TEST_P(Vnni, ZeroWeightsGiveZeros) {
  for (const int rows : {0, 1, 3}) {
    Product product(GetParam(), rows, rows == 0 ? 9 : rows, 32, 256, {});
    ASSERT_TRUE(product.Compile().ok());
    const std::vector<const std::byte*> none(kPanelColumns, nullptr);
    const std::vector<ScaledColumn> no_columns(kPanelColumns);
    if (GetParam().type == DType::kI4) {
      ASSERT_TRUE(PackScaledPanel(GetParam(), 256, no_columns, product.w()).ok());
    } else {
      PackPanels(GetParam().type, 256, none, 0, 1, product.w());
    }
    const auto got = product.Run();
    for (int64_t i = 0; i < product.m(); ++i) {
      for (int64_t j = 0; j < 32; ++j) ASSERT_EQ(got->as<float>()[i * product.desc().ldc_bytes / 4 + j], 0.0f);
    }
  }
}

// The smallest and the largest exponents of MXFP4, the former subnormal.
TEST(VnniMxfp4, EveryExponent) {
  if (HostIsa() < Isa::kAvx512Vnni) GTEST_SKIP() << "this machine has no AVX512-VNNI";
  for (const int rows : {0, 2}) {
    Product product(DType::kMxfp4, rows, 2, 32, 256, {});
    for (int block = 0; block < 8; ++block) {
      for (int c = 0; c < 32; ++c) product.w()[544 * block + c] = static_cast<std::byte>(32 * block + c);
    }
    ASSERT_NO_FATAL_FAILURE(Check(product, "all exponents"));
    // One block each alone, so that the small ones count.
    for (int first : {0, 224}) {
      Product one(DType::kMxfp4, rows, 2, 32, 32, {});
      for (int c = 0; c < 32; ++c) one.w()[c] = static_cast<std::byte>(first + c);
      ASSERT_NO_FATAL_FAILURE(Check(one, fmt::format("exponents from {}", first)));
    }
  }
}

// One prefetch in so many bytes of a k block of both groups, in code without a loop over its parts: none more where a
// part begins.
TEST(VnniPrefetch, IsAsSparseAsThePlanSays) {
  TargetInfo target;
  target.isa = Isa::kAvx512Vnni;
  for (const DType type : {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}) {
    for (const int every : {64, 384, 1024}) {
      const GemmDesc desc{.n = 32, .k = 256, .a = DType::kQ8Act, .w = type, .rows = 1};
      auto plan = PlanGemmVnni(desc, target);
      ASSERT_TRUE(plan.ok()) << plan.status();
      plan->k_block = 256;
      plan->prefetch = PrefetchHint::kT1;
      plan->prefetch_distance = 8192;
      plan->prefetch_every = every;
      Emitter e;
      ASSERT_TRUE(EmitGemmVnni(desc, *plan, e).ok());
      CodeArena arena;
      const auto kernel = e.Finish("few", arena);
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      const std::string code = Disassemble({kernel->code, kernel->text_bytes});
      int64_t count = 0;
      for (size_t at = code.find("prefetcht1"); at != std::string::npos; at = code.find("prefetcht1", at + 1)) ++count;
      EXPECT_EQ(count, CeilDiv(2 * PackedGroupBytes(type), every)) << Name(type) << " every " << every;
    }
  }
}

TEST(VnniPlan, RefusesWithReason) {
  TargetInfo target;
  target.isa = Isa::kAvx512Vnni;
  GemmDesc desc{.n = 64, .k = 256, .a = DType::kQ8Act, .w = DType::kQ4_K, .rows = 1, .epilogue = {}};
  ASSERT_TRUE(PlanGemmVnni(desc, target).ok());
  const auto why = [&](GemmDesc d, TargetInfo t) {
    const auto plan = PlanGemmVnni(d, t);
    return plan.ok() ? "accepted" : std::string(plan.status().message());
  };
  TargetInfo avx512 = target;
  avx512.isa = Isa::kAvx512;
  EXPECT_EQ(why(desc, avx512), "gemm avx512_vnni: the target has avx512 only");
  GemmDesc d = desc;
  d.a = DType::kF32;
  EXPECT_EQ(why(d, target), "gemm avx512_vnni: activations are f32, not q8act");
  d = desc;
  d.w = DType::kBF16;
  EXPECT_EQ(why(d, target), "gemm avx512_vnni: weights are bf16, not a block encoding");
  d = desc;
  d.k = 128;
  EXPECT_EQ(why(d, target), "gemm: k = 128 is not a positive multiple of 256, the block of q4_k");
  d = desc;
  d.n = 48;
  EXPECT_EQ(why(d, target), "gemm: n = 48 is not a positive multiple of 32");
  d = desc;
  d.rows = 9;
  EXPECT_EQ(why(d, target), "gemm: rows = 9 is not in 0..8");
  d = desc;
  d.rows = 2;
  EXPECT_EQ(why(d, target), "gemm: rows of 0 and 0 bytes overlap: a row of a takes 448, of c 256");
  d.lda_bytes = int64_t{1} << 30;
  d.ldc_bytes = 4096;
  EXPECT_EQ(why(d, target), "gemm avx512_vnni: k = 256, rows of 1073741824 and 4096 bytes exceed 32-bit offsets");
}

TEST(VnniPlan, Prints) {
  TargetInfo target;
  target.isa = Isa::kAvx512Vnni;
  const GemmDesc desc{
      .n = 64, .k = 256, .a = DType::kQ8Act, .w = DType::kQ4_K, .rows = 1, .epilogue = {.silu_mul = true}};
  const auto plan = PlanGemmVnni(desc, target);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(ToString(*plan).substr(0, 24), "tile_rows 1, k_block 256");
  EXPECT_EQ(GemmName(desc, "avx512_vnni"), "gemm.avx512_vnni.q8act_q4_k_f32.m1n64k256.silu_mul");
}

// Groups of one unit to eight, of more, of more than k; groups that do not divide k.
std::vector<Encoding> Encodings() {
  std::vector<Encoding> all(std::begin(testing::kQuantTypes), std::end(testing::kQuantTypes));
  for (const int group : {32, 64, 128, 160, 256, 512, 1 << 20}) {
    all.push_back(Encoding::Int4(group, group != 64));
    if (group == 128) all.push_back(Encoding::Int4(group, false));
  }
  return all;
}

std::string TypeName(const ::testing::TestParamInfo<Encoding>& info) {
  if (info.param.type != DType::kI4) return std::string(Name(info.param.type));
  return fmt::format("i4_{}{}", info.param.scales.cols, info.param.scales.zeros ? "_zeros" : "");
}
INSTANTIATE_TEST_SUITE_P(Types, Vnni, ::testing::ValuesIn(Encodings()), TypeName);

}  // namespace
}  // namespace xjit
