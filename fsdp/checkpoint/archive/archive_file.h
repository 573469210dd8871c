#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamWriter;
}  // namespace caffe2::serialize

namespace fsdp {

// An archive being written, which appears under its name complete or not at all: it is made in a folder of its own
// beside the target, under the target's name, because the names of its records begin with that. Throws
// Error(kFileSystem) with the target's path and, where known, the system's words.
class ArchiveFile {
 public:
  explicit ArchiveFile(std::filesystem::path target);
  // Leaves nothing behind unless commit() succeeded.
  ~ArchiveFile();
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;

  void add(const std::string& record, const void* data, size_t num_bytes, bool compressed = false);
  // Once it returns, the file survives a power failure.
  void commit();

 private:
  void make_folder();
  void abandon() noexcept;
  void write(const std::string& expected, const std::function<void()>& action);
  std::filesystem::path file() const { return folder_ / target_.filename(); }

  std::filesystem::path target_;
  std::filesystem::path folder_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamWriter> writer_;
};

}  // namespace fsdp
