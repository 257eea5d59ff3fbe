// The registry: selection by name, caching, errors, and --verify-kernels over every row.
#include "codegen/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "codegen/cpu.h"
#include "codegen/gemm/gemm_amx.h"
#include "codegen/gemm/gemm_bf16.h"
#include "codegen/gemm/gemm_int8.h"
#include "codegen/kernel_rows.h"
#include "codegen/verify_kernels.h"
#include "ir/support/act_layout.h"
#include "ir/support/q8_layout.h"

namespace xjit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Isa kIsas[] = {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

TargetInfo TargetOf(Isa isa) {
  TargetInfo target;
  target.isa = isa;
  return target;
}

GemmDesc Gemm(DType w, Isa isa, int rows, Epilogue epilogue = {}) {
  GemmDesc desc{
      .n = 128, .k = 256, .a = ActivationFor(w, TargetOf(isa), rows == 0), .w = w, .rows = rows, .epilogue = epilogue};
  desc.strips = StripsFor(desc.a, rows == 0);
  desc.lda_bytes = desc.a == DType::kQ8Act ? Q8Layout{desc.k}.row_bytes() : desc.k * (desc.a == DType::kBF16 ? 2 : 4);
  desc.ldc_bytes = desc.n * 4;
  return desc;
}

AttentionDesc Attention(DType q, DType kv) {
  return {.heads = 6,
          .kv_heads = 2,
          .head_dim = 64,
          .q = q,
          .kv = kv,
          .ldq_bytes = 6 * 64 * (q == DType::kBF16 ? 2 : 4),
          .ldo_bytes = 6 * 64 * 4};
}

RopeStoreDesc RopeStore(DType q, DType kv) {
  return {.heads = 6,
          .kv_heads = 2,
          .head_dim = 64,
          .rope_dim = 64,
          .q = q,
          .kv = kv,
          .q_scale = 0.18f,
          .ldqin_bytes = 10 * 64 * 4,
          .ldkin_bytes = 10 * 64 * 4,
          .ldvin_bytes = 10 * 64 * 4,
          .ldq_bytes = 6 * 64 * (q == DType::kBF16 ? 2 : 4)};
}

PrepareDesc Prepare(DType out, bool norm) {
  return {.cols = 576, .norm = norm, .eps = 1e-5f, .out = out, .ldx_bytes = 2304, .ldo_bytes = 2304};
}

template <typename Desc>
std::string NameOf(const Desc& desc, Isa isa) {
  KernelLibrary library(TargetOf(isa));
  const auto kernel = library.Get(desc);
  return kernel.ok() ? (*kernel)->name : kernel.status().ToString();
}

TEST(Activations, FollowTheWeightAndTheIsa) {
  const auto few = [](const Encoding& w, Isa isa) { return ActivationFor(w, TargetOf(isa), false); };
  EXPECT_EQ(few(DType::kQ4_K, Isa::kAvx2), DType::kF32);
  EXPECT_EQ(few(DType::kQ4_K, Isa::kAvx512), DType::kF32);
  EXPECT_EQ(few(DType::kQ4_K, Isa::kAvx512Vnni), DType::kQ8Act);
  EXPECT_EQ(few(DType::kQ8_0, Isa::kAmx), DType::kQ8Act);
  EXPECT_EQ(few(DType::kBF16, Isa::kAvx512Vnni), DType::kF32);
  EXPECT_EQ(few(DType::kBF16, Isa::kAvx512Bf16), DType::kBF16);
  EXPECT_EQ(few(DType::kF16, Isa::kAvx512Bf16), DType::kF32);
  EXPECT_EQ(few(DType::kF32, Isa::kAmx), DType::kF32);
  EXPECT_EQ(few(Encoding::Int8(), Isa::kAvx2), DType::kI8Act);
  EXPECT_EQ(few(Encoding::Int8(), Isa::kAmx), DType::kI8Act);
  EXPECT_EQ(few(Encoding::Int4(128, true), Isa::kAvx512), DType::kF32);
  EXPECT_EQ(few(Encoding::Int4(128, true), Isa::kAvx512Bf16), DType::kQ8Act);
  // What was made for float activations is not rounded to int8.
  const Encoding only(DType::kI8, {.kind = Scales::Kind::kChannel, .weight_only = true});
  EXPECT_EQ(few(only, Isa::kAvx512Vnni), DType::kF32);
  EXPECT_EQ(few(only, Isa::kAvx512Bf16), DType::kBF16);
  EXPECT_EQ(few(only, Isa::kAmx), DType::kBF16);
  // Tiles take many rows of blocks of 32 as bf16.
  EXPECT_EQ(ActivationFor(DType::kQ4_K, TargetOf(Isa::kAmx), true), DType::kBF16);
  EXPECT_EQ(ActivationFor(DType::kQ4_K, TargetOf(Isa::kAvx512Bf16), true), DType::kQ8Act);
}

TEST(Selection, GemmByWeightAndTarget) {
  const auto name = [](DType w, Isa isa) { return NameOf(Gemm(w, isa, 1), isa); };
  EXPECT_EQ(name(DType::kQ4_K, Isa::kAvx512Bf16), "gemm.avx512_vnni.q8act_q4_k_f32.m1n128k256");
  EXPECT_EQ(name(DType::kQ4_K, Isa::kAvx512Vnni), "gemm.avx512_vnni.q8act_q4_k_f32.m1n128k256");
  EXPECT_EQ(name(DType::kQ4_K, Isa::kAvx512), "gemm.avx512.f32_q4_k_f32.m1n128k256");
  EXPECT_EQ(name(DType::kQ4_K, Isa::kAvx2), "gemm.avx2.f32_q4_k_f32.m1n128k256");
  EXPECT_EQ(name(DType::kBF16, Isa::kAvx512Bf16), "gemm.avx512_bf16.bf16_bf16_f32.m1n128k256");
  EXPECT_EQ(name(DType::kBF16, Isa::kAvx512Vnni), "gemm.avx512.f32_bf16_f32.m1n128k256");
  EXPECT_EQ(name(DType::kF32, Isa::kAvx512Bf16), "gemm.avx512.f32_f32_f32.m1n128k256");
  EXPECT_EQ(name(DType::kF16, Isa::kAvx2), "gemm.avx2.f32_f16_f32.m1n128k256");
}

TEST(Selection, AttentionByTypesAndTarget) {
  EXPECT_THAT(NameOf(Attention(DType::kBF16, DType::kBF16), Isa::kAvx512Bf16), StartsWith("attention.avx512_bf16."));
  EXPECT_THAT(NameOf(Attention(DType::kF32, DType::kBF16), Isa::kAvx512Bf16), StartsWith("attention.avx512."));
  EXPECT_THAT(NameOf(Attention(DType::kF32, DType::kF32), Isa::kAvx2), StartsWith("attention.avx2."));
  EXPECT_THAT(NameOf(AttentionMergeDesc{Attention(DType::kF32, DType::kF32)}, Isa::kAvx512), HasSubstr(".avx512."));
  EXPECT_THAT(NameOf(AttentionMergeDesc{Attention(DType::kF32, DType::kF32)}, Isa::kAvx2), HasSubstr(".avx2."));
  EXPECT_THAT(NameOf(RopeStore(DType::kBF16, DType::kBF16), Isa::kAvx512Bf16), StartsWith("rope_store.avx512."));
  EXPECT_THAT(NameOf(RopeStore(DType::kF32, DType::kF32), Isa::kAvx2), StartsWith("rope_store.avx2."));
}

TEST(Selection, RowKernelsByTarget) {
  EXPECT_EQ(NameOf(Prepare(DType::kQ8Act, true), Isa::kAvx512Vnni), "prepare.avx512.f32_q8act.n576.norm");
  EXPECT_EQ(NameOf(Prepare(DType::kBF16, false), Isa::kAvx2), "prepare.avx2.f32_bf16.n576");
  const EltwiseDesc add{.op = EltwiseOp::kAdd, .cols = 64, .lda_bytes = 256, .ldb_bytes = 256, .ldy_bytes = 256};
  EXPECT_EQ(NameOf(add, Isa::kAmx), "eltwise.avx512.add.n64");
  EXPECT_EQ(NameOf(add, Isa::kAvx2), "eltwise.avx2.add.n64");
}

TEST(Selection, ExplainsCandidates) {
  KernelLibrary library(TargetOf(Isa::kAvx512Bf16));
  const GemmDesc desc = Gemm(DType::kQ4_K, Isa::kAvx512Bf16, 1);
  const std::vector<Candidate> candidates = library.Candidates(desc);
  const auto granted = [](Isa isa) {
    const auto rows = KernelRows();
    return static_cast<size_t>(std::count_if(
        rows.begin(), rows.end(), [isa](const KernelRow& row) { return row.family == "gemm" && row.isa <= isa; }));
  };
  ASSERT_EQ(candidates.size(), granted(Isa::kAvx512Bf16));
  for (const Candidate& c : candidates) EXPECT_EQ(c.chosen, c.row == "avx512_vnni") << c.row;
  const std::string text = library.Explain(desc);
  EXPECT_THAT(text, HasSubstr("avx512_vnni   cost "));
  EXPECT_THAT(text, HasSubstr("  <- chosen\n"));
  EXPECT_THAT(text, HasSubstr("avx512_bf16   refused: "));
  EXPECT_EQ(KernelLibrary(TargetOf(Isa::kAvx2)).Candidates(desc).size(), granted(Isa::kAvx2));
}

// A measured prefetch is in the plans whose emitters emit it, those without one of their own included.
TEST(Selection, MeasuredPrefetch) {
  TargetInfo target = TargetOf(Isa::kAmx);
  for (const DType w : {DType::kBF16, DType::kI8, DType::kQ4_K}) {
    target.prefetch.push_back({.w = w, .one_row = false, .hint = PrefetchHint::kT1, .distance = 4096, .every = 128});
  }
  const auto tuned = [&](auto plan_of, const GemmDesc& desc) {
    const absl::StatusOr<GemmPlan> plan = plan_of(desc, target);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return plan.ok() ? WithTuning(desc, target, *plan) : GemmPlan{};
  };
  constexpr const char* kMeasured = "prefetch t1 +4096 every 128";
  GemmDesc bf16 = Gemm(DType::kBF16, Isa::kAmx, 6);
  bf16.ldc_bytes = 512;
  EXPECT_THAT(ToString(tuned(PlanGemmBf16Dot, bf16)), HasSubstr(kMeasured));
  EXPECT_THAT(ToString(tuned(PlanGemmAmxBf16, bf16)), Not(HasSubstr("prefetch")));
  GemmDesc q4 = Gemm(DType::kQ4_K, Isa::kAvx512Vnni, 6);
  q4.ldc_bytes = 512;
  EXPECT_THAT(ToString(tuned(PlanGemmVnni, q4)), HasSubstr(kMeasured));
  const GemmDesc i8{.n = 128,
                    .k = 256,
                    .a = DType::kI8Act,
                    .w = Encoding::Int8(),
                    .rows = 2,
                    .lda_bytes = I8Layout{256}.row_bytes(),
                    .ldc_bytes = 512};
  EXPECT_THAT(ToString(*PlanGemmInt8Vnni(i8, target)), Not(HasSubstr("prefetch")));
  EXPECT_THAT(ToString(tuned(PlanGemmInt8Vnni, i8)), HasSubstr(kMeasured));
  GemmDesc many = Gemm(DType::kBF16, Isa::kAmx, 0);
  many.ldc_bytes = 512;
  EXPECT_THAT(ToString(tuned(PlanGemmBf16Dot, many)), Not(HasSubstr(kMeasured)));
}

// Of rows that accept, none is cheaper than the chosen one.
TEST(Selection, TakesTheCheapest) {
  for (Isa isa : kIsas) {
    KernelLibrary library(TargetOf(isa));
    for (int rows : {0, 1, 4}) {
      for (const GemmDesc& desc : {Gemm(DType::kF32, isa, rows), Gemm(DType::kBF16, Isa::kAvx2, rows)}) {
        double chosen = -1, least = 1e300;
        for (const Candidate& c : library.Candidates(desc)) {
          if (!c.cost.ok()) continue;
          least = std::min(least, *c.cost);
          if (c.chosen) chosen = *c.cost;
        }
        EXPECT_EQ(chosen, least) << library.Explain(desc);
      }
    }
  }
}

TEST(Library, EqualDescriptorsShareOneKernel) {
  KernelLibrary library(TargetOf(Isa::kAvx2));
  const auto first = library.Get(Prepare(DType::kF32, true)), second = library.Get(Prepare(DType::kF32, true));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, *second);
  EXPECT_NE(*library.Get(Prepare(DType::kF32, false)), *first);
  EXPECT_EQ(library.kernels().size(), 2u);
  EXPECT_GT(library.code_bytes(), 0);
  EXPECT_GT(library.compile_ms(), 0);
}

TEST(Library, MoreKernelsAfterSealing) {
  KernelLibrary library(TargetOf(Isa::kAvx2));
  const std::vector<float> x = {1, 2, 3, 4};
  std::vector<float> y(4);
  const PrepareArgs args{.x = x.data(), .out = y.data()};
  for (int64_t cols : {2, 3}) {
    const auto kernel = library.Get(PrepareDesc{.cols = cols, .ldx_bytes = 16, .ldo_bytes = 16});
    ASSERT_TRUE(kernel.ok());
    ASSERT_TRUE(library.Seal().ok());
    (*kernel)->fn(&args, 0, 1, 0, 1);
  }
  EXPECT_THAT(y, ElementsAre(1, 2, 3, 0));
}

TEST(Library, RowsByName) {
  KernelLibrary library(TargetOf(Isa::kAvx512));
  const PrepareDesc desc = Prepare(DType::kF32, false);
  EXPECT_EQ((*library.Get(desc, "avx2"))->name, "prepare.avx2.f32_f32.n576");
  EXPECT_EQ((*library.Get(desc))->name, "prepare.avx512.f32_f32.n576");
  EXPECT_EQ(library.Get(desc, "avx3").status().ToString(),
            "INVALID_ARGUMENT: prepare: no kernel avx3; known are avx512, avx2");
  EXPECT_EQ(library.Get(Gemm(DType::kQ4_0, Isa::kAmx, 1), "avx512_vnni").status().ToString(),
            "FAILED_PRECONDITION: gemm: kernel avx512_vnni needs avx512_vnni, the target has avx512");
}

TEST(Library, RefusalsGiveEachRowsReason) {
  KernelLibrary library(TargetOf(Isa::kAvx512));
  PrepareDesc desc = Prepare(DType::kQ8Act, true);
  desc.cols = 33;
  const auto kernel = library.Get(desc);
  EXPECT_EQ(
      kernel.status().ToString(),
      "INVALID_ARGUMENT: no kernel for prepare.*.f32_q8act.n33.norm; avx512: q8act rows are whole blocks of 32, but "
      "cols = 33; avx2: q8act rows are whole blocks of 32, but cols = 33");
  EXPECT_TRUE(library.kernels().empty());
  const auto gemm = library.Get(Gemm(DType::kQ4_0, Isa::kAmx, 1));  // q8act without VNNI
  EXPECT_THAT(gemm.status().ToString(),
              StartsWith("INVALID_ARGUMENT: no kernel for gemm.*.q8act_q4_0_f32.m1n128k256; "));
}

TEST(Library, FixedKernels) {
  KernelLibrary library(TargetOf(Isa::kAvx2));
  for (const char* name : {"embed", "rope_table", "gather_rows"}) {
    const auto kernel = library.Fixed(name);
    ASSERT_TRUE(kernel.ok());
    EXPECT_EQ((*kernel)->name, name);
    EXPECT_NE((*kernel)->fn, nullptr);
    EXPECT_EQ((*kernel)->code, nullptr);
    EXPECT_EQ(*library.Fixed(name), *kernel);
  }
  EXPECT_EQ(library.Fixed("softmax").status().ToString(),
            "INVALID_ARGUMENT: no C++ kernel softmax; known are embed, rope_table, gather_rows, route, "
            "moe_sort, grouped_up, grouped_down");
}

TEST(Library, SplitKernelsAreNamedAfterTheirParts) {
  KernelLibrary library(TargetOf(Isa::kAvx2));
  const auto a = library.Get(Gemm(DType::kF32, Isa::kAvx2, 1)), b = library.Get(Gemm(DType::kBF16, Isa::kAvx2, 1));
  ASSERT_TRUE(a.ok() && b.ok());
  const Kernel* split = library.Split(**a);
  EXPECT_EQ(split->name, "gemm_split." + (*a)->name);
  EXPECT_EQ(split->code, nullptr);
  EXPECT_EQ(library.Split(**a), split);
  EXPECT_NE(library.Split(**b), split);
}

TEST(Library, RowsAreListedOnce) {
  std::set<std::pair<std::string, std::string>> seen;
  for (const KernelRow& row : KernelRows()) {
    EXPECT_TRUE(seen.emplace(row.family, row.row).second) << row.family << " " << row.row;
  }
  EXPECT_EQ(seen.size(), KernelRows().size());
  EXPECT_STREQ(RowsOf<AttentionDesc>().front().name, "avx512_bf16");
}

// Every row of a family that accepts the descriptor, on every level that it can be planned for here.
template <typename Desc>
int VerifyRows(const Desc& desc) {
  int verified = 0;
  for (Isa isa : kIsas) {
    if (isa > HostIsa()) continue;
    KernelLibrary library(TargetOf(isa), {.verify = true});
    for (const Candidate& c : library.Candidates(desc)) {
      if (!c.cost.ok()) continue;
      const auto kernel = library.Get(desc, c.row);
      EXPECT_TRUE(kernel.ok()) << kernel.status().ToString();
      ++verified;
    }
  }
  return verified;
}

TEST(Verify, EveryGemmRow) {
  const Epilogue epilogues[] = {{}, {.bias = true, .residual = true}, {.silu_mul = true}};
  for (DType w : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                  DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL,
                  DType::kIQ4_XS, DType::kMxfp4}) {
    for (int rows : {0, 1, 3}) {
      for (const Epilogue& epilogue : epilogues) {
        EXPECT_GT(VerifyRows(Gemm(w, Isa::kAvx2, rows, epilogue)), 0) << Name(w);
        if (ActivationFor(w, TargetOf(HostIsa()), false) != DType::kF32) {
          EXPECT_GT(VerifyRows(Gemm(w, HostIsa(), rows, epilogue)), 0) << Name(w);
        }
      }
    }
  }
}

TEST(Verify, EveryInt8Row) {
  for (int rows : {0, 1, 3}) {
    GemmDesc desc{.n = 64, .k = 100, .a = DType::kI8Act, .w = Encoding::Int8(), .rows = rows, .strips = rows == 0};
    desc.lda_bytes = I8Layout{desc.k}.row_bytes();
    desc.ldc_bytes = 4 * desc.n;
    for (const Epilogue& epilogue :
         {Epilogue{}, Epilogue{.bias = true, .residual = true}, Epilogue{.silu_mul = true}}) {
      desc.epilogue = epilogue;
      EXPECT_GT(VerifyRows(desc), 0);
    }
  }
}

TEST(Verify, PartsOfADepth) {
  for (int rows : {1, 3}) {
    GemmDesc q8 = Gemm(DType::kQ4_K, Isa::kAvx512Vnni, rows);
    q8.n = 32;
    q8.depth = 3 * q8.k;
    q8.lda_bytes = Q8Layout{q8.depth}.row_bytes();
    GemmDesc i8{.n = 32, .k = 128, .a = DType::kI8Act, .w = Encoding::Int8(), .rows = rows, .depth = 320};
    i8.lda_bytes = I8Layout{i8.depth}.row_bytes();
    i8.ldc_bytes = 128;
    if (HostIsa() >= Isa::kAvx512Vnni) {
      EXPECT_EQ(VerifyRows(q8), 1 + (HostIsa() > Isa::kAvx512Vnni) + (HostIsa() > Isa::kAvx512Bf16));
    }
    EXPECT_GT(VerifyRows(i8), 0);
  }
}

TEST(Verify, EveryAttentionRow) {
  for (DType kv : {DType::kF32, DType::kBF16}) {
    for (DType q : {DType::kF32, DType::kBF16}) {
      if (q == DType::kBF16 && (kv == DType::kF32 || HostIsa() < Isa::kAvx512Bf16)) continue;
      AttentionDesc desc = Attention(q, kv);
      EXPECT_GT(VerifyRows(desc), 0);
      desc.window = 40;
      EXPECT_GT(VerifyRows(desc), 0);
      EXPECT_GT(VerifyRows(AttentionMergeDesc{desc}), 0);
      EXPECT_GT(VerifyRows(RopeStore(q, kv)), 0);
    }
  }
}

TEST(Verify, EveryRowKernel) {
  for (DType out : {DType::kF32, DType::kBF16, DType::kQ8Act, DType::kI8Act}) {
    for (bool norm : {false, true}) {
      PrepareDesc desc = Prepare(out, norm);
      EXPECT_GT(VerifyRows(desc), 0);
      desc.gather = true;
      EXPECT_GT(VerifyRows(desc), 0);
      desc.strips = true;
      if (HasStrips(out)) {
        EXPECT_GT(VerifyRows(desc), 0);
      }
    }
  }
  for (EltwiseOp op : {EltwiseOp::kAdd, EltwiseOp::kMul, EltwiseOp::kSilu, EltwiseOp::kSiluMul, EltwiseOp::kAddRow}) {
    EXPECT_GT(VerifyRows(EltwiseDesc{.op = op, .cols = 100, .lda_bytes = 400, .ldb_bytes = 400, .ldy_bytes = 400}), 0);
  }
}

TEST(Verify, NeedsTheIsa) {
  if (RunnableIsa() >= Isa::kAvx512Bf16) GTEST_SKIP() << "this machine runs every row";
  KernelLibrary library(TargetOf(Isa::kAvx512Bf16), {.verify = true});
  EXPECT_EQ(library.Get(Gemm(DType::kBF16, Isa::kAvx512Bf16, 1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Kernels that are wrong in one place: verification must say where.
template <int kFault>
void Faulty(const void* args, int64_t, int64_t, int64_t m0, int64_t m1) {
  const auto& a = *static_cast<const PrepareArgs*>(args);
  for (int64_t m = m0; m < m1; ++m) {
    std::memcpy(static_cast<std::byte*>(a.out) + m * 128, reinterpret_cast<const std::byte*>(a.x) + m * 128, 128);
  }
  auto* out = static_cast<float*>(a.out);
  if (kFault == 1) out[33] += 0.001f;
  if (kFault == 2) out[95] = std::numeric_limits<float>::quiet_NaN();
}

TEST(Verify, FindsTheWrongPlace) {
  const PrepareDesc desc{.cols = 32, .ldx_bytes = 128, .ldo_bytes = 128};
  const auto verify = [&](KernelFn fn) {
    Kernel kernel;
    kernel.name = "faulty";
    kernel.fn = fn;
    return VerifyKernel(desc, kernel);
  };
  EXPECT_TRUE(verify(&Faulty<0>).ok());
  EXPECT_THAT(verify(&Faulty<1>).ToString(), StartsWith("INTERNAL: faulty: row 1 column 1 is "));
  EXPECT_THAT(verify(&Faulty<2>).ToString(), StartsWith("INTERNAL: faulty: row 2 column 31 is nan"));
}

// A right kernel under a descriptor that asks for something else.
TEST(Verify, FindsAMissingEpilogueAndAWrongWindow) {
  const TargetInfo target = TargetOf(Isa::kAvx2);
  KernelLibrary library(target);
  const GemmDesc plain = Gemm(DType::kQ4_K, Isa::kAvx2, 3);
  const auto gemm = library.Get(plain);
  const AttentionDesc full = Attention(DType::kF32, DType::kF32);
  const auto attention = library.Get(full);
  ASSERT_TRUE(gemm.ok() && attention.ok() && library.Seal().ok());
  for (const Epilogue& epilogue : {Epilogue{.bias = true}, Epilogue{.residual = true}}) {
    GemmDesc other = plain;
    other.epilogue = epilogue;
    EXPECT_THAT(VerifyKernel(other, **gemm).ToString(), HasSubstr(": row 0 column 0 is "));
  }
  GemmDesc other_weights = plain;
  other_weights.w = DType::kQ5_K;
  EXPECT_FALSE(VerifyKernel(other_weights, **gemm).ok());
  AttentionDesc windowed = full;
  windowed.window = 60;
  EXPECT_THAT(VerifyKernel(windowed, **attention).ToString(), HasSubstr("INTERNAL: attention.avx2."));
  EXPECT_TRUE(VerifyKernel(full, **attention).ok());
}

TEST(KernelLibrary, NamesAreUnique) {
  KernelLibrary library(TargetOf(Isa::kAvx2));
  PrepareDesc near = Prepare(DType::kF32, false), far = near;
  far.ldo_bytes += 64;
  const auto a = library.Get(near), b = library.Get(far), again = library.Get(near);
  ASSERT_TRUE(a.ok() && b.ok() && again.ok());
  EXPECT_EQ((*b)->name, (*a)->name + ".2");
  EXPECT_EQ(*a, *again);
}

}  // namespace
}  // namespace xjit
