#include "frontend/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using testing::Bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Safetensors;
using ::testing::StartsWith;
using testing::TinySafetensors;

absl::StatusOr<std::vector<TensorView>> Parse(std::string_view file) {
  return ParseSafetensors(std::as_bytes(std::span(file)), "m.safetensors");
}
std::string Error(std::string_view file) {
  const auto tensors = Parse(file);
  return tensors.ok() ? "" : std::string(Message(tensors.status()));
}
// The error of a file with one tensor "t" and 8 bytes of data.
std::string EntryError(std::string_view entry) {
  return Error(Safetensors(fmt::format("{{\"t\":{}}}", entry), "12345678"));
}

TEST(Safetensors, ReadsTensors) {
  const std::string file = TinySafetensors();
  const auto tensors = Parse(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  const TensorView &b = (*tensors)[0], &a = (*tensors)[1], &c = (*tensors)[2];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, DType::kF32);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(testing::Text(b.data), std::string(24, 'b'));
  EXPECT_EQ(a.type, DType::kBF16);
  EXPECT_EQ(testing::Text(a.data), std::string(8, 'a'));
  EXPECT_EQ(a.offset, file.size() - 9);
  EXPECT_EQ(c.type, std::nullopt);
  EXPECT_EQ(c.type_name, "U8");
  EXPECT_TRUE(c.shape.empty());
  EXPECT_EQ(testing::Text(c.data), "c");
}

TEST(Safetensors, AcceptsEmptyTensorsGapsAndUnknownTypes) {
  EXPECT_EQ(EntryError(R"({"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[8,8]})"), "");
  EXPECT_EQ(EntryError(R"({"dtype":"F16","shape":[2],"data_offsets":[4,8]})"), "");
  EXPECT_EQ(EntryError(R"({"dtype":"F4","shape":[16],"data_offsets":[0,8]})"), "");
  EXPECT_EQ(EntryError(R"({"dtype":"NEW","shape":[3],"data_offsets":[0,8]})"), "");
}

TEST(Safetensors, HeaderErrors) {
  EXPECT_THAT(Error("1234"), StartsWith("m.safetensors: byte 0: the header's length needs 8 bytes, the file has 4"));
  EXPECT_THAT(Error(Bytes<uint64_t>(~uint64_t{0}) + "{}"),
              HasSubstr("the header has 18446744073709551615 bytes, 2 are"));
  EXPECT_THAT(Error(Bytes<uint64_t>(3) + "{}"), HasSubstr("the header has 3 bytes, 2 are left"));
  EXPECT_THAT(Error(Safetensors("", "")), StartsWith("m.safetensors: header"));
  EXPECT_THAT(Error(Safetensors("[]", "")), StartsWith("m.safetensors: header"));
  EXPECT_THAT(Error(Safetensors("{\"t\":\n nope}", "")), StartsWith("m.safetensors: header:2:"));
  EXPECT_THAT(Error(Safetensors(std::string(5000, '['), "")), StartsWith("m.safetensors: header"));
  EXPECT_EQ(Error(Safetensors(R"({"__metadata__":3})", "")), "m.safetensors: header: __metadata__: is not an object");
  EXPECT_THAT(Error(Safetensors(R"({"":{"dtype":"I8","shape":[],"data_offsets":[0,1]}})", "x")),
              HasSubstr("\"\" is not a tensor name"));
  EXPECT_THAT(Error(Safetensors(R"({"a\nb":{"dtype":"I8","shape":[],"data_offsets":[0,1]}})", "x")),
              HasSubstr("\"a\\x0ab\" is not a tensor name"));
  const std::string entry = R"({"dtype":"I8","shape":[],"data_offsets":[0,1]})";
  EXPECT_EQ(Error(Safetensors(fmt::format("{{\"t\":{},\"t\":{}}}", entry, entry), "x")),
            "m.safetensors: header: duplicate key \"t\"");
}

TEST(Safetensors, EntryErrors) {
  EXPECT_EQ(EntryError("3"), "m.safetensors: header: tensor t: is not an object");
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[2]})"), HasSubstr("tensor t: has no data_offsets"));
  EXPECT_THAT(EntryError(R"({"shape":[2],"data_offsets":[0,8]})"), HasSubstr("has no dtype"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","data_offsets":[0,8]})"), HasSubstr("has no shape"));
  EXPECT_THAT(EntryError(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), HasSubstr("dtype is not a string"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), HasSubstr("shape is not a list"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
              HasSubstr("shape[0] is not an integer"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"), HasSubstr("shape[0] is not an"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
              HasSubstr("shape[0] is not an"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})"), HasSubstr("has 3 entries"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), HasSubstr("[8, 0] are not in order"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"), HasSubstr("end past the file of"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
              HasSubstr("tensor t: 8 bytes of data for 3 elements of F32"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
              HasSubstr("passes 2^62"));
  // 2^61 elements of 64 bits are 0 modulo 2^64 bytes.
  EXPECT_THAT(EntryError(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
              HasSubstr("0 bytes of data for 2305843009213693952 elements"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]})"),
              HasSubstr("\"dtype\" twice"));
  EXPECT_THAT(EntryError(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), HasSubstr("unknown key \"x\""));
  EXPECT_THAT(Error(Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                "12345678")),
              HasSubstr("tensor b overlaps tensor a"));
}

TEST(SafetensorsIndex, ReadsMapAndRefusesPaths) {
  const auto map =
      ParseSafetensorsIndex(R"({"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})", "i.json");
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_THAT(*map, ElementsAre(std::pair("a", "m-1.safetensors"), std::pair("b", "m-2.safetensors")));
  const auto error = [](std::string_view text) {
    const auto index = ParseSafetensorsIndex(text, "i.json");
    return index.ok() ? "" : std::string(Message(index.status()));
  };
  EXPECT_THAT(error("{}"), StartsWith("i.json: weight_map: missing"));
  EXPECT_THAT(error(R"({"weight_map":[]})"), StartsWith("i.json: weight_map: missing, or not an object"));
  EXPECT_THAT(error(R"({"weight_map":{}})"), StartsWith("i.json: weight_map: is empty"));
  EXPECT_THAT(error(R"({"weight_map":{"a":1}})"), StartsWith("i.json: weight_map.a: is not a string"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"../x"}})"), HasSubstr("is not the name of a file in this folder"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"/etc/passwd"}})"), HasSubstr("is not the name of a file in this folder"));
  EXPECT_THAT(error(R"({"weight_map":{"a":"x","a":"y"}})"), HasSubstr("weight_map.a: duplicate key"));
  EXPECT_THAT(error("{\"weight_map\": "), StartsWith("i.json:1:"));
}

void Exercise(std::span<const std::byte> bytes, bool* ok = nullptr) {
  const auto tensors = ParseSafetensors(bytes, "m.safetensors");
  if (ok != nullptr) *ok = tensors.ok();
  if (!tensors.ok()) {
    EXPECT_EQ(Message(tensors.status()).find('\n'), std::string_view::npos);
    return;
  }
  for (const TensorView& tensor : *tensors) testing::Sum(tensor.data);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  testing::ForEachPrefix(TinySafetensors(), [](std::span<const std::byte> bytes, size_t size) {
    bool ok = true;
    Exercise(bytes, &ok);
    EXPECT_FALSE(ok) << size;
  });
}

TEST(Safetensors, MutationsNeverCrash) {
  testing::ForEachMutation(TinySafetensors(), 3, 30000, [](std::span<const std::byte> bytes) { Exercise(bytes); });
  const std::string index = R"({"metadata":{},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";
  testing::ForEachMutation(index, 4, 10000, [](std::span<const std::byte> bytes) {
    ParseSafetensorsIndex(testing::Text(bytes), "i.json").status().IgnoreError();
  });
}

}  // namespace
}  // namespace xjit
