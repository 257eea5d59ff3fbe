#include "frontend/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "ir/support/status.h"
#include "tests/unit/frontend/model_files.h"

namespace xjit {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;

TEST(MappedFile, ReadsAndMoves) {
  const TempFolder folder;
  auto opened = MappedFile::Open(folder.Write("f", "hello"));
  ASSERT_TRUE(opened.ok()) << opened.status();
  const char* data = opened->text().data();
  MappedFile moved = *std::move(opened);
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_EQ(moved.text().data(), data);
  EXPECT_EQ(moved.size(), 5u);
}

TEST(MappedFile, Errors) {
  const TempFolder folder;
  const auto error = [](const std::string& path) {
    const auto file = MappedFile::Open(path);
    return file.ok() ? "" : std::string(Message(file.status()));
  };
  EXPECT_EQ(error(folder.Path("none")), folder.Path("none") + ": cannot open: No such file or directory");
  EXPECT_THAT(error(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(error(folder.Write("empty", "")), HasSubstr("the file is empty"));
  ASSERT_EQ(mkfifo(folder.Path("fifo").c_str(), 0600), 0);
  EXPECT_THAT(error(folder.Path("fifo")), HasSubstr("not a regular file"));
}

size_t ResidentPages(std::span<const std::byte> bytes) {
  // mincore() would tell of the page cache; the resident set is this mapping's Rss in smaps.
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(bytes.data()));
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("-") < 20 && line.find(':') > 20) here = line.starts_with(wanted);
    if (here && line.starts_with("Rss:")) return std::stoul(line.substr(4)) / 4;
  }
  return SIZE_MAX;
}

TEST(MappedFile, DiscardDropsPagesAndKeepsContents) {
  const TempFolder folder;
  std::string bytes(64 * 4096 + 100, 'x');
  bytes.back() = 'y';
  const auto file = MappedFile::Open(folder.Write("f", bytes));
  ASSERT_TRUE(file.ok());
  const uint64_t sum = testing::Sum(file->bytes());
  const size_t before = ResidentPages(file->bytes());
  if (before == SIZE_MAX) GTEST_SKIP() << "no /proc/self/smaps";
  EXPECT_EQ(before, 65u);
  file->Discard(file->bytes().subspan(16 * 4096 + 5, 40 * 4096));  // touches 41 pages
  EXPECT_LE(ResidentPages(file->bytes()), 65u - 41u);
  file->Discard(file->bytes());
  EXPECT_EQ(ResidentPages(file->bytes()), 0u);
  EXPECT_EQ(testing::Sum(file->bytes()), sum);
  EXPECT_EQ(file->text(), bytes);
}

TEST(MappedFile, DiscardIgnoresForeignMemory) {
  const TempFolder folder;
  const auto file = MappedFile::Open(folder.Write("f", "hello"));
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> other(8192, std::byte{7});
  file->Discard(other);
  file->Discard({});
  EXPECT_EQ(other[4096], std::byte{7});
}

}  // namespace
}  // namespace xjit
