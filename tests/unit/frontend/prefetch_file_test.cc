// prefetch.txt: lines that no measurement wrote are passed over, whoever wrote them.
#include "frontend/prefetch_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "frontend/tune_prefetch.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::TempFolder;

constexpr std::string_view kKey = "AMD EPYC 9555, avx512_bf16, 4 threads";

// What a line with that behind the key's tab says: "wrong", "planner" or the tuning.
std::string Says(std::string_view values, std::string_view key = kKey) {
  const auto line = ParsePrefetchLine(fmt::format("{}\t{}", key, values), kKey);
  if (!line) return "wrong";
  const std::string what = fmt::format("{} {}: ", Name(line->w), line->one_row ? "one" : "several");
  if (!line->found) return what + "planner";
  EXPECT_EQ(line->found->w, line->w);
  EXPECT_EQ(line->found->one_row, line->one_row);
  return what + fmt::format("t{} +{} every {} depth {}", static_cast<int>(line->found->hint) - 1, line->found->distance,
                            line->found->every, line->found->k_block);
}

TEST(PrefetchLine, Good) {
  EXPECT_EQ(Says("q4_k 1 1 8192 64 256"), "q4_k one: t0 +8192 every 64 depth 256");
  EXPECT_EQ(Says("bf16 4 2 4096 384 0"), "bf16 several: t1 +4096 every 384 depth 0");
  EXPECT_EQ(Says("q8_0 1 -1 0 0 0"), "q8_0 one: planner");
  EXPECT_EQ(Says("q8_0 1 0 0 0 64"), "q8_0 one: t-1 +0 every 0 depth 64");  // no prefetch at all
  EXPECT_EQ(Says("q8_0 1 2 65536 65536 256"), "q8_0 one: t1 +65536 every 65536 depth 256");
}

TEST(PrefetchLine, OfAnotherMachine) {
  EXPECT_EQ(Says("q4_k 1 1 8192 64 256", "AMD EPYC 9555, avx512_bf16, 8 threads"), "wrong");
  EXPECT_EQ(Says("q4_k 1 1 8192 64 256", "AMD"), "wrong");
  EXPECT_EQ(Says("q4_k 1 1 8192 64 256", ""), "wrong");
  EXPECT_FALSE(ParsePrefetchLine("", kKey).has_value());
  EXPECT_FALSE(ParsePrefetchLine(kKey, kKey).has_value());
  EXPECT_FALSE(ParsePrefetchLine("\xff\xfe\t\t", kKey).has_value());
}

TEST(PrefetchLine, Wrong) {
  for (const std::string_view values : {
           "",
           "q4_k",
           "q4_k 1 1 8192 64",        // no depth
           "q4_k 1 1 8192 64 x",      //
           "q4_k 1 1 8192 64 257",    // more than a body has
           "q4_k 1 1 8192 64 -32",    //
           "q4_k 1 1 8192 0 64",      // a prefetch each 0 bytes never ends
           "q4_k 1 2 8192 63 64",     //
           "q4_k 1 1 8192 -64 64",    //
           "q4_k 1 1 8192 65537 64",  //
           "q4_k 1 1 -1 64 64",       //
           "q4_k 1 1 65537 64 64",    //
           "q4_k 1 3 8192 64 64",     // no such hint
           "q4_k 1 -2 0 0 0",         //
           "q4_k 0 1 8192 64 64",     // no such rows
           "q4_k 2 1 8192 64 64",     //
           "q9_z 1 1 8192 64 64",     // no such type
           "q4_k 1 1 99999999999999999999 64 64",
       }) {
    EXPECT_EQ(Says(values), "wrong") << values;
  }
}

TEST(PrefetchLine, TextIsReadAgain) {
  const PrefetchTuning tuning{
      .w = DType::kQ4_0, .one_row = false, .hint = PrefetchHint::kT1, .distance = 8192, .every = 384, .k_block = 64};
  for (const auto& found : {std::optional(tuning), std::optional<PrefetchTuning>()}) {
    const auto line =
        ParsePrefetchLine(PrefetchLineText({.w = DType::kQ4_0, .one_row = false, .found = found}, kKey), kKey);
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(line->found, found);
    EXPECT_EQ(line->w, DType::kQ4_0);
    EXPECT_FALSE(line->one_row);
  }
}

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(PrefetchFile, KeepsBehindALineWithoutAnEnd) {
  const TempFolder folder;
  const std::string good = fmt::format("{}\tq4_k 1 1 8192 64 256", kKey),
                    text = fmt::format("garbage\n{}\n{}\tq5_k 1 1 81", good, kKey), path = folder.Write("p.txt", text);
  PrefetchFile file(path, std::string(kKey));
  std::optional<PrefetchTuning> found;
  ASSERT_TRUE(file.Find(DType::kQ4_K, true, &found));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->k_block, 256);
  EXPECT_FALSE(file.Find(DType::kQ4_K, false, &found));
  EXPECT_FALSE(file.Find(DType::kQ5_K, true, &found));
  file.Keep({.w = DType::kQ8_0, .one_row = true, .found = std::nullopt});
  file.Keep({.w = DType::kQ8_0, .one_row = false, .found = std::nullopt});
  EXPECT_EQ(Contents(path), text + fmt::format("\n{0}\tq8_0 1 -1 0 0 0\n{0}\tq8_0 4 -1 0 0 0\n", kKey));
  // All but the broken line are there again, for this key alone.
  const PrefetchFile again(path, std::string(kKey)), foreign(path, "another");
  EXPECT_TRUE(again.Find(DType::kQ4_K, true, &found));
  EXPECT_TRUE(again.Find(DType::kQ8_0, true, &found));
  EXPECT_FALSE(found.has_value());
  EXPECT_TRUE(again.Find(DType::kQ8_0, false, &found));
  EXPECT_FALSE(again.Find(DType::kQ5_K, true, &found));
  EXPECT_FALSE(foreign.Find(DType::kQ4_K, true, &found));
}

TEST(PrefetchFile, TheLastOfTwoCountsAndAFolderIsMade) {
  const TempFolder folder;
  const std::string path = folder.path() + "/a/b/prefetch.txt";
  PrefetchFile file(path, std::string(kKey));
  PrefetchTuning tuning{.w = DType::kI8, .one_row = true, .hint = PrefetchHint::kT0, .distance = 2048, .every = 64};
  file.Keep({.w = DType::kI8, .one_row = true, .found = std::nullopt});
  file.Keep({.w = DType::kI8, .one_row = true, .found = tuning});
  std::optional<PrefetchTuning> found;
  ASSERT_TRUE(PrefetchFile(path, std::string(kKey)).Find(DType::kI8, true, &found));
  EXPECT_EQ(found, tuning);
}

// A folder, or nothing, in the file's place.
TEST(PrefetchFile, WhatIsNoFileIsLeftAlone) {
  const TempFolder folder;
  for (const std::string& path : {folder.path(), std::string()}) {
    PrefetchFile file(path, std::string(kKey));
    file.Keep({.w = DType::kI8, .one_row = true, .found = std::nullopt});
    std::optional<PrefetchTuning> found;
    EXPECT_FALSE(file.Find(DType::kI8, true, &found));
  }
}

// A type of which no product has a kernel is left to the planner: no error.
TEST(MeasurePrefetch, LeavesWhatNoKernelTakes) {
  auto pool = WorkerPool::Create({.cpus = {-1}});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const GemmDesc desc{.n = 32, .k = 256, .a = DType::kQ8Act, .w = DType::kQ4_K, .rows = 1};
  TargetInfo target;
  target.isa = Isa::kAvx2;  // has no products of q8act
  const auto measured = MeasurePrefetch({{.desc = desc, .packed = nullptr}}, **pool, target);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_FALSE(measured->has_value());
}

}  // namespace
}  // namespace xjit
