// The engine on tiny models: what belongs to a step must not depend on what else is in it. Needs the goldens.
#include "frontend/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "frontend/output_file.h"

namespace xjit {
namespace {

using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;

std::string Golden(const std::string& name) { return std::string(XJIT_SHARED_DIR) + "/goldens/" + name; }

class EngineTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(Golden(GetParam()))) GTEST_SKIP() << "no " << Golden(GetParam());
  }
  std::unique_ptr<Engine> Load(int sequences) {
    EngineOptions options;
    options.max_sequences = sequences;
    options.context = 96;
    auto engine = Engine::Load(Golden(GetParam()), options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return engine.ok() ? *std::move(engine) : nullptr;
  }
};

// Ids that differ from sequence to sequence.
std::vector<int32_t> Ids(int sequence, int count) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((7 + 31 * sequence + 13 * i) % 250 + 3);
  return ids;
}

std::vector<float> Row(Engine& engine, int64_t i) {
  const auto row = engine.logits(i);
  return {row.begin(), row.end()};
}

TEST_P(EngineTest, SequencesOfAStepDoNotSeeEachOther) {
  constexpr int kSequences = 3, kSteps = 4;
  std::vector<std::vector<float>> alone;
  {
    auto engine = Load(1);
    ASSERT_NE(engine, nullptr);
    for (int s = 0; s < kSequences; ++s) {
      const auto seq = engine->NewSequence();
      ASSERT_TRUE(seq.ok());
      ASSERT_TRUE(engine->Prefill(*seq, Ids(s, 10 + 17 * s)).ok());
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<int32_t> id = {Ids(s, 60)[static_cast<size_t>(50 + step)]};
        const Engine::Input input{*seq, id, LogitRows::kLast};
        ASSERT_TRUE(engine->Step({&input, 1}).ok());
        alone.push_back(Row(*engine, 0));
      }
      // The next sequence gets the same pages, used.
      engine->FreeSequence(*seq);
    }
  }
  auto engine = Load(kSequences);
  ASSERT_NE(engine, nullptr);
  std::vector<int> seqs;
  for (int s = 0; s < kSequences; ++s) {
    seqs.push_back(*engine->NewSequence());
    ASSERT_TRUE(engine->Prefill(seqs.back(), Ids(s, 10 + 17 * s)).ok());
  }
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::vector<int32_t>> ids;
    std::vector<Engine::Input> inputs;
    for (int s = 0; s < kSequences; ++s) ids.push_back({Ids(s, 60)[static_cast<size_t>(50 + step)]});
    for (int s = 0; s < kSequences; ++s)
      inputs.push_back({seqs[static_cast<size_t>(s)], ids[static_cast<size_t>(s)], LogitRows::kLast});
    ASSERT_TRUE(engine->Step(inputs).ok());
    for (int s = 0; s < kSequences; ++s) {
      EXPECT_EQ(Row(*engine, s), alone[static_cast<size_t>(s * kSteps + step)])
          << "sequence " << s << ", step " << step;
    }
  }
}

TEST_P(EngineTest, TruncatedSequencesGoOnAsIfTheyHadNotBeenLonger) {
  auto engine = Load(1);
  ASSERT_NE(engine, nullptr);
  const int seq = *engine->NewSequence();
  ASSERT_TRUE(engine->Prefill(seq, Ids(0, 40)).ok());
  const std::vector<float> want = Row(*engine, 0);
  ASSERT_TRUE(engine->Prefill(seq, Ids(5, 50)).ok());
  engine->Truncate(seq, 0);
  EXPECT_EQ(engine->length(seq), 0);
  ASSERT_TRUE(engine->Prefill(seq, Ids(0, 40)).ok());
  EXPECT_EQ(Row(*engine, 0), want);
}

TEST_P(EngineTest, RefusesStepsWithoutSense) {
  auto engine = Load(2);
  ASSERT_NE(engine, nullptr);
  const int seq = *engine->NewSequence();
  const std::vector<int32_t> id = {5}, bad = {1 << 20};
  const Engine::Input twice[] = {{seq, id, LogitRows::kLast}, {seq, id, LogitRows::kLast}};
  EXPECT_THAT(std::string(engine->Step(twice).message()), HasSubstr("twice"));
  for (const int unknown : {-1, 1, 7}) {
    const Engine::Input input{unknown, id, LogitRows::kLast};
    EXPECT_FALSE(engine->Step({&input, 1}).ok()) << unknown;
  }
  const Engine::Input outside{seq, bad, LogitRows::kLast};
  EXPECT_THAT(std::string(engine->Step({&outside, 1}).message()), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(std::string(engine->Prefill(seq, Ids(0, 97)).message()),
              HasSubstr("does not fit into the context of 96"));
  EXPECT_FALSE(engine->Prefill(seq, {}).ok());
  EXPECT_EQ(engine->length(seq), 0);
  ASSERT_TRUE(engine->NewSequence().ok());
  EXPECT_THAT(std::string(engine->NewSequence().status().message()), HasSubstr("in use"));
}

INSTANTIATE_TEST_SUITE_P(Models, EngineTest, testing::Values("llama_gqa", "qwen2", "gguf_llama_q4_k_m/model.gguf"),
                         [](const auto& info) {
                           std::string name = info.param;
                           return name.substr(0, name.find('/'));
                         });

// What has no kernel is said before anything is packed, with the way out; the interpreter runs it.
TEST(Engine, ModelsWithoutKernelsNameTheInterpreter) {
  const std::string model = Golden("deepseek_v2");
  if (!std::filesystem::exists(model)) GTEST_SKIP() << "no " << model;
  EngineOptions options;
  const auto refused = Engine::Load(model, options);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  const std::string why(Message(refused.status()));
  EXPECT_THAT(why, HasSubstr("deepseek_v2: @layer: "));
  EXPECT_THAT(why, HasSubstr("(--backend interp runs it)"));
  options.backend = Backend::kInterp;
  const auto engine = Engine::Load(model, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_TRUE((*engine)->Prefill(*(*engine)->NewSequence(), Ids(1, 3)).ok());
  // 32 compressed and 16 rotated values a token, in 3 layers.
  EXPECT_EQ((*engine)->kv_bytes(1), 3 * (32 + 16) * 2);
}

// No golden of Qwen2 has a sliding window: the interpreter is the judge of one, with layers of both kinds.
TEST(Engine, SlidingWindowsAgreeWithTheInterpreter) {
  namespace fs = std::filesystem;
  if (!fs::exists(Golden("qwen2"))) GTEST_SKIP() << "no " << Golden("qwen2");
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("xjit-window-{}", getpid());
  fs::create_directories(folder);
  fs::copy_file(Golden("qwen2") + "/model.safetensors", folder / "model.safetensors");
  std::ifstream in(Golden("qwen2") + "/config.json");
  auto config = nlohmann::json::parse(in, nullptr, false);
  ASSERT_TRUE(config.is_object());
  config["use_sliding_window"] = true;
  config["sliding_window"] = 16;
  config["max_window_layers"] = 1;
  std::ofstream(folder / "config.json") << config;
  const std::vector<int32_t> ids = Ids(1, 75);
  std::vector<std::vector<float>> last;
  for (const auto& [backend, chunk] : {std::pair{Backend::kInterp, 75}, std::pair{Backend::kJit, 75},
                                       std::pair{Backend::kJit, 7}, std::pair{Backend::kJit, 1}}) {
    EngineOptions options;
    options.backend = backend;
    options.isa = "avx2";
    options.kv_dtype = "f32";
    auto engine = Engine::Load(folder, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Prefill(*(*engine)->NewSequence(), ids, chunk).ok());
    last.push_back(Row(**engine, 0));
  }
  // The goldens' bound for float32 arithmetic.
  for (size_t run = 1; run < last.size(); ++run) EXPECT_THAT(last[run], Pointwise(FloatNear(2e-3f), last[0])) << run;
  fs::remove_all(folder);
}

TEST(OutputFile, WritesThroughLinksAndLeavesDevicesAlone) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("xjit-output-{}", getpid());
  fs::create_directories(folder);
  const std::string file = folder / "file", link = folder / "link";
  ASSERT_TRUE(WriteFile(file, "one").ok());
  fs::create_symlink(file, link);
  ASSERT_TRUE(WriteFile(link, "three").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::file_size(file), 5u);
  EXPECT_FALSE(CheckNotInput(link, {"/nonexistent", file}).ok());
  EXPECT_TRUE(CheckNotInput(folder / "other", {file}).ok());
  ASSERT_TRUE(CheckWritable("/dev/null").ok());
  ASSERT_TRUE(WriteFile("/dev/null", "gone").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(std::string(WriteFile("/dev/full", std::string(1 << 20, 'x')).message()),
              HasSubstr("/dev/full: cannot write"));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_FALSE(CheckWritable(folder / "absent" / "file").ok());
  EXPECT_FALSE(WriteFile(folder, "x").ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace xjit
