#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "tests/fuzz/promises.h"

namespace fsdp::fuzz {

// A regular file in memory, in no folder. Opening path() opens it.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) { FUZZ_REQUIRE(descriptor_ >= 0); }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void assign(std::string_view bytes) {
    FUZZ_REQUIRE(::ftruncate(descriptor_, 0) == 0);
    FUZZ_REQUIRE(::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

// A folder where TMPDIR says, else in memory; goes away with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    const bool chosen = std::getenv("TMPDIR") != nullptr || !std::filesystem::is_directory("/dev/shm");
    const std::filesystem::path parent = chosen ? std::filesystem::temp_directory_path() : "/dev/shm";
    std::string name = (parent / "fsdp-fuzz-XXXXXX").native();
    FUZZ_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  void write(std::string_view name, std::string_view bytes) const {
    const int descriptor = ::open((path_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    FUZZ_REQUIRE(descriptor >= 0);
    FUZZ_REQUIRE(::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
  }
  void remove(std::string_view name) const { ::unlink((path_ / name).c_str()); }
  size_t num_files() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace fsdp::fuzz
