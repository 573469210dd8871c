#include "fsdp/checkpoint/archive/archive_file.h"

#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "fsdp/base/check.h"
#include "fsdp/checkpoint/outcome.h"
#include "io/base/atomic_file.h"
#include "io/base/error.h"

namespace fsdp {
namespace {

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<uint64_t> counter{0};
  const std::string suffix = ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  // 255 bytes is the longest name a file system takes.
  return parent_of(target) / ("." + target.filename().native().substr(0, 250 - suffix.size()) + suffix);
}

// Flushes a file to the disk.
void sync_file(const std::filesystem::path& file, const std::filesystem::path& target) {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw io::system_error("save", target, errno, "the written file");
  const int failed = ::fsync(descriptor) != 0 ? errno : 0;
  ::close(descriptor);
  if (failed != 0) throw io::system_error("save", target, failed, "the data to reach the disk");
}

}  // namespace

ArchiveFile::ArchiveFile(std::filesystem::path target) : target_(std::move(target)) {
  std::error_code ignored;
  if (target_.filename().empty() || std::filesystem::is_directory(target_, ignored)) {
    FSDP_THROW(kFileSystem, "[save] ", io::in_quotes(target_.native()),
               ": got a folder, expected a file's name. Check the path.");
  }
  make_folder();
  try {
    write("a file that can be written",
          [this] { writer_ = std::make_unique<caffe2::serialize::PyTorchStreamWriter>(file().native()); });
  } catch (...) {
    abandon();
    throw;
  }
}

ArchiveFile::~ArchiveFile() { abandon(); }

void ArchiveFile::make_folder() {
  int failed = 0;
  do {  // a name can be left over from a process that had the same id and was killed
    folder_ = temporary_name(target_);
    failed = ::mkdir(folder_.c_str(), 0777) != 0 ? errno : 0;
  } while (failed == EEXIST);
  if (failed != 0) throw io::system_error("save", target_, failed, "a writable folder");
}

void ArchiveFile::add(const std::string& record, const void* data, size_t num_bytes, bool compressed) {
  write(c10::str(num_bytes, " bytes of ", record, " to be written"),
        [&] { writer_->writeRecord(record, data, num_bytes, compressed); });
}

void ArchiveFile::commit() {
  write("the table of contents to be written", [this] { writer_->writeEndOfFile(); });
  writer_.reset();
  sync_file(file(), target_);
  if (::rename(file().c_str(), target_.c_str()) != 0) {
    throw io::system_error("save", target_, errno, "the finished file to take its name");
  }
  abandon();
  io::sync_folder(parent_of(target_));
}

// LibTorch keeps quiet about the system's reason.
void ArchiveFile::write(const std::string& expected, const std::function<void()>& action) {
  errno = 0;
  try {
    action();
  } catch (const std::exception& error) {
    const int reason = errno;
    if (reason != 0) throw io::system_error("save", target_, reason, expected);
    FSDP_THROW(kFileSystem, "[save] ", io::in_quotes(target_.native()), ": got \"", one_line(error), "\", expected ",
               expected, ". Check the path and the file system.");
  }
}

void ArchiveFile::abandon() noexcept {
  if (writer_ && !writer_->finalized()) {
    // The writer's destructor ends the process if it cannot finish the file.
    try {
      writer_->writeEndOfFile();
    } catch (...) {
      // The file goes away.
    }
  }
  writer_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(std::exchange(folder_, {}), ignored);
}

}  // namespace fsdp
