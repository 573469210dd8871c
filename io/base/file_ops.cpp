#include "io/base/file_ops.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "io/base/atomic_file.h"
#include "io/base/error.h"

namespace fsdp::io {

namespace {

constexpr size_t kMaxDirectWrite = size_t{1} << 30;
static_assert(kMaxDirectWrite % kDirectAlignment == 0);

// An open file; -1 is none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

// What a file system says that has no such operation, or not for this file.
bool is_unsupported(int error_number) {
  return error_number == EINVAL || error_number == ENOTSUP || error_number == EOPNOTSUPP || error_number == ENOSYS;
}

int open_new(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0) throw system_error("create", path, errno, "a new file in a writable folder");
  return descriptor;
}

int open_direct(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0 && !is_unsupported(errno)) throw system_error("create", path, errno, "to open the new file");
  return descriptor;
}

// Two descriptors of one file: a write goes past the cache where its memory and place allow it.
class SystemFile final : public OutputFile {
 public:
  SystemFile(std::filesystem::path path, WriteMode mode)
      : path_(std::move(path)),
        cached_(open_new(path_)),
        direct_(mode == WriteMode::kDirect ? open_direct(path_) : -1),
        goes_direct_(direct_.get() >= 0) {}

  void reserve(uint64_t num_bytes) override {
    if (num_bytes == 0 || ::fallocate(cached_.get(), 0, 0, static_cast<off_t>(num_bytes)) == 0) return;
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
      throw system_error("reserve", path_, errno, "room for " + std::to_string(num_bytes) + " bytes");
    }
  }

  void write_at(uint64_t offset, const void* data, size_t num_bytes) override {
    const auto* bytes = static_cast<const char*>(data);
    size_t done = 0;
    while (done < num_bytes) {
      const size_t left = std::min(num_bytes - done, kMaxDirectWrite);
      const size_t direct = direct_bytes(bytes + done, offset + done, left);
      const ssize_t got = ::pwrite(direct > 0 ? direct_.get() : cached_.get(), bytes + done, direct > 0 ? direct : left,
                                   static_cast<off_t>(offset + done));
      if (got > 0) {
        done += static_cast<size_t>(got);
        continue;
      }
      const int error_number = got < 0 ? errno : EIO;
      if (error_number == EINTR) continue;
      if (direct > 0 && is_unsupported(error_number)) {
        goes_direct_ = false;  // some file systems take the flag at open and refuse it here
        continue;
      }
      throw system_error("write", path_, error_number,
                         std::to_string(num_bytes) + " bytes to be written at offset " + std::to_string(offset));
    }
  }

  // Also flushes what went past the page cache: it may still be in the cache of the drive.
  void sync() override {
    while (::fsync(cached_.get()) != 0) {
      if (errno != EINTR) throw system_error("fsync", path_, errno, "the data to reach the disk");
    }
  }

 private:
  // How many of the bytes can go past the cache, from the first on.
  size_t direct_bytes(const char* data, uint64_t offset, size_t num_bytes) const {
    if (!goes_direct_ || reinterpret_cast<uintptr_t>(data) % kDirectAlignment != 0 || offset % kDirectAlignment != 0) {
      return 0;
    }
    return num_bytes - num_bytes % kDirectAlignment;
  }

  std::filesystem::path path_;
  Descriptor cached_;
  Descriptor direct_;
  std::atomic<bool> goes_direct_;
};

class SystemFiles final : public FileOps {
 public:
  void make_folder(const std::filesystem::path& folder) override {
    if (::mkdir(folder.c_str(), 0755) != 0) throw system_error("mkdir", folder, errno, "a new folder");
  }

  std::unique_ptr<OutputFile> create(const std::filesystem::path& path, WriteMode mode) override {
    return std::make_unique<SystemFile>(path, mode);
  }

  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return;
    throw system_error("rename", from, errno, "it to take the name " + in_quotes(to.native()));
  }

  bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) override {
    if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
    if (is_unsupported(errno)) return false;
    throw system_error("rename", a, errno, "it to swap names with " + in_quotes(b.native()));
  }

  void remove_all(const std::filesystem::path& path) override {
    std::error_code failure;
    std::filesystem::remove_all(path, failure);
    if (failure) throw system_error("remove", path, failure.value(), "it to be removed");
  }

  void sync_folder(const std::filesystem::path& folder) override { io::sync_folder(folder); }
};

}  // namespace

FileOps& system_files() {
  static SystemFiles files;
  return files;
}

}  // namespace fsdp::io
