#include "frontend/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/gguf_config.h"
#include "frontend/gguf_types.h"
#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using testing::GgufString;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::TinyGgufModel;

absl::StatusOr<GgufFile> Parse(std::string_view file) {
  return GgufFile::Parse(std::as_bytes(std::span(file)), "m.gguf");
}
std::string Error(std::string_view file) {
  const auto gguf = Parse(file);
  return gguf.ok() ? "" : std::string(Message(gguf.status()));
}

TEST(Gguf, ReadsValuesAndTensors) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = TinyGgufModel();
    writer.version = version;
    const std::string file = writer.File();
    const auto gguf = Parse(file);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    EXPECT_EQ(gguf->version(), version);
    EXPECT_EQ(**gguf->Int("llama.block_count"), 1);
    EXPECT_EQ(**gguf->String("general.name"), "tiny");
    EXPECT_EQ(**gguf->Bool("tokenizer.ggml.add_bos_token"), true);
    EXPECT_FLOAT_EQ(static_cast<float>(**gguf->Number("llama.attention.layer_norm_rms_epsilon")), 1e-5f);
    EXPECT_EQ(*gguf->Int("absent"), std::nullopt);
    EXPECT_THAT(*gguf->Strings("tokenizer.ggml.tokens"), ElementsAre("<s>", "</s>", "a", "b", "ab"));
    EXPECT_THAT(*gguf->Ints("tokenizer.ggml.token_type"), ElementsAre(3, 3, 1, 1, 1));
    EXPECT_THAT(*gguf->Floats("tokenizer.ggml.scores"), ElementsAre(0.f, -0.5f, -1.f, -1.5f, -2.f));

    const TensorView* embd = gguf->FindTensor("token_embd.weight");
    ASSERT_NE(embd, nullptr);
    EXPECT_EQ(embd->type, DType::kF32);
    EXPECT_THAT(embd->shape, ElementsAre(5, 8));
    EXPECT_EQ(testing::Text(embd->data), std::string(160, 'e'));
    const TensorView* q = gguf->FindTensor("blk.0.attn_q.weight");
    ASSERT_NE(q, nullptr);
    EXPECT_EQ(testing::Text(q->data), std::string(128, 'q'));
    EXPECT_EQ(q->offset + q->data.size(), file.size());
    EXPECT_EQ(q->offset % 32, 0u);
  }
}

TEST(Gguf, IntegersOfAnyWidth) {
  GgufWriter writer;
  writer.Raw("u8", GgufType::kU8, Bytes<uint8_t>(200)).Raw("i8", GgufType::kI8, Bytes<int8_t>(-5));
  writer.Raw("i64", GgufType::kI64, Bytes<int64_t>(-7)).Raw("u64", GgufType::kU64, Bytes<uint64_t>(9));
  writer.Raw("huge", GgufType::kU64, Bytes<uint64_t>(~uint64_t{0})).Raw("f64", GgufType::kF64, Bytes(2.5));
  writer.Array("a", GgufType::kU16, 2, Bytes<uint16_t>(1) + Bytes<uint16_t>(65535)).String("s", "x");
  const std::string file = writer.File();
  const auto gguf = Parse(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(**gguf->Int("u8"), 200);
  EXPECT_EQ(**gguf->Int("i8"), -5);
  EXPECT_EQ(**gguf->Int("i64"), -7);
  EXPECT_EQ(**gguf->Int("u64"), 9);
  EXPECT_EQ(**gguf->Number("f64"), 2.5);
  EXPECT_EQ(**gguf->Number("i8"), -5);
  EXPECT_THAT(*gguf->Ints("a"), ElementsAre(1, 65535));
  EXPECT_THAT(std::string(Message(gguf->Int("huge").status())), HasSubstr("m.gguf: huge: has type u64, expected an"));
  for (const auto& status :
       {gguf->Int("s").status(), gguf->Number("s").status(), gguf->Bool("u8").status(), gguf->String("u8").status(),
        gguf->Strings("a").status(), gguf->Floats("a").status(), gguf->Ints("s").status(), gguf->Int("a").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Gguf, SizesOfEveryEncoding) {
  for (const GgmlType& type : kGgmlTypes) {
    const auto row = static_cast<uint64_t>(2 * type.block_elems);
    const std::string data(static_cast<size_t>(3 * 2 * type.block_bytes), 'x');
    const std::string file = GgufWriter().Tensor("t", {row, 3}, type.id, data).File();
    const auto gguf = Parse(file);
    ASSERT_TRUE(gguf.ok()) << type.name << ": " << gguf.status();
    const TensorView& tensor = gguf->tensors()[0];
    EXPECT_EQ(tensor.type_name, type.name);
    EXPECT_EQ(tensor.data.size(), data.size());
    if (type.type) {
      EXPECT_EQ(Info(*type.type).block_elems, type.block_elems) << type.name;
      EXPECT_EQ(Info(*type.type).block_bytes, type.block_bytes) << type.name;
    }
    // One byte less is past the end; a row that is not whole blocks is refused.
    EXPECT_THAT(Error(std::string_view(file).substr(0, file.size() - 1)), HasSubstr("past the file of"));
    if (type.block_elems > 1) {
      EXPECT_THAT(Error(GgufWriter().Tensor("t", {row + 1}, type.id, data).File()), HasSubstr("not whole blocks"));
    }
  }
}

TEST(Gguf, UnknownEncodingIsListed) {
  const std::string file = GgufWriter().Tensor("t", {5}, 99, "abcde").File();
  const auto gguf = Parse(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->tensors()[0].type, std::nullopt);
  EXPECT_EQ(gguf->tensors()[0].type_name, "ggml type 99");
}

TEST(Gguf, HonoursAlignment) {
  GgufWriter writer;
  writer.alignment = 256;
  writer.U32("general.alignment", 256);
  const std::string file = writer.Tensor("a", {1}, 0, "aaaa").Tensor("b", {1}, 0, "bbbb").File();
  const auto gguf = Parse(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->tensors()[1].offset % 256, 0u);
  EXPECT_EQ(testing::Text(gguf->tensors()[1].data), "bbbb");
  for (const uint32_t bad : {0u, 3u, 1u << 31}) {
    EXPECT_THAT(Error(GgufWriter().U32("general.alignment", bad).File()), HasSubstr("general.alignment: is"));
  }
  EXPECT_THAT(Error(GgufWriter().String("general.alignment", "x").File()), HasSubstr("has type string"));
}

TEST(Gguf, HeaderErrorsNameTheByte) {
  EXPECT_EQ(Error("GGU"), "m.gguf: byte 0: the magic \"GGUF\" needs 4 bytes, 3 are left (the file is truncated)");
  EXPECT_EQ(Error("ggjt\1\0\0\0"), "m.gguf: byte 0: is not a GGUF file: it starts with \"ggjt\"");
  EXPECT_EQ(Error("GGUF" + Bytes<uint32_t>(1)), "m.gguf: byte 4: has GGUF version 1, expected 2 or 3");
  EXPECT_THAT(Error("GGUF" + Bytes(__builtin_bswap32(3))), HasSubstr("byte 4: is a big-endian"));
  // Counts that no file of this size can hold are refused before anything is allocated.
  const std::string huge = Bytes<uint64_t>(~uint64_t{0});
  EXPECT_THAT(Error("GGUF" + Bytes<uint32_t>(3) + huge + Bytes<uint64_t>(0)), HasSubstr("more than its 24 bytes"));
  EXPECT_THAT(Error("GGUF" + Bytes<uint32_t>(3) + Bytes<uint64_t>(0) + huge), HasSubstr("more than its 24 bytes"));
}

TEST(Gguf, MetadataErrors) {
  const auto one = [](GgufType type, std::string_view value) {
    return Error(GgufWriter().Raw("key", type, value).File());
  };
  EXPECT_THAT(one(static_cast<GgufType>(13), "xxxxxxxx"), HasSubstr("byte 35: key has unknown value type 13"));
  EXPECT_THAT(one(GgufType::kString, Bytes<uint64_t>(~uint64_t{0})), HasSubstr("key needs 18446744073709551615 bytes"));
  const auto array = [&](uint32_t element, uint64_t count, std::string_view rest = "") {
    return one(GgufType::kArray, Bytes(element) + Bytes(count) + std::string(rest));
  };
  EXPECT_THAT(array(6, uint64_t{1} << 62), HasSubstr("is an array of 4611686018427387904 f32, but 0 bytes are left"));
  EXPECT_THAT(array(8, uint64_t{1} << 61, "12345678"), HasSubstr("is an array of"));
  EXPECT_THAT(array(8, 1, GgufString("x").substr(0, 8)), HasSubstr("needs 1 bytes, 0 are left"));
  EXPECT_THAT(array(77, 1, "xxxx"), HasSubstr("unknown value type 77"));
  // Nested arrays are walked, to a depth.
  const std::string inner = Bytes<uint32_t>(0) + Bytes<uint64_t>(2) + "ab";
  EXPECT_EQ(array(9, 2, inner + inner), "");
  std::string deep = Bytes<uint32_t>(0) + Bytes<uint64_t>(0);
  for (int i = 0; i < 10; ++i) deep = Bytes<uint32_t>(9) + Bytes<uint64_t>(1) + deep;
  EXPECT_THAT(one(GgufType::kArray, deep), HasSubstr("nests arrays more than 4 deep"));

  EXPECT_THAT(Error(GgufWriter().U32("k", 1).U32("k", 2).File()), HasSubstr("duplicate metadata key k"));
  EXPECT_THAT(Error(GgufWriter().U32("", 1).File()), HasSubstr("byte 24: a metadata key has 0 bytes"));
  EXPECT_THAT(Error(GgufWriter().U32("a\nb", 1).File()), HasSubstr("is not text: \"a\\x0ab\""));
  EXPECT_THAT(Error(GgufWriter().U32("\xff", 1).File()), HasSubstr("is not text: \"\\xff\""));
}

TEST(Gguf, TensorErrors) {
  const std::string data(64, 'x');
  const auto one = [&](const std::vector<uint64_t>& dims, uint64_t offset = 0) {
    return Error(GgufWriter().TensorAt("t", dims, 0, offset, data).File());
  };
  EXPECT_EQ(one({16}), "");
  EXPECT_EQ(one({}), "");
  EXPECT_THAT(one({17}), HasSubstr("m.gguf: tensor t: its 17 blocks of 4 bytes at byte 64 end past the file of 128"));
  EXPECT_THAT(one({1, 1, 1, 1, 1}), HasSubstr("has 5 dimensions, at most 4"));
  EXPECT_THAT(one({0}), HasSubstr("has dimension 0"));
  EXPECT_THAT(one({~uint64_t{0}}), HasSubstr("has dimension 18446744073709551615"));
  EXPECT_THAT(one({uint64_t{1} << 40, uint64_t{1} << 40}), HasSubstr("passes 2^62"));
  EXPECT_THAT(one({uint64_t{1} << 31, uint64_t{1} << 31}), HasSubstr("end past the file"));
  EXPECT_THAT(one({1}, 8), HasSubstr("data offset 8 is not a multiple of the alignment 32"));
  EXPECT_THAT(one({1}, 96), HasSubstr("past the end of the file of 128 bytes"));
  EXPECT_THAT(one({1}, uint64_t{0} - 32), HasSubstr("past the end of the file"));
  EXPECT_THAT(Error(GgufWriter().Tensor("t", {1}, 0, data).Tensor("t", {1}, 0, data).File()),
              HasSubstr("duplicate tensor t"));
  EXPECT_THAT(Error(GgufWriter().TensorAt("a", {16}, 0, 0, data).TensorAt("b", {4}, 0, 32, data).File()),
              HasSubstr("tensor b overlaps tensor a"));
}

// Whatever the file says, everything that parsed must be readable.
void Exercise(std::span<const std::byte> bytes, bool* ok = nullptr) {
  const auto gguf = GgufFile::Parse(bytes, "m.gguf");
  if (ok != nullptr) *ok = gguf.ok();
  if (!gguf.ok()) {
    EXPECT_EQ(Message(gguf.status()).find('\n'), std::string_view::npos);
    return;
  }
  for (const TensorView& tensor : gguf->tensors()) testing::Sum(tensor.data);
  for (const auto& [key, value] : gguf->metadata()) testing::Sum(value.bytes);
  const auto find = [&](std::string_view name) { return gguf->FindTensor(name); };
  const auto spec = GgufSpec(*gguf, FindGgufModelTensors(find));
  if (!spec.ok()) {
    EXPECT_EQ(Message(spec.status()).find('\n'), std::string_view::npos);
  }
  if (const auto vocabulary = ReadGgufVocabulary(*gguf); vocabulary.ok()) {
    for (const std::string_view token : vocabulary->tokens) testing::Sum(std::as_bytes(std::span(token)));
    for (const std::string_view merge : vocabulary->merges) testing::Sum(std::as_bytes(std::span(merge)));
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file = TinyGgufModel().File();
  testing::ForEachPrefix(file, [](std::span<const std::byte> bytes, size_t size) {
    bool ok = true;
    Exercise(bytes, &ok);
    EXPECT_FALSE(ok) << size;
  });
}

TEST(Gguf, MutationsNeverCrash) {
  const std::string file = TinyGgufModel().File();
  testing::ForEachMutation(file, 1, 30000, [](std::span<const std::byte> bytes) { Exercise(bytes); });
  // The counts and lengths of the first bytes get their own share.
  GgufWriter small;
  small.String("general.architecture", "llama").Tensor("t", {2, 2}, 0, std::string(16, 'x'));
  testing::ForEachMutation(small.File(), 2, 30000, [](std::span<const std::byte> bytes) { Exercise(bytes); });
}

}  // namespace
}  // namespace xjit
