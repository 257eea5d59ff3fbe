// The op table agrees with itself.
#include "ir/ops.h"

#include <gtest/gtest.h>

#include <set>

namespace xjit {
namespace {

TEST(OpTable, EveryOpIsComplete) {
  std::set<std::string_view> names;
  for (int i = 0; i < NumOps(); ++i) {
    const auto code = static_cast<OpCode>(i);
    const OpInfo& info = Info(code);
    SCOPED_TRACE(info.name);
    EXPECT_EQ(info.code, code);
    EXPECT_TRUE(names.insert(info.name).second);
    EXPECT_EQ(ParseOpCode(info.name), code);
    EXPECT_FALSE(info.doc.empty());
    EXPECT_EQ(info.results.empty(), info.infer == nullptr);
    const bool structural = code == OpCode::kRepeat || code == OpCode::kReturn;
    EXPECT_EQ(info.reference == nullptr, structural);
    EXPECT_EQ(info.variadic, structural);
  }
  EXPECT_EQ(ParseOpCode("sliu"), std::nullopt);
  EXPECT_EQ(ParseOpCode(""), std::nullopt);
}

TEST(OpTable, NamesInsideAnOpAreUnique) {
  for (int i = 0; i < NumOps(); ++i) {
    const OpInfo& info = Info(static_cast<OpCode>(i));
    SCOPED_TRACE(info.name);
    std::set<std::string_view> operands, attrs;
    for (const OperandSpec& o : info.operands) EXPECT_TRUE(operands.insert(o.name).second) << o.name;
    for (const AttrSpec& a : info.attrs) {
      EXPECT_TRUE(attrs.insert(a.name).second) << a.name;
      // Either a default or an example tells the kind of the value.
      EXPECT_NE(a.fallback.has_value(), a.kind.has_value()) << a.name;
      for (const AttrSpec& plan : PlanAttrs()) EXPECT_NE(a.name, plan.name);
    }
  }
}

TEST(OpTable, EffectsSayWhoTouchesTheCache) {
  const std::set<OpCode> writes = {OpCode::kKvStore, OpCode::kRopeStore, OpCode::kKvStoreLatent, OpCode::kLatentStore};
  const std::set<OpCode> reads = {OpCode::kAttention, OpCode::kFlashAttention, OpCode::kMlaAttention,
                                  OpCode::kMlaExtend};
  for (int i = 0; i < NumOps(); ++i) {
    const auto code = static_cast<OpCode>(i);
    const Effects want = writes.contains(code)  ? Effects::kWritesKv
                         : reads.contains(code) ? Effects::kReadsKv
                                                : Effects::kPure;
    EXPECT_EQ(Info(code).effects, want) << Name(code);
  }
}

TEST(OpTable, ChainItemsNameTheirChain) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const ChainItemSpec& item : ChainItems()) {
    EXPECT_TRUE(item.chain == "prologue" || item.chain == "epilogue") << item.chain;
    EXPECT_TRUE(seen.insert({item.chain, item.name}).second) << item.name;
  }
}

TEST(OpTable, DefaultsAndMissingAttributes) {
  Op norm(OpCode::kRmsNorm);
  EXPECT_EQ(norm.Float("eps"), 1e-5);
  norm.attrs["eps"] = 1e-6;
  EXPECT_EQ(norm.Float("eps"), 1e-6);
  EXPECT_FALSE(norm.Bool("private"));
  EXPECT_TRUE(norm.ChainAttr("prologue").empty());
  EXPECT_EQ(norm.Int("no_such"), 0);
}

// Text may write a whole number where a float is meant; its value must arrive.
TEST(OpTable, WholeNumbersAreFloatsWhereFloatsAreMeant) {
  Op attention(OpCode::kAttention);
  attention.attrs["scale"] = int64_t{2};
  EXPECT_EQ(attention.Float("scale"), 2.0);
}

}  // namespace
}  // namespace xjit
