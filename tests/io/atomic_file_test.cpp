#include "io/base/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>

#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

TEST(AtomicFile, AppearsOnlyWithCommit) {
  const TemporaryFolder folder;
  {
    AtomicFile file(folder / "a");
    file.write("hello");
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
    EXPECT_EQ(folder.num_files(), 1u);
  }
  EXPECT_EQ(folder.num_files(), 0u);
  AtomicFile file(folder / "a");
  file.write("hello ");
  file.write_at(0, "J", 1);
  file.write("you");
  file.commit();
  EXPECT_EQ(read_text(folder / "a"), "Jello you");
  EXPECT_EQ(folder.num_files(), 1u);
}

TEST(AtomicFile, ReplacesAndKeepsTheOldUntilCommit) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
  }
  EXPECT_EQ(read_text(folder / "a"), "old");
  write_file_atomically(folder / "a", "");
  EXPECT_EQ(read_text(folder / "a"), "");
}

TEST(AtomicFile, MovingKeepsOneOwner) {
  const TemporaryFolder folder;
  AtomicFile a(folder / "a");
  a.write("x");
  AtomicFile b(std::move(a));
  b.write("y");
  AtomicFile c(folder / "c");
  c = std::move(b);
  c.commit();
  EXPECT_EQ(read_text(folder / "a"), "xy");
}

TEST(AtomicFile, ErrorsNameThePathAndTheReason) {
  const TemporaryFolder folder;
  const Caught missing = catch_error([&] { AtomicFile(folder / "none/a"); });
  EXPECT_EQ(missing.kind, ErrorKind::kFileSystem);
  EXPECT_TRUE(missing.says("none/a") && missing.says("No such file or directory")) << missing.text;
  std::filesystem::create_directory(folder / "d");
  const Caught is_folder = catch_error([&] { write_file_atomically(folder / "d", "x"); });
  EXPECT_EQ(is_folder.kind, ErrorKind::kFileSystem);
  EXPECT_TRUE(is_folder.says("/d'")) << is_folder.text;
  EXPECT_EQ(folder.num_files(), 1u);  // the temporary file is gone
  AtomicFile file(folder / "a");
  file.commit();
  EXPECT_EQ(catch_error([&] { file.write("x"); }).kind, ErrorKind::kUsage);
  EXPECT_EQ(catch_error([&] { file.commit(); }).kind, ErrorKind::kUsage);
  EXPECT_EQ(catch_error([&] { AtomicFile(std::filesystem::path{}); }).kind, ErrorKind::kUsage);
}

TEST(AtomicFile, FullDiskIsNamed) {
  const Error error = system_error("write", "/data/x.bin", ENOSPC, "4096 bytes to be written");
  EXPECT_STREQ(error.what(),
               "[write] '/data/x.bin': got \"No space left on device\" (errno 28), expected 4096 bytes to be written. "
               "Free some space or choose another disk.");
}

TEST(AtomicFile, FailedWriteLeavesTheOldFile) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Caught error = catch_error([&] { write_file_atomically(folder / "a", "more than ten bytes"); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.kind, ErrorKind::kFileSystem);
  EXPECT_TRUE(error.says("/a'") && error.says("File too large")) << error.text;
  EXPECT_EQ(read_text(folder / "a"), "old");
  EXPECT_EQ(folder.num_files(), 1u);
}

TEST(ErrorText, NamesFromFilesAreMadePrintable) {
  EXPECT_EQ(in_quotes("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(in_quotes(std::string(1000, 'x')).size(), 205u);
  for (std::string_view name : {"", ".", "..", "a/b", "/a", "a\\b"}) EXPECT_FALSE(is_plain_file_name(name)) << name;
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
  EXPECT_FALSE(is_plain_file_name(std::string(256, 'a')));
  EXPECT_TRUE(is_plain_file_name("model-00001-of-00002.safetensors"));
}

}  // namespace
}  // namespace fsdp::io
