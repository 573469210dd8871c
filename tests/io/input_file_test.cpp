#include "io/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
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

  const TemporaryFolder folder_;
  const std::filesystem::path path_;
  std::string bytes_ = std::string(4 << 20, ' ');
};

TEST_F(CachedReads, GiveWhatIsThereOrNothing) {
  const InputFile file(path_, ErrorKind::kModel);
  std::string out(bytes_.size(), ' ');
  file.read_at(0, out.data(), out.size());
  ASSERT_EQ(out, bytes_);
  std::string again(bytes_.size() - 5, ' ');
  if (file.read_if_cached(5, again.data(), again.size())) EXPECT_EQ(again, bytes_.substr(5));
  ASSERT_TRUE(drop_from_cache());
  std::string rest(bytes_.size() / 2, ' ');
  const uint64_t middle = bytes_.size() / 2;
  if (file.read_if_cached(middle, rest.data(), rest.size())) EXPECT_EQ(rest, bytes_.substr(middle));
}

TEST_F(CachedReads, AreNoneBeyondTheEnd) {
  const InputFile file(path_, ErrorKind::kModel);
  std::string out(bytes_.size(), ' ');
  EXPECT_FALSE(file.read_if_cached(1, out.data(), out.size()));
}

}  // namespace
}  // namespace fsdp::io
