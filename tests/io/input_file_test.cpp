#include "io/base/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/io/temporary_folder.h"

namespace fsdp::io {
namespace {

class CachedReads : public ::testing::Test {
 protected:
  CachedReads() : path_(folder_ / "file") {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 131 / 7);
    std::ofstream(path_, std::ios::binary) << bytes_;
  }

  // From now on the page cache has nothing of the file; false if it cannot be told to.
  bool drop_from_cache() const {
    const int descriptor = ::open(path_.c_str(), O_RDONLY);
    const bool dropped = ::fdatasync(descriptor) == 0 && ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) == 0;
    ::close(descriptor);
    return dropped;
  }

  // A file system that has nothing but the page cache keeps all of it.
  bool is_in_memory_only() const {
    struct statfs system = {};
    return ::statfs(path_.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_;
  std::string bytes_ = std::string(4 << 20, ' ');
};

TEST_F(CachedReads, AreToldFromThoseOfTheDisk) {
  const InputFile file(path_, ErrorKind::kModel);
  std::string out(bytes_.size(), ' ');
  file.read_at(0, out.data(), out.size());
  ASSERT_EQ(out, bytes_);
  const bool tells = file.is_cached(0, bytes_.size());  // old kernels do not
  EXPECT_EQ(file.is_cached(5, bytes_.size() - 5), tells);
  EXPECT_FALSE(file.is_cached(1, bytes_.size() + 4096));
  ASSERT_TRUE(drop_from_cache());
  if (is_in_memory_only()) return;
  EXPECT_FALSE(file.is_cached(0, bytes_.size()));
  file.read_at(0, out.data(), 1);
  EXPECT_EQ(file.is_cached(0, 1), tells);
}

}  // namespace
}  // namespace fsdp::io
