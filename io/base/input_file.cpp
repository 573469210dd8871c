#include "io/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace fsdp::io {

namespace {

// The kernel reads ahead of calls that ask for less than its window; a larger one waits for one window after the other.
constexpr size_t kMaxRead = size_t{1} << 20;

// cachestat(2), of Linux 6.5, as the kernel defines it; C libraries do not know it yet. Asking by preadv2 with
// RWF_NOWAIT would make the kernel read ahead what is then read again past the cache.
constexpr long kCachestat = 451;
struct ByteRange {
  uint64_t offset, bytes;
};
struct CachedPages {
  uint64_t cached = 0, dirty = 0, in_writeback = 0, evicted = 0, recently_evicted = 0;
};

}  // namespace

InputFile::InputFile(std::filesystem::path path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  if (path_.native().find('\0') != std::string::npos) throw error("open", "got a NUL byte, expected a path.");
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw error("open", "got no such file, expected a file. Check the path.");
    throw system_error("open", path_, errno, "a readable file");
  }
  struct stat status = {};
  const int failed = ::fstat(descriptor_, &status) != 0 ? errno : 0;
  if (failed == 0 && S_ISREG(status.st_mode)) {
    size_ = static_cast<uint64_t>(status.st_size);
    return;
  }
  ::close(std::exchange(descriptor_, -1));
  if (failed != 0) throw system_error("open", path_, failed, "to learn its size");
  if (S_ISDIR(status.st_mode)) throw error("open", "got a folder, expected a file. Check the path.");
  throw error("open", "got a device, socket or pipe, expected a regular file. Check the path.");
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      kind_(other.kind_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(kind_, other.kind_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_, other.size_);
  return *this;
}

void InputFile::read_at(uint64_t offset, void* out, size_t num_bytes) const {
  auto* bytes = static_cast<char*>(out);
  size_t done = 0;
  while (done < num_bytes) {
    const size_t piece = std::min(num_bytes - done, kMaxRead);
    const ssize_t got = ::pread(descriptor_, bytes + done, piece, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw system_error("read", path_, errno, std::to_string(num_bytes) + " bytes to be read");
    if (got == 0) {
      throw error("read", "got the end of the file at byte " + std::to_string(offset + done) + ", expected " +
                              std::to_string(num_bytes) + " bytes at offset " + std::to_string(offset) +
                              ". The file is truncated or was changed while in use.");
    }
    done += static_cast<size_t>(got);
  }
}

bool InputFile::is_cached(uint64_t offset, size_t num_bytes) const {
  if (num_bytes == 0) return true;
  const ByteRange range{offset, num_bytes};
  CachedPages pages;
  if (::syscall(kCachestat, descriptor_, &range, &pages, 0) != 0) return false;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return pages.cached == (offset + num_bytes - 1) / page - offset / page + 1;
}

Error InputFile::error(std::string_view op, std::string_view detail) const {
  std::string message = "[";
  message.append(op).append("] ").append(in_quotes(path_.native())).append(": ").append(detail);
  return Error(kind_, message);
}

bool can_be_found(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace fsdp::io
