// What the float kernels are made of: only instructions that their ISA level has, and plans that refuse what they must.
#include <Zydis/Zydis.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "codegen/gemm/pack.h"
#include "tests/unit/gemm_float/float_harness.h"

namespace xjit::testing {
namespace {

struct CodeFacts {
  std::set<std::string> isa_sets;  // as Zydis names them: "AVX2", "FMA", "AVX512F_512"
  int evex = 0;
  int instructions = 0;
};

// The kernel up to its only ret; constants stand behind it.
CodeFacts FactsOf(const Kernel& kernel) {
  ZydisDecoder decoder;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  CodeFacts facts;
  for (size_t at = 0; at < kernel.code_bytes;) {
    ZydisDecodedInstruction instruction;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    if (!ZYAN_SUCCESS(
            ZydisDecoderDecodeFull(&decoder, kernel.code + at, kernel.code_bytes - at, &instruction, operands))) {
      ADD_FAILURE() << "undecodable at " << at;
      break;
    }
    ++facts.instructions;
    facts.isa_sets.insert(ZydisISASetGetString(instruction.meta.isa_set));
    if (instruction.encoding == ZYDIS_INSTRUCTION_ENCODING_EVEX) ++facts.evex;
    if (instruction.mnemonic == ZYDIS_MNEMONIC_RET) break;
    at += instruction.length;
  }
  return facts;
}

const Epilogue kAll = {.bias = true, .silu_mul = true, .residual = true};

GemmDesc Desc(DType a, DType w, int rows) {
  return {.n = 96,
          .k = 512,
          .a = a,
          .w = w,
          .rows = rows,
          .strips = a == DType::kBF16 && rows == 0,
          .lda_bytes = 2048,
          .ldc_bytes = 384,
          .epilogue = kAll};
}

CodeFacts FactsOf(const FloatRow& row, DType w, int rows) {
  Built built;
  const absl::Status status = Build(row, Desc(row.a, w, rows), &built);
  EXPECT_TRUE(status.ok()) << Message(status);
  return status.ok() ? FactsOf(built.kernel) : CodeFacts{};
}

void ExpectOnly(const CodeFacts& facts, const std::set<std::string>& allowed, const std::string& what) {
  EXPECT_GT(facts.instructions, 50) << what;
  for (const std::string& set : facts.isa_sets) EXPECT_TRUE(allowed.count(set)) << what << " uses " << set;
}

const std::set<std::string> kScalar = {"I86",  "I186", "I386",    "I486REAL",     "LONGMODE",
                                       "CMOV", "PPRO", "FAT_NOP", "SSE_PREFETCH", "PREFETCH_NOP"};

std::set<std::string> With(std::set<std::string> base, const std::set<std::string>& more) {
  base.insert(more.begin(), more.end());
  return base;
}

TEST(GemmFloatCode, Avx2KernelsHaveNoEvex) {
  const auto allowed = With(kScalar, {"AVX", "AVX2", "FMA", "F16C"});
  for (const DType w : WeightEncodings()) {
    for (int rows = 0; rows <= kMaxFewRows; ++rows) {
      const CodeFacts facts = FactsOf(kFma2, w, rows);
      const std::string what = fmt::format("{} rows {}", Name(w), rows);
      EXPECT_EQ(facts.evex, 0) << what;
      ExpectOnly(facts, allowed, what);
    }
  }
}

TEST(GemmFloatCode, Avx512KernelsStayBelowVnni) {
  const auto allowed =
      With(kScalar, {"AVX", "AVX2", "FMA", "F16C", "AVX512F_128", "AVX512F_256", "AVX512F_512", "AVX512F_SCALAR",
                     "AVX512DQ_128", "AVX512DQ_256", "AVX512DQ_512", "AVX512BW_128", "AVX512BW_256", "AVX512BW_512"});
  for (const DType w : WeightEncodings()) {
    for (int rows = 0; rows <= kMaxFewRows; ++rows) {
      const CodeFacts facts = FactsOf(kFma512, w, rows);
      EXPECT_GT(facts.evex, 0);
      ExpectOnly(facts, allowed, fmt::format("{} rows {}", Name(w), rows));
    }
  }
}

TEST(GemmFloatCode, Bf16KernelsUseTheDotProduct) {
  for (int rows = 0; rows <= kMaxFewRows; ++rows) {
    EXPECT_TRUE(FactsOf(kBf16Dot, DType::kBF16, rows).isa_sets.count("AVX512_BF16_512"));
  }
}

TEST(GemmFloatPlan, RefusesWithTheReason) {
  const TargetInfo target;
  const auto reason = [&](const FloatRow& row, GemmDesc desc) {
    const auto plan = row.plan(desc, target);
    return plan.ok() ? std::string("accepted") : std::string(Message(plan.status()));
  };
  const GemmDesc good = Desc(DType::kF32, DType::kQ4_0, 0);
  for (const FloatRow* row : {&kFma512, &kFma2}) {
    EXPECT_EQ(reason(*row, good), "accepted");
    GemmDesc bad = good;
    bad.a = DType::kQ8Act;
    EXPECT_EQ(reason(*row, bad), "activations are q8act, this kernel takes f32");
    bad = good;
    bad.w = DType::kI32;
    EXPECT_EQ(reason(*row, bad), "i32 weights have no packed layout");
    bad = good;
    bad.n = 48;
    EXPECT_EQ(reason(*row, bad), "gemm: n = 48 is not a positive multiple of 32");
    bad = good;
    bad.k = 48;
    EXPECT_EQ(reason(*row, bad), "gemm: k = 48 is not a positive multiple of 32, the block of q4_0");
    bad = good;
    bad.rows = 9;
    EXPECT_EQ(reason(*row, bad), "gemm: rows = 9 is not in 0..8");
    bad = good;
    bad.lda_bytes = 2044;
    EXPECT_EQ(reason(*row, bad), "gemm: rows of 2044 and 384 bytes overlap: a row of a takes 2048, of c 192");
    bad = good;
    bad.strips = true;
    EXPECT_EQ(reason(*row, bad), "activations are in strips, this kernel takes rows");
    bad = good;
    bad.lda_bytes = int64_t{1} << 40;
    EXPECT_EQ(reason(*row, bad), "a row of 1099511627776 or 384 bytes is longer than 67108864");
  }
  EXPECT_EQ(reason(kBf16Dot, Desc(DType::kBF16, DType::kBF16, 3)), "accepted");
  GemmDesc rows = Desc(DType::kBF16, DType::kBF16, 0);
  EXPECT_EQ(reason(kBf16Dot, rows), "accepted");
  rows.strips = false;
  EXPECT_EQ(reason(kBf16Dot, rows), "activations are in rows, this kernel takes strips");
  EXPECT_EQ(reason(kBf16Dot, Desc(DType::kF32, DType::kBF16, 3)), "activations are f32, this kernel takes bf16");
  EXPECT_EQ(reason(kBf16Dot, Desc(DType::kBF16, DType::kQ8_0, 3)),
            "weights are q8_0, this kernel takes bf16, i8, f8e4m3 and i4");
}

TEST(GemmFloatPlan, BlocksAreWholeForAnyCache) {
  for (const FloatRow* row : {&kFma512, &kFma2}) {
    for (const DType w : WeightEncodings()) {
      for (int rows = 0; rows <= kMaxFewRows; ++rows) {
        for (const int64_t l1 : {int64_t{1} << 10, int64_t{48} << 10, int64_t{150} << 10, int64_t{1000} << 10}) {
          GemmDesc desc = Desc(DType::kF32, w, rows);
          desc.k = 8960;
          desc.lda_bytes = 4 * desc.k;
          TargetInfo target;
          target.l1d_bytes = l1;
          target.l2_bytes = 5 * l1;
          const auto plan = row->plan(desc, target);
          ASSERT_TRUE(plan.ok());
          EXPECT_EQ(plan->k_block % PackedBlockElems(w), 0) << Name(w) << " " << ToString(*plan);
          EXPECT_EQ(plan->scratch_bytes % 64, 0);
          EXPECT_LE(plan->tile_rows, row == &kFma2 ? 6 : 8);
        }
      }
    }
  }
}

TEST(GemmFloatPlan, DependsOnTheTargetNotTheHost) {
  GemmDesc desc = Desc(DType::kF32, DType::kQ4_0, 0);
  desc.k = 8960;
  desc.lda_bytes = 4 * desc.k;
  TargetInfo target;
  target.l2_bytes = 512 << 10;
  EXPECT_EQ(kFma512.plan(desc, target)->k_block, 512);
  target.l2_bytes = 2 << 20;
  EXPECT_EQ(kFma512.plan(desc, target)->k_block, 1792);
  EXPECT_LT(kFma512.plan(desc, target)->cost, kFma2.plan(desc, target)->cost);
}

}  // namespace
}  // namespace xjit::testing
