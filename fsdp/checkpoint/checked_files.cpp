#include "fsdp/checkpoint/checked_files.h"

#include "fsdp/base/fault_point.h"
#include "io/base/error.h"

namespace fsdp::checkpoint {
namespace {

namespace fs = std::filesystem;

void pass(const char* point, const fs::path& path) {
  const int error_number = fault_point(point).error_number;
  if (error_number != 0) throw io::system_error("fault", path, error_number, "none");
}

class CheckedFile : public io::OutputFile {
 public:
  CheckedFile(std::unique_ptr<io::OutputFile> file, fs::path path) : file_(std::move(file)), path_(std::move(path)) {}
  void reserve(uint64_t num_bytes) override {
    pass("file.reserve", path_);
    file_->reserve(num_bytes);
  }
  void write_at(uint64_t offset, const void* data, size_t num_bytes) override {
    pass("file.write", path_);
    file_->write_at(offset, data, num_bytes);
  }
  void sync() override {
    pass("file.sync", path_);
    file_->sync();
  }

 private:
  std::unique_ptr<io::OutputFile> file_;
  fs::path path_;
};

class CheckedFiles : public io::FileOps {
 public:
  void make_folder(const fs::path& folder) override {
    pass("file.make_folder", folder);
    system_.make_folder(folder);
  }
  std::unique_ptr<io::OutputFile> create(const fs::path& path, io::WriteMode mode) override {
    pass("file.create", path);
    return std::make_unique<CheckedFile>(system_.create(path, mode), path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    pass("file.rename", from);
    system_.rename(from, to);
  }
  bool exchange(const fs::path& a, const fs::path& b) override {
    pass("file.exchange", a);
    return system_.exchange(a, b);
  }
  void remove_all(const fs::path& path) override {
    pass("file.remove", path);
    system_.remove_all(path);
  }
  void sync_folder(const fs::path& folder) override {
    pass("file.sync_folder", folder);
    system_.sync_folder(folder);
  }

 private:
  io::FileOps& system_ = io::system_files();
};

}  // namespace

io::FileOps& checked_files() {
  static CheckedFiles files;
  return files;
}

}  // namespace fsdp::checkpoint
