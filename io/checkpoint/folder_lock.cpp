#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "io/base/error.h"
#include "io/checkpoint/checkpoint_folder.h"

namespace fsdp::io {

namespace {

constexpr const char* kLockName = ".lock";

enum class Outcome { kLocked, kTaken, kUnsupported };

Outcome try_lock(int descriptor, const std::filesystem::path& path) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return Outcome::kTaken;
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == EBADF) return Outcome::kUnsupported;
    throw system_error("lock", path, errno, "to lock it");
  }
  return Outcome::kLocked;
}

// "process 12 on host 'a'", from what the holder wrote into the file.
std::string holder_of(int descriptor) {
  char text[300] = {};
  const ssize_t got = ::pread(descriptor, text, sizeof(text), 0);
  const std::string_view line(text, got > 0 ? static_cast<size_t>(got) : 0);
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return "another process";
  const std::string_view process = line.substr(space + 1, line.find('\n') - space - 1);
  return "process " + in_quotes(process) + " on host " + in_quotes(line.substr(0, space));
}

[[noreturn]] void refuse(const std::filesystem::path& folder, const std::string& holder) {
  throw Error(ErrorKind::kUsage, "[lock] " + in_quotes(folder.native()) + ": got a folder that " + holder +
                                     " uses, expected a free one. Wait until it ends, stop it, or choose another "
                                     "output folder.");
}

// Whether the name still leads to the open file: somebody may have deleted it in between.
bool is_current(int descriptor, const std::filesystem::path& path) {
  struct stat open = {};
  struct stat named = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

// The lock file, locked. Throws if somebody else has it.
int lock_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kLockName;
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor < 0) throw system_error("lock", path, errno, "a file that can be written");
    try {
      if (try_lock(descriptor, path) == Outcome::kTaken) refuse(folder, holder_of(descriptor));
    } catch (...) {
      ::close(descriptor);
      throw;
    }
    if (is_current(descriptor, path)) return descriptor;
    ::close(descriptor);
  }
}

// For the message that others get; the lock itself does not depend on it.
void write_holder(int descriptor) {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '?';
  const std::string text = std::string(host) + " " + std::to_string(::getpid()) + "\n";
  if (::ftruncate(descriptor, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
  }
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : file_(lock_file(folder)) {
  // Held until the end as well: whoever deletes the file and makes a new one is still kept out.
  folder_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  try {
    if (folder_ >= 0 && try_lock(folder_, folder) == Outcome::kTaken) {
      refuse(folder, "another process, whose lock file was deleted,");
    }
  } catch (...) {
    release();
    throw;
  }
  write_holder(file_);
}

FolderLock::~FolderLock() { release(); }

FolderLock::FolderLock(FolderLock&& other) noexcept
    : file_(std::exchange(other.file_, -1)), folder_(std::exchange(other.folder_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(folder_, other.folder_);
  return *this;
}

void FolderLock::release() noexcept {
  for (int* descriptor : {&file_, &folder_}) {
    if (*descriptor >= 0) ::close(std::exchange(*descriptor, -1));
  }
}

}  // namespace fsdp::io
