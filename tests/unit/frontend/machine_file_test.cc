#include "frontend/machine_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "frontend/json.h"

namespace xjit {
namespace {

std::string Error(std::string_view text) {
  const auto machine = ParseMachine(text, "m.json");
  return machine.ok() ? "ok" : std::string(Message(machine.status()));
}

TEST(MachineFile, EveryPresetIsComplete) {
  const auto names = MachinePresets();
  ASSERT_EQ(names.size(), 6u);
  for (const std::string_view name : names) {
    SCOPED_TRACE(name);
    const auto m = ReadMachine(name);
    ASSERT_TRUE(m.ok()) << Message(m.status());
    EXPECT_EQ(m->name, name);
    EXPECT_EQ(m->cores, std::accumulate(m->node_cores.begin(), m->node_cores.end(), 0));
    EXPECT_EQ(m->threads, m->node_cores[0]);
    EXPECT_EQ(m->nodes() % m->sockets, 0);
    EXPECT_GT(m->node_memory_bytes, 0);
    EXPECT_GT(m->node_read_gb_s, 0);
    EXPECT_GT(m->f32_gflops, 0);
    EXPECT_GT(m->int8_gops, m->f32_gflops);
    EXPECT_EQ(m->bf16_gflops > 0, m->isa >= Isa::kAvx512Bf16);
    EXPECT_GT(m->barrier_us, 0);
    EXPECT_EQ(m->link_gb_s > 0, m->nodes() > 1);
    EXPECT_EQ(m->all_reduce_us > 0, m->nodes() > 1);
  }
}

// Each figure of a preset says where it is from.
TEST(MachineFile, PresetsNameTheirSources) {
  for (const std::string_view name : MachinePresets()) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(XJIT_SOURCE_DIR) + "/models/machines/" + std::string(name) + ".json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto json = ParseJson(text, name);
    ASSERT_TRUE(json.ok()) << Message(json.status());
    std::string sources;
    for (const auto& item : json->at("sources").items()) sources += item.key() + ", ";
    for (const auto& item : json->items()) {
      if (!item.value().is_number_float()) continue;
      EXPECT_NE(sources.find(item.key() + ","), std::string::npos) << item.key();
    }
  }
}

TEST(MachineFile, Xeon6980p) {
  const auto m = ReadMachine("xeon6980p-2s");
  ASSERT_TRUE(m.ok());
  EXPECT_EQ(m->isa, Isa::kAmx);
  EXPECT_TRUE(m->amx_fp16);
  EXPECT_EQ(m->node_cores, (std::vector<int>{43, 43, 42, 43, 43, 42}));
  EXPECT_EQ(m->cores, 256);
  EXPECT_EQ(m->l1d_bytes, 48 << 10);
  EXPECT_EQ(m->l2_bytes, 2 << 20);
  EXPECT_EQ(m->l3_bytes, int64_t{504} << 20);
  // 85% of four channels of MRDIMM-8800.
  EXPECT_NEAR(m->node_read_gb_s / (4 * 8.8 * 8), 0.858, 0.001);
  const auto one = FirstSockets(*m, 1);
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->node_cores, (std::vector<int>{43, 43, 42}));
  EXPECT_EQ(one->cores, 128);
  EXPECT_EQ(one->sockets, 1);
  EXPECT_EQ(Message(FirstSockets(*m, 3).status()), "--sockets 3: xeon6980p-2s has 2");
}

TEST(MachineFile, ThreadsAreThoseOfTheSocketsLeft) {
  constexpr std::string_view kUneven = R"({"isa": "amx", "sockets": 2, "node_cores": [8, 6, 12, 12]})";
  const auto m = ParseMachine(kUneven, "m.json");
  ASSERT_TRUE(m.ok()) << Message(m.status());
  EXPECT_EQ(m->threads, 12);
  EXPECT_EQ(FirstSockets(*m, 1)->threads, 8);
  EXPECT_EQ(FirstSockets(*m, 2)->threads, 12);
  TargetInfo few = *m;
  few.threads = 4;
  EXPECT_EQ(FirstSockets(few, 1)->threads, 4);
}

TEST(MachineFile, TextIsReadBack) {
  for (const std::string_view name : MachinePresets()) {
    const auto m = ReadMachine(name);
    ASSERT_TRUE(m.ok());
    const auto again = ParseMachine(MachineText(*m), "again");
    ASSERT_TRUE(again.ok()) << Message(again.status());
    EXPECT_EQ(*again, *m);
  }
}

TEST(MachineFile, ReadsAFile) {
  const std::string path = testing::TempDir() + "/machine.json";
  std::ofstream(path) << R"({"name": "mine", "isa": "avx512", "threads": 3, "read_gb_s": 12.5})";
  const auto m = ReadMachine(path);
  ASSERT_TRUE(m.ok()) << Message(m.status());
  EXPECT_EQ(m->name, "mine");
  EXPECT_EQ(m->threads, 3);
  EXPECT_EQ(m->cores, 3);
  EXPECT_EQ(m->nodes(), 1);
  EXPECT_EQ(m->node_read_gb_s, 0);
  std::filesystem::remove(path);
}

TEST(MachineFile, UnknownNamesListThePresets) {
  const auto m = ReadMachine("xeon9999");
  ASSERT_FALSE(m.ok());
  const std::string message(Message(m.status()));
  EXPECT_TRUE(message.starts_with("--machine xeon9999: no machine of that name and no readable file (known: "))
      << message;
  for (const std::string_view name : MachinePresets()) EXPECT_NE(message.find(name), std::string::npos) << name;
}

TEST(MachineFile, Errors) {
  EXPECT_EQ(Error("[]").substr(0, 7), "m.json:");
  EXPECT_NE(Error("{").find("m.json:1:"), std::string::npos);
  EXPECT_NE(Error(R"({"cores": 2})").find("isa"), std::string::npos);
  EXPECT_EQ(Error(R"({"isa": "avx512"})"),
            "m.json: cores: absent (or node_cores, the cores of each NUMA node: [43, 43, 42])");
  EXPECT_EQ(Error(R"({"isa": "sse", "cores": 2})"),
            "m.json: isa: \"sse\" is no ISA (known: avx2, avx512, avx512_vnni, avx512_bf16, amx)");
  EXPECT_EQ(Error(R"({"isa": "amx", "cores": 5, "node_cores": [2, 2]})"),
            "m.json: cores: 5 cores, but node_cores sum up to 4");
  EXPECT_TRUE(Error(R"({"isa": "amx", "cores": 2, "node_read_gbs": 3})")
                  .starts_with("m.json: node_read_gbs: no such key in a machine file (known: name, "));
  for (const char* bad :
       {R"("cores": 0)", R"("cores": 2, "node_cores": [0])", R"("cores": 2, "l2_bytes": -1)",
        R"("cores": 2, "node_read_gb_s": -1)", R"("cores": 2, "barrier_us": "fast")", R"("cores": 99999)"}) {
    const std::string error = Error(std::string(R"({"isa": "amx", )") + bad + "}");
    EXPECT_TRUE(error.starts_with("m.json: ")) << bad << " -> " << error;
  }
}

}  // namespace
}  // namespace xjit
