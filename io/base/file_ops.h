#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>

namespace fsdp::io {

// How a new file's bytes reach the disk.
enum class WriteMode {
  kCached,  // through the page cache
  kDirect,  // past it (O_DIRECT) where the file system can, and for aligned pieces; else as kCached
};

// A file that is being written. Thread-safe for ranges that do not overlap. Closed by its destructor.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  // A hint, before the first write: the file will have that many bytes. Throws where the disk has no room for them.
  virtual void reserve(uint64_t num_bytes) { static_cast<void>(num_bytes); }
  // `data` and `offset` aligned to kDirectAlignment let a kDirect write go past the cache.
  virtual void write_at(uint64_t offset, const void* data, size_t num_bytes) = 0;
  // Returns once everything written survives a power failure.
  virtual void sync() = 0;
};

inline constexpr size_t kDirectAlignment = 4096;  // bytes

// Every change that a checkpoint makes to the disk, behind one interface: tests replay them as a power failure would
// leave them, and faults are injected here. Each failure throws Error(kFileSystem) with path and the system's words.
class FileOps {
 public:
  virtual ~FileOps() = default;
  // The parent must exist, the folder must not.
  virtual void make_folder(const std::filesystem::path& folder) = 0;
  // A new file, mode 0644; it must not exist.
  virtual std::unique_ptr<OutputFile> create(const std::filesystem::path& path, WriteMode mode) = 0;
  // As rename(2): replaces a file, or an empty folder.
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  // Swaps two existing names in one step, where the system can; false (and nothing done) where it cannot.
  virtual bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) = 0;
  // A file, or a folder with all that is in it; nothing if it does not exist.
  virtual void remove_all(const std::filesystem::path& path) = 0;
  // Makes renames, creations and removals in `folder` survive a power failure.
  virtual void sync_folder(const std::filesystem::path& folder) = 0;
};

// The operating system's. Stateless, thread-safe.
FileOps& system_files();

}  // namespace fsdp::io
