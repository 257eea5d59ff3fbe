#include "frontend/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "frontend/json.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Describe;
using ::testing::ElementsAre;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::kTinyConfig;
using testing::Safetensors;
using testing::TempFolder;
using testing::TinyGgufModel;
using testing::TinySafetensors;

std::unique_ptr<Checkpoint> Open(const std::string& path, OpenOptions options = {}) {
  auto checkpoint = OpenCheckpoint(path, options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return checkpoint.ok() ? *std::move(checkpoint) : nullptr;
}
std::string Error(const std::string& path) {
  const auto checkpoint = OpenCheckpoint(path);
  return checkpoint.ok() ? "" : std::string(Message(checkpoint.status()));
}
std::vector<std::string> Names(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorView& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  return names;
}

TEST(Checkpoint, OpensAFolder) {
  const TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("generation_config.json", R"({"eos_token_id": [3]})");
  folder.Write("tokenizer.json", "{}");
  folder.Write("chat_template.jinja", "{{ x }}");
  folder.Write("model.safetensors", TinySafetensors());
  folder.Write("expected.safetensors", "not weights");
  const auto checkpoint = Open(folder.path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), "safetensors");
  EXPECT_THAT(checkpoint->files(), ElementsAre(folder.Path("model.safetensors")));
  EXPECT_EQ(checkpoint->total_bytes(), TinySafetensors().size());
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a", "b", "c"));
  EXPECT_THAT(checkpoint->spec().eos_ids, ElementsAre(3));
  EXPECT_EQ(checkpoint->texts().tokenizer, folder.Path("tokenizer.json"));
  EXPECT_EQ(checkpoint->texts().chat_template, folder.Path("chat_template.jinja"));
  EXPECT_EQ(checkpoint->texts().tokenizer_config, "");
  EXPECT_EQ(checkpoint->vocabulary_file(), nullptr);

  EXPECT_EQ(checkpoint->Find("d"), nullptr);
  ASSERT_TRUE(checkpoint->Tensor("a").ok());
  EXPECT_EQ(testing::Text((*checkpoint->Tensor("a"))->data), std::string(8, 'a'));
  EXPECT_EQ(Message(checkpoint->Tensor("d").status()), folder.path() + ": tensor d: missing");
  EXPECT_EQ(checkpoint->Tensor("c").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Message(checkpoint->Tensor("c").status()),
            folder.Path("model.safetensors") + ": tensor c: encoding U8 is not supported");
  checkpoint->Discard(*checkpoint->Find("a"));
  EXPECT_EQ(testing::Text(checkpoint->Find("a")->data), std::string(8, 'a'));

  // The same through the weights' own path.
  EXPECT_THAT(Names(*Open(folder.Path("model.safetensors"))), ElementsAre("a", "b", "c"));
}

std::string OneTensor(std::string_view name, char fill) {
  return Safetensors(fmt::format(R"({{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}})", name),
                     std::string(4, fill));
}

TEST(Checkpoint, Shards) {
  const TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("model-00001-of-00002.safetensors", OneTensor("a", '1'));
  folder.Write("model-00002-of-00002.safetensors", OneTensor("b", '2'));
  folder.Write("other.safetensors", "not weights");
  EXPECT_THAT(Names(*Open(folder.path())), ElementsAre("a", "b"));  // without an index

  const auto index = [&](std::string_view map) {
    folder.Write("model.safetensors.index.json", fmt::format(R"({{"weight_map":{{{}}}}})", map));
  };
  index(R"("a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors")");
  const auto checkpoint = Open(folder.path());
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_THAT(Names(*checkpoint), ElementsAre("a", "b"));
  EXPECT_EQ(checkpoint->files().size(), 2u);
  EXPECT_EQ(testing::Text(checkpoint->Find("b")->data), "2222");

  index(R"("b":"model-00002-of-00002.safetensors")");
  EXPECT_THAT(Names(*Open(folder.path())), ElementsAre("b"));
  index(R"("x":"model-00001-of-00002.safetensors")");
  EXPECT_THAT(Error(folder.path()), HasSubstr("index.json: weight_map.x: the tensor is not in "));
  index(R"("a":"gone.safetensors")");
  EXPECT_THAT(Error(folder.path()), HasSubstr("gone.safetensors: cannot open: No such file"));
}

TEST(Checkpoint, DuplicateTensorAcrossShards) {
  const TempFolder folder;
  folder.Write("config.json", kTinyConfig);
  folder.Write("model-1.safetensors", OneTensor("a", '1'));
  folder.Write("model-2.safetensors", OneTensor("a", '2'));
  EXPECT_THAT(Error(folder.path()), HasSubstr("tensor a is also in "));
}

TEST(Checkpoint, PathErrors) {
  const TempFolder folder;
  EXPECT_EQ(Error(folder.Path("none")), folder.Path("none") + ": no such file or folder");
  EXPECT_THAT(Error(folder.path()), HasSubstr("no config.json in the folder (expected a folder"));
  EXPECT_THAT(Error(folder.Write("x.bin", "x")), HasSubstr("is not a model (expected a folder with config.json"));
  EXPECT_EQ(OpenCheckpoint(folder.Write("m.xjit", "x")).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Error(folder.Write("m.safetensors", "x")), HasSubstr("no config.json beside it"));
  EXPECT_THAT(Error(folder.Write("empty.gguf", "")), HasSubstr("the file is empty"));
  std::filesystem::remove(folder.Path("m.safetensors"));
  folder.Write("config.json", kTinyConfig);
  EXPECT_THAT(Error(folder.path()), HasSubstr("no *.safetensors files in the folder"));
  EXPECT_THAT(Error(folder.Path("config.json")), HasSubstr("name its folder instead"));
  EXPECT_TRUE(Open(folder.path(), {.require_weights = false})->tensors().empty());
}

TEST(Checkpoint, OpensGguf) {
  const TempFolder folder;
  const std::string path = folder.Write("m.gguf", TinyGgufModel().File());
  for (const std::string& name : {path, folder.path()}) {
    const auto checkpoint = Open(name);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(checkpoint->format(), "gguf v3");
    EXPECT_THAT(Names(*checkpoint), ElementsAre("blk.0.attn_q.weight", "token_embd.weight"));
    EXPECT_THAT(checkpoint->weights(), ElementsAre(path));
    ASSERT_NE(checkpoint->vocabulary_file(), nullptr);
    EXPECT_EQ(checkpoint->Vocabulary()->tokens.size(), 5u);
  }
  folder.Write("n.gguf", TinyGgufModel().File());
  EXPECT_THAT(Error(folder.path()), HasSubstr("2 GGUF files (name one, such as m.gguf)"));
}

TEST(Checkpoint, OldGgufAndUnsupportedEncodings) {
  const TempFolder folder;
  GgufWriter writer = TinyGgufModel("qwen2");
  writer.version = 2;
  writer.Tensor("blk.0.ffn_up.weight", {256, 1}, 16, std::string(66, 'k'));
  const std::string path = folder.Write("m.gguf", writer.File());
  const auto checkpoint = Open(path);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), "gguf v2");
  EXPECT_EQ(checkpoint->Find("blk.0.ffn_up.weight")->type_name, "IQ2_XXS");
  EXPECT_EQ(Message(checkpoint->Tensor("blk.0.ffn_up.weight").status()),
            path + ": tensor blk.0.ffn_up.weight: encoding IQ2_XXS is not supported");
  EXPECT_EQ(checkpoint->Tensor("blk.0.ffn_up.weight").status().code(), absl::StatusCode::kUnimplemented);
}

class SplitGguf : public ::testing::Test {
 protected:
  std::string Name(int part, int parts) { return fmt::format("m-{:05}-of-{:05}.gguf", part, parts); }
  // Part `part` (one-based) of three with a tensor of its own; the model's keys and vocabulary are in the first.
  GgufWriter Part(int part, uint16_t no, uint16_t count) {
    GgufWriter writer = part == 1 ? TinyGgufModel() : GgufWriter();
    writer.U16("split.no", no).U16("split.count", count).I32("split.tensors.count", 4);
    if (part > 1) writer.Tensor(fmt::format("t{}", part), {1}, 0, std::string(4, static_cast<char>('0' + part)));
    return writer;
  }
  void WriteAll() {
    for (int part = 1; part <= 3; ++part) {
      folder_.Write(Name(part, 3), Part(part, static_cast<uint16_t>(part - 1), 3).File());
    }
  }
  TempFolder folder_;
};

TEST_F(SplitGguf, Opens) {
  WriteAll();
  for (const std::string& path : {folder_.Path(Name(1, 3)), folder_.path()}) {
    const auto checkpoint = Open(path);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_THAT(Names(*checkpoint), ElementsAre("blk.0.attn_q.weight", "t2", "t3", "token_embd.weight"));
    EXPECT_EQ(testing::Text(checkpoint->Find("t3")->data), "3333");
    EXPECT_EQ(checkpoint->Find("t2")->file, folder_.Path(Name(2, 3)));
    EXPECT_EQ(checkpoint->files().size(), 3u);
    EXPECT_THAT(checkpoint->weights(), ElementsAre(folder_.Path(Name(1, 3))));
  }
}

TEST_F(SplitGguf, Errors) {
  WriteAll();
  EXPECT_THAT(Error(folder_.Path(Name(2, 3))), HasSubstr("split.no: is part 2 of 3 (name "));
  std::filesystem::copy(folder_.Path(Name(1, 3)), folder_.Path("renamed.gguf"));
  EXPECT_THAT(Error(folder_.Path("renamed.gguf")),
              HasSubstr("split.count: is 3, but the file is not named *-00001-of-"));
  folder_.Write(Name(3, 3), Part(3, 1, 3).File());
  EXPECT_THAT(Error(folder_.Path(Name(1, 3))), HasSubstr("says part 2 of 3, expected 3 of 3"));
  folder_.Write(Name(3, 3), Part(3, 2, 3).Tensor("extra", {1}, 0, "abcd").File());
  EXPECT_THAT(Error(folder_.Path(Name(1, 3))), HasSubstr("split.tensors.count: is 4, but the 3 parts hold 5 tensors"));
  std::filesystem::remove(folder_.Path(Name(3, 3)));
  EXPECT_THAT(Error(folder_.Path(Name(1, 3))), HasSubstr("m-00003-of-00003.gguf: cannot open: No such file"));
}

// Imports `source` to `out` and expects the same model back.
std::unique_ptr<Checkpoint> RoundTrip(const std::string& source, const std::string& out) {
  const auto checkpoint = Open(source);
  if (checkpoint == nullptr) return nullptr;
  const absl::Status written = WriteManifest(*checkpoint, out);
  EXPECT_TRUE(written.ok()) << written;
  auto back = Open(out);
  if (back == nullptr) return nullptr;
  EXPECT_EQ(Describe(back->spec()), Describe(checkpoint->spec()));
  EXPECT_EQ(back->spec().name, checkpoint->spec().name);
  EXPECT_EQ(back->format(), checkpoint->format());
  EXPECT_EQ(Names(*back), Names(*checkpoint));
  for (const TensorView& tensor : checkpoint->tensors()) {
    EXPECT_EQ(testing::Text(back->Find(tensor.name)->data), testing::Text(tensor.data)) << tensor.name;
  }
  EXPECT_EQ(back->vocabulary_file() == nullptr, checkpoint->vocabulary_file() == nullptr);
  return back;
}

TEST(Manifest, ImportsAFolder) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.Path("src"));
  folder.Write("src/config.json", kTinyConfig);
  folder.Write("src/model.safetensors", TinySafetensors());
  folder.Write("src/tokenizer.json", "{}");
  folder.Write("src/tokenizer_config.json", "{}");
  const auto back = RoundTrip(folder.Path("src"), folder.Path("model.json"));
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->texts().tokenizer, folder.Path("src/tokenizer.json"));
  std::ifstream stream(folder.Path("model.json"));
  const Json json = Json::parse(stream);
  EXPECT_EQ(json["weights"], Json({"src/model.safetensors"}));
  EXPECT_EQ(json["tokenizer"], "src/tokenizer.json");
  EXPECT_EQ(json["arch"], "llama");
}

TEST(Manifest, ImportsGgufWithWhatItsTensorsSay) {
  const TempFolder folder;
  GgufWriter writer = TinyGgufModel();
  writer.Tensor("blk.0.attn_q.bias", {8}, 0, std::string(32, '\0'));
  writer.Tensor("rope_freqs.weight", {2}, 0, testing::Bytes(1.0f) + testing::Bytes(8.0f));
  folder.Write("m.gguf", writer.File());
  const auto back = RoundTrip(folder.Path("m.gguf"), folder.Path("model.json"));
  ASSERT_NE(back, nullptr);
  EXPECT_TRUE(back->spec().rope_pairs_adjacent && back->spec().qkv_bias && back->spec().tie_word_embeddings);
  EXPECT_EQ(back->spec().rope.freq_factors.size(), 2u);
  EXPECT_EQ(back->Vocabulary()->tokens.size(), 5u);
}

std::string ManifestText(std::string_view changes) {
  Json json = Json::parse(kTinyConfig);
  json["arch"] = "llama";
  json.merge_patch(Json::parse(changes));
  return json.dump();
}

TEST(Manifest, WeightsAndTextsOfOtherFiles) {
  const TempFolder folder;
  folder.Write("w.safetensors", TinySafetensors());
  folder.Write("v.gguf", TinyGgufModel().File());
  const auto checkpoint = Open(folder.Write(
      "a.json",
      ManifestText(R"({"weights": "w.safetensors", "tokenizer": "v.gguf", "chat_template": "{{ x }}", "tp": 2})")));
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->format(), "safetensors");
  EXPECT_THAT(checkpoint->files(), ElementsAre(folder.Path("w.safetensors")));
  EXPECT_EQ(checkpoint->Vocabulary()->tokens.size(), 5u);
  EXPECT_EQ(checkpoint->texts().chat_template_text, "{{ x }}");
  EXPECT_EQ(checkpoint->defaults().tp, 2);

  EXPECT_THAT(Error(folder.Write("b.json", ManifestText("{}"))), HasSubstr("b.json: weights: missing"));
  EXPECT_TRUE(Open(folder.Path("b.json"), {.require_weights = false})->tensors().empty());
  const std::string gone = folder.Write("c.json", ManifestText(R"({"weights": "gone.safetensors"})"));
  EXPECT_THAT(Error(gone), HasSubstr("gone.safetensors: cannot open"));
  EXPECT_TRUE(Open(gone, {.require_weights = false})->tensors().empty());
  EXPECT_THAT(Error(folder.Write("d.json", ManifestText(R"({"weights": "w.bin"})"))),
              HasSubstr("d.json: weights[0]: is "));
  EXPECT_THAT(Error(folder.Write("e.json", ManifestText(R"({"weights": "w.safetensors", "quantization": "gguf"})"))),
              HasSubstr("e.json: quantization: is \"gguf\", but"));
  EXPECT_THAT(Error(folder.Write("f.json", ManifestText(R"({"weights": ["w.safetensors", "w.safetensors"]})"))),
              HasSubstr("is also in"));
}

TEST(Manifest, WriteErrors) {
  const TempFolder folder;
  const std::string source = folder.Write("m.gguf", TinyGgufModel().File());
  const auto checkpoint = Open(source);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(Message(WriteManifest(*checkpoint, folder.Path("none/model.json"))),
            folder.Path("none/model.json") + ": cannot write: No such file or directory");
  EXPECT_THAT(std::string(Message(WriteManifest(*checkpoint, folder.path()))),
              HasSubstr("cannot write: Is a directory"));
  EXPECT_THAT(std::string(Message(WriteManifest(*checkpoint, source))), HasSubstr("is read by this very command"));
  EXPECT_EQ(std::filesystem::file_size(source), TinyGgufModel().File().size());
  EXPECT_THAT(std::string(Message(WriteManifest(*checkpoint, "/dev/full"))), HasSubstr("No space left on device"));
}

struct Golden {
  const char* path;
  const char* spec;
};

// What config.json or the GGUF metadata of each golden say, in Describe's form.
constexpr Golden kGoldens[] = {
    {"llama_gqa",
     "llama vocab=288 hidden=64 ffn=176 layers=3 heads=4/2x16 max=256 eps=1e-05 tie=false bias=000 windows=[] "
     "adjacent=false bos=1 eos=2 rope=500000 2 x8 low=1 high=4 orig=64 beta=32/1 attn=-1 mscale=-1/-1 trunc=true "
     "factors="},
    {"llama_tied_headdim",
     "llama vocab=288 hidden=64 ffn=160 layers=3 heads=4/1x32 max=256 eps=1e-05 tie=true bias=000 windows=[] "
     "adjacent=false bos=1 eos=2 rope=10000 0 x1 low=1 high=4 orig=0 beta=32/1 attn=-1 mscale=-1/-1 trunc=true "
     "factors="},
    {"qwen2",
     "qwen2 vocab=320 hidden=80 ffn=208 layers=3 heads=5/1x16 max=256 eps=1e-06 tie=true bias=100 windows=[] "
     "adjacent=false bos=1 eos=2 rope=1000000 0 x1 low=1 high=4 orig=0 beta=32/1 attn=-1 mscale=-1/-1 trunc=true "
     "factors="},
    {"qwen2_yarn",
     "qwen2 vocab=288 hidden=64 ffn=192 layers=3 heads=4/2x16 max=256 eps=1e-06 tie=false bias=100 windows=[] "
     "adjacent=false bos=1 eos=2 rope=1000000 3 x4 low=1 high=4 orig=32 beta=32/1 attn=-1 mscale=-1/-1 trunc=true "
     "factors="},
    {"gguf_qwen2_q8_0/model.gguf",
     "qwen2 vocab=320 hidden=96 ffn=192 layers=2 heads=6/2x16 max=256 eps=1e-06 tie=true bias=100 "
     "windows=[] adjacent=false bos=1 eos=2 rope=1000000 0 x1 low=1 high=4 orig=0 beta=32/1 attn=-1 mscale=-1/-1 "
     "trunc=true factors="},
    {"gguf_llama_q4_k_m/model.gguf",
     "llama vocab=320 hidden=256 ffn=256 layers=2 heads=4/2x64 max=256 eps=1e-05 tie=false bias=000 "
     "windows=[] adjacent=true bos=1 eos=2 rope=10000 0 x1 low=1 high=4 orig=0 beta=32/1 attn=-1 mscale=-1/-1 "
     "trunc=true factors="},
    {"gguf_llama_f32/model.gguf",
     "llama vocab=320 hidden=64 ffn=160 layers=2 heads=4/2x16 max=256 eps=1e-05 tie=false bias=000 "
     "windows=[] adjacent=true bos=1 eos=2 rope=10000 0 x1 low=1 high=4 orig=0 beta=32/1 attn=-1 mscale=-1/-1 "
     "trunc=true factors="},
};

TEST(Goldens, SpecsAndImport) {
  const std::string goldens = std::string(XJIT_SHARED_DIR) + "/goldens/";
  if (!std::filesystem::exists(goldens)) GTEST_SKIP() << "no " << goldens;
  const TempFolder folder;
  for (const Golden& golden : kGoldens) {
    const auto back = RoundTrip(goldens + golden.path, folder.Path("model.json"));
    ASSERT_NE(back, nullptr) << golden.path;
    EXPECT_EQ(Describe(back->spec()), golden.spec) << golden.path;
  }
}

TEST(Goldens, EveryLlamaGgufOpensWithItsEncodings) {
  const std::string goldens = std::string(XJIT_SHARED_DIR) + "/goldens/";
  if (!std::filesystem::exists(goldens)) GTEST_SKIP() << "no " << goldens;
  const std::pair<const char*, DType> kEncodings[] = {
      {"bf16", DType::kBF16}, {"f16", DType::kF16},   {"f32", DType::kF32},
      {"q4_0", DType::kQ4_0}, {"q4_1", DType::kQ4_1}, {"q5_0", DType::kQ5_0},
      {"q5_1", DType::kQ5_1}, {"q8_0", DType::kQ8_0}, {"q4_k_m", DType::kQ4_K}};
  for (const auto& [name, encoding] : kEncodings) {
    const auto checkpoint = Open(goldens + "gguf_llama_" + name + "/model.gguf");
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(checkpoint->format(), "gguf v3");
    EXPECT_EQ(checkpoint->tensors().size(), 21u);
    const auto tensor = checkpoint->Tensor("blk.0.ffn_gate.weight");
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ((*tensor)->type, encoding) << name;
    EXPECT_THAT((*tensor)->shape, ElementsAre(checkpoint->spec().intermediate_size, checkpoint->spec().hidden_size));
    for (const TensorView& view : checkpoint->tensors()) EXPECT_TRUE(checkpoint->Tensor(view.name).ok()) << view.name;
    const auto vocabulary = checkpoint->Vocabulary();
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    EXPECT_EQ(vocabulary->model, "gpt2");
    EXPECT_EQ(vocabulary->tokens.size(), 320u);
    EXPECT_EQ(vocabulary->merges.size(), 61u);
  }
}

TEST(Goldens, MixedEncodingsListAndSentencePieceScores) {
  const std::string goldens = std::string(XJIT_SHARED_DIR) + "/goldens/";
  if (!std::filesystem::exists(goldens)) GTEST_SKIP() << "no " << goldens;
  const auto mix = Open(goldens + "gguf_llama_kmix/model.gguf");
  ASSERT_NE(mix, nullptr);
  EXPECT_EQ(mix->tensors().size(), 21u);
  EXPECT_EQ(mix->Find("blk.0.attn_q.weight")->type_name, "Q2_K");
  EXPECT_TRUE(mix->Tensor("blk.0.attn_q.weight").ok());
  EXPECT_TRUE(mix->Tensor("output.weight").ok());

  const auto spm = Open(goldens + "gguf_llama_spm_rope3/model.gguf");
  ASSERT_NE(spm, nullptr);
  EXPECT_EQ(spm->spec().rope.freq_factors.size(), 8u);
  EXPECT_EQ(spm->spec().rope.theta, 500000);
  const auto vocabulary = spm->Vocabulary();
  ASSERT_TRUE(vocabulary.ok());
  EXPECT_EQ(vocabulary->model, "llama");
  EXPECT_EQ(vocabulary->scores.size(), 384u);
  EXPECT_EQ(vocabulary->types.size(), 384u);
  EXPECT_EQ(vocabulary->unk, 0);
  EXPECT_EQ(vocabulary->add_bos, true);
  EXPECT_EQ(vocabulary->add_space_prefix, true);
}

}  // namespace
}  // namespace xjit
