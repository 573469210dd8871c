#include "io/base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "io/base/error.h"
#include "io/base/input_file.h"

namespace fsdp::io {

namespace {

constexpr size_t kMaxWrite = size_t{1} << 30;
constexpr uint64_t kCopyBytes = uint64_t{1} << 20;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.parent_path();
  return folder.empty() ? std::filesystem::path(".") : folder;
}

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<uint64_t> counter{0};
  const std::string suffix = ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  // 255 bytes is the longest name a file system takes; a long target keeps only the start of its name here.
  const std::string stem = target.filename().native().substr(0, 250 - suffix.size());
  return folder_of(target) / ("." + stem + suffix);
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target) : target_(std::move(target)) {
  if (target_.filename().empty() || target_.native().find('\0') != std::string::npos) {
    throw Error(ErrorKind::kUsage, "[create] " + in_quotes(target_.native()) + ": got no file name, expected a path.");
  }
  do {  // a name can be left over from a process that had the same id and was killed
    temporary_ = temporary_name(target_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw system_error("create", target_, errno, "a writable folder");
}

AtomicFile::~AtomicFile() { discard(); }

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      position_(other.position_) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(position_, other.position_);
  return *this;
}

void AtomicFile::write(const void* data, size_t num_bytes) {
  write_at(position_, data, num_bytes);
  position_ += num_bytes;
}

void AtomicFile::write_at(uint64_t offset, const void* data, size_t num_bytes) {
  if (descriptor_ < 0) {
    throw Error(ErrorKind::kUsage, "[write] " + in_quotes(target_.native()) +
                                       ": got a write after commit, expected none. Open a new AtomicFile.");
  }
  const auto* bytes = static_cast<const char*>(data);
  size_t done = 0;
  while (done < num_bytes) {
    const size_t piece = std::min(num_bytes - done, kMaxWrite);
    const ssize_t got = ::pwrite(descriptor_, bytes + done, piece, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw system_error("write", target_, errno,
                         std::to_string(num_bytes) + " bytes to be written at offset " + std::to_string(offset));
    }
    done += static_cast<size_t>(got);
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) {
    throw Error(ErrorKind::kUsage, "[commit] " + in_quotes(target_.native()) +
                                       ": got a second commit, expected one. Open a new AtomicFile.");
  }
  if (::fsync(descriptor_) != 0) throw system_error("fsync", target_, errno, "the data to reach the disk");
  const int closed = ::close(std::exchange(descriptor_, -1));
  const int renamed = closed == 0 ? ::rename(temporary_.c_str(), target_.c_str()) : closed;
  if (renamed != 0) {
    const int error_number = errno;
    ::unlink(temporary_.c_str());
    throw system_error("rename", target_, error_number, "the finished file to take its name");
  }
  sync_folder(folder_of(target_));
}

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  ::unlink(temporary_.c_str());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to, ErrorKind kind) {
  const InputFile input(from, kind);
  AtomicFile output(to);
  std::vector<char> piece(std::min<uint64_t>(input.size(), kCopyBytes));
  for (uint64_t offset = 0; offset < input.size(); offset += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), input.size() - offset));
    input.read_at(offset, piece.data(), piece.size());
    output.write(piece.data(), piece.size());
  }
  output.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw system_error("fsync", folder, errno, "a folder that can be opened");
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  // Some network file systems cannot flush folders; they have no stronger promise to give.
  if (failed != 0 && failed != EINVAL) throw system_error("fsync", folder, failed, "the folder to reach the disk");
}

}  // namespace fsdp::io
